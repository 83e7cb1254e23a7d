"""Modules and parameters in lists, dictionaries and sequences, registered under their numbers or keys."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Self

from microtensor.nn.module import Module, Parameter

__all__ = ["ModuleDict", "ModuleList", "ParameterList", "Sequential"]


class _Numbered(Module):
    """What the lists share: entries of one of the module's tables, under "0", "1", …"""

    _table = "_modules"

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__()
        for item in items:
            self.append(item)

    def _set(self, name: str, item: Any) -> None:
        self._register(type(self).__name__, name, item, self._modules, Module)

    def _entries(self) -> dict[str, Any]:
        return getattr(self, self._table)  # type: ignore[no-any-return]

    def append(self, item: Any) -> Self:
        """One more at the end.

        Raises: TypeError for what is no module, or in a ParameterList no tensor and no numbers.
        Source: PyTorch's ModuleList.append.
        """
        self._set(str(len(self)), item)
        return self

    def extend(self, items: Iterable[Any]) -> Self:
        """Several more at the end.

        Raises: as `append`; TypeError for what is no iterable.
        Source: PyTorch's ModuleList.extend.
        """
        for item in items:
            self.append(item)
        return self

    def __iadd__(self, items: Iterable[Any]) -> Self:
        return self.extend(items)

    def __len__(self) -> int:
        return len(self._entries())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries().values())

    def __contains__(self, item: Any) -> bool:
        return any(item is other for other in self)

    def __getitem__(self, index: int | slice) -> Any:
        found = self._item(list(self), index)
        return type(self)(found) if isinstance(index, slice) else found

    def _item(self, items: list[Any], index: Any) -> Any:
        try:
            return items[index]
        except (IndexError, TypeError):
            text = f"there is no {index!r} among its {len(items)}; count from 0, or from the end by -1, -2 …"
            raise IndexError(f"{type(self).__name__}: {text}") from None

    def __setitem__(self, index: int, item: Any) -> None:
        if isinstance(index, slice):
            raise TypeError(f"{type(self).__name__}: {item!r:.60} for a slice; set one at a time")
        self._set(self._item(list(self._entries()), index), item)

    def _renumber(self, items: list[Any]) -> None:
        self._entries().clear()
        self.extend(items)

    def insert(self, index: int, item: Any) -> None:
        """One more, in front of the one numbered index.

        Raises: as `append`; TypeError for an index that is no integer.
        Source: PyTorch's ModuleList.insert. Differs: index may count from the end; a ParameterList has it,
        too.
        """
        items = list(self)
        self._renumber([*items[:index], item, *items[index:]])

    def __delitem__(self, index: int | slice) -> None:
        items = list(self)
        self._item(items, index)
        del items[index]
        self._renumber(items)

    def __add__(self, other: Iterable[Any]) -> Self:
        return type(self)().extend(self).extend(other)

    def pop(self, index: int = -1) -> Any:
        """Take one out, and return it.

        Raises: IndexError for one that is not there; TypeError for an index that is no integer.
        Source: PyTorch's ModuleList.pop. Differs: no slices; a ParameterList has it, too.
        """
        item = self[index]
        del self[index]
        return item

    def _line(self, item: Any) -> str:
        """An item in a list that is printed."""
        return repr(item).replace("\n", "\n  ")

    def __repr__(self) -> str:  # twelve equal layers take one line
        lines = []
        for text, group in itertools.groupby(self._entries().items(), key=lambda entry: self._line(entry[1])):
            first, *others = [name for name, _ in group]
            many = f"{first}-{others[-1]}): {1 + len(others)} x" if others else f"{first}):"
            lines.append(f"  ({many} {text}\n")
        return f"{type(self).__name__}({chr(10) * bool(lines)}{''.join(lines)})"


class ModuleList(_Numbered):
    """A list of modules that are registered under their numbers; has the methods of a list.

    Raises: TypeError for what is no module.
    Source: PyTorch's ModuleList.
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__(() if modules is None else modules)


class ParameterList(_Numbered):
    """A list of parameters that are registered under their numbers; tensors become parameters.

    Raises: TypeError for what `mt.as_tensor` refuses.
    Source: PyTorch's ParameterList.
    """

    _table = "_parameters"

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__(() if values is None else values)

    def _line(self, item: Any) -> str:
        return f"Parameter {item.dtype}{item.shape}"

    def _set(self, name: str, item: Any) -> None:
        self.register_parameter(name, item if isinstance(item, Parameter) else Parameter(item))


class Sequential(ModuleList):
    """Modules one after the other: the output of each is the input of the next.

    Takes the modules, or one ordered dictionary of names and modules.
    Shapes: what the first module takes → what the last one gives
    Raises: TypeError for what is no module.
    Source: PyTorch's Sequential.
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) != 1 or not isinstance(modules[0], dict):
            modules = (dict(enumerate(modules)),)
        for name, module in modules[0].items():
            self._set(str(name), module)

    def __getitem__(self, index: int | slice) -> Any:
        part = dict([*self._modules.items()][index]) if isinstance(index, slice) else None
        return super().__getitem__(index) if part is None else Sequential(part)

    __repr__ = Module.__repr__  # each module by its own number, as in PyTorch

    def forward(self, input: Any) -> Any:
        """The input of the first module → the output of the last."""
        for module in self:
            input = module(input)
        return input


class ModuleDict(Module, MutableMapping[str, Module]):
    """A dictionary of modules that are registered under their keys, which are attributes, too.

    Takes a mapping, or pairs of key and module; has all methods of a dictionary.
    Raises: KeyError for a key that is empty or holds a dot; TypeError for what is no module.
    Source: PyTorch's ModuleDict.
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[Any] | None = None) -> None:
        super().__init__()
        self.update(() if modules is None else modules)

    def _held(self, key: str) -> str:
        if key not in self._modules:
            raise KeyError(f"ModuleDict: there is no {key!r}; choose among {list(self)}")
        return key

    def __getitem__(self, key: str) -> Module:
        return self._modules[self._held(key)]  # type: ignore[no-any-return]

    def __setitem__(self, key: str, module: Module) -> None:
        self._register(type(self).__name__, key, module, self._modules, Module)

    def __delitem__(self, key: str) -> None:
        del self._modules[self._held(key)]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def update(self, modules: Any = (), /, **named: Module) -> None:
        """Set those of a mapping, or of pairs of key and module.

        Raises: KeyError for a key that is empty, holds a dot or names a method; TypeError for what is no
        module, or holds none by names.
        Source: PyTorch's ModuleDict.update. Differs: modules may be named, too, as in dict.update.
        """
        try:
            given = dict(modules, **named)
        except (TypeError, ValueError) as error:
            text = f"{modules!r:.60} holds no modules by their names; give a dictionary, or pairs"
            raise TypeError(f"ModuleDict: {text}") from error
        super().update(given)

    __eq__, __hash__ = object.__eq__, object.__hash__  # a module is itself, as all others are
