"""Data-parallel training: several ranks are one process, to rounding; and none waits for one that is gone."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import ranks
from hypothesis import given
from hypothesis import strategies as st

import microtensor as mt
from microtensor import nn, train
from microtensor.mode import Block
from microtensor.train import buckets, parallel, peers, start, step, trainer
from microtensor.train.interrupt import Interrupt
from microtensor.train.process import Process, this_process

ROOT = Path(__file__).resolve().parent.parent
HERE = str(Path(sys.executable).parent)  # where the extra mpi puts Open MPI; another MPI has other options
MPIRUN = shutil.which("ompi_info", path=HERE) and shutil.which("mpirun", path=HERE)
try:
    import mpi4py
except ModuleNotFoundError:
    mpi4py = None
needs_mpi = pytest.mark.skipif(MPIRUN is None or mpi4py is None, reason="needs the extra mpi")


def mpirun(n, *command, cwd, options=()):
    """Run a Python program on n ranks, as root, too, and on fewer cores; looking for networks is left out."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MICROTENSOR_QUIET": "1"}
    for name in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_pml", "MCA_btl"):
        environment[f"OMPI_{name}"] = {"MCA_pml": "ob1", "MCA_btl": "self,sm"}.get(name, "1")
    start = [
        MPIRUN,
        "--bind-to",
        "none",
        "--map-by",
        ":OVERSUBSCRIBE",
        *options,
        "-n",
        str(n),
        sys.executable,
    ]
    command = [*start, *map(str, command)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def read(folder, rank=0):
    return json.loads(Path(f"{folder}-{rank}.json").read_text(encoding="utf-8"))


def same(one, other):
    """To rounding in float64."""
    for a, b in zip(one["history"], other["history"], strict=True):
        for name in ("step", "loss", "grad_norm", "lr", *(["all"] if "all" in a else [])):
            assert a[name] == pytest.approx(b[name], rel=1e-10), (a["step"], name)
    assert one["weights"].keys() == other["weights"].keys()
    for name, w in one["weights"].items():
        np.testing.assert_allclose(w, other["weights"][name], rtol=1e-10, atol=1e-12, err_msg=name)


def alone(job, folder):
    run = ranks.JOBS[job](folder)
    run.progress = False
    history = run.resume() if job == "resume" else run.fit()
    return {"history": history, "weights": ranks.weights(run)}


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The runs of one process, half a run among them."""
    folder = tmp_path_factory.mktemp("one")
    return {job: alone(job, folder / job) for job in ("train", "uncounted", "half", "dropout")} | {
        "folder": folder
    }


@pytest.fixture(scope="module")
def two(one, tmp_path_factory):
    """The runs of two ranks, one of which goes on from the half run of one process."""
    folder = tmp_path_factory.mktemp("two")
    shutil.copytree(one["folder"] / "half", folder / "resume")
    names = ["train", "uncounted", "half", "resume", "stop", "dropout", "again"]
    jobs = [f"{'dropout' if name == 'again' else name}:{name}" for name in names]
    done = mpirun(2, ROOT / "tests" / "ranks.py", *jobs, cwd=folder)
    assert done.returncode == 0, done.stderr
    return {name: read(folder / name) for name in names} | {"folder": folder, "stderr": done.stderr}


# --- equal to one process -----------------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("job", ["train", "uncounted"])
def test_two_ranks_are_one_process_to_rounding(one, two, job):
    same(one[job], two[job])


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A run of three ranks, and one in which rank 1 is killed; mpirun leaves the others alone.

    Else it ends them half a second later, which a busy machine may need.
    """
    folder, leave = tmp_path_factory.mktemp("three"), ("--runtime-options", "continuous")
    done = mpirun(3, ROOT / "tests" / "ranks.py", "train:three", "dropout:dropout", "kill:run", cwd=folder,
                  options=leave)  # fmt: skip
    return {name: read(folder / name) for name in ("three", "dropout")} | {"stderr": done.stderr}


@needs_mpi
def test_three_ranks_are_too_with_batches_of_one_row(one, three):
    same(one["train"], three["three"])


@needs_mpi
def test_all_ranks_end_with_the_same_bits_and_the_same_random_state(two):
    for name in ("train", "dropout", "stop"):
        other = read(two["folder"] / name, 1)
        assert other["weights"] == two[name]["weights"]
        assert other["random"] == two[name]["random"]


@needs_mpi
def test_one_rank_goes_on_where_two_stopped_and_two_where_one_did(one, two):
    whole = one["train"]
    same({**whole, "history": whole["history"][ranks.MIDDLE :]}, two["resume"])
    same({**whole, "history": whole["history"][ranks.MIDDLE :]}, alone("resume", two["folder"] / "half"))


@needs_mpi
def test_only_one_rank_writes_and_shows_progress(two):
    folder = two["folder"]
    log = (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in log] == list(range(1, ranks.STEPS + 1))
    assert [path.name for path in sorted((folder / "train").glob("*.safetensors"))] == [
        f"step-{step:08}.safetensors" for step in (ranks.MIDDLE, ranks.STEPS)
    ]
    assert any("train" in path for path in read(folder / "train", 0)["written"])
    assert not [path for path in read(folder / "train", 1)["written"] if "train" in path]
    assert two["stderr"].count(f" 0/{ranks.STEPS} ") == 5  # runs from the start with that many steps


@needs_mpi
def test_what_one_rank_stops_all_stop(two):
    assert len(two["stop"]["history"]) == 3
    assert len(read(two["folder"] / "stop", 1)["history"]) == 3


@needs_mpi
def test_dropout_is_that_of_one_process_and_of_the_seed(one, two, three):
    same(one["dropout"], two["dropout"])
    same(one["dropout"], three["dropout"])
    assert two["dropout"]["weights"] == two["again"]["weights"]
    assert two["dropout"]["weights"] != two["train"]["weights"]


@needs_mpi
def test_the_main_example_on_two_ranks_is_that_of_one(tmp_path):
    job = [ROOT / "examples" / "translate_dates.py", "--smoke"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *map(str, job), "--out", "one"], cwd=tmp_path, env=environment,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = mpirun(2, *job, "--out", "two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("exact match on 50 held-out dates") == 1
    assert done.stdout.count("go on with the same command and --resume") == 1
    logs = [
        (tmp_path / name / "log.jsonl").read_text(encoding="utf-8").splitlines() for name in ("one", "two")
    ]
    for a, b in zip(*([json.loads(line) for line in log] for log in logs), strict=True):
        assert a["step"] == b["step"]
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    path = "step-00000020.safetensors"
    ends = [train.load_checkpoint(tmp_path / name / path).model for name in ("one", "two")]
    for name, w in ends[0].items():
        if not name.endswith("k_proj.bias"):  # softmax does not see it: Adam steps by the signs of rounding
            np.testing.assert_allclose(w.array, ends[1][name].array, atol=5e-5, err_msg=name)


# --- a rank is gone -----------------------------------------------------------------------------------------


@needs_mpi
def test_a_killed_rank_ends_the_run_and_the_last_checkpoint_goes_on(one, tmp_path):
    done = mpirun(2, ROOT / "tests" / "ranks.py", "kill:run", cwd=tmp_path)
    assert done.returncode != 0
    assert re.search(r"rank 1 .*(gone|Killed)", done.stderr, re.DOTALL)
    whole = one["train"]
    same({**whole, "history": whole["history"][ranks.MIDDLE :]}, alone("resume", tmp_path / "run"))


@needs_mpi
def test_the_others_say_which_rank_was_killed_and_how_to_go_on(three):
    said = r"Trainer: rank 1 of 3 is gone \(its process \d+ was killed, or ended at once\), so rank {} ends; "
    for rank in (0, 2):
        assert re.search(said.format(rank), three["stderr"]), three["stderr"]
    assert "'run/step-00000008.safetensors' is kept; alone or with any number of ranks, go" in three["stderr"]


@needs_mpi
def test_a_rank_that_fails_ends_the_run_and_all_say_why(tmp_path):
    done = mpirun(2, ROOT / "tests" / "ranks.py", "raise:run", cwd=tmp_path)
    assert done.returncode != 0
    assert "ArithmeticError: the sum is odd" in done.stderr
    assert "on rank 1 of 2: 'run/step-00000008.safetensors' is kept; alone or with any number" in done.stderr
    assert "Trainer: rank 1 of 2 failed with ArithmeticError: the sum is odd, so rank 0 ends; " in done.stderr


WRONG = """
import sys, microtensor as mt
sys.path.insert(0, {tests!r})
import ranks
from microtensor.train import world
run = ranks.trainer(None)
{wrong}
run.fit()
"""


@needs_mpi
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("run.model.never.data += world().rank", "model of rank 0 and rank 1 differ; call mt.manual_seed"),
        (
            "run.train_loader.dataset.tensors[0].data += world().rank",
            "rank 1 drew another batch than rank 0",
        ),
        (
            "f = run.loss_fn; run.loss_fn = lambda m, b: f(m, b) if world().rank else f(m, b)[0]",
            "TypeError: Trainer: loss_fn counted the tokens on 1 of 2 ranks; return (loss, number",
        ),
        ("if world().rank: sys.exit(0)", "rank 1 of 2 came to its end while others were training"),
    ],
)
def test_ranks_that_cannot_go_together_end(tmp_path, wrong, says):
    (tmp_path / "wrong.py").write_text(WRONG.format(tests=str(ROOT / "tests"), wrong=wrong), encoding="utf-8")
    done = mpirun(2, "wrong.py", cwd=tmp_path)
    assert done.returncode != 0
    assert says in done.stderr
    if "TypeError" in says:
        assert done.stderr.count(f"\n{says}") == 2  # all ranks find it, none waits


LATE = """
import sys, os
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    sys.exit(0)
from microtensor import train
train.world()
"""


@needs_mpi
def test_a_rank_that_ends_before_it_begins_lets_no_other_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setenv("MICROTENSOR_START_LIMIT", "2")
    (tmp_path / "late.py").write_text(LATE, encoding="utf-8")
    done = mpirun(2, "late.py", cwd=tmp_path)
    assert done.returncode != 0
    assert "train: rank 0 of 2 has waited 2 s for all others to begin, and one has ended or " in done.stderr


def test_a_start_has_whole_seconds(monkeypatch):
    monkeypatch.setenv("MICROTENSOR_START_LIMIT", "soon")
    with pytest.raises(ValueError, match=r"^train: MICROTENSOR_START_LIMIT is 'soon'; give whole seconds"):
        start.start_limit(2).__enter__()


# --- without MPI --------------------------------------------------------------------------------------------


def test_without_mpirun_there_is_one_rank_and_no_mpi():
    code = (
        "import sys; from microtensor import train; w = train.world(); print(w.size, 'mpi4py' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.split() == ["1", "False"]


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_mpirun_without_mpi4py_says_what_to_install(name, monkeypatch):
    monkeypatch.setenv(name, "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    parallel.world.cache_clear()
    try:
        with pytest.raises(
            ModuleNotFoundError, match=r"started 2 processes, .*pip install 'microtensor\[mpi\]'"
        ):
            train.world()
    finally:
        parallel.world.cache_clear()


class Double:
    """MPI and its communicator for rank 0 of two: rank 1 does as rank 0, and says what is in inbox."""

    IN_PLACE, ANY_SOURCE, ANY_TAG, BYTE = range(4)
    rank, size = 0, 2

    def __init__(self):
        self.inbox, self.sent, self.aborted, self.finalized, self.ready = [], [], None, False, True
        self.Request = self

    def Dup(self):
        return self

    def Iallgather(self, mine, everyone):
        everyone[:] = mine

    def Iallgatherv(self, mine, everyone):
        everyone[0][:] = np.tile(mine, 2)

    def Ibcast(self, array):
        return self

    def Iallreduce(self, _, array):
        array *= 2
        if array.dtype == np.float64 and array.size == 5:  # totals, and the checksum of each rank's batch
            array[3:] = array[3] / 2
        return self

    def Test(self):
        return True

    def Testall(self, requests):
        return self.ready

    def Waitall(self, requests):
        self.finalized = True

    def Isend(self, text, rank, tag):
        self.sent.append((rank, tag, json.loads(text.tobytes())))

    def Status(self):
        return SimpleNamespace(source=1, tag=self.inbox[0][0] if self.inbox else 0, Get_count=self.count)

    def count(self, _):
        return len(json.dumps(self.inbox[0][1]))

    def Improbe(self, source, tag, status):
        status.tag = self.inbox[0][0] if self.inbox else 0
        return self if self.inbox else None

    def Recv(self, text):
        text[:] = np.frombuffer(json.dumps(self.inbox.pop(0)[1]).encode(), np.uint8)

    def Is_finalized(self):
        return self.finalized

    def Abort(self, code):
        self.aborted = self.finalized = True


@pytest.fixture
def double(monkeypatch):
    monkeypatch.setattr(peers.atexit, "register", lambda function: None)
    monkeypatch.setattr(peers, "LOOK", 0.0)
    monkeypatch.setattr(peers, "PATIENCE", 0.0)
    return Double()


def test_a_rank_whose_double_computes_the_same_gets_its_own_gradients(double, monkeypatch):
    cut = [parallel._rows(B, 0, 2)[0] for B in (ranks.BATCH, 1)]  # what rank 0 gets

    def counted(model, batch):
        return ranks.uncounted(model, batch), len(batch[0])

    def alone_on_its_share(model, batch):
        return counted(model, [t[cut[len(t) == 1]] for t in batch])

    of_two = parallel._Ranks(double, double)
    for module in (step, trainer):
        monkeypatch.setattr(module, "world", lambda: of_two)
    both = ranks.trainer(None, dropout=0.3, progress=False, loss_fn=counted)
    found = {"history": both.fit(), "weights": ranks.weights(both)}
    monkeypatch.undo()
    one = ranks.trainer(None, dropout=0.3, progress=False, loss_fn=alone_on_its_share)
    same({"history": one.fit(), "weights": ranks.weights(one)}, found)
    assert both.world.seconds > 0


def gone(other):
    other._here[1] = Process(this_process().host, 2**31 - 1, "")


def failed(other):
    other._news.inbox.append((peers.FAILED, {"rank": 1, "why": "failed with ValueError: no"}))


def left(other):
    other._news.inbox.append((peers.LEAVING, {}))


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (
            gone,
            r"rank 1 of 2 is gone \(its process \d+ was killed, or ended at once\), so rank 0 ends; call it",
        ),
        (failed, "rank 1 of 2 failed with ValueError: no, so rank 0 ends; call it"),
        (left, "rank 1 of 2 came to its end while others were training, so rank 0 ends; call it"),
    ],
)
def test_who_waits_learns_that_another_is_gone(double, end, says):
    other = peers.Peers(double, double)
    double.ready = False
    end(other)
    with pytest.raises(RuntimeError, match=says), other.watched(lambda: "call it"):
        other.wait([])
    assert [(rank, tag) for rank, tag, _ in double.sent] == [(1, peers.FAILED)]
    with pytest.raises(RuntimeError, match="start mpirun again"), other.watched(lambda: ""):
        pass
    other._leave()
    assert double.aborted


def test_sigterm_is_for_its_handler_if_all_are_there_and_else_ends_the_wait(double):
    other, heard = peers.Peers(double, double), []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with other.watched(lambda: ""):
            signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
        gone(other)
        with pytest.raises(RuntimeError, match="rank 1 of 2 is gone"), other.watched(lambda: ""):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("end", [gone, failed])
def test_once_a_rank_is_gone_sigterm_does_not_cut_off_what_the_others_say(double, end):
    other = peers.Peers(double, double)
    double.ready = False
    end(other)
    ended = []  # as the default would end the process
    before = signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    try:
        with pytest.raises(RuntimeError, match="rank 1 of 2"), Interrupt(), other.watched(lambda: ""):
            other.wait([])
        signal.raise_signal(signal.SIGTERM)  # mpirun's, while the error is on its way to the user
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == []


def test_at_its_end_a_rank_waits_for_the_others_and_does_not_abort(double):
    other = peers.Peers(double, double)
    left(other)
    other._leave()
    assert double.sent == [(1, peers.LEAVING, {})]
    assert double.finalized
    assert double.aborted is None
    other._leave()  # MPI has ended: nothing more to say
    assert len(double.sent) == 1


def test_batches_and_states_that_differ_are_errors(double):
    both = parallel._Ranks(double, double)
    with pytest.raises(ValueError, match=r"shapes \[\(3,\), \(2,\)\], which cannot be divided among 2 ranks"):
        both.share(iter([(mt.ones(3), mt.ones(2))]))
    texts = np.frombuffer(b'{"model": "a"}{"model": "b"}', np.uint8)
    double.Iallgatherv = lambda mine, everyone: np.copyto(everyone[0], texts)
    with pytest.raises(RuntimeError, match="model of rank 1 and rank 0 differ"):
        both.check_equal(lambda: {"model": "a"})
    assert both.any(True)
    assert not both.any(False)


class Comm:
    """Stands for all ranks at once: what one of them adds up comes back multiplied by their number."""

    def __init__(self, n, late=0):
        self.n, self.late, self.sums = n, late, []

    def add_up(self, array):
        array *= self.n
        self.sums.append(array)
        return self

    def Test(self):
        self.late -= 1
        return self.late < 0


def network():
    mt.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def backward(net, which, filling):
    loss = net(mt.ones(3, 4)).sum()
    for number in which:
        loss = loss + (net[number].weight ** 2).sum()
    with filling:
        loss.backward()


@given(
    st.permutations(range(6)),
    st.lists(st.sampled_from([0, 2, 4]), max_size=5),
    st.integers(1, 400),
    st.integers(0, 7),
)
def test_any_order_of_arrival_gives_the_sums(order, again, size, late):
    """Whatever rank 0's order is, and however often a parameter is used."""
    net, comm = network(), Comm(3, late)
    parameters = [*net.parameters(), nn.Parameter(mt.ones(5))]

    def agree(numbers):
        numbers[:6] = order

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "BUCKET", size)
        sums = buckets.Buckets(parameters, comm.add_up, agree)
        for step in range(3):
            backward(net, again, Block())
            expected = [None if p.grad is None else 6 * p.grad.array.copy() for p in parameters]
            net.zero_grad()
            backward(net, again, sums.filling(2.0))
            begun = len(comm.sums)
            sums.finish(2.0, 1.0, lambda requests: None)
            for p, g in zip(parameters, expected, strict=True):
                assert (p.grad is None) == (g is None)
                if g is not None:
                    np.testing.assert_allclose(p.grad.array, g, rtol=1e-5)
            assert [array.size for array in comm.sums] == [array.size for array in sums_of(sums)]
            if step == 0 and not begun:
                comm.late = late
            comm.sums.clear()
            net.zero_grad()


def sums_of(sums):
    return [bucket.array for bucket in sums._buckets]


def test_sums_begin_while_backward_goes_on(monkeypatch):
    monkeypatch.setattr(buckets, "BUCKET", 1)
    net, comm = network(), Comm(1)
    sums, begun = buckets.Buckets(list(net.parameters()), comm.add_up, lambda numbers: None), []
    backward(net, (), sums.filling(1.0))
    sums.finish(1.0, 1.0, lambda requests: None)
    comm.sums.clear()
    net[0].weight.register_hook(lambda g: begun.append(len(comm.sums)))
    backward(net, (), sums.filling(1.0))
    assert begun == [4]  # of six parameters all but those of the first layer had left


def test_gradients_of_all_batches_of_a_step_are_summed(monkeypatch):
    monkeypatch.setattr(buckets, "BUCKET", 1)
    net, comm = network(), Comm(1)
    sums = buckets.Buckets(list(net.parameters()), comm.add_up, lambda numbers: None)
    for _ in range(2):
        net.zero_grad()
        backward(net, (0,), Block())
        expected = [2 * p.grad.array for p in net.parameters()]
        backward(net, (0,), sums.filling(1.0))
        sums.finish(1.0, 1.0, lambda requests: None)
        for p, g in zip(net.parameters(), expected, strict=True):
            np.testing.assert_allclose(p.grad.array, g, rtol=1e-6)


def test_a_hook_of_a_leaf_runs_once_and_what_it_returns_is_summed():
    net, calls = network(), []
    sums = buckets.Buckets(list(net.parameters()), Comm(1).add_up, lambda numbers: None)
    net[2].weight.register_hook(lambda g: calls.append(1) or g * 0 + 7)
    for _ in range(2):
        net.zero_grad()
        backward(net, (), sums.filling(1.0))
        sums.finish(1.0, 1.0, lambda requests: None)
        assert (net[2].weight.grad.array == 7).all()
    assert len(calls) == 2


@given(st.integers(1, 20), st.integers(1, 9))
def test_shares_are_a_partition_of_the_rows(B, n):
    x = mt.arange(B)
    seen, parts = [], 0.0
    for rank in range(n):
        rows, part = parallel._rows(B, rank, n)
        seen += x[rows].tolist() if part else []
        parts += part
        assert len(x[rows]) > 0
    assert seen == x.tolist()
    assert parts == pytest.approx(1)


def test_every_part_of_a_batch_is_cut_along_its_first_axis():
    batch = {
        "x": mt.ones(4, 2),
        "more": (np.arange(4), ["a", "b", "c", "d"]),
        "scale": mt.tensor(2.0),
        "of": 3,
    }
    cut = parallel._cut(batch, slice(1, 3), 4)
    assert cut["x"].shape == (2, 2)
    assert cut["more"][0].tolist() == [1, 2]
    assert cut["more"][1] == ["b", "c"]
    assert cut["scale"].item() == 2.0
    assert cut["of"] == 3


# --- the tool that measures ---------------------------------------------------------------------------------

MODEL = ROOT / "tools" / "parallel_model.py"


def test_the_model_of_many_ranks_measures_one(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MICROTENSOR_QUIET": "1"}
    command = [sys.executable, str(MODEL), "--steps", "1"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^ *(\d+) +\d+ +\d+\.\d+ +\d+\.\d+ +\d+\.\d+ +\d+ %$", done.stdout, re.M)
    assert rows == ["1", "2", "4", "8", "16", "32", "64"]


@needs_mpi
def test_two_ranks_measure_what_they_say_to_each_other(tmp_path):
    done = mpirun(2, MODEL, "--steps", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shares = re.findall(r" ms a step (with overlap|without), (\d+\.\d) % of it for the other", done.stdout)
    assert [how for how, _ in shares] == ["with overlap", "without"]
    assert all(0 < float(share) < 100 for _, share in shares)
    assert re.search(r"alpha \d\.\d\de-\d\d s, beta \d\.\d\de\+\d\d bytes/s", done.stdout)
