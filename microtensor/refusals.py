"""Where the walk cannot go on: what it needs was freed or has changed. Which advice helps, the tape shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from microtensor import engine
from microtensor.engine import Entry, below
from microtensor.place import caller, last_change, last_walk, line_of

__all__ = ["check"]

ONCE, DETACH = "call it once, on the sum of losses", "detach() what one step hands to the next"
AGAIN, ANEW = "run the forward again before each", "make it anew before each, inside of the loop"
APART = "detach() what that one is not to reach, as a discriminator's fakes"
PENALTY = "give that create_graph=True if a gradient of it enters this loss, as a penalty does"
KEEP = "; or, where nothing changes in between, give the first call retain_graph=True (create_graph=True if "
KEEP += "its gradient is differentiated again)"
LATE = "make the change after backward()"


def _sum_over_steps(roots: Sequence[tuple[Any, Any]], freed: Entry) -> Entry | None:
    """total = total + loss: the newest sum, if one side is new whole, and the other has nothing new."""
    sums = {e.index: e for e in below(dict(roots), freed.index) if e.op.name == "add" and not e.shape}
    newest, at = (sums[max(sums)] if sums else freed), freed.index
    kept = [{e.index for e in below([node], -1) if e.op.keeps_arrays and (e.index >= at or e.saved is None)}
            for node in newest.inputs]  # fmt: skip
    return newest if any(k and max(k) == at for k in kept) and any(k and min(k) > at for k in kept) else None


def _again(roots: Sequence[tuple[Any, Any]], freed: Entry) -> str:
    """What helps where something is freed, the likeliest first.

    Where its line has made more since the last walk, as the next step does, detach(); where the same call
    freed it, another forward; where another did, its gradient may be meant, a change may stand between them,
    or a part is in common, which one backward serves.
    """
    (who, place), changed = freed.checks, last_change[0] > last_walk[0]
    kept = [e for e in below(dict(roots), -1) if e.op.keeps_arrays]
    new = [e for e in kept if e.index > freed.index or e.saved is not None]
    if place != caller() and (who == "grad" or not (new or changed)):
        return f"{PENALTY}; or call it once: leave out one of the two; or {AGAIN}{KEEP}"
    if (total := _sum_over_steps(roots, freed)) is not None:
        return f"call it on the new loss alone, not on the sum at {total.line}; add up loss.item()"
    cures = [ONCE, DETACH, AGAIN] if new else [AGAIN, ONCE, DETACH]
    if freed.place in [e.place for e in new] and min(e.index for e in new) > last_walk[0]:
        cures = [f"{DETACH}, as this result", AGAIN, ONCE]
    elif new and (changed or place == caller()):
        cures = [ANEW if place == caller() else APART, ONCE, DETACH]
    return "; or ".join(cures) + KEEP


def check(entry: Entry, roots: Sequence[tuple[Any, Any]]) -> None:
    """Refuses an entry whose memory was freed, or of whose memory a part was changed in place (law 5).

    Raises: RuntimeError with the op, its line, who freed or changed what it needs, and where, and what helps.
    """
    if entry.saved is None:
        who, place = entry.checks
        raise RuntimeError(f"backward: what {_made(entry)} kept for its gradient was freed by an earlier "
                           f"{who}, at {line_of(place)}; {_again(roots, entry)}")  # fmt: skip
    checks = iter(entry.checks)
    for version in checks:
        if version[0] != (then := next(checks)):
            count, place, who, _ = version
            cures = ", or ".join(_instead(roots, entry, version))
            needed = f"{_made(entry)} needs {_checked(entry, version)}"
            raise RuntimeError(
                f"backward: {needed}, which was changed in place by {who} at {line_of(place)} "
                f"(version {count}, recorded at {then}); {cures}"
            )


def _made(entry: Entry) -> str:
    return f"{entry.op.name} (made at {entry.line}, shape {entry.shape})"


def _instead(roots: Sequence[tuple[Any, Any]], entry: Entry, version: list[Any]) -> tuple[str, ...]:
    """What helps where something was changed in place, the likeliest first."""
    who = version[2]
    leaves = [x.version for x in entry.inputs if isinstance(x, engine.Tensor)]
    if version in leaves or who.endswith((".step", ".data = …")):  # what trains shall change in place
        again = f"run the forward again after each {who}"
        newest = max(getattr(node, "index", 0) for node, _ in roots)
        # a step may have taken the gradients of another backward()
        if entry.index > last_walk[0] and (not who.endswith(".step") or last_walk[1] == caller()):
            return LATE, again, DETACH
        if last_walk[2] != newest < last_change[0]:  # it stands between two losses, of one forward or of two
            both = "make the change after both backward(), where it uses the gradients of both losses"
            return (again, both, DETACH) if entry.index > last_walk[2] else (both, again, DETACH)
        return (DETACH, again, LATE) if newest > last_change[0] else (again, DETACH, LATE)
    how = "x = x * 2 for x *= 2"
    if " of a view of " in who:  # a new tensor alone would leave the whole as it was
        how = "b = b * 2 for b *= 2, and h = cat([a, b]) where h, which b is a view of, is read later"
    if who.startswith("setitem"):
        how = "stack(rows, dim) or masked_fill() for x[i] = …"
    return f"compute a new tensor there, as in {how}", "change a clone() of it", LATE


def _checked(entry: Entry, version: list[Any]) -> str:
    """What a version is checked for: checks follow the VJP's parameters, that of the result comes last."""
    op, saved = entry.op, entry.saved or ()
    kept = [(n, s) for n, s in zip(op.kept, saved, strict=True) if n in op.inputs]
    if op.variadic in op.kept:
        kept = [(f"{op.variadic}[{i}]", s) for i, s in enumerate(saved[op.kept.index(op.variadic)])]
    number = next(i for i, counter in enumerate(entry.checks[::2]) if counter is version)
    return [*(f"its input {name} of shape {np.shape(s)}" for name, s in kept), "its result"][number]
