"""Where the walk cannot go on: what it needs was freed or has changed. Which advice helps, the tape shows.

And what it is to warn of: sums of several steps' gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from microtensor import engine
from microtensor.engine import Entry, above, below
from microtensor.place import Place, caller, last_change, last_walk, line_of, warn

__all__ = ["check", "warn_of_sums"]

ONCE, DETACH = "call it once, on the sum of losses", "detach() what one step hands to the next"
AGAIN, ANEW = "run the forward again before each call", "compute {} again for each call, not once for several"
CUT, LATE = "detach() it, if no gradient is to go there", "make the change after backward()"
APART = "detach() what that one is not to reach, as a discriminator's fakes"
PENALTY = "give that create_graph=True if a gradient of it enters this loss, as a penalty does"
KEEP = "; or, where nothing changes in between, give the first call retain_graph=True (create_graph=True if "
KEEP += "its gradient is differentiated again)"


def _again(roots: Sequence[tuple[Any, Any]], freed: Entry) -> str:
    """What helps where something is freed, the likeliest first.

    Where its line has made its like since the last walk, as the next step does, and what else that walk left
    was made from it, detach(); where the same call freed it, another forward; where another did, its gradient
    may be meant, a change may stand between them, or a part is in common, which one backward serves.
    """
    (who, place), changed = freed.checks, last_change[0] > last_walk[0]
    entries = below(dict(roots), -1)
    new = {e for e in entries if e.op.keeps_arrays and (e.index > freed.index or e.saved is not None)}
    if place != caller() and (who == "grad" or not (new or changed)):
        return f"{PENALTY}; or call it once: leave out one of the two; or {AGAIN}{KEEP}"
    used = above(entries, frees := {e for e in entries if e.saved is None}) | frees
    pairs = [(e, old) for e in used for old in e.inputs if isinstance(old, Entry) and old in used]
    handed = [(e, old) for e, old in pairs if old.index < last_walk[0] < e.index]  # what a step handed on
    if [(e.op.name, e.shape) for e, _ in handed] == [("add", ())]:  # total = total + loss
        return f"call it on the new loss alone, not on the sum at {handed[0][0].line}; add up loss.item()"
    by, old = max(handed, key=lambda pair: (pair[1].index, -pair[0].index), default=(freed, freed))
    it, since = f"the result of {line_of(old.place, old.op.name)}", {e for e in new if e.index > last_walk[0]}
    cures = [ONCE, DETACH, AGAIN] if new else [AGAIN, ONCE, DETACH]
    if (freed.place, freed.shape) in {(e.place, e.shape) for e in since} and used >= new - since:
        cures = [f"between the steps, {DETACH}: {it}, where {line_of(by.place, by.op.name)} takes it", ONCE]
    elif new and (changed or place == caller()):
        cures = [ANEW.format(it), ONCE, CUT] if place == caller() else [APART, ONCE, DETACH]
    return "; or ".join(cures) + ("" if changed else KEEP)


def check(entry: Entry, roots: Sequence[tuple[Any, Any]]) -> None:
    """Refuses an entry whose memory was freed, or of whose memory a part was changed in place (law 5).

    Raises: RuntimeError with the op, its line, who freed or changed what it needs, and where, and what helps.
    """
    if entry.saved is None:
        who, place = entry.checks
        raise RuntimeError(f"backward: what {_made(entry)} kept for its gradient was freed by an earlier "
                           f"{who}, at {line_of(place)}; {_again(roots, entry)}")  # fmt: skip
    for i, (version, then) in enumerate(zip(entry.checks[::2], entry.checks[1::2], strict=True)):
        if version[0] != then:
            count, place, who, _ = version
            change = f"by {line_of(place, who)} (version {count}, recorded at {then})"
            needed = f"{_made(entry)} needs {_checked(entry)[i]}, which was changed in place {change}"
            raise RuntimeError(f"backward: {needed}; {', or '.join(_instead(roots, entry, version, needed))}")


_told: WeakValueDictionary[int, Any] = WeakValueDictionary()  # leaves of whose sums a warning has told, by id


def warn_of_sums(grown: Sequence[Any], leaves: int, zeroed: tuple[Place | None, str] | None) -> None:
    """Warns once of leaves, of so many, whose gradients are sums of steps. zeroed: others, where, by whom."""
    stale = [leaf for leaf in grown if id(leaf) not in _told]
    _told.update({id(leaf): leaf for leaf in stale})
    if stale:
        _, place, who, _ = stale[0].version
        owner = f"that {who[:-5]}'s own" if who.endswith(".step") else "an optimizer's or a module's"
        last = f"{line_of(*zeroed)} has not reached these" if zeroed else "another's does not reach these"
        cures = [f"{owner} zero_grad() ({last})", "p.grad = None for each"][:: 1 if "that" in owner else -1]
        warn(f"backward: .grad adds up the gradients of three steps, in {len(stale)} of {leaves} leaves, the "
             f"first of shape {stale[0].shape}; set it to zero once a step, after every {who} at "
             f"{line_of(place)}: by {', or by '.join(cures)}")  # fmt: skip


def _made(entry: Entry) -> str:
    return f"{entry.op.name} (made at {entry.line}, shape {entry.shape})"


def _instead(roots: Sequence[Any], entry: Entry, version: list[Any], needed: str) -> tuple[str, ...]:
    """What helps where something was changed in place, the likeliest first."""
    who = version[2]
    inputs = (x for e in below([entry], -1) for x in e.inputs)  # of whatever views of it, too
    leaf = any(isinstance(x, engine.Tensor) and x.version is version for x in inputs)
    if leaf or who.endswith((".step", ".data = …")):  # what trains shall change in place
        again = f"run the forward again after each {who}"
        newest = max(getattr(node, "index", 0) for node, _ in roots)
        # a step may have taken the gradients of another backward()
        if entry.index > last_walk[0] and (not who.endswith(".step") or last_walk[1] == caller()):
            return LATE, again, DETACH
        if last_walk[2] != newest < last_change[0]:  # it stands between two losses, of one forward or of two
            both = "make the change after both backward(), if it is to use the gradients of both losses"
            return (again, both, DETACH) if entry.index > last_walk[2] else (both, again, DETACH)
        return (DETACH, again, LATE) if newest > last_change[0] else (again, DETACH, LATE)
    if " of a view of " in who:  # a new tensor alone would leave the whole as it was
        whole = "put a clone in the place of what it is a view of, before it is: h = h.clone(), then b = h[…]"
        return whole, "compute new tensors there, b = b * 2 for b *= 2 and then h = cat([a, b])", LATE
    stacked = "stack(rows, dim) for x[i] = …, or masked_fill() for x[mask] = …"
    how = stacked if who.startswith("setitem") else "x = x * (a + b) for x *= a + b"
    result = " needs its result, " in needed
    copy = "change a clone() and let that take its place" if result else f"let {entry.op.name} read a clone()"
    return f"compute a new tensor there, as in {how}", copy, LATE


def _checked(entry: Entry) -> list[str]:
    """What each version is checked for: checks follow the VJP's parameters, that of the result comes last."""
    op, saved = entry.op, entry.saved or ()
    kept = [(n, s) for n, s in zip(op.kept, saved, strict=True) if n in op.inputs]
    if op.variadic in op.kept:
        kept = [(f"{op.variadic}[{i}]", s) for i, s in enumerate(saved[op.kept.index(op.variadic)])]
    return [*(f"its input {name} of shape {np.shape(s)}" for name, s in kept), "its result"]
