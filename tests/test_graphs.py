"""A state machine builds random graphs: sharing, views, no_grad, detach, in-place changes, several backwards.

The oracle is naive and goes the other way: beside values it carries their Jacobian by the leaves, forwards.
Memory is a flat array; a tensor is the places that it shows, so that a view is nothing but an index.
Jacobians are complex: the leaves move by a tiny imaginary step in one direction, and what becomes imaginary
is the second derivative along it (Squire & Trapp 1998, "Using complex variables to estimate derivatives").
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import microtensor as mt
from microtensor.mode import Block

N, LEAVES = 3, 3
COUNT = LEAVES * N * N  # the numbers that everything is differentiated by
CLOSE = {"rtol": 1e-9, "atol": 1e-9}  # values stay in [−1, 1]: a few hundred rounded operations
STEP = 1e-100j  # its square is 0 beside any number: nothing is cut off


@dataclass(eq=False)
class Memory:
    """Numbers, and how often they were changed in place."""

    values: np.ndarray
    version: int = 0


@dataclass(eq=False)
class Track:
    """What the tape knows of a tensor and its views: the Jacobian (COUNT, size), and what it depends on.

    Of changes under no_grad and through a detached alias it knows nothing: values change, Jacobians stay.
    """

    jacobian: np.ndarray
    recorded: bool = False
    leaf: bool = False
    ops: set = field(default_factory=set)  # numbers of the steps that it was computed by
    read: set = field(default_factory=set)  # (memory, its version then) that a gradient may need


@dataclass(eq=False)
class Twin:
    """A tensor of ours, and the places of its elements in the oracle's memory."""

    ours: mt.Tensor
    memory: Memory
    track: Track
    places: np.ndarray

    @property
    def value(self):
        return self.memory.values[self.places]

    @property
    def jacobian(self):
        return self.track.jacobian[:, self.places]

    def moved(self, direction):
        """The value after one imaginary step of all leaves along a direction."""
        return self.value + STEP * np.tensordot(direction, self.jacobian.real, 1)


def _softmax(a):
    e = np.exp(a)
    return e / e.sum(-1, keepdims=True)


UNARY = {  # on tensors; on arrays; the differential in direction d
    "tanh": (lambda a: a.tanh(), np.tanh, lambda a, d: d * (1.0 - np.tanh(a) ** 2)),
    "exp": (lambda a: a.exp() / 3.0, lambda a: np.exp(a) / 3.0, lambda a, d: np.exp(a) * d / 3.0),
    "square": (lambda a: a * a, lambda a: a * a, lambda a, d: 2.0 * a * d),
    "clone": (lambda a: a.clone(), lambda a: a, lambda a, d: d),
    "softmax": (
        lambda a: a.softmax(-1),
        _softmax,
        lambda a, d: _softmax(a) * (d - (_softmax(a) * d).sum(-1, keepdims=True)),
    ),
    "mean": (
        lambda a: a.mean(0, keepdim=True),
        lambda a: a.mean(0, keepdims=True),
        lambda a, d: d.mean(0, keepdims=True),
    ),
}
BINARY = {
    "average": (lambda a, b: (a + b) * 0.5, lambda a, b, da, db: (da + db) * 0.5),
    "mul": (lambda a, b: a * b, lambda a, b, da, db: da * b + a * db),
    "sub": (lambda a, b: a * 0.5 - b * 0.5, lambda a, b, da, db: da * 0.5 - db * 0.5),
    "matmul": (lambda a, b: (a @ b) * (1.0 / N), lambda a, b, da, db: (da @ b + a @ db) / N),
}
CHANGES = {  # on tensors, in place; the new value; its differential
    "average_": (lambda a, b: a.add_(b).mul_(0.5), *BINARY["average"]),
    "mul_": (lambda a, b: a.mul_(b), *BINARY["mul"]),
    "copy_": (lambda a, b: a.copy_(b), lambda a, b: 0.0 * a + b, lambda a, b, da, db: 0.0 * da + db),
}
VIEWS = {  # every tensor is (rows, N), also after these
    "turned": lambda a: a.T if a.shape == (N, N) else a[:],
    "first row": lambda a: a[:1],
    "last row": lambda a: a[-1:],
    "upside down": lambda a: a[::-1],
    "all": lambda a: a[...],
}


NEWEST = st.integers(0, 7)  # which tensor, counted from the newest: graphs grow deep
AGO = NEWEST | st.integers(-LEAVES, -1)  # or a leaf
BUILDING = [
    *(("unary", name) for name in sorted(UNARY)),
    *(("binary", name) for name in 2 * sorted(BINARY)),
    *(("view", name) for name in sorted(VIEWS)),
    *[("constant", 1), ("constant", N), ("detach", ""), ("diamond", ""), ("diamond", "")],
]
RECORDING = st.sampled_from([True] * 4 + [False])


class Graphs(RuleBasedStateMachine):
    """What may happen to tensors, in any order."""

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed):
        self.rng = np.random.default_rng(seed)
        self.recording = True
        self.leaves, self.all = [], []
        self.expected = np.zeros(COUNT)  # of all .grad
        self.direction = self.rng.uniform(-1, 1, COUNT)  # of all second derivatives
        self.freed = set()
        self.steps = itertools.count()
        for _ in range(LEAVES):
            self.leaf()

    def ago(self, i):
        return self.all[-1 - i % len(self.all)]

    def keep(self, ours, memory, track, places):
        self.all.append(Twin(ours, memory, track, places))

    def mode(self):
        return contextlib.nullcontext() if self.recording else mt.no_grad()

    def fresh(self, ours, value, jacobian, *inputs):
        """A new tensor in memory of its own, computed from others."""
        recorded = self.recording and any(t.track.recorded for t in inputs)
        memory = Memory(np.array(value).reshape(-1))
        track = Track(np.array(jacobian * recorded).reshape(COUNT, -1), recorded)
        if recorded:
            track.ops = {next(self.steps)}.union(*(t.track.ops for t in inputs))
            track.read = {(memory, 0)}.union(*({*t.track.read, (t.memory, t.memory.version)} for t in inputs))
        self.keep(ours, memory, track, np.arange(memory.values.size).reshape(value.shape))

    # --- building -------------------------------------------------------------------------------------------

    @rule(steps=st.lists(st.tuples(st.sampled_from(BUILDING), AGO, AGO, RECORDING), min_size=2, max_size=8))
    def build(self, steps):
        for (kind, name), i, j, recording in steps:
            a, b, self.recording = self.ago(i), self.ago(j), recording
            if kind == "constant":
                self.constant(name)
            elif kind == "detach":
                self.detach(a)
            elif kind == "diamond":
                self.diamond(a, b)
            elif (
                kind == "view"
            ):  # always recorded: one from under no_grad has no good meaning when it changes
                self.view(a, name)
            elif kind == "unary":
                self.unary(a, name)
            else:
                self.binary(a, b, name)

    def leaf(self):
        i, value = len(self.leaves), self.rng.uniform(-1, 1, (N, N))
        jacobian = np.zeros((COUNT, N * N), complex)
        jacobian[i * N * N : (i + 1) * N * N] = np.eye(N * N)
        track = Track(jacobian, recorded=True, leaf=True)
        ours = mt.tensor(value, requires_grad=True)
        self.leaves.append(ours)
        self.keep(ours, Memory(value.reshape(-1)), track, np.arange(N * N).reshape(N, N))

    def constant(self, rows):
        value = self.rng.uniform(-1, 1, (rows, N))
        self.fresh(mt.tensor(value), value, np.zeros((COUNT, rows, N), complex))

    def unary(self, a, name):
        ours, value, differential = UNARY[name]
        with self.mode():
            made = ours(a.ours)
        at = a.moved(self.direction)
        directions = np.array([differential(at, d) for d in a.jacobian])
        self.fresh(made, value(a.value), directions, a)

    def binary(self, a, b, name):
        function, differential = BINARY["mul" if name == "matmul" and len(b.places) != N else name]
        with self.mode():
            made = function(a.ours, b.ours)
        directions = self.together(differential, a, b)
        self.fresh(made, function(a.value, b.value), directions, a, b)

    def diamond(self, a, b):
        """a and b get one gradient, and a a second while b waits: what they share must not change (law 4)."""
        self.unary(a, "square")
        older = self.all[-1]
        self.binary(a, b, "average")
        self.binary(self.all[-1], older, "average")

    def together(self, differential, a, b):
        at = a.moved(self.direction), b.moved(self.direction)
        return np.array([differential(*at, *both) for both in zip(a.jacobian, b.jacobian, strict=True)])

    def view(self, a, name):
        self.keep(VIEWS[name](a.ours), a.memory, a.track, VIEWS[name](a.places))

    def detach(self, a):
        track = Track(np.zeros_like(a.track.jacobian))
        self.keep(a.ours.detach(), a.memory, track, a.places)

    # --- changing in place ----------------------------------------------------------------------------------

    @rule(
        a=NEWEST,
        b=AGO,
        name=st.sampled_from(sorted(CHANGES)),
        recording=RECORDING,
        by=st.sampled_from(["itself", "itself", "a detached alias", "a view", "itself, beside a view"]),
    )
    def change(self, a, b, name, recording, by):
        a, b, self.recording = self.ago(a), self.ago(b), recording
        if len(b.places) > len(a.places):
            a, b = b, a
        if by == "a detached alias":  # behind the tape's back
            self.detach(a)
        elif by != "itself":
            self.view(a, "upside down")
        if by.startswith("a "):
            a = self.all[-1]
        ours, function, differential = CHANGES[name]
        if self.recording and a.track.leaf:
            with pytest.raises(
                RuntimeError, match=r"a leaf tensor .* cannot be changed in place while recording"
            ):
                ours(a.ours, b.ours)
            return
        with self.mode():
            ours(a.ours, b.ours)
        directions = self.together(differential, a, b)
        value, track = function(a.value, b.value), a.track
        if self.recording and (a.track.recorded or b.track.recorded):
            track.read |= {*b.track.read, (a.memory, a.memory.version), (b.memory, b.memory.version)}
            track.ops |= {next(self.steps), *b.track.ops}
            track.jacobian[:, a.places] = directions
            track.recorded = True
        a.memory.values[a.places] = value
        a.memory.version += 1

    # --- backward -------------------------------------------------------------------------------------------

    def walked(self, y, call, retain):
        """Did call() succeed? If not, it has told the truth about the reason."""
        track = y.track
        stale = any(memory.version != then for memory, then in track.read)
        gone = bool(track.ops & self.freed)
        try:
            call()
        except RuntimeError as error:
            said = str(error)
            assert ("was not recorded" in said) == (not track.recorded), said
            assert "was changed in place" not in said or stale, said
            assert "was freed by an earlier" not in said or gone, said
            assert stale or gone or not track.recorded, said
            return False
        finally:
            if not retain:
                self.freed |= track.ops
        assert track.recorded
        return True

    @rule(y=AGO, other=AGO, of_two=st.booleans(), retain=st.sampled_from([True, True, False]))
    def backward(self, y, other, of_two, retain):
        if of_two:  # leaves that meet here and nowhere else get one array
            self.binary(self.ago(y), self.ago(other), "average")
            y = 0
        y = self.ago(y)
        u, visited = self.rng.uniform(-1, 1, y.places.shape), []

        def call():
            with Block(watch=lambda entry, g, gradients: visited.append(entry) or gradients):
                y.ours.backward(mt.tensor(u), retain_graph=retain)

        if self.walked(y, call, retain):
            assert len(visited) == len(set(visited))  # else it may take exponential time, to the same numbers
            self.expected += (y.jacobian.real * u).sum((1, 2))

    @rule(y=AGO, create_graph=st.booleans())
    def grad(self, y, create_graph):
        self.check_grad(self.ago(y), create_graph)

    def check_grad(self, y, create_graph):
        u, found = self.rng.uniform(-1, 1, y.places.shape), []

        def call():
            options = {"retain_graph": True, "allow_unused": True}
            first = mt.autograd.grad(y.ours, self.leaves, mt.tensor(u), create_graph=create_graph, **options)
            found.append(first)
            along = [(g * mt.tensor(d)).sum() for g, d in zip(first, self.parts(self.direction), strict=True)
                     if g is not None and g.requires_grad]  # fmt: skip
            if create_graph:
                found.append(
                    mt.autograd.grad(sum(along), self.leaves, **options) if along else [None] * LEAVES
                )

        if self.walked(y, call, retain=True):
            wanted = (y.jacobian * u).sum((1, 2))
            for gradients, part in zip(found, (wanted.real, wanted.imag / STEP.imag), strict=False):
                self.compare(gradients, part)

    def parts(self, numbers):
        return numbers.reshape(LEAVES, N, N)

    def compare(self, gradients, wanted):
        for g, part in zip(gradients, self.parts(wanted), strict=True):
            np.testing.assert_allclose(np.zeros((N, N)) if g is None else g.array, part, **CLOSE)

    @rule()
    def zero_grad(self):
        for leaf in self.leaves:
            leaf.grad = None
        self.expected[:] = 0.0

    def teardown(self):
        for twin in getattr(self, "all", ()):
            self.check_grad(twin, create_graph=False)

    # --- what always holds ----------------------------------------------------------------------------------

    @invariant()
    def every_value_is_the_oracles(self):
        for twin in getattr(self, "all", ()):
            np.testing.assert_allclose(twin.ours.array, twin.value, **CLOSE)

    @invariant()
    def every_grad_is_the_sum_of_all_backwards(self):
        if hasattr(self, "leaves"):
            self.compare([leaf.grad for leaf in self.leaves], self.expected)

    @invariant()
    def every_grad_is_its_leafs_own(self):
        given = [leaf.grad.array for leaf in getattr(self, "leaves", ()) if leaf.grad is not None]
        for one, other in itertools.combinations(given, 2):
            assert not np.shares_memory(one, other)

    @invariant()
    def grad_mode_is_the_callers(self):
        assert mt.is_grad_enabled()


SUMS = pytest.mark.filterwarnings("ignore:backward. .grad adds up")  # on purpose
TestGraphs = SUMS(Graphs.TestCase)
TestGraphs.settings = settings(max_examples=2 * settings.default.max_examples)
