"""Fused attention: its definition's numbers for any shape, mask and memory; masks, chance and threads."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import kernels, ops
from microtensor.cost import flop
from microtensor.kernels import attention as kernel
from microtensor.testing import assert_close

OPTIONS = {"scale": 0.4, "causal": False, "dropout_p": 0.0, "seed": 0}


def heads(rng, B, H, T, D, dtype=np.float64):
    """(B, H, T, D) as a layer's projections are: (B, T, H, D) in memory."""
    return rng.normal(size=(B, T, H, D)).astype(dtype).swapaxes(1, 2)


def both(arrays, mask, u, **options):
    """[y, dq, dk, dv] by the kernel, and by the definition."""
    found = []
    for block in (mt.enable_grad, mt.composites):
        with block():
            inputs = [mt.tensor(a, requires_grad=True) for a in arrays]
            y = ops.attention(*inputs, None if mask is None else mt.tensor(mask), **{**OPTIONS, **options})
            y.backward(mt.tensor(u))
            found.append([y.array, *(x.grad.array for x in inputs)])
    return found


MASKS = {
    "none": lambda rng, B, H, T, S: None,
    "keys": lambda rng, B, H, T, S: rng.random((B, 1, 1, S)) < 0.6,
    "one row": lambda rng, B, H, T, S: rng.random(S) < 0.6,
    "pairs": lambda rng, B, H, T, S: rng.random((T, S)) < 0.6,
    "batch": lambda rng, B, H, T, S: rng.random((B, 1, T, S)) < 0.6,
    "all": lambda rng, B, H, T, S: rng.random((B, H, T, S)) < 0.3,
    "queries": lambda rng, B, H, T, S: rng.random((T, 1)) < 0.6,
    "added": lambda rng, B, H, T, S: rng.normal(size=(H, T, S)),
    "added −∞": lambda rng, B, H, T, S: np.where(rng.random((T, S)) < 0.5, -np.inf, 1.0),
}
lengths = st.one_of(st.integers(1, 20), st.sampled_from([63, 64, 65, 130]))


@given(
    st.integers(1, 2), st.integers(1, 3), lengths, lengths, st.integers(1, 34), st.integers(1, 18),
    st.sampled_from(sorted(MASKS)), st.booleans(), st.sampled_from([0.0, 0.3]), st.integers(0, 2**63 - 1),
)  # fmt: skip
def test_kernel_and_definition_agree(B, H, T, S, D, E, kind, causal, p, seed):
    rng = np.random.default_rng(seed)
    arrays = heads(rng, B, H, T, D), heads(rng, B, H, S, D), rng.normal(size=(B, H, S, E))
    mask, u = MASKS[kind](rng, B, H, T, S), heads(rng, B, H, T, E)
    fused, exact = both(arrays, mask, u, causal=causal, dropout_p=p, seed=seed)
    assert_close(fused, exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3), (2, 0)])
def test_any_number_of_axes_before_the_last_two(lead, rng):
    arrays = [rng.normal(size=(*lead, n, 4)) for n in (5, 6, 6)]
    mask = rng.random((*lead[:-1], *(1 for _ in lead[-1:]), 5, 6)) < 0.6
    assert_close(*both(arrays, mask, rng.normal(size=(*lead, 5, 4)), dropout_p=0.2))


@pytest.mark.parametrize(("T", "S", "D", "E"), [(0, 3, 2, 2), (3, 3, 0, 2), (3, 3, 2, 0)])
def test_axes_of_no_length(T, S, D, E, rng):
    arrays = [rng.normal(size=(2, 2, *s)) for s in ((T, D), (S, D), (S, E))]
    assert_close(*both(arrays, None, rng.normal(size=(2, 2, T, E))))


def test_without_keys_there_is_nothing_to_attend_to(rng):
    q, k = (mt.tensor(rng.normal(size=(2, n, 4)), requires_grad=True) for n in (3, 0))
    y = F.scaled_dot_product_attention(q, k, k)
    y.backward(mt.ones(2, 3, 4).double())
    assert not y.array.any()
    assert not q.grad.array.any()
    assert k.grad.shape == (2, 0, 4)


def test_float32_is_float64_to_its_digits(rng):
    arrays = [heads(rng, 2, 2, n, 16) for n in (70, 90, 90)]
    u = heads(rng, 2, 2, 70, 16)
    exact, _ = both(arrays, None, u, causal=True)
    short, _ = both([a.astype(np.float32) for a in arrays], None, u.astype(np.float32), causal=True)
    assert all(a.dtype == np.float32 for a in short)
    assert_close(short, exact, rtol=1e-4, atol=2e-5, check_dtype=False)  # sums of 90 terms of about 1


@pytest.mark.parametrize("kind", ["none", "all", "added"])
def test_one_query_meets_more_keys_than_its_row_of_scores_holds(kind, rng):
    arrays = [heads(rng, 1, 2, n, 20) for n in (1, 2500, 2500)]
    arrays[1][:, :, 2400] *= 9  # in the last piece stands a score above all before it
    mask = MASKS[kind](rng, 1, 2, 1, 2500)
    assert_close(*both(arrays, mask, heads(rng, 1, 2, 1, 20)), rtol=1e-9, atol=1e-9)


def test_results_lie_in_memory_as_the_queries_do(rng):
    x = mt.tensor(rng.normal(size=(2, 5, 3, 4)), requires_grad=True)
    q = x.transpose(1, 2)  # a layer's projections, (B, T, H, D) in memory
    y = F.scaled_dot_product_attention(q, q, q)
    joined = y.transpose(1, 2).reshape(2, 5, 12)
    assert np.shares_memory(joined.array, y.array)
    _, stats = kernels.attention_forward(q.array, q.array, q.array, None, 0.5, False, 0.0, 0)
    for gradient in kernels.attention_backward(
        y.array, q.array, q.array, q.array, None, y.array, stats, 0.5, False, 0.0, 0
    ):
        assert gradient.strides == q.array.strides


# --- masks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_that_may_attend_to_nothing_gives_zeros_and_no_gradient(causal, dtype, rng):
    q, k, v = (heads(rng, 2, 2, 70, 8, dtype) for _ in range(3))
    mask = np.ones((2, 1, 70, 70), bool)
    mask[0, 0, 3:7] = mask[1, 0, 69] = False
    (y, dq, dk, dv), _ = both((q, k, v), mask, np.ones_like(v), causal=causal)
    assert not y[0, :, 3:7].any()
    assert not dq[0, :, 3:7].any()
    assert not y[1, :, 69].any()
    assert np.isfinite([dk, dv]).all()
    (y, *gradients), _ = both((q, k, v), np.zeros((70, 70), bool), np.ones_like(v), causal=causal)
    assert not y.any()
    assert not np.any(gradients)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_of_one_projection_are_the_pieces_of_one_array(dtype, rng):
    B, T, H, D = 3, 7, 2, 4
    packed = rng.normal(size=(B, T, 3 * H * D)).astype(dtype)
    q, k, v = (x.reshape(B, T, H, D).swapaxes(1, 2) for x in np.split(packed, 3, axis=-1))
    g = heads(rng, B, H, T, D, dtype)
    settings = None, 0.5, True, 0.0, 0
    y, stats = kernels.attention_forward(q, k, v, *settings)
    together = kernels.attention_backward(g, q, k, v, settings[0], y, stats, *settings[1:])
    apart = kernels.attention_backward(g, q.copy(), k.copy(), v.copy(), settings[0], y, stats, *settings[1:])
    for a, b in zip(together, apart, strict=True):
        assert a.base is together[0].base
        np.testing.assert_array_equal(a, b)
    x = mt.tensor(packed, requires_grad=True)
    tensors = [p.view(B, T, H, D).transpose(1, 2) for p in x.split(H * D, dim=-1)]
    F.scaled_dot_product_attention(*tensors, scale=0.5, is_causal=True).backward(mt.tensor(g))
    want = np.concatenate([a.swapaxes(1, 2).reshape(B, T, H * D) for a in apart], axis=-1)
    np.testing.assert_array_equal(x.grad.array, want)


def test_causal_queries_depend_on_no_later_key(rng):
    q, k, v = (mt.tensor(heads(rng, 1, 2, 150, 8), requires_grad=True) for _ in range(3))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for t in (0, 1, 63, 64, 100, 149):
        dk, dv = mt.autograd.grad(y[:, :, t].sum(), (k, v), retain_graph=True)
        assert not dk.array[:, :, t + 1 :].any()
        assert not dv.array[:, :, t + 1 :].any()
        assert dv.array[:, :, : t + 1].all()


def test_hidden_keys_get_no_gradient_and_matter_not(rng):
    arrays = [heads(rng, 2, 2, n, 8) for n in (9, 80, 80)]
    seen = np.arange(80) < np.array([[80], [30]])
    mask, u = seen[:, None, None], heads(rng, 2, 2, 9, 8)
    (y, _, dk, dv), _ = both(arrays, mask, u)
    assert not dk[1, :, 30:].any()
    assert not dv[1, :, 30:].any()
    arrays[1][1, :, 30:] = 1e300  # scores that overflow, hidden
    arrays[2][1, :, 30:] = -7.0
    assert_close(both(arrays, mask, u)[0][0], y, rtol=0, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_keys_that_blocks_of_queries_meet_in_parts_get_their_gradients(causal, rng, monkeypatch):
    room = kernel._like

    def spoiled(*args):  # fresh memory holds anything
        x = room(*args)
        x[...] = np.nan
        return x

    monkeypatch.setattr(kernel, "_like", spoiled)
    arrays = [heads(rng, 2, 2, n, 8) for n in (200, 230, 230)]
    ends = np.array([40, 100, 20, 190])[np.arange(200) // 64]  # the mask of each block of queries
    fused, exact = both(arrays, np.arange(230) < ends[:, None], heads(rng, 2, 2, 200, 8), causal=causal)
    assert_close(fused, exact, rtol=1e-9, atol=1e-9)
    assert not fused[2][:, :, 190:].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_scores_leave_the_largest(dtype, rng):
    q = np.full((1, 1, 4, 1), 1e4, dtype)
    k = np.linspace(-1, 1, 200).astype(dtype).reshape(1, 1, 200, 1)
    v = rng.normal(size=(1, 1, 200, 3)).astype(dtype)
    for sign, key in ((1.0, -1), (-1.0, 0)):
        (y, *gradients), exact = both((sign * q, k, v), None, np.ones((1, 1, 4, 3), dtype), scale=1.0)
        assert_close(y[0, 0], np.broadcast_to(v[0, 0, key], (4, 3)), rtol=1e-6)
        assert np.isfinite(np.concatenate([g.ravel() for g in gradients])).all()
        assert_close(gradients[2], exact[3], rtol=1e-5, atol=1e-5)


def test_a_nan_in_a_query_stays_in_its_row(rng):
    q, k, v = (heads(rng, 1, 1, 20, 8) for _ in range(3))
    q[0, 0, 5, 2] = np.nan
    y, _ = kernels.attention_forward(q, k, v, None, 1.0, False, 0.0, 0)
    assert np.isnan(y[0, 0, 5]).all()
    assert np.isfinite(np.delete(y, 5, 2)).all()


def test_a_mask_of_numbers_gets_its_gradient(rng):
    q, k, v = (mt.tensor(heads(rng, 2, 2, 5, 4)) for _ in range(3))
    mask = mt.tensor(rng.normal(size=(2, 1, 5)), requires_grad=True)
    u = mt.tensor(heads(rng, 2, 2, 5, 4))
    gradients = []
    for block in (mt.enable_grad, mt.composites):
        with block():
            y = F.scaled_dot_product_attention(q, k, v, mask)
            gradients += mt.autograd.grad((y * u).sum(), mask)
    assert_close(*gradients)


# --- dropout ------------------------------------------------------------------------------------------------


def test_dropout_drops_what_the_counters_say(rng):
    q, k = (heads(rng, 2, 3, n, 4) for n in (40, 70))
    keep = kernels.attention_keeps((2, 3, 40, 70), 0.25, 1234567890123)
    v = np.broadcast_to(np.eye(70), (2, 3, 70, 70))  # so that y is the weights themselves
    weights, _ = kernels.attention_forward(q, k, v, None, 0.5, False, 0.0, 0)
    kept, _ = kernels.attention_forward(q, k, v, None, 0.5, False, 0.25, 1234567890123)
    assert_close(kept, np.where(keep, weights / 0.75, 0.0), rtol=1e-12)


def test_dropout_of_some_items_is_that_of_all(rng):
    q, k = (heads(rng, 4, 2, n, 4) for n in (40, 70))
    v, seed = heads(rng, 4, 2, 70, 5), 1234567890123
    whole, stats = kernels.attention_forward(q, k, v, None, 0.5, False, 0.25, seed)
    back = kernels.attention_backward(v[..., :40, :], q, k, v, None, whole, stats, 0.5, False, 0.25, seed)
    rows, items = slice(1, 3), 2 << 64  # a row has two heads, and one row stands before
    arrays, rest = [x[rows] for x in (q, k, v)], (None, 0.5, False, 0.25, seed | items)
    part, stats = kernels.attention_forward(*arrays, *rest)
    np.testing.assert_array_equal(part, whole[rows])
    found = kernels.attention_backward(v[rows, :, :40], *arrays, None, part, stats, *rest[1:])
    for g, all_g in zip(found, back, strict=True):
        assert_close(g, all_g[rows])
    keeps = kernels.attention_keeps((2, 2, 40, 70), 0.25, seed | items)
    np.testing.assert_array_equal(keeps, kernels.attention_keeps((4, 2, 40, 70), 0.25, seed)[rows])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_is_fair_and_independent(p):
    keep = kernels.attention_keeps((4, 4, 128, 128), p, 42)
    n, q = keep.size, 1 - p
    five_sigma = 5 * math.sqrt(p * q / n)
    assert abs(keep.mean() - q) < five_sigma
    for axis in range(4):  # each place, and each with its neighbour
        mean = keep.mean(tuple(a for a in range(4) if a != axis))
        assert (abs(mean - q) < 6 * math.sqrt(p * q / (n / keep.shape[axis]))).all()
        together = (keep & np.roll(keep, 1, axis)).mean()
        assert abs(together - q * q) < 5 * math.sqrt(q * q * (1 - q * q) / n) * 2
    other = kernels.attention_keeps((4, 4, 128, 128), p, 43)
    assert abs((keep & other).mean() - q * q) < 2 * five_sigma
    assert kernels.attention_keeps((1, 1, 5, 5), 0.0, 1).all()


def test_the_seed_comes_from_the_generator(rng):
    x = mt.tensor(heads(rng, 2, 2, 8, 4))

    def draw():
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5).array

    mt.manual_seed(3)
    first, second = draw(), draw()
    mt.manual_seed(3)
    assert (first == draw()).all()
    assert (first != second).any()
    assert not F.scaled_dot_product_attention(x, x, x, dropout_p=1.0).array.any()


# --- threads ------------------------------------------------------------------------------------------------


@pytest.mark.compiled
@pytest.mark.parametrize(("B", "H", "T"), [(1, 1, 600), (3, 5, 70)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_bits_do_not_depend_on_the_number_of_threads(B, H, T, causal, rng, monkeypatch):
    q, k, v, g = (heads(rng, B, H, T, 16, np.float32) for _ in range(4))
    results = []
    for tasks in (1, 2, 3, 5):
        monkeypatch.setattr(kernel, "get_num_threads", lambda tasks=tasks: tasks)
        monkeypatch.setattr(kernel, "run", lambda work, serial, parallel: parallel())
        y, stats = kernel.attention_forward(q, k, v, None, 0.25, causal, 0.1, 7)
        gradients = kernel.attention_backward(g, q, k, v, None, y, stats, 0.25, causal, 0.1, 7)
        results.append(b"".join(a.tobytes() for a in (y, stats, *gradients)))
    monkeypatch.setattr(kernel, "run", lambda work, serial, parallel: serial())
    y, stats = kernel.attention_forward(q, k, v, None, 0.25, causal, 0.1, 7)
    gradients = kernel.attention_backward(g, q, k, v, None, y, stats, 0.25, causal, 0.1, 7)
    results.append(b"".join(a.tobytes() for a in (y, stats, *gradients)))
    assert len(set(results)) == 1


# --- the public functions -----------------------------------------------------------------------------------


def test_leading_axes_broadcast(rng):
    q, k, v = (mt.tensor(rng.normal(size=s), requires_grad=True) for s in ((2, 1, 3, 4), (3, 5, 4), (5, 2)))
    y = F.scaled_dot_product_attention(q, k, v)
    assert y.shape == (2, 3, 3, 2)
    with mt.composites():
        assert_close(F.scaled_dot_product_attention(q, k, v), y)
    y.sum().backward()
    assert v.grad.shape == (5, 2)


@pytest.mark.parametrize(
    ("shapes", "kind", "said"),
    [
        ([(2, 3, 4), (3, 5, 4), (2, 5, 4)], ValueError, "before the last two"),
        ([(3, 4), (5, 3), (5, 4)], ValueError, "do not fit"),
        ([(3, 4), (5, 4), (6, 4)], ValueError, "do not fit"),
        ([(4,), (5, 4), (5, 4)], ValueError, "last two"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, kind, said):
    with pytest.raises(kind, match=f"attention: .*{said}"):
        ops.attention(*(mt.ones(*s) for s in shapes), None, **OPTIONS)


def test_masks_that_do_not_fit_are_named():
    x = mt.ones(2, 3, 4)
    with pytest.raises(ValueError, match=r"\(2, 4\) does not broadcast to \(2, 3, 3\)"):
        ops.attention(x, x, x, mt.ones(2, 4).bool(), **OPTIONS)
    with pytest.raises(TypeError, match="the mask is int64"):
        ops.attention(x, x, x, mt.ones(3, 3).long(), **OPTIONS)
    with pytest.raises(TypeError, match="one dtype"):
        ops.attention(x, x.double(), x, None, **OPTIONS)


def test_the_tape_counts_both_products_and_the_softmax():
    x = mt.ones(2, 3, 5, 4, requires_grad=True)
    y = F.scaled_dot_product_attention(x, x, x)
    assert flop(y.grad_fn.op, y.shape, [x.shape] * 3) == 2 * 3 * 5 * 5 * (2 * 4 + 2 * 4 + 5)
