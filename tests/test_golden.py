"""The golden pack is what its reference makes, microtensor and PyTorch pass it, and nothing wrong passes."""

from __future__ import annotations

import copy
import json
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import microtensor as mt
from microtensor.testing.golden import PACK, check_case, read_pack, signature
from microtensor.testing.golden.__main__ import load, main

GOLDEN = Path(__file__).parent / "golden"
reference = load(str(GOLDEN / "reference.py"))
ours = load(str(GOLDEN / "with_microtensor.py"))
CASES = {case["case"]: case for case in read_pack()}
each_case = pytest.mark.parametrize("name", CASES)
SOME = 12  # entries of a large case that are differentiated again; small ones are made anew altogether


# --- the pack and its reference -----------------------------------------------------------------------------


def test_the_pack_holds_the_references_cases_and_is_small():
    made = reference.cases()
    assert CASES.keys() == made.keys()
    assert {c["function"] for c in CASES.values()} == {c.function for c in made.values()}
    assert sum(path.stat().st_size for path in PACK.glob("*.json")) <= 600_000


@each_case
def test_a_case_is_what_the_reference_makes(name, rng):
    case, made = CASES[name], reference.cases()[name]
    assert case["options"] == made.options
    assert case["inputs"] == reference.as_lists(made.inputs)
    assert case["parameters"] == reference.as_lists(made.parameters)
    assert case["cotangent"] == made.cotangent.tolist()
    np.testing.assert_allclose(made.output(), case["output"], rtol=0, atol=1e-9)
    assert case["gradients"].keys() == made.arrays().keys()
    entries = [(array, at) for array, x in made.arrays().items() for at in np.ndindex(x.shape)]
    if len(entries) > 60:
        entries = [entries[i] for i in rng.choice(len(entries), SOME, replace=False)]
    for array, at in entries:
        slope, error = reference.slope(made.loss, made.arrays()[array], at)
        assert error < 1e-9
        assert np.array(case["gradients"][array])[at] == pytest.approx(slope, rel=0, abs=1e-9), (array, at)


def test_a_kink_within_reach_of_the_differences_is_noticed():
    case = reference.make("relu", "", {"x": (2,)})
    case.inputs["x"][:] = [1e-4, 1.0]
    with pytest.raises(AssertionError, match=r"relu: x\(0,\) is off by .*; is there a kink\?"):
        case.gradients()


def test_the_formula_is_the_readmes():
    assert "x_i = ((31 i² + (17 n + 57) i + 89 n) mod 1999 − 999) / 1000" in (GOLDEN / "README.md").read_text(
        encoding="utf-8"
    )
    by_hand = [((31 * i * i + (17 * 22 + 57) * i + 89 * 22) % 1999 - 999) / 1000 for i in range(6)]
    assert np.ravel(CASES["linear"]["inputs"]["x"])[:6].tolist() == by_hand
    assert (reference.FIRST, reference.H) == (22, 1 / 4096)  # as the README says


# --- who passes ---------------------------------------------------------------------------------------------


@each_case
def test_microtensor_passes(name):
    assert check_case(CASES[name], ours) == "ok"


@each_case
def test_microtensor_passes_in_float32(name):
    def tensor(array):
        return ours.tensor(array.astype(np.float32) if array.dtype.kind == "f" else array)

    assert check_case(CASES[name], types.SimpleNamespace(**vars(ours) | {"tensor": tensor})) == "ok"


@each_case
def test_pytorch_passes(name):
    pytest.importorskip("torch")
    assert check_case(CASES[name], load(str(GOLDEN / "with_torch.py"))) == "ok"


# --- who does not -------------------------------------------------------------------------------------------


@each_case
def test_every_array_is_looked_at(name):
    arrays = {f"the gradient of {array}": ("gradients", array) for array in CASES[name]["gradients"]}
    for what, path in {"the output": ("output",), **arrays}.items():
        spoiled = copy.deepcopy(CASES[name])
        holder = spoiled
        for key in path[:-1]:
            holder = holder[key]
        values = np.array(holder[path[-1]])
        values.flat[-1] += 1e-4
        holder[path[-1]] = values.tolist()
        at = re.escape(str(tuple(n - 1 for n in values.shape)))
        assert re.match(
            rf"WRONG  {re.escape(what)} is off: 1 of .* the worst, at {at}: ", check_case(spoiled, ours)
        )


def softmax(x, dim):
    """With the mistake that everybody makes once: no sum in its gradient."""
    e = np.exp(x - x.max(dim, keepdims=True))
    y = e / e.sum(dim, keepdims=True)
    return y, lambda g: {"x": y * g}


def test_a_wrong_gradient_is_named_with_its_worst_entry():
    said = check_case(CASES["softmax"], types.SimpleNamespace(softmax=softmax))
    assert re.match(r"WRONG  the gradient of x is off: 24 of 24 entries differ; the worst, at \(", said)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, dim: x, r"WRONG  the output is off: .*"),
        (lambda x, dim: x[0], r"WRONG  the output has shape \(3, 4\), not \(2, 3, 4\)"),
        (lambda x, dim: softmax(x, dim)[0], "no gradients: the output is right"),
        (lambda x, dim: (softmax(x, dim)[0], lambda g: {}), "WRONG  the gradient of x is not there"),
        (lambda x, dim: (x, lambda g: {}), r"WRONG  the output is off: .*; also wrong: the gradient of x"),
        (
            lambda x, dim: softmax(x, dim)[0] + 5j,
            "WRONG  the output has dtype complex128; give float32 or float64",
        ),
        (
            lambda x, dim: softmax(x, dim)[0].astype(object),
            "WRONG  the output has dtype object; give float32 or float64",
        ),
        (
            lambda x, dim: (softmax(x, dim)[0], lambda g: {"x": [[["0"] * 4] * 3] * 2}),
            "WRONG  the gradient of x has dtype <U1; give float32 or float64",
        ),
        (lambda x, dim: sys.exit(0), r"WRONG  softmax\(x, dim=…\) raised SystemExit: 0"),
        (lambda x: x, r"WRONG  softmax\(x, dim=…\) raised TypeError: .*unexpected keyword argument 'dim'"),
        (
            lambda x, dim: ours.softmax(mt.tensor(x), dim),
            r"WRONG  softmax\(x, dim=…\) raised RuntimeError: .*",
        ),
    ],
)
def test_what_is_wrong_is_said(function, said):
    assert re.fullmatch(said, check_case(CASES["softmax"], types.SimpleNamespace(softmax=function)))


def test_a_signature_reads_as_the_call_is_made():
    assert signature(CASES["linear"]) == "linear(x, weight, bias)"
    assert signature(CASES["encoder_layer_pre"]).startswith("encoder_layer(parameters, x, mask=…, n_heads=…")


# --- the command --------------------------------------------------------------------------------------------


def student(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_readmes_student_passes_and_what_is_missing_is_counted(tmp_path, capsys):
    (snippet,) = re.findall(
        r"```python\n(.*?)```", (GOLDEN / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    path = student(tmp_path, snippet)
    assert main([path, "softmax"]) == 0
    assert main([path]) == 0
    n = len(CASES)
    assert f"{n} cases: 2 ok, 0 WRONG, 0 no gradients, {n - 2} missing" in capsys.readouterr().out
    assert main([path, "gelu"]) == 1  # nothing was checked
    assert "missing: gelu(x, approximate=…)" in capsys.readouterr().out


def test_a_mistake_makes_the_command_fail(tmp_path, capsys):
    path = student(tmp_path, "def relu(x):\n    return x * (x > 0) + 1e-3, lambda g: {'x': g * (x > 0)}\n")
    assert main([path, "relu"]) == 1
    assert "relu                         WRONG  the output is off: 12 of 12" in capsys.readouterr().out


def test_without_a_module_the_cases_are_listed(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and signature(case) in shown for name, case in CASES.items())


def test_what_cannot_be_checked_is_said(tmp_path, capsys):
    for arguments, said in (
        (["no_such_module"], "golden: there is no no_such_module; give the path of a .py file, or a"),
        (
            ["json.no_such_module"],
            "golden: 'json.no_such_module' cannot be imported: ModuleNotFoundError: No module",
        ),
        ([str(tmp_path / "none.py")], "none.py; give the path of a .py file"),
        (
            [str(GOLDEN / "with_microtensor.py"), "sotfmax"],
            "golden: there is no sotfmax; the cases: attention,",
        ),
        (["json", "--pack", str(tmp_path)], "holds no case; give the folder with the *.json of the pack"),
    ):
        assert main(arguments) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
        ("def softmax(:\n", "SyntaxError: "),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported_has_not_passed(tmp_path, capsys, text, said):
    assert main([student(tmp_path, text)]) == 2
    shown = capsys.readouterr()
    assert re.fullmatch(rf"golden: '.*mine.py' cannot be imported: {said}.*\n", shown.err)
    assert not shown.out


@pytest.mark.parametrize("name", ["", ".", "..m", "\0.py"])
def test_what_is_no_name_of_a_module_is_refused(name, capsys):
    assert main([name]) == 2
    assert capsys.readouterr().err.startswith("golden: ")


@pytest.mark.parametrize("text", ["{}", "[]", "7", "{", '{"case": 7}'])
def test_a_file_that_is_no_case_is_refused(text, tmp_path, capsys):
    (tmp_path / "one.json").write_text(text, encoding="utf-8")
    assert main(["json", "--pack", str(tmp_path)]) == 2
    assert re.match(r"golden: .*one\.json is no case of a pack; name a folder", capsys.readouterr().err)


def test_another_pack_can_be_given(tmp_path, capsys):
    (tmp_path / "one.json").write_text(json.dumps(CASES["relu"]), encoding="utf-8")
    assert main([str(GOLDEN / "with_microtensor.py"), "--pack", str(tmp_path)]) == 0
    assert "1 cases: 1 ok" in capsys.readouterr().out
