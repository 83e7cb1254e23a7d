"""The main job as its user meets it: it runs, stops, goes on, and refuses in one line what cannot work."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from examples_here import NEEDS, run_here, skip_without_what_it_needs
from safetensors.numpy import load_file

import microtensor as mt
from microtensor.data import DateCorpus

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "examples" / "translate_dates.py"


def job(*arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(JOB), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smoke")
    return folder, job("--smoke", "--text", "3 mars 1998", "--text", "4.5.2001", cwd=folder)


def test_the_main_job_trains_translates_and_draws(finished):
    folder, done = finished
    assert done.returncode == 0, done.stderr
    out = folder / "runs" / "dates-smoke"
    for name in (
        "step-00000020.safetensors",
        "log.jsonl",
        "cross_attention.svg",
        "attention_layer.svg",
        "curves.png",
    ):
        assert (out / name).stat().st_size > 0
    assert f"{Path('runs', 'dates-smoke')} holds no run yet, so one is trained first" in done.stdout
    assert re.search(r"exact match on 50 held-out dates: \d+\.\d %", done.stdout)
    first, second = done.stdout.splitlines()[-2:]  # what was asked for is not buried
    assert first.startswith("'3 mars 1998' is read as")
    assert second.startswith("'4.5.2001' is read as")
    assert done.stdout.count("right") + done.stdout.count("WRONG") == 0
    assert "Warning" not in done.stderr


def test_the_loss_asks_for_the_next_character(monkeypatch):
    monkeypatch.syspath_prepend(str(JOB.parent))
    from translate_dates import loss_of

    def sure(of):
        return lambda src, tgt: mt.nn.functional.one_hot(of(tgt), 20).double() * 100

    batch = (mt.ones(2, 3, dtype=mt.long), mt.arange(1, 13).expand(2, 12))
    right, n = loss_of(sure(lambda shown: shown + 1), batch)
    repeating, _ = loss_of(sure(lambda shown: shown), batch)
    # of label smoothing's 0.1, 0.095 is spread over what the model gives e⁻¹⁰⁰
    assert right.item() == pytest.approx(9.5)
    assert repeating.item() == pytest.approx(9.5 + 90)
    assert n == 22


def test_the_curve_counts_the_dates_that_the_last_line_counts(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(JOB.parent))
    import translate_dates

    monkeypatch.setattr(translate_dates, "exact_match", lambda model, corpus, pairs: len(pairs))
    corpus, options = DateCorpus(n_test=300), Namespace(seed=0, smoke=True, steps=1, out=tmp_path)
    trainer = translate_dates.make_trainer(options, corpus, corpus.test_pairs())
    assert trainer.evaluate(trainer.model) == {"exact_match": 300}


def test_a_finished_run_resumes_to_look_again(finished):
    folder, _ = finished
    done = job("--smoke", "--resume", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "trained to step 20 by an earlier run\n" in done.stdout
    assert "no run yet" not in done.stdout
    assert done.stdout.count("right") + done.stdout.count("WRONG") == 10


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--text", "3 März 🎉 1998"], "PARTY POPPER"),
        (
            ["--text", "3 MARS 1998"],
            "--text: 'R' (LATIN CAPITAL LETTER R) in '3 MARS 1998' is in no date of the corpus",
        ),
        (["--text", ""], "has 0 characters; give 1 to 63"),
        (["--text", "1" * 64], "has 64 characters; give 1 to 63"),
        (["--steps", "0"], "--steps is 0; give at least 1"),
        (["--smoke"], "holds a run already; go on with --resume"),
        (["--resume", "--out", "nowhere"], "holds no checkpoint; leave --resume out"),
        (["--resume", "--smoke", "--seed", "1"], "has 0; leave --seed out"),
        (["--resume", "--out", "runs/dates-smoke", "--steps", "0"], "has 20; leave --steps out"),
        (["--resume", "--smoke", "--steps", "30"], "has 20; leave --steps out"),
        (["--out", "file.txt"], "file.txt is no folder; name another"),
        (["--out", "file.txt/in/it"], "--out file.txt/in/it: file.txt is no folder; name another"),
        (["--out", "a" * 300], "File name too long; name another"),
        (["--out", "new", "--seed", "-1"], "--seed is -1; give at least 0"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_before_anything_is_trained(
    finished, monkeypatch, arguments, says
):
    folder, _ = finished
    (folder / "file.txt").touch()
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    status, _, stderr = run_here("translate_dates", *arguments)
    assert status == 2
    assert says in stderr
    assert stderr.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


def interrupt(arguments, sign, cwd, after):
    """Start the job, wait until a checkpoint of at least step `after` exists, send the signal."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(JOB), *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not any(int(p.stem[5:]) >= after for p in Path(cwd).rglob("step-*.safetensors")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(sign)
    return process.communicate()[0], process.returncode


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = job("--smoke", "--steps", 150, "--out", "b", cwd=folder)
    assert done.returncode == 0, done.stderr
    return load_file(folder / "b" / "step-00000150.safetensors")


def test_sigterm_finishes_the_step_and_says_how_to_go_on(tmp_path):
    stdout, code = interrupt(["--smoke", "--steps", 300, "--out", "a"], signal.SIGTERM, tmp_path, after=20)
    assert code == 143
    assert shlex.split(stdout.strip().splitlines()[-1])[-1] == "--resume"


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_stopped_in_the_middle_and_resumed_it_ends_with_the_same_bits(tmp_path, sign, whole):
    arguments = ["--smoke", "--steps", 150, "--out", "a"]
    stdout, code = interrupt(arguments, sign, tmp_path, after=40)
    steps = [int(p.stem[5:]) for p in (tmp_path / "a").glob("step-*.safetensors")]
    assert code != 0
    assert max(steps) < 150, "it was too fast to be stopped; raise --steps"
    if sign == signal.SIGINT:
        assert code == 130
        again = shlex.split(stdout.strip().splitlines()[-1])
        assert again[-1] == "--resume"
        resumed = subprocess.run(
            again, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
        )
    else:
        resumed = job("--out", "a", "--resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    end = load_file(tmp_path / "a" / "step-00000150.safetensors")
    assert end.keys() == whole.keys()
    assert all(np.array_equal(end[k], whole[k]) for k in end)


# --- all examples -------------------------------------------------------------------------------------------


def started(name, before, *arguments, cwd):
    """The example as a program, after the statements `before`."""
    path = JOB.parent / f"{name}.py"
    code = f"import runpy, sys\nsys.path.insert(0, {str(JOB.parent)!r})\n{before}\n"
    code += f"sys.argv = [{str(path)!r}, *sys.argv[1:]]\nrunpy.run_path({str(path)!r}, run_name='__main__')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", [name for name in NEEDS if NEEDS[name]])
def test_an_example_without_its_extra_says_what_is_missing_before_it_trains(name, tmp_path):
    missing = {module for modules in NEEDS.values() for module in modules}
    done = started(name, f"sys.modules.update(dict.fromkeys({missing}))", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    modules = ", ".join(map(repr, NEEDS[name]))
    assert done.stderr == f'{name}: No module named {modules}; run pip install -e ".[examples]"\n'
    assert list(tmp_path.iterdir()) == []


TWICE = """
import os, signal, threading
import microtensor as mt
def press(*args, **options):
    setattr({place}, {name!r}, before)
    threading.Timer({pause}, os.kill, (os.getpid(), signal.SIGINT)).start()
    os.kill(os.getpid(), signal.SIGINT)
    return before(*args, **options)
before = getattr({place}, {name!r})
setattr({place}, {name!r}, press)
"""


def pressed_twice(name, *arguments, cwd):
    """Ctrl-C, and once more a moment later, in the first step, or as the first random numbers are seeded."""
    skip_without_what_it_needs(name)
    place, function = ("mt", "manual_seed") if name == "lecture" else ("mt.Tensor", "backward")
    before = TWICE.format(place=place, name=function, pause=0.02)
    return started(name, before, *arguments, cwd=cwd)


@pytest.mark.parametrize("name", ["spiral", "lecture", "sentence_similarity"])
def test_ctrl_c_ends_a_lesson_with_one_line(name, tmp_path):
    done = pressed_twice(name, "--smoke", cwd=tmp_path)
    assert done.returncode == 130, done.stderr
    assert done.stdout.endswith("\nstopped; nothing is saved\n")
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr


@pytest.mark.parametrize("name", ["translate_dates", "char_gpt"])
def test_ctrl_c_that_is_heard_twice_loses_nothing(name, tmp_path):
    done = pressed_twice(name, "--smoke", "--steps", 1000, "--out", "a", cwd=tmp_path)
    assert done.returncode == 130, done.stderr
    kept = os.path.join("a", "step-00000001.safetensors")
    *_, line, command = done.stdout.splitlines()
    assert line == f"stopped; {kept} is kept. Go on with:"
    assert shlex.split(command)[-1] == "--resume"
    assert "Traceback" not in done.stderr


IMPORTING = """
import os, signal
class Press:
    def find_spec(self, name, *rest):
        if name == "microtensor":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
"""


@pytest.mark.parametrize(
    "name", ["translate_dates", "spiral", "sentence_similarity"]
)  # by job, lesson, ending
def test_ctrl_c_while_modules_are_imported_is_one_line(name, tmp_path):
    done = started(name, IMPORTING, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (
        -signal.SIGINT,
        "\nstopped; nothing is saved\n",
        "",
    )


@pytest.mark.parametrize("name", NEEDS)
def test_every_example_has_a_seed_a_short_run_and_a_folder_for_what_it_writes(name):
    status, stdout, _ = run_here(name, "--help")
    assert status == 0
    options = " ".join(stdout.split())
    assert "--seed SEED of all that is random; default 0" in options
    assert re.search(r"--smoke [^?]+: does all work\?", options)
    assert ("--out OUT folder for " in options) == (name != "sentence_similarity")  # which writes nothing


def test_a_seed_decides_what_is_drawn():
    drawn = {seed: run_here("sentence_similarity", "--smoke", "--seed", seed)[1] for seed in (0, 1)}
    assert drawn[0] != drawn[1]
    assert drawn[0] == run_here("sentence_similarity", "--smoke")[1]
