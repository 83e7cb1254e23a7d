"""Kernels cut into tasks: one piece of machine code that runs its tasks on one core or on all.

A loop over `prange` makes numba compile its body apart, several times over. Here a kernel is compiled once,
and one small loop, compiled once for all kernels, calls it by address. Addresses differ between processes:
they are asked for at run time and go in as arguments, so that nothing on disk holds one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from llvmlite import ir
from numba import prange, types
from numba.core.cgutils import alloca_once
from numba.extending import intrinsic

from microtensor.kernels.layout import Array
from microtensor.kernels.threads import COMPILED, get_num_threads, jit
from microtensor.kernels.vectors import VECTOR_BYTES

I64, BYTES = ir.IntType(64), ir.IntType(8).as_pointer()
_alloca: Any = alloca_once  # numba has no types for it


def _again(typing: Any, tasks: Any, driver: Any) -> Any:
    """For a kernel whose first argument is `task`: runs it anew for task = 0 … tasks − 1, by the driver."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kernel = builder.function
        kernel.attributes.add("noinline")  # it has two callers, but shall exist once
        # LLVM's loops would use half of an AVX-512 register. llvmlite's own `add` does not know this one
        set.add(kernel.attributes, f'"prefer-vector-width"="{8 * VECTOR_BYTES}"')
        status, error, _, *values = kernel.args
        kept = ir.LiteralStructType([value.type for value in values])
        room = _alloca(builder, kept)
        for i, value in enumerate(values):
            builder.store(value, builder.gep(room, [ir.IntType(32)(0), ir.IntType(32)(i)]))
        one = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), [I64, I64]), f"{kernel.name}.task")
        one.linkage = "internal"
        inner = ir.IRBuilder(one.append_basic_block())
        source = inner.inttoptr(one.args[0], kept.as_pointer())
        again = [
            inner.load(inner.gep(source, [ir.IntType(32)(0), ir.IntType(32)(i)])) for i in range(len(values))
        ]
        places = [inner.alloca(pointer.type.pointee) for pointer in (status, error)]
        inner.call(kernel, [*places, one.args[1], *again])
        inner.ret_void()
        drive = builder.inttoptr(arguments[1], ir.FunctionType(ir.VoidType(), [I64, I64, I64]).as_pointer())
        builder.call(drive, [builder.ptrtoint(one, I64), builder.ptrtoint(room, I64), arguments[0]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _call(typing: Any, function: Any, arguments: Any, task: Any) -> Any:
    """Calls the machine code at an address with two integers."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code = ir.FunctionType(ir.VoidType(), [I64, I64]).as_pointer()
        builder.call(builder.inttoptr(values[0], code), values[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


again: Any = intrinsic(_again) if COMPILED else None
_call_task: Any = intrinsic(_call) if COMPILED else None


@jit(parallel=True)
def _drive(function: int, arguments: int, tasks: int) -> None:
    for task in prange(tasks):
        _call_task(function, arguments, task)


@cache
def _address_of_driver() -> int:
    """In this process."""
    signature = (types.int64,) * 3
    kernel: Any = _drive
    kernel.compile(signature)
    result = kernel.overloads[signature]
    address: int = result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)
    return address


Task = tuple[int, int, int]  # which one, of how many, the driver's address


def vectors(x: Array) -> float:
    """How many vectors x fills. Of each, eˣ takes about 8 ns with what is around it, and a loop of sums 2."""
    return x.nbytes / VECTOR_BYTES


@jit(inline=True)
def share(task: Task, n: int) -> tuple[int, int]:
    """Which of 0 … n − 1 are a task's: first, last. Task −1 has the driver run the others, and none of it."""
    number, tasks, driver = task
    if number < 0:
        again(tasks, driver)
        return 0, 0
    return n * number // tasks, n * (number + 1) // tasks


def in_tasks(code: Callable[..., None], tasks: int, *args: Any) -> None:
    """Calls code(task, tasks, driver, *args) for task = 0 … tasks − 1, on as many threads as numba may use.

    The code must begin with `if task < 0: again(tasks, driver)` and return there.
    """
    if tasks > 1 and COMPILED:
        code(-1, tasks, _address_of_driver(), *args)
        return
    for task in range(tasks):
        code(task, tasks, 0, *args)


def jit_tasks(kernel: Callable[..., None]) -> tuple[Callable[..., None], Callable[..., None]]:
    """Compiles kernel(task, *args), which asks for its `share` of the work: the pair that `run` wants."""
    code = jit(lean=True)(kernel)
    serial = partial(code, (0, 1, 0))
    if not COMPILED:
        return serial, serial
    return serial, lambda *args: code((-1, get_num_threads(), _address_of_driver()), *args)
