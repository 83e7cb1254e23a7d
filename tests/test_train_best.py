"""What a run does with its evaluations: the best checkpoint, the early stop, the log and its curves."""

import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from test_train import Killed, build, everything, loss_fn, weights_of

import microtensor as mt
from microtensor.train import load_checkpoint, plot_history


def scripted(values):
    """evaluate() that says these numbers, one at each evaluation: a function of the step alone."""

    def evaluate(model):
        return {"score": values[trainer.step // trainer.eval_every - 1]}

    def make(**options):
        nonlocal trainer
        options = {
            "eval_every": 1,
            "best": "score",
            "max_steps": len(values),
            "checkpoint_every": 3,
            **options,
        }
        trainer = build(evaluate=evaluate, **options)
        return trainer

    trainer = None
    return make


def names(folder):
    return sorted(p.name[:13] for p in folder.glob("*.safetensors"))


# --- the best checkpoint ------------------------------------------------------------------------------------


@given(
    values=st.lists(st.sampled_from([1.0, 2.0, 3.0, math.nan, math.inf, -math.inf]), min_size=1, max_size=9),
    mode=st.sampled_from(["min", "max"]),
    patience=st.none() | st.integers(1, 3),
)
def test_best_is_the_first_of_the_best_values_and_patience_counts_from_it(values, mode, patience):
    trainer = scripted(values)(best_mode=mode, patience=patience, checkpoint=None)
    trainer.fit()
    sign = 1 if mode == "min" else -1
    best, step = math.nan, 0
    for i, value in enumerate(values, 1):
        if not math.isnan(value) and not sign * value >= sign * best:
            best, step = value, i
        if patience is not None and i - step == patience:
            break
    assert (trainer.step, trainer.best.step) == (i, step)
    assert trainer.best.value == best or (math.isnan(best) and math.isnan(trainer.best.value))


def test_the_best_checkpoint_stays_beside_the_last_ones(tmp_path):
    trainer = scripted([5, 3, 9, 2, 8, 7, 6, 5, 4])(checkpoint=tmp_path, checkpoint_every=1, keep=1)
    trainer.fit()
    assert names(tmp_path) == ["best-00000004", "step-00000009"]
    assert trainer.best_checkpoint == str(tmp_path / "best-00000004.safetensors")
    assert (trainer.best.value, trainer.best.step) == (2.0, 4)
    found = load_checkpoint(trainer.best_checkpoint)
    whole = build(max_steps=4)
    whole.fit()
    found.restore(trainer.model)
    assert weights_of(trainer) == weights_of(whole)


def test_the_last_step_has_a_checkpoint_of_its_own_though_it_is_the_best(tmp_path):
    scripted([3, 2, 1])(checkpoint=tmp_path, checkpoint_every=None).fit()
    assert names(tmp_path) == ["best-00000003", "step-00000003"]


def test_without_best_there_is_none():
    trainer = build()
    trainer.fit()
    assert trainer.best_checkpoint is None
    assert math.isnan(trainer.best.value)


@pytest.mark.parametrize(
    ("result", "name"),
    [({"loss": 1.0}, "loss"), ({"loss": 1.0}, "eval_loss"), (1.0, "evaluation"), ({"a b": 1.0}, "a b")],
)
def test_best_names_a_number_as_evaluate_or_as_the_log_does(result, name):
    trainer = build(eval_every=1, evaluate=lambda model: result, best=name)
    trainer.fit()
    assert (trainer.best.value, trainer.best.step) == (1.0, 1)


def test_a_best_that_evaluate_does_not_return_is_said_with_what_it_does(tmp_path):
    common = {"eval_every": 2, "evaluate": lambda model: {"a": 1, "loss": 2}, "checkpoint": tmp_path}
    trainer = build(best="c", **common)
    said = r"evaluate returned \['a', 'eval_loss'\]; give one of these \('.*' holds step 2; go on with resume"
    with pytest.raises(ValueError, match=said):
        trainer.fit()
    again = build(seed=9, best="a", **common)  # the steps before it are not lost
    again.load()
    assert (again.step, weights_of(again)) == (2, weights_of(trainer))
    again.fit()
    whole = build()
    whole.fit()
    assert everything(again) == everything(whole)
    assert (again.best.value, again.best.step) == (1, 4)


@pytest.mark.parametrize(
    "value", [np.array([1.0]), mt.ones(1, 1), np.float32(1), np.array(1), True, Fraction(1)], ids=repr
)
def test_a_number_of_evaluate_may_have_axes_of_one(value):
    assert build(eval_every=12, evaluate=lambda model: {"a": value}).fit()[-1]["a"] == 1.0


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({5: 1.0}, "the name int 5; let all names be strings"),
        ({None: 1.0, "a": 2.0}, "the name NoneType None; let"),
        (10**400, "int 1000*.* for 'evaluation'; return a number that a float holds"),
        (np.ones(2), r"ndarray array\(\[1., 1.\]\) for"),
        (np.array(["3"]), "ndarray .* for"),
        ({"a": "3"}, "str '3' for 'a'"),
        ({"a": mt.ones(2)}, r"a tensor of shape \(2,\) .*for 'a'"),
        ({"a": 1j}, "complex 1j for 'a'"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_number_or_no_name_of_evaluate_is_said(result, said):
    trainer = build(eval_every=1, evaluate=lambda model: result)
    with pytest.raises(TypeError, match=f"Trainer: evaluate returned {said}"):
        trainer.fit()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"patience": 3}, "patience 3 for nothing; say best="),
        ({"best": "a"}, "best='a' is a number of evaluate; give evaluate"),
        ({"eval_every": 1, "evaluate": len, "best": "a", "best_mode": "up"}, "best_mode is 'up'; give"),
        ({"eval_every": 1, "evaluate": len, "best": "a", "patience": 0}, "patience is 0; give an integer"),
        (
            {"eval_every": 1, "evaluate": len, "best": "a", "checkpoint": "a.safetensors"},
            "is one file, best",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(options, text):
    with pytest.raises(ValueError, match=text):
        build(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"eval_every": 1, "evaluate": len, "best": 5}, "best is 5; give str"),
        ({"grad_clip": "x"}, "grad_clip is str 'x'; give a number"),
        ({"grad_clip": mt.ones(2)}, r"grad_clip is a tensor of shape \(2,\) .*; give a number"),
        ({"callbacks": [len, 3]}, "callbacks has int 3; give a function"),
        ({"callbacks": len}, "callbacks is builtin_function_or_method .*; give a list"),
        ({"loss_fn": None}, "loss_fn has NoneType None; give a function"),
        ({"eval_every": 1, "evaluate": 3}, "evaluate has int 3; give a function"),
        ({"wrap": lambda loader: None}, "train_loader is NoneType None; give what yields batches"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_of_another_type_is_refused_at_once(options, text):
    with pytest.raises(TypeError, match=f"Trainer: {text}"):
        build(**options)


def test_callbacks_may_come_from_an_iterator():
    seen = []
    build(callbacks=(f for f in [lambda t: seen.append(t.step)]), max_steps=2).fit()
    assert seen == [1, 2]


# --- resumed ------------------------------------------------------------------------------------------------


@given(
    values=st.lists(st.integers(0, 6), min_size=3, max_size=9),
    kill=st.integers(1, 9),
    every=st.integers(1, 4),
    patience=st.none() | st.integers(1, 4),
)
def test_best_and_early_stop_of_a_killed_run_are_those_of_a_whole_one(
    values, kill, every, patience, tmp_path_factory
):
    def die(trainer):
        if trainer.step == kill:
            raise Killed

    make = scripted(values)
    common = {"checkpoint_every": every, "patience": patience, "log_every": 1}
    folders = [tmp_path_factory.mktemp(name) for name in ("whole", "broken")]
    whole = make(checkpoint=folders[0], **common)
    whole.fit()
    want = everything(whole), whole.best.state_dict()
    broken = make(checkpoint=folders[1], callbacks=[die], **common)
    try:
        broken.fit()
    except Killed:
        again = make(seed=99, checkpoint=folders[1], **common)
        if again.checkpoints.newest() is None:
            return
        again.resume()
        assert (everything(again), again.best.state_dict()) == want
        assert again.resume() == again.history  # a run that is over stays over
        assert again.step == whole.step
    best = [{p.name: p.read_bytes() for p in folder.glob("best-*")} for folder in folders]
    assert best[0] == best[1]
    last = [make(checkpoint=folder).checkpoints.newest() for folder in folders]
    assert Path(last[0]).read_bytes() == Path(last[1]).read_bytes()


def test_a_run_goes_on_from_its_best_checkpoint_where_that_is_the_last(tmp_path):
    whole = scripted([3, 2, 1, 4, 4])(checkpoint=tmp_path / "whole")
    whole.fit()
    want = everything(whole)

    def die(trainer):
        if trainer.step == 4:
            raise Killed

    make = scripted([3, 2, 1, 4, 4])
    with pytest.raises(Killed):
        make(checkpoint=tmp_path / "run", checkpoint_every=None, callbacks=[die]).fit()
    assert names(tmp_path / "run") == ["best-00000003"]
    with pytest.raises(ValueError, match=r"an earlier run left .*best-00000003"):
        make(checkpoint=tmp_path / "run").fit()
    again = make(seed=99, checkpoint=tmp_path / "run")
    again.resume()
    assert everything(again) == want


def test_more_patience_goes_on_and_less_stops(tmp_path):
    make = scripted([1, 2, 3, 4, 5, 6, 7, 8])
    make(checkpoint=tmp_path, patience=2).fit()
    more = make(checkpoint=tmp_path, patience=4)
    more.resume()
    assert (more.step, more.best.step, more.best.since) == (5, 1, 4)
    less = make(checkpoint=tmp_path, patience=1)
    less.resume()
    assert less.step == 5


def test_another_number_than_the_checkpoints_is_refused_and_an_old_checkpoint_begins_anew(tmp_path):
    make = scripted([1, 2, 3])
    make(checkpoint=tmp_path / "a").fit()
    for options in ({"best_mode": "max"}, {"best": None}):
        trainer = make(checkpoint=tmp_path / "a", **options)
        with pytest.raises(ValueError, match="is of a run with best='score', best_mode='min'; give the same"):
            trainer.load()
        assert trainer.step == 0
    build(checkpoint=tmp_path / "b", max_steps=1).fit()
    trainer = make(checkpoint=tmp_path / "b")
    trainer.resume()
    assert (trainer.best.value, trainer.best.step) == (2, 2)


def test_an_evaluation_that_fails_leaves_the_checkpoint_before(tmp_path):
    def evaluate(model):
        if trainer.step == 5:
            raise LookupError("no such file")
        return 1.0 / trainer.step

    trainer = build(eval_every=1, evaluate=evaluate, best="evaluation", checkpoint=tmp_path)
    with pytest.raises(LookupError):
        trainer.fit()
    assert trainer.model.training
    assert not (tmp_path / "run.lock").exists()
    again = build(seed=99, eval_every=1, evaluate=lambda m: 1.0 / again.step, best="evaluation",
                  checkpoint=tmp_path)  # fmt: skip
    whole = build()
    whole.fit()
    want = everything(whole)
    again.load()
    assert again.step == 4
    again.fit()
    assert everything(again) == want


# --- curves -------------------------------------------------------------------------------------------------


@pytest.fixture
def curves(monkeypatch):
    """What is drawn: for each axes the points of each label."""
    found = []
    real = Figure.savefig

    def savefig(self, *args, **options):
        found.append([{k.get_label(): k.get_xydata().tolist() for k in a.lines} for a in self.axes])
        return real(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return found


def test_curves_are_drawn_from_a_history_or_the_log_of_several_resumed_runs(tmp_path, curves):
    def evaluate(model):
        return {"loss": 0.5, "exact": 1.0}

    common = {"checkpoint": tmp_path, "log_every": 1, "eval_every": 4, "evaluate": evaluate}
    build(max_steps=5, **common).fit()
    build(max_steps=9, **common).resume()
    last = build(**common)
    last.resume()
    with open(tmp_path / "log.jsonl", "ab") as file:
        file.write(b'{"step": 13, "lo')
    for source, name in ((tmp_path, "a.png"), (tmp_path / "log.jsonl", "a.svg"), (last.history, "b.png")):
        plot_history(source, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert ET.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()[:-1]]
    assert [r["step"] for r in log] == list(range(1, 13))
    assert curves[0] == curves[1]
    loss, exact, lr = curves[0]
    assert loss["loss"] == [[r["step"], r["loss"]] for r in log]
    assert loss["eval_loss"] == [[4, 0.5], [8, 0.5], [12, 0.5]]
    assert exact == {"exact": [[4, 1.0], [8, 1.0], [12, 1.0]]}
    assert lr == {"lr": [[r["step"], r["lr"]] for r in log]}
    assert curves[2][0]["loss"] == loss["loss"][9:]


def test_of_two_runs_in_one_log_the_later_one_counts_and_what_is_not_finite_is_a_gap(tmp_path, curves):
    log = tmp_path / "own.jsonl"
    log.write_text('{"step": 1, "loss": 1}\n{"step": 2, "loss": 9}\n\n[3]\n{"step": 3, "loss": 9}\n'
                   '{"step": 2, "loss": 2}\n{"step": 3, "loss": null}\n{"step": 4, "loss": 4}\n')  # fmt: skip
    plot_history(log, tmp_path / "a.svg")
    assert curves == [[{"loss": [[1, 1], [2, 2], [4, 4]]}]]


def test_the_same_log_gives_the_same_bytes_and_leaves_matplotlib_as_it_was(tmp_path):
    before = dict(mpl.rcParams)
    for name in ("a.svg", "b.svg"):
        plot_history([{"step": i, "loss": 1 / i} for i in (1, 2, 3)], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert dict(mpl.rcParams) == before


def test_what_cannot_be_drawn_is_said(tmp_path, monkeypatch):
    one = [{"step": 1, "loss": 1.0}]
    with pytest.raises(ValueError, match=r"'a\.txt' is no name of a picture; end it in \.png"):
        plot_history(one, "a.txt")
    for nothing in ([], [{"loss": 1.0}], [{"step": 1}, {"step": True, "loss": 2}]):
        with pytest.raises(ValueError, match="no record to draw; train"):
            plot_history(nothing, tmp_path / "a.png")
    with pytest.raises(FileNotFoundError, match=r"no log '.*log\.jsonl'"):
        plot_history(tmp_path, tmp_path / "a.png")
    said = r"plot_history: '.*none/a\.png' could not be written \(No such file or directory\); give a name in"
    with pytest.raises(FileNotFoundError, match=said):
        plot_history(one, tmp_path / "none" / "a.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r'matplotlib is missing; pip install "microtensor\[exam'):
        plot_history(one, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["$\\frac$", "$", r"\$a$", "_x", "a_b^c", 5, None, "\ud800", "\0", "a\nb", "<&", ""], ids=ascii
)
@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_any_name_is_drawn_as_it_is(name, kind, tmp_path, monkeypatch):
    shown, real = [], Figure.savefig

    def savefig(self, *args, **options):
        shown.extend(text.get_text() for text in self.axes[0].get_legend().get_texts())
        return real(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    plot_history([{"step": 1, name: 2.0}], tmp_path / f"a.{kind}")
    assert shown == [str(name) if str(name).isprintable() else ascii(name)[1:-1]]
    if kind == "svg":
        ET.parse(tmp_path / "a.svg")


def test_any_number_is_drawn_or_is_a_gap(tmp_path, curves):
    large = 10**400
    numbers = [np.float32(1), np.int64(2), Fraction(3), 10**30, -1e300, large, -large, 1e308, True, np.nan]
    history = [{"step": np.int32(i), "a": n} for i, n in enumerate(numbers)] + [{"step": large, "a": 1}]
    plot_history(history, tmp_path / "a.png")
    assert curves == [[{"a": [[0, 1], [1, 2], [2, 3], [3, 1e30], [4, -1e300]]}]]
    (tmp_path / "log.jsonl").write_text('{"step": 1, "a": 2}\n{"step": 2, "a": 1' + "0" * 400 + "}\n")
    plot_history(tmp_path, tmp_path / "b.png")
    assert curves[1] == [{"a": [[1, 2]]}]


def test_training_does_not_import_matplotlib():
    code = "import sys; import microtensor.train; assert not [m for m in sys.modules if 'matplotlib' in m]"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- what is told while it trains ---------------------------------------------------------------------------


def test_the_bar_ends_with_the_numbers_of_the_last_step(capsys):
    trainer = build(progress=True, max_steps=300, loss_fn=lambda m, b: (loss_fn(m, b), 7))
    trainer.fit()
    last = capsys.readouterr().err.replace("\r", "\n").strip().splitlines()[-1]
    assert f"loss={trainer.loss:.4g}, lr={trainer.lr:.3g}, tokens/s=" in last
    assert "300/300" in last


def test_a_file_keeps_a_few_lines_and_no_look_of_a_bar_each(capsys):
    """And mpirun passes on no half ones."""
    trainer = build(progress=True, max_steps=300)
    trainer.fit()
    lines = capsys.readouterr().err
    assert "\r" not in lines
    assert [f" {n}/300 " in line for n, line in zip((0, 300), lines.splitlines(), strict=True)] == [True] * 2


def test_a_terminal_has_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    build(progress=True, max_steps=3).fit()
    assert capsys.readouterr().err.count("\r") > 1


def test_lines_in_place_of_a_bar_come_whole(capsys, monkeypatch):
    monkeypatch.setattr("microtensor.train.report.SECONDS", 0.0)
    trainer = build(progress=True, max_steps=3)
    with trainer._report() as report:
        for _ in range(3):
            report.advance(lambda: {"loss": "1.5"})
    lines = capsys.readouterr().err
    assert "\r" not in lines
    assert lines.endswith("\n")
    assert [f" {n}/3 " in line for n, line in enumerate(lines.splitlines()[:4])] == [True] * 4


def test_a_resumed_bar_starts_where_the_run_does_and_says_how_long_it_will_take(tmp_path, capsys):
    build(checkpoint=tmp_path, max_steps=9).fit()
    build(checkpoint=tmp_path, progress=True).resume()
    text = capsys.readouterr().err
    assert "9/12 [00:00<?" in text  # elapsed < remaining
    assert "12/12 [00:00<00:00" in text


def test_a_clock_that_goes_back_changes_nothing_but_the_bar(monkeypatch):
    whole = build()
    whole.fit()
    want = everything(whole)
    again = build(progress=True, loss_fn=lambda m, b: (loss_fn(m, b), 7), log_every=1)
    clock = iter(np.arange(10**6, 0, -100.0).tolist())
    monkeypatch.setattr("tqdm.std.time", lambda: next(clock))
    monkeypatch.setattr("time.time", lambda: next(clock))
    again.fit()
    assert everything(again) == want
    assert all(r["tokens_per_second"] > 0 for r in again.history)
