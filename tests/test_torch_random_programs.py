"""Random programs of many lines, run here and in PyTorch: after each line everything made so far is compared.

A seed is a program: views and changes in place, `no_grad`, masks, reductions, indexing, layers, optimisers,
hooks, `backward` and `grad` in any order, as nobody writes them on purpose. Lines that both refuse stay. What
fails shows the shortest program. `MEANT` is what we do otherwise on purpose; differences.md says why.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from oracle import FORM, SIGNATURE, array_of, dtype_of, not_told, torch
from writer import Writer, each

import microtensor as mt

# --- how they are run and compared --------------------------------------------------------------------------


def seeded(t: Any, net: Any, seed: int) -> Any:
    """The net with weights that are the same in both libraries."""
    rng = np.random.default_rng(seed)
    for p in net.parameters():
        p.detach().copy_(t.tensor(rng.uniform(-1, 1, p.shape)))
    return net


class World:
    """One library, and what a program has made there."""

    def __init__(self, t: Any) -> None:
        self.made: dict[str, Any] = {}
        self.given = {"torch": t, "nn": t.nn, "F": t.nn.functional, "optim": t.optim, "copy": copy}
        self.given["seeded"] = partial(seeded, t)

    def run(self, line: str) -> Exception | None:
        try:
            with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
                exec(line, self.given, self.made)
        except Exception as error:
            return error
        return None


def difference(ours: World, theirs: World, line: str) -> str | None:
    """Run the line in both: what is not the same then?"""
    error, other = ours.run(line), theirs.run(line)
    if (error is None) != (other is None):
        return f"we raise {error!r}" if error else f"torch raises {other!r}"
    pairs = ((name, ours.made.get(name), value) for name, value in theirs.made.items())
    both = "both raise, " * (error is not None)
    found = next((f"{both}{name}{found}" for name, y, z in pairs for found in differing(y, z)), None)
    if (
        found
        or error is None
        or str(error) == str(other)
        or FORM.fullmatch(str(error))
        or SIGNATURE.match(str(error))
    ):
        return found  # an error that is the same word by word is Python's own: no name, no attribute
    return f"we raise {error!r}, in a form of its own"


def differing(y: Any, z: Any) -> Iterator[str]:
    """What is different between a value and PyTorch's."""
    if isinstance(z, torch.nn.Module):
        for (name, a), (_, b) in zip(
            y.state_dict(keep_vars=True).items(), z.state_dict(keep_vars=True).items(), strict=True
        ):
            yield from (f".{name}{found}" for found in differing(a, b))
    elif isinstance(z, torch.Tensor):
        yield from differing_tensors(y, z)
    elif type(y) is not type(z) and isinstance(z, bool | float | list | None):
        yield f" is {y!r}, torch has {z!r}"
    elif isinstance(z, bool | float | list) and not close(np.asarray(y, float), np.asarray(z, float)):
        yield f" is {y}, torch has {z}"


def differing_tensors(y: Any, z: Any) -> Iterator[str]:
    if not isinstance(y, mt.Tensor):
        yield f" is {y!r}, torch has a tensor"
        return
    refused, other = refusal(y), refusal(z)
    if refused or other:  # a view of what was changed since, perhaps: does it require a gradient?
        if not (refused and other):
            yield f" cannot be asked: {f'we raise {refused!r}' if refused else f'torch raises {other!r}'}"
        return
    kind = (", a view" if z.grad_fn else ", a view without an entry") if z._is_view() else ""
    for what in ("requires_grad", "is_leaf"):
        if getattr(y, what) != getattr(z, what):
            yield f".{what} is {getattr(y, what)}, torch has {getattr(z, what)}{kind}"
    a, b = array_of(y), array_of(z)
    if dtype_of(y) != dtype_of(z) or a.shape != b.shape or not close(a, b):
        yield f" is {dtype_of(y)} {a.tolist()}, torch has {dtype_of(z)} {b.tolist()}"
    if z.is_leaf or z.retains_grad:
        g, h = y.grad, z.grad
        if (g is None) != (h is None) or (h is not None and not close(array_of(g), array_of(h))):
            yield f".grad is {g}, torch has {h}{kind}"


def refusal(x: Any) -> Exception | None:
    try:
        x.requires_grad, x.is_leaf  # noqa: B018
    except RuntimeError as error:
        return error
    return None


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Within what forty lines make of rounding."""
    if b.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    scale = float(np.max(np.abs(b), where=np.isfinite(b), initial=1.0))  # a sum rounds at its largest term
    return scale > 1e12 or np.allclose(a, b, rtol=1e-7, atol=1e-9 * min(scale, 1e6), equal_nan=True)


# --- the test -----------------------------------------------------------------------------------------------


# words of differences.md, what of the last line and of the difference after it, and a program that shows it
X = "x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)"
MEANT = [entry.splitlines() for entry in r"""
What an op keeps for backward
-> torch raises .*by an inplace .* 0 of (Pow1|Prod1?|Std|LinalgVectorNorm|Relu|Tanh|Sigmoid|Exp|AsStrided),
y = x.abs().pow(x); y += 1.0; y.sum().backward()

What an op keeps for backward
-> we raise RuntimeError.'backward: (mul|div|cross_entropy|attention) .* was changed in place
y = x * 2; z = y * torch.ones(2); y += 1.0; z.sum().backward()

or a second `backward()`
(backward|grad)\(.* -> torch raises .*Trying to backward through the graph a second time
y = x.index_select(0, torch.tensor([0])); y.sum().backward(); y.sum().backward()

or a second `backward()`
(backward|grad)\(.* -> we raise RuntimeError.'backward: .* was freed by an earlier backward
y = torch.lerp(x, x, 0.3); y.sum().backward(); y.sum().backward()

that fails has changed nothing
(backward|grad)\(.* -> both raise, \S*\.grad is
y = x.detach().requires_grad_(); z = x * 2; w = z.square() * y; z.detach().mul_(2); w.sum().backward()

that fails has changed nothing
\] = .* -> both raise, \w+ is
y = torch.zeros(2, 2); y[None, [0, 0, 2]] = torch.ones(2)

`split`, `chunk` and `unbind` may be changed in place
torch raises .*output of a function that returns multiple views
y, z = x.square().unbind(0); y += 1.0

Writing into memory that `expand` repeats is refused
-> we raise RuntimeError.'\w+: this tensor of shape [^;]* shares read-only memory
y = torch.ones(1).expand(2); y[0] = 2.0

records a gradient of zeros
create_graph=True.* -> \w+\.requires_grad is False, torch has True$
y = torch.autograd.grad(x.relu().sum(), [x], create_graph=True)[0]

A `.grad` that became part of a graph
backward\(.* -> \w+ is float64
x.sum().backward(); y = x.grad; y[...] = x; x.sum().backward()

A view that records nothing
\.requires_grad is False, torch has True, a view without an entry
with torch.no_grad(): y = x[:1]

A view that records nothing
requires_grad_\(\) -> \w+\.requires_grad is False, torch has True, a view
y = torch.ones(2); z = y[:1]; z += 1.0; y.requires_grad_()

changed in place while recording is an error
torch raises .*A view was created in no_grad mode
y = torch.ones(2); with torch.no_grad(): z = y[:1]; y += x

`detach_` refuses
detach_\(\) -> torch raises .*Can't detach views in-place
y = torch.ones(2).repeat_interleave(2, 0); y.detach_()

`detach_` refuses
detach_\(\) -> we raise RuntimeError.'detach_: the tensor of shape .* is a view
y = torch.ones(2).roll(1); y.detach_()

`detach_` refuses
detach_\(\) -> \w+\.requires_grad is False, torch has True, a view$
y = x.square(); z = y[:1]; y.detach_()

a view keeps its entry
backward\(.* -> \w+\.grad is .* torch has .*, a view$
y = x[:1]; z = y + 1; y.detach().mul_(2); y.retain_grad(); z.sum().backward()

what was computed before gets its gradient
(backward|grad)\(.* -> torch raises .*saved tensor that has been detached in-place
y = x * 2; z = y.max(); y.detach_(); z.backward()

what was computed before gets its gradient
(backward|grad)\(.* -> torch raises .*leaf variable has been moved into the graph interior
y = x.squeeze(); z = torch.where(y > 0, y, y); x.detach_(); x[...] = z; y.sum().backward()
""".strip().split("\n\n")]  # fmt: skip


def play(lines: Iterable[str], ours: World, theirs: World) -> tuple[list[str], str | None]:
    """The lines up to the first difference, and that."""
    done: list[str] = []
    for line in lines:
        done.append(line)
        if found := difference(ours, theirs, line):
            return done, found
    return done, None


def program(seed: int) -> tuple[list[str], str | None]:
    """The program of a seed, up to the first difference."""
    ours, theirs = World(mt), World(torch)
    writer = Writer(seed, theirs.made)
    drawn = (writer.line() for _ in range(writer.draw.int(10, 40)))
    return play((line for part in (drawn, writer.last()) for line in part), ours, theirs)


def is_meant(lines: list[str], found: str) -> bool:
    return any(re.search(what, f"{lines[-1]} -> {found}", re.DOTALL) for _, what, _ in MEANT)


def without(lines: list[str], i: int) -> Iterator[list[str]]:
    """The lines but one: left out, or with what it is made from in the place of what it makes."""
    yield lines[:i] + lines[i + 1 :]
    if made := re.match(r"(\w+) = .*?\b(v\d+)\b", lines[i]):
        yield lines[:i] + [re.sub(rf"\b{made[1]}\b", made[2], line) for line in lines[i + 1 :]]


def shortened(lines: list[str]) -> tuple[list[str], str | None]:
    """What is left without all lines that do not matter."""
    for i in reversed(range(len(lines))):
        for fewer in without(lines, i) if i < len(lines) else ():
            shorter, found = play(fewer, World(mt), World(torch))
            if found and not is_meant(shorter, found):
                return shortened(shorter)
    return play(lines, World(mt), World(torch))


@pytest.mark.parametrize("seed", range(min(3 * settings.default.max_examples, 1500)))
def test_a_random_program_gives_the_same_as_in_pytorch(seed):
    lines, found = program(seed)
    if found and not is_meant(lines, found):
        lines, found = shortened(lines)
        pytest.fail("\n".join([*lines, f"-> {found}"]), pytrace=False)


@pytest.mark.parametrize(
    "text",
    [
        "y = x.detach().expand(2); y.add_(1.0)",  # nothing is repeated
        "y = x * 2; z = y[:1]; z.exp_(); w = torch.autograd.grad(z.sum(), [y])[0]",
        "y = optim.Adam([x], lr=0.1); y.step(); x.sum().backward(); y.step()",
    ],
)
def test_what_random_programs_have_found_stays_mended(text):
    lines = [X, *each(text)]
    assert play(lines, World(mt), World(torch)) == (lines, None)


@pytest.mark.parametrize(("words", "what", "text"), MEANT)
def test_what_is_meant_to_differ_does_and_stands_in_the_readme(words, what, text):
    lines = [X, *each(text)]
    done, found = play(lines, World(mt), World(torch))
    assert done == lines
    assert re.search(what, f"{lines[-1]} -> {found}", re.DOTALL), found
    assert not_told([words]) == []


def test_what_fails_shows_the_shortest_program(monkeypatch):
    right = mt.Tensor.tanh
    monkeypatch.setattr(mt.Tensor, "tanh", lambda x: right(x) * 1.001)
    lines = next(lines for lines, found in map(program, range(50)) if found and "tanh" in lines[-1])
    short, found = shortened(lines)
    assert len(short) == 2 < len(lines)
    assert re.fullmatch(r"v\d+ = torch.tensor\(.*\)", short[0])
    assert "tanh()" in short[1]
    assert re.match(r"v\d+ is float64 .*, torch has float64 ", found)
