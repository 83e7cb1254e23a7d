"""Tree: the walk through a tree of modules, and what stands at a path of it. It knows names, and no values.

Paths are names joined by dots, such as "layers.0.weight".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from microtensor.nn import module  # which stands on this file: only annotations speak of it
from microtensor.tensor import Tensor

__all__ = ["Tree", "join"]


class Tree:
    """What a Module finds in itself: modules, parameters and buffers, by their paths."""

    def get_submodule(self, target: str) -> module.Module:
        """The module at a path, such as "layers.0.norm"; this one for "".

        Raises: AttributeError if there is none.
        Source: PyTorch's Module.get_submodule.
        """
        return self._at("module", target)  # type: ignore[no-any-return]

    def get_parameter(self, target: str) -> module.Parameter:
        """The parameter at a path, such as "layers.0.weight".

        Raises: AttributeError if there is none.
        Source: PyTorch's Module.get_parameter.
        """
        return self._at("parameter", target)  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a path.

        Raises: AttributeError if there is none.
        Source: PyTorch's Module.get_buffer.
        """
        return self._at("buffer", target)  # type: ignore[no-any-return]

    def _at(self, kind: str, target: str) -> Any:
        found = dict(getattr(self, f"named_{kind}s")(remove_duplicate=False)).get(target)
        if found is None:
            raise AttributeError(f"{type(self).__name__}: has no {kind} {target!r}; see named_{kind}s()")
        return found

    def named_modules(
        self: Any, memo: set[module.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, module.Module]]:
        """This module and all below it with their paths, each once (or under each of its names).

        memo: the modules that were seen already.
        Raises: TypeError for a prefix that is no string.
        Source: PyTorch's Module.named_modules.
        """
        memo = set() if memo is None else memo
        waiting = [(prefix, self)]
        while waiting:
            path, at = waiting.pop()
            if at not in memo:
                if remove_duplicate:
                    memo.add(at)
                yield path, at
                waiting += [(join(path, n), m) for n, m in reversed(at._modules.items()) if m is not None]

    def named_children(self: Any) -> Iterator[tuple[str, module.Module]]:
        """The modules set on this one, each once, under the first of its names.

        Source: PyTorch's Module.named_children.
        """
        at: dict[module.Module, str] = {}
        return ((n, m) for n, m in self._modules.items() if m is not None and at.setdefault(m, n) == n)

    def modules(self) -> Iterator[module.Module]:
        """This module and all below it, each once.

        Source: PyTorch's Module.modules. Differs: no remove_duplicate.
        """
        return (at for _, at in self.named_modules())

    def children(self) -> Iterator[module.Module]:
        """The modules set on this one, each once.

        Source: PyTorch's Module.children.
        """
        return (child for _, child in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, module.Parameter]]:
        """Every parameter once, under the first of its names; two modules may share one (tied weights).

        Raises: TypeError for a prefix that is no string.
        Source: PyTorch's Module.named_parameters.
        """
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Every buffer once, with its path.

        Raises: TypeError for a prefix that is no string.
        Source: PyTorch's Module.named_buffers.
        """
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def _named(self, table: str, prefix: str, recurse: bool, once: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, at in self.named_modules(None, prefix, once) if recurse else [(prefix, self)]:
            for name, tensor in getattr(at, table).items():
                if tensor is not None and not (once and id(tensor) in seen):
                    seen.add(id(tensor))
                    yield join(path, name), tensor

    def parameters(self, recurse: bool = True) -> Iterator[module.Parameter]:
        """Every parameter once: what an optimiser takes.

        Raises: TypeError for a recurse that is neither a bool nor an integer.
        Source: PyTorch's Module.parameters.
        """
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Every buffer once.

        Raises: TypeError for a recurse that is neither a bool nor an integer.
        Source: PyTorch's Module.buffers.
        """
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))


def join(path: str, name: str) -> str:
    """The path of what has this name in the module at a path."""
    return f"{path}.{name}" if path else name
