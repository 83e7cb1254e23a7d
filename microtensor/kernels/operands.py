"""Arrays as a kernel of any rank sees them: where the numbers lie, how long each axis is, how far its steps.

numba's own arrays have a fixed rank, and making one of a NumPy array costs as much as a small product. So an
operand is only a pointer to the array object, and its fields are read where NumPy's C header puts them.
Whoever calls the kernel keeps the arrays alive and knows that they are arrays, of the kernel's dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types

from microtensor.kernels.threads import COMPILED, compiled

I32, I64 = ir.IntType(32), ir.IntType(64)
DATA = object.__basicsize__  # struct PyArrayObject_fields: char *data; int nd; npy_intp *dimensions, *strides
RANK, SHAPE, STRIDES = DATA + 8, DATA + 16, DATA + 24


_extending: Any = extending  # numba has types for some of its names in some versions: treat all as untyped
_types: Any = types
intrinsic: Any = _extending.intrinsic


class Operand(_types.Opaque):  # type: ignore[misc]
    """numba's type for an array that is only looked at through this file."""

    def __init__(self) -> None:
        super().__init__("Operand")


operand = Operand()
_extending.register_model(Operand)(_extending.models.OpaqueModel)


@_extending.unbox(Operand)
def _unbox(kind: Any, value: Any, context: Any) -> Any:
    return _extending.NativeValue(value)


def _reads(write: Callable[[Any, Any, Any], Any], plain: Callable[..., Any]) -> Any:
    """A function of a handle and an axis: instructions, or `plain` on the array where nothing is compiled."""

    def typed(typing: Any, array: Any, axis: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return write(builder, *arguments)

        return _types.intp(_types.intp, _types.intp), codegen

    return intrinsic(typed) if COMPILED else plain


def _field(builder: Any, array: Any, offset: int, kind: Any) -> Any:
    return builder.load(builder.inttoptr(builder.add(array, I64(offset)), kind.as_pointer()))


def _entry(builder: Any, array: Any, offset: int, axis: Any) -> Any:
    """Of the numbers that a field points to, the one of this axis; −1 is the last."""
    rank = builder.sext(_field(builder, array, RANK, I32), I64)
    index = builder.select(builder.icmp_signed("<", axis, I64(0)), builder.add(axis, rank), axis)
    return builder.load(builder.gep(_field(builder, array, offset, I64.as_pointer()), [index]))


@intrinsic
def _handle(typing: Any, array: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], I64)

    return _types.intp(array), write


@intrinsic
def _address(typing: Any, array: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _field(builder, arguments[0], DATA, I64)

    return _types.intp(_types.intp), write


@intrinsic
def _rank(typing: Any, array: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.sext(_field(builder, arguments[0], RANK, I32), I64)

    return _types.intp(_types.intp), write


handle: Any = _handle if COMPILED else lambda x: x
address: Any = _address if COMPILED else lambda x: x.ctypes.data
rank: Any = _rank if COMPILED else lambda x: x.ndim
length = _reads(lambda b, x, axis: _entry(b, x, SHAPE, axis), lambda x, axis: x.shape[axis])
stride = _reads(lambda b, x, axis: _entry(b, x, STRIDES, axis), lambda x, axis: x.strides[axis])


# ---- one kernel calls another that was compiled before, instead of containing it once more ----


def entry_of(kernel: Any, dtype: np.dtype[Any]) -> Any:
    """The address of kernel(like, *integers) for numbers of a dtype, to be `call`ed; uncompiled, a function.

    A kernel that simply calls another contains its code, and LLVM optimises it again for each of them.
    """
    if not COMPILED:
        return partial(kernel, dtype.type(0))
    like = _types.CPointer({4: _types.float32, 8: _types.float64}[dtype.itemsize])
    signature = (like, *[_types.intp] * (len(inspect.signature(kernel.py_func).parameters) - 1))
    compiled(kernel, signature)
    code = kernel.overloads[signature]
    return code.library.get_pointer_to_function(code.fndesc.llvm_cfunc_wrapper_name)


@intrinsic
def _place(typing: Any, table: Any, place: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.gep(builder.inttoptr(arguments[0], I64.as_pointer()), [arguments[1]]))

    return _types.intp(_types.intp, _types.intp), write


def table_of(dtype: np.dtype[Any], *kernels: Any) -> Any:
    """The address of a table: the size of a number, then entries of kernels; it lives as long as the process.

    One address, because each argument that numba has to make of a Python object costs a small product 15 ns.
    """
    numbers = (dtype.itemsize, *(entry_of(kernel, dtype) for kernel in kernels))
    if not COMPILED:
        return numbers
    _tables.append(np.array(numbers, np.int64))
    return _tables[-1].ctypes.data


_tables: list[Any] = []
entry: Any = _place if COMPILED else lambda table, place: table[place]


@intrinsic
def _call(typing: Any, entry: Any, arguments: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        entry, packed = values
        integers = [I64(0)]  # `like`, a pointer that nobody follows
        for i, kind in enumerate(arguments):
            integers.append(context.cast(builder, builder.extract_value(packed, i), kind, _types.intp))
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(integers))
        builder.call(builder.inttoptr(entry, kind.as_pointer()), integers)
        return context.get_dummy_value()

    return _types.void(_types.intp, arguments), write


call: Any = _call if COMPILED else lambda entry, arguments: entry(*arguments)
