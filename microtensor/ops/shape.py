"""Ops that move elements and compute nothing: shapes, joins and indexing.

Many of them are views: they share memory with their input, and its version counter with it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from microtensor.engine import op
from microtensor.ops.select import where


@op("reshape", view=True)
def reshape(x, *, shape):
    """y = reshape(x); the same elements in row-major order          gradient: reshape(g); back"""
    return x.reshape(shape)


@reshape.vjp
def reshape_vjp(g, x_shape):
    return (g.reshape(x_shape),)


@reshape.samples
def reshape_samples(rng):
    for before, after in [((2, 3, 4), (6, 4)), ((6,), (2, -1)), ((1,), ()), ((0, 3), (3, 0))]:
        yield (rng.normal(size=before),), {"shape": after}


@op("permute", label="transpose", view=True)
def permute(x, *, axes):
    """y = transpose(x); its axis i is x's axis axes[i]          gradient: transpose(g); back"""
    return x.transpose(axes)


@permute.vjp
def permute_vjp(g, *, axes):
    back = list(axes)
    for i, axis in enumerate(axes):
        back[axis] = i
    return (permute(g, axes=tuple(back)),)


@permute.samples
def permute_samples(rng):
    for shape, axes in [((2, 3), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((2, 3, 4), (-1, 1, 0)), ((), ())]:
        yield (rng.normal(size=shape),), {"axes": axes}


@op("expand", view=True, broadcasts=True, promotes=None)
def expand(x, *, shape):
    """y = expand(x); repeated along axes, uncopied          gradient: unexpand(g); summed there"""
    return np.broadcast_to(x, shape)


@expand.vjp
def expand_vjp(g):
    return (g,)


@expand.samples
def expand_samples(rng):
    for before, after in [
        ((3,), (2, 3)),
        ((2, 1, 3), (4, 2, 5, 3)),
        ((), (2,)),
        ((2, 3), (2, 3)),
        ((1,), (0,)),
    ]:
        yield (rng.normal(size=before),), {"shape": after}


@op("flip")
def flip(x, *, axes):
    """y = flip(x); backwards along the axes, copied as in PyTorch          gradient: flip(g)"""
    return np.array(np.flip(np.atleast_1d(x), axes), order="C").reshape(x.shape)  # 0-d has an axis 0


@flip.vjp
def flip_vjp(g, *, axes):
    return (flip(g, axes=axes),)


@flip.samples
def flip_samples(rng):
    for axes in [(0,), (-1,), (0, 1)]:
        yield (rng.normal(size=(2, 3)),), {"axes": axes}


@op("cat", label="concat", promotes=slice(None))
def cat(*xs, axis):
    """y = concat(xs); along an axis          gradient: part(g); the slice that came from each"""
    return np.asarray(np.concatenate(xs, axis=axis), order="C")  # NumPy keeps an order that all of them have


@cat.vjp
def cat_vjp(g, xs_shapes, *, axis):
    ends = np.cumsum([shape[axis] for shape in xs_shapes]).tolist()
    before = (slice(None),) * (axis % g.ndim)
    return tuple(
        getitem(g, index=(*before, slice(end - shape[axis], end)))
        for shape, end in zip(xs_shapes, ends, strict=True)
    )


@cat.samples
def cat_samples(rng):
    for axis in [0, 1, -1]:
        shapes = [[2, 3, 4] for _ in range(3)]
        for length in [0, 5]:
            shapes[2][axis] = length
            yield tuple(rng.normal(size=shape) for shape in shapes), {"axis": axis}


# --- indexing -----------------------------------------------------------------------------------------------


@op("getitem", label="index", view=True)
def getitem(x, *, index):
    """y = x[index]; as NumPy indexes          gradient: put_add(g, index); repeated places add up"""
    basic = is_basic(index)
    y = _at("getitem", x, index, basic)
    return y if basic else np.asarray(y, order="C")  # NumPy lays the picked axes outermost: no view(-1)


@getitem.vjp
def getitem_vjp(g, x_shape, *, index):
    if is_basic(index):  # no element is named twice: the walk adds the pieces of x into one array
        return (partial(put_add, g, index=index, shape=x_shape),)
    return (put_add(g, index=index, shape=x_shape),)


MANY = 8192  # from here numbers are added up in float64: of 10⁶ equal ones a float32 sum would be 1 % off


@op("put_add", label="scatter add")
def put_add(g, *, index, shape):
    """y = put_add(g, index); g added to zeros there, the adjoint of getitem          gradient: g[index]"""
    if is_basic(index):
        y = np.zeros(shape, g.dtype)
        y[index] = g  # no element is named twice
        return y
    dtype = np.dtype(np.float64) if g.size > MANY and g.dtype.kind == "f" else g.dtype
    y = np.zeros(shape, dtype)
    np.add.at(y, index, g.astype(dtype, copy=False))
    return y.astype(g.dtype, copy=False)


@put_add.vjp
def put_add_vjp(g, *, index):
    return (getitem(g, index=index),)


@op("setitem", label="assign", broadcasts=True, promotes=None)
def setitem(x, value, *, index):
    """y = put(x, index, value); x, but y[index] = value          gradient: put(g, index, 0), g[index]"""
    y = np.array(x, order="C")
    assign(y, index, value)
    return y


@setitem.vjp
def setitem_vjp(g, x_shape, value_shape, *, index):
    kept = np.ones(x_shape, bool)
    kept[index] = False
    return lambda: where(kept, g, 0.0), lambda: _with_axes(getitem(g, index=index), len(value_shape))


def _with_axes(g: Any, ndim: int) -> Any:
    """g with as many axes as a value, which may have more than fit, of length 1, in front."""
    return g.reshape((1,) * (ndim - g.ndim) + g.shape) if ndim > g.ndim else g


def assign(y: Any, index: Any, value: Any, who: str = "setitem") -> None:
    """y[index] = value in y's own memory, even if value lies there, too."""
    value = np.array(value) if np.may_share_memory(y, value) else np.asarray(value)
    shape = value.shape
    while shape[:1] == (1,):  # more axes than fit are fine if they have length 1
        shape = shape[1:]
    basic = is_basic(index)
    try:
        y[_basic(index) if basic else index] = value.reshape(shape)
    except (ValueError, IndexError, TypeError):
        fits = f"does not fit into {_at(who, y, index, basic).shape}, {_written(index)} of shape {y.shape}"
        raise ValueError(f"{who}: value {value.shape} {fits}; give one number, or that shape") from None


INDICES = "give each axis one index at most: an integer within, a slice of integers, a mask, or one array"


def _at(who: str, x: Any, index: Any, basic: bool) -> Any:
    """x[index] as NumPy has it, or what is wrong with the index and the rule."""
    try:
        return x[_basic(index) if basic else index]
    except (ValueError, IndexError, TypeError) as error:
        raise type(error)(f"{who}: {_written(index)} of shape {x.shape}: {error}; {INDICES}") from None


def _written(index: Any) -> str:
    return f"x[{' '.join(repr(index).replace('Ellipsis', '...').split()):.60}]"


def _basic(index: Any) -> tuple[Any, ...]:
    """An index of integers and slices, with ...: so a single element is a view, too."""
    parts = index if isinstance(index, tuple) else (index,)
    return parts if Ellipsis in parts else (*parts, Ellipsis)


def is_basic(index: Any) -> bool:
    """Only integers, slices, None and ...: NumPy gives a view, and names each element once."""
    parts = index if isinstance(index, tuple) else (index,)
    return not [part for part in parts if isinstance(part, (np.ndarray, list))]


def _indices(rng: np.random.Generator) -> Any:
    yield 1
    yield (slice(None), -1)
    yield (Ellipsis, None, slice(0, None, 2))
    yield (slice(None, None, -1), 0)
    yield np.array([0, 0, 1, -1])
    yield (np.array([[0, 1], [1, 1]]), slice(None), np.array([2, 0]))
    yield rng.random((2, 3, 4)) < 0.5


@getitem.samples
def getitem_samples(rng):
    for index in _indices(rng):
        yield (rng.normal(size=(2, 3, 4)),), {"index": index}


@put_add.samples
def put_add_samples(rng):
    for index in _indices(rng):
        part = np.empty((2, 3, 4))[index]
        yield (rng.normal(size=part.shape),), {"index": index, "shape": (2, 3, 4)}


@setitem.samples
def setitem_samples(rng):
    for index, value in [(1, (3, 4)), (np.s_[:, -1], (4,)), (np.s_[..., 0], ()), (np.array([1, 0]), (3, 4))]:
        yield (rng.normal(size=(2, 3, 4)), rng.normal(size=value)), {"index": index}
