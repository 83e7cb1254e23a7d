"""Programs written for PyTorch run with only their import lines changed, and give the same numbers.

Each of `programs/` is run as it stands, and once more with `torch` replaced in its import lines; in float64,
because Adam divides by what may be nothing but rounding (the gradient of a key's bias is 0).
"""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microtensor as mt
from models import GPT, GPTConfig

torch = pytest.importorskip("torch")

PROGRAMS = Path(__file__).parent / "programs"


def ported(source: str) -> str:
    """The program with its import lines changed, and nothing else."""
    lines = []
    for line in source.splitlines(keepends=True):
        if line.startswith("import torch."):
            line = line.replace("import torch.", "import microtensor.", 1)
        elif line.startswith("import torch"):
            line = "import microtensor as torch\n"
        elif re.match(r"from torch\b", line):
            line = line.replace("torch", "microtensor", 1)
        lines.append(line)
    return "".join(lines)


def load(name: str, on: Any, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    path = PROGRAMS / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    module = types.ModuleType(f"{name}_on_{on.__name__}")
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)  # dataclasses look there
    exec(compile(source if on is torch else ported(source), str(path), "exec"), module.__dict__)
    return module


def same(ours: Any, theirs: Any, where: str, rtol: float) -> None:
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key in theirs:
            same(ours[key], theirs[key], f"{where}.{key}", rtol)
    else:
        assert np.shape(ours) == np.shape(theirs), where
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol, err_msg=where)


def initial(weights: dict[str, np.ndarray]) -> Any:
    return lambda t: {name: t.tensor(value.copy()) for name, value in weights.items()}


def both(name: str, model: Any, monkeypatch: pytest.MonkeyPatch, *args: Any) -> tuple[Any, Any]:
    """The program on both, from the same weights."""
    theirs, ours = load(name, torch, monkeypatch), load(name, mt, monkeypatch)
    torch.manual_seed(0)
    try:
        for t in (mt, torch):
            t.set_default_dtype(t.float64)
        weights = {key: value.numpy().copy() for key, value in model(theirs).state_dict().items()}
        return ours.run(initial(weights), *args), theirs.run(initial(weights), *args)
    finally:
        for t in (mt, torch):
            t.set_default_dtype(t.float32)


@pytest.mark.parametrize("flash", [False, True])
def test_a_gpt_as_nanogpt_writes_it(flash, monkeypatch):
    ours, theirs = both("nanogpt", lambda m: m.GPT(m.GPTConfig(flash=flash)), monkeypatch, flash)
    same(ours, theirs, "nanogpt", 1e-7)  # eight steps of AdamW multiply the rounding


def test_a_transformer_as_the_annotated_one_is_written(monkeypatch):
    ours, theirs = both("annotated", lambda m: m.make_model(13, 13), monkeypatch)
    same(ours, theirs, "annotated", 1e-6)  # six steps of Adam at a high rate multiply the rounding


def test_a_training_script(monkeypatch):
    ours, theirs = both("training", lambda m: m.Net(), monkeypatch)
    same(ours, theirs, "training", 1e-9)


def test_a_gpt_as_the_lecture_builds_it(monkeypatch):
    ours, theirs = both("bigram", lambda m: m.GPTLanguageModel(), monkeypatch)
    same(ours, theirs, "bigram", 1e-6)  # nine steps of AdamW multiply the rounding


def test_an_mlp_and_its_backward_by_hand(monkeypatch):
    theirs, ours = load("makemore", torch, monkeypatch), load("makemore", mt, monkeypatch)
    weights = {name: value.double().numpy() for name, value in theirs.initial(torch).items()}
    found = [m.run(initial(weights)) for m in (ours, theirs)]
    same(*found, "makemore", 1e-9)
    assert np.all(found[0]["checks"])


def test_pieces_of_transformers_as_libraries_write_them(monkeypatch):
    theirs, ours = load("pieces", torch, monkeypatch), load("pieces", mt, monkeypatch)
    same(ours.run(None), theirs.run(None), "pieces", 1e-6)  # the rotary angles are float32


def test_a_fresh_model_starts_at_the_loss_of_guessing(monkeypatch):
    ours = load("nanogpt", mt, monkeypatch).run(None, True)
    assert abs(ours["losses"][0] - np.log(11)) < 0.1
    assert ours["losses"][-1] < ours["losses"][0]


def test_our_gpt_is_nanogpt(monkeypatch):
    theirs = load("nanogpt", torch, monkeypatch)
    torch.manual_seed(0)
    there = theirs.GPT(theirs.GPTConfig(flash=True)).double()
    here = GPT(GPTConfig(block_size=16, vocab_size=11, n_layer=2, n_head=2, n_embd=16)).double()
    state = {name: mt.tensor(value.numpy()) for name, value in there.state_dict().items()}
    assert not any(here.load_state_dict(state))  # no name is missing, none is unexpected
    ids = np.random.default_rng(0).integers(0, 11, (3, 17))
    x, y = ids[:, :-1].copy(), ids[:, 1:].copy()
    y[0, :2] = -1
    logits, loss = here(mt.tensor(x), mt.tensor(y))
    wanted, there_loss = there(torch.tensor(x), torch.tensor(y))
    loss.backward()
    there_loss.backward()
    np.testing.assert_allclose(logits.numpy(force=True), wanted.detach().numpy(), rtol=0, atol=1e-12)
    gradients = {name: p.grad.numpy() for name, p in there.named_parameters()}
    for name, p in here.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), gradients[name], rtol=0, atol=1e-13, err_msg=name)
