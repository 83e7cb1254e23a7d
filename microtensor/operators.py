"""What + and its like do with two tensors: `Op._record`, written out, since they are called most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref as weak

import numpy as np
from numpy import ndarray

from microtensor import engine
from microtensor.dtypes import float32, float64
from microtensor.engine import Op, record
from microtensor.mode import mode

__all__ = ["operator"]


def operator(op: Op, otherwise: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A method for two tensors of one floating dtype that are no views; `otherwise` does all else."""
    if op.keeps_output or op.residuals or op.view or (op.differentiable and op.vjp_function is None):
        return otherwise
    forward, take, versions, recorded = op.forward, op.take, op.versions, op.differentiable
    keeps_nothing, keeps_all, no_params = not op.plan, op.keeps_all, op.defaults

    def method(self: Any, other: Any) -> Any:
        if type(self) is not type(other) or self.base is not None:
            return otherwise(self, other)
        x, y = self.array, other.array
        dtype = x.dtype
        if dtype is not y.dtype or (dtype is not float32 and dtype is not float64) or other.base is not None:
            return otherwise(self, other)
        now = mode.__dict__
        try:
            z = now["run"](forward, x, y)
        except Exception:  # it is explained where there is time
            return otherwise(self, other)
        z = z if type(z) is ndarray else np.asarray(z)
        left, right = self._requires_grad, other._requires_grad
        if not (left or right) or not recorded or not now["grad"]:
            return engine.make(z, None, None)
        a = (self.grad_fn or self) if left else weak(self)
        b = (other.grad_fn or other) if right else weak(other)
        if keeps_nothing:
            return record(op, no_params, (a, b), z, (), (), 2)
        if keeps_all:
            u, v = self.version, other.version
            return record(op, no_params, (a, b), z, (x, y), (u, u[0], v, v[0]), 2)
        saved, checks = take(z, (x, y), None), versions(None, (self, other), None)
        return record(op, no_params, (a, b), z, saved, checks, 2)

    return method
