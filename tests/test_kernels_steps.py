"""One pass over many parameters: the formulas, the same bits however it is cut, what must go one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from microtensor import kernels
from microtensor.kernels import steps, tables, threads

Array = np.ndarray[Any, Any]
DTYPES = [np.float32, np.float64]
SHAPES: list[tuple[int, ...]] = [(3, 50), (0,), (), (20_000,), (7,), (2, 0), (1,), (8192,), (8193,)]
SUM_TOLERANCE = 1e-12  # 8192 terms of a block, half an eps of 2.2e-16 each, if no vector shares the work


def draw(shape: Any, dtype: Any, seed: int = 0) -> Array:
    return np.asarray(np.asarray(np.random.default_rng(seed).normal(size=shape)).astype(dtype))


def several(dtype: Any, seed: int = 0) -> list[Array]:
    return [draw(shape, dtype, seed + i) for i, shape in enumerate(SHAPES)]


@pytest.fixture(params=["serial", pytest.param("parallel", marks=pytest.mark.compiled)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test twice: every kernel serial, then every kernel parallel, whatever the size."""
    choose = {"serial": lambda work, s, p, *args: s(*args), "parallel": lambda work, s, p, *args: p(*args)}
    monkeypatch.setattr(steps, "run", choose[request.param])
    return str(request.param)


# ---- Adam ----

OPTIONS = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "maximize": False}


def adam_step(p: Array, g: Array, m: Array, v: Array, **options: Any) -> None:
    assert kernels.adam_steps([p], [g], [m], [v], [0], [kernels.adam_rule(**options)])


def adam_by_hand(
    p: Array, g: Array, m: Array, v: Array, *, lr: float, beta1: float, beta2: float, eps: float,
    weight_decay: float, decoupled: bool, maximize: bool, step: int,
) -> tuple[Array, Array, Array]:  # fmt: skip
    p, g, m, v = (a.astype(np.float64) for a in (p, g, m, v))
    g = -g if maximize else g
    p, g = (p - lr * weight_decay * p, g) if decoupled else (p, g + weight_decay * p)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
    return p - lr * m_hat / (np.sqrt(v_hat) + eps), m, v


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_follows_its_formula_in_place(decoupled: bool, dtype: Any, way: str) -> None:
    p, m, v = several(dtype), *([np.zeros(shape, dtype) for shape in SHAPES] for _ in range(2))
    for step in range(1, 4):
        g = several(dtype, 100 * step)
        options = [
            {**OPTIONS, "weight_decay": 0.1, "decoupled": decoupled, "step": step},
            {
                **OPTIONS,
                "lr": 0.3,
                "weight_decay": 0.0,
                "decoupled": decoupled,
                "step": step + 5,
                "maximize": True,
            },
        ]
        kinds = [i % 2 for i in range(len(p))]
        want = [adam_by_hand(*of, **options[kind]) for *of, kind in zip(p, g, m, v, kinds, strict=True)]
        assert kernels.adam_steps(p, g, m, v, kinds, [kernels.adam_rule(**o) for o in options])
        # one step from the same state: a dozen roundings
        for got, expected in zip(zip(p, m, v, strict=True), want, strict=True):
            for a, b in zip(got, expected, strict=True):
                assert a.dtype == dtype
                np.testing.assert_allclose(a, b, rtol=2e-6 if dtype is np.float32 else 4e-15, atol=3e-7)


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True])
def test_twenty_steps_end_where_pytorch_ends(decoupled: bool, weight_decay: float, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    p, m, v = draw((40, 3), dtype), np.zeros((40, 3), dtype), np.zeros((40, 3), dtype)
    q = torch.nn.Parameter(torch.tensor(p.copy()))
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([q], lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=weight_decay, foreach=False)
    for step in range(1, 21):
        g = draw((40, 3), dtype, step)
        q.grad = torch.tensor(g)
        optimizer.step()
        adam_step(p, g, m, v, **OPTIONS, weight_decay=weight_decay, decoupled=decoupled, step=step)
    state = optimizer.state[q]
    for ours, theirs in ((p, q.detach()), (m, state["exp_avg"]), (v, state["exp_avg_sq"])):
        # float32: 20 steps, a few roundings each
        np.testing.assert_allclose(
            ours, theirs.numpy(), rtol=1e-5 if dtype == "float32" else 1e-13, atol=1e-7
        )


def test_adamw_shrinks_a_parameter_without_gradient_and_leaves_the_moments_zero() -> None:
    p, g, m, v = np.array([2.0]), np.zeros(1), np.zeros(1), np.zeros(1)
    for step in (1, 2, 3):
        adam_step(p, g, m, v, **{**OPTIONS, "lr": 0.1}, weight_decay=0.5, decoupled=True, step=step)
    np.testing.assert_allclose(p, [2.0 * 0.95**3], rtol=1e-14)
    assert m[0] == v[0] == 0


def test_adam_without_decoupling_puts_the_decay_into_the_gradient() -> None:
    p, g, m, v = np.array([10.0]), np.array([-5.0]), np.zeros(1), np.zeros(1)
    adam_step(p, g, m, v, **OPTIONS, weight_decay=0.5, decoupled=False, step=1)
    assert p[0] == 10  # g + weight_decay · p = 0: no move at all


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_gradient_shows_in_its_element_and_no_other(dtype: Any, way: str) -> None:
    p, m, v = np.ones(40, dtype), np.zeros(40, dtype), np.zeros(40, dtype)
    g = np.ones(40, dtype)
    g[3] = math.nan
    adam_step(p, g, m, v, **OPTIONS, weight_decay=0.1, decoupled=True, step=1)
    np.testing.assert_array_equal(np.isnan(p), np.isnan(g))


# ---- SGD ----


def sgd_by_hand(
    p: Array, g: Array, b: Array | None, *, lr: float, momentum: float, dampening: float, weight_decay: float,
    nesterov: bool, maximize: bool, starting: bool,
) -> tuple[Array, Array | None]:  # fmt: skip
    """By NumPy, which rounds each operation once: to the same bits."""
    F = p.dtype.type
    d = -g if maximize else g
    d = d + F(weight_decay) * p if weight_decay else d
    if b is not None:
        b = d if starting else F(momentum) * b + F(1 - dampening) * d
        d = d + F(momentum) * b if nesterov else b
    return np.asarray(p - F(lr) * d), b


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_follows_its_formula_to_the_bit(momentum: float, dtype: Any, way: str) -> None:
    p, b = several(dtype), several(dtype, 50)
    p[0][1, 1] = np.inf  # without decay, 0 · ∞ must not turn it into NaN
    switch = [False, True]
    rules = [
        {"lr": 0.1, "momentum": momentum, "dampening": 0.3 * (not nesterov), "weight_decay": decay,
         "nesterov": nesterov and momentum > 0, "maximize": nesterov, "starting": starting}
        for starting in switch for nesterov in switch for decay in (0.0, 0.01)
    ]  # fmt: skip
    for shift in range(0, len(rules), 3):
        g, kinds = several(dtype, 200 + shift), [(i + shift) % len(rules) for i in range(len(p))]
        sums: list[Any] = list(b) if momentum else [None] * len(p)
        with np.errstate(invalid="ignore"):
            want = [sgd_by_hand(*of, **rules[kind]) for *of, kind in zip(p, g, sums, kinds, strict=True)]
        rows = [kernels.sgd_rule(**rule) for rule in rules]
        assert kernels.sgd_steps(p, g, b if momentum else None, kinds, rows)
        for got, total, (expected, expected_sum) in zip(p, b, want, strict=True):
            np.testing.assert_array_equal(got, expected)
            if momentum:
                np.testing.assert_array_equal(total, expected_sum)


# ---- what a table takes ----

ODD: dict[str, Callable[[Array], Any]] = {
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "transposed": np.asfortranarray,
    "misaligned": lambda a: np.frombuffer(bytearray(b"x" + a.tobytes()), a.dtype, offset=1).reshape(a.shape),
    "another dtype": lambda a: a.astype(np.float32),
    "integers": lambda a: a.astype(np.int64),
    "another shape": lambda a: a.reshape(-1),
    "another length": lambda a: a[:1].copy(),
    "a number": lambda a: np.float64(1),
    "a subclass": lambda a: a.view(np.memmap),
}


@pytest.mark.parametrize("role", range(4))
@pytest.mark.parametrize("odd", ODD)
def test_arrays_that_must_go_one_by_one_are_refused_unchanged(odd: str, role: int) -> None:
    columns = [[draw((4, 3), np.float64, i + 10 * k) for i in range(3)] for k in range(4)]
    columns[role][1] = ODD[odd](columns[role][1])
    before = [[np.array(a) for a in column] for column in columns]
    rule = kernels.adam_rule(**OPTIONS, weight_decay=0.1, decoupled=True, step=1)
    taken = kernels.adam_steps(columns[0], columns[3], columns[1], columns[2], [0] * 3, [rule])
    assert not taken
    for was, column in zip(before, columns, strict=True):
        for a, b in zip(was, column, strict=True):
            np.testing.assert_array_equal(a, b)


def test_read_only_gradients_are_taken_and_read_only_parameters_are_not() -> None:
    p, m, v, g = (draw((4, 3), np.float64, i) ** 2 for i in range(4))
    options = {**OPTIONS, "weight_decay": 0.1, "decoupled": True, "step": 1}
    g.flags.writeable = False
    adam_step(p, g, m, v, **options)
    for role in (p, m, v):
        role.flags.writeable = False
        assert not kernels.adam_steps([p], [g], [m], [v], [0], [kernels.adam_rule(**options)])
        role.flags.writeable = True


def test_memory_that_is_written_must_not_be_shared() -> None:
    memory = np.arange(40.0)
    rule = [kernels.sgd_rule(0.1, 0.0, 0.0, 0.0, False, False, False)]

    def taken(p: list[Array], g: list[Array]) -> bool:
        return kernels.sgd_steps(p, g, None, [0] * len(p), rule)

    one = np.ones(10)
    assert taken([memory[:10], memory[10:20]], [one, one])  # a gradient of both
    assert taken([memory[:10]], [memory[10:20]])
    assert taken([memory[10:20], memory[30:]], [memory[:10], memory[20:30]])
    assert taken([memory[10:20], memory[30:]], [memory[20:30], memory[20:30]])
    assert not taken([memory[:10], memory[9:19]], [one, one])
    assert not taken([memory[:10], memory[:10]], [one, one])
    assert not taken([memory[:10]], [memory[5:15]])
    assert not taken([memory[10:20], memory[30:]], [memory[20:30], memory[21:31]])
    assert taken([memory[:10], memory[10:10]], [one, memory[:0]])


@pytest.mark.compiled
def test_what_numpy_says_of_an_array_is_read_in_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick way and the plain one make the same table; a strange header is noticed before it is used."""
    assert tables._headers_are_known()
    roles = several(np.float32), several(np.float32, 9)
    quick = tables.table(roles, 1)
    monkeypatch.setattr(tables, "_headers_are_known", lambda: False)
    plain = tables.table(roles, 1)
    assert quick is not None
    assert plain is not None
    for a, b in zip(quick, plain, strict=True):
        np.testing.assert_array_equal(a, b)
    for odd in ODD.values():
        columns = [draw((4, 3), np.float64)], [odd(draw((4, 3), np.float64, 1))]
        assert tables.table(columns, 1) is None
    monkeypatch.setattr(tables, "HEADER", tables.HEADER + 8)
    assert not tables._has_known_header(np.zeros((3, 4)))
    monkeypatch.setattr(tables, "HEADER", 4096)
    assert not tables._has_known_header(np.zeros((3, 4)))


# ---- gradients ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_sq_sums_are_the_sums_of_squares_in_float64(dtype: Any, way: str) -> None:
    arrays = several(dtype)
    got = kernels.sq_sums(arrays)
    assert all(type(s) is float for s in got)
    assert got == pytest.approx([float((g.astype(np.float64) ** 2).sum()) for g in arrays], rel=SUM_TOLERANCE)
    assert got == [kernels.sq_sums([g])[0] for g in arrays]
    assert kernels.sq_sums([]) == []


@pytest.mark.compiled
def test_sq_sums_of_float32_neither_drift_nor_overflow() -> None:
    (got,) = kernels.sq_sums([np.full(1 << 20, 0.1, np.float32)])
    assert got == pytest.approx((1 << 20) * float(np.float32(0.1)) ** 2, rel=SUM_TOLERANCE)
    assert kernels.sq_sums([np.full(4, 1e30, np.float32)]) == pytest.approx([4e60], rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sq_sums_show_nan_and_inf_and_read_strided_and_mixed_arrays(dtype: Any) -> None:
    g = draw((30, 20), dtype)
    want = [float((a.astype(np.float64) ** 2).sum()) for a in (g.T[::2], g)]
    assert kernels.sq_sums([g.T[::2], g]) == pytest.approx(want, rel=SUM_TOLERANCE)
    assert kernels.sq_sums([g, np.ones(3), np.ones(2, np.float32)])[1:] == [3.0, 2.0]
    g[7, 7] = -math.inf
    assert kernels.sq_sums([g]) == [math.inf]
    g[8, 8] = math.nan
    assert math.isnan(kernels.sq_sums([np.ones(2, dtype), g])[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_multiplies_every_array_in_place(dtype: Any, way: str) -> None:
    arrays = several(dtype)
    want = [np.asarray(g * dtype(0.3)) for g in arrays]
    kernels.scale(arrays, 0.3)
    for got, expected in zip(arrays, want, strict=True):
        np.testing.assert_array_equal(got, expected)
    kernels.scale([], 0.3)


def test_scale_takes_any_layout_and_multiplies_shared_arrays_as_often_as_they_are_listed() -> None:
    memory = np.ones((3, 4))
    kernels.scale([memory[:, ::2], memory[:, 1], np.ones(2, np.float32)], 0.5)
    np.testing.assert_array_equal(memory, [[0.5, 0.5, 0.5, 1]] * 3)
    kernels.scale([memory, memory], 2.0)
    np.testing.assert_array_equal(memory, [[2, 2, 2, 4]] * 3)


# ---- the same bits, whoever computes ----


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_grouping_do_not_change_a_bit(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = [kernels.adam_rule(**OPTIONS, weight_decay=0.1, decoupled=True, step=2)]
    momentum = [kernels.sgd_rule(0.1, 0.9, 0.1, 0.01, False, False, False)]

    def results(parts: list[slice]) -> list[Any]:
        p, g, m, v = (
            several(dtype),
            several(dtype, 20),
            several(dtype, 40),
            [a * a for a in several(dtype, 60)],
        )
        v = [np.asarray(a) for a in v]
        sums: list[float] = []
        for part in parts:
            n = len(p[part])
            assert kernels.adam_steps(p[part], g[part], m[part], v[part], [0] * n, rule)
            assert kernels.sgd_steps(p[part], g[part], m[part], [0] * n, momentum)
            sums += kernels.sq_sums(m[part])
            kernels.scale(m[part], 0.7)
        return [*p, *m, *v, sums]

    before = threads.get_num_threads()
    monkeypatch.setattr(threads, "PARALLEL_FROM", 0)
    try:
        threads.set_num_threads(1)
        want = results([slice(None)])
        threads.set_num_threads(before)
        for parts in (
            [slice(None)],
            [slice(0, 4), slice(4, None)],
            [slice(i, i + 1) for i in range(len(SHAPES))],
        ):
            for got, expected in zip(results(parts), want, strict=True):
                np.testing.assert_array_equal(got, expected)
    finally:
        threads.set_num_threads(before)
