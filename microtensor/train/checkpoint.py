"""Checkpoints: one file with all that a run needs to go on as if it had never stopped.

Weights, optimiser, schedule, position in the data, every random state, step count and configuration, written
by `serialize.save`. Reading checks the file, restoring checks the fit; only then is anything changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from microtensor.nn import Module
from microtensor.tensor import Tensor
from microtensor.train.generators import Generators, get_state, named_generators, random_faults, set_state
from microtensor.train.serialize import Path, check_storable, digest, load, save

__all__ = ["Checkpoint", "check_checkpoint", "load_checkpoint", "save_checkpoint", "state_digests"]

VERSION = 1  # of what a checkpoint holds; the file's layout has a version of its own


@dataclasses.dataclass
class Checkpoint:
    """What a checkpoint file holds: the state dicts given to `save_checkpoint`, None for what was not.

    `optimizer` and `scheduler` are {"class": name, "state": state dict}; `random` maps the name of each
    generator to its state, the default generator's name being "default".

    Raises: as `restore` says, when it is called.
    Source: ours.
    """

    path: str
    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any] | None
    scheduler: dict[str, Any] | None
    loader: dict[str, Any] | None
    random: dict[str, Any]
    config: Any
    extra: Any

    def restore(
        self,
        model: Module | None = None,
        optimizer: Any = None,
        *,
        scheduler: Any = None,
        loader: Any = None,
        generators: Generators | None = None,
    ) -> None:
        """Put back the states of the objects given. Everything is checked before anything is changed.

        generators: with None, random states stay as they are; with a dict, which may be empty, the default
        generator's and those of the dict are put back.
        Raises: ValueError naming what differs: names, shapes and dtypes of weights, classes, states that
        lack.
        Source: ours.
        """
        given = {"optimizer": optimizer, "scheduler": scheduler, "loader": loader}
        given = {name: obj for name, obj in given.items() if obj is not None}
        random = None if generators is None else named_generators(generators)
        faults = [] if model is None else _model_faults(model, self.model)
        faults += [fault for name, obj in given.items() for fault in self._state_faults(name, obj)]
        faults += [] if random is None else random_faults(random, self.random)
        if faults:
            more = f"; and {len(faults) - 6} more" if len(faults) > 6 else ""
            raise ValueError(
                f"load_checkpoint: {self.path!r} does not fit: {'; '.join(faults[:6])}{more}; "
                f"build everything as it was when the checkpoint was written (its config is {self.config!r})"
            )
        if model is not None:
            model.load_state_dict(self.model)
        for name, obj in given.items():
            obj.load_state_dict(self._state(name))
        for name, generator in (random or {}).items():  # last: nothing above may draw from a restored one
            set_state(generator, self.random[name])

    def _state(self, name: str) -> Any:
        saved = getattr(self, name)
        return saved if name == "loader" else saved["state"]

    def _state_faults(self, name: str, obj: Any) -> list[str]:
        saved = getattr(self, name)
        if saved is None:
            return [f"it has no {name}"]
        if name != "loader" and saved["class"] != type(obj).__name__:
            return [f"its {name} is {saved['class']}, not {type(obj).__name__}"]
        try:
            getattr(obj, "check_state_dict", lambda _: None)(self._state(name))
        except ValueError as error:
            return [str(error).partition(";")[0]]
        except (TypeError, LookupError, AttributeError) as error:  # of another form than any state of obj
            return [f"its {name} has a damaged state ({type(error).__name__}: {error})"]
        return []


def save_checkpoint(
    path: Path,
    model: Module,
    optimizer: Any = None,
    *,
    scheduler: Any = None,
    loader: Any = None,
    step: int = 0,
    generators: Generators | None = None,
    config: Any = None,
    extra: Any = None,
) -> None:
    """Write the states of a run to one file; one that was there stays whole until it is replaced.

    optimizer, scheduler, loader: anything with state_dict(). The default generator is always in it;
    generators: others that the run draws from, by name. config: a dataclass or nested dicts, lists and plain
    values, given back as dicts. extra: the same, for what else you need.

    Raises: TypeError naming what cannot be stored.
    Source: ours; safetensors in the place of pickles.
    """
    save(_content(model, optimizer, scheduler, loader, step, generators, config, extra), path)


def check_checkpoint(*objects: Any, **named: Any) -> None:
    """Raise the error that `save_checkpoint` would raise for what cannot be stored; write nothing."""
    check_storable(_content(*objects, **named))


def state_digests(*objects: Any, **named: Any) -> dict[str, str]:
    """For each part of what `save_checkpoint` would write, a checksum."""
    return {name: digest(part) for name, part in _content(*objects, **named).items()}


def _content(
    model: Module,
    optimizer: Any,
    scheduler: Any = None,
    loader: Any = None,
    step: int = 0,
    generators: Any = None,
    config: Any = None,
    extra: Any = None,
) -> dict[str, Any]:
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = dataclasses.asdict(config)
    return {
        "checkpoint": VERSION,
        "step": step,
        "model": model.state_dict(),
        "optimizer": _named_state("optimizer", optimizer),
        "scheduler": _named_state("scheduler", scheduler),
        "loader": None if loader is None else _state("loader", loader),
        "random": {name: get_state(name, g) for name, g in named_generators(generators).items()},
        "config": config,
        "extra": extra,
    }


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and check a checkpoint file; the public one, in folder.py, takes folders, too."""
    content = load(path)
    version = content.pop("checkpoint", None) if isinstance(content, dict) else None
    if version is None or isinstance(version, Tensor):
        raise ValueError(f"load_checkpoint: {str(path)!r} is no checkpoint; read it with mt.load")
    if version != VERSION:
        raise ValueError(
            f"load_checkpoint: {str(path)!r} has version {version}, this program reads {VERSION}; "
            f"use the microtensor that wrote it"
        )
    if not _is_whole(content):
        raise ValueError(
            f"load_checkpoint: {str(path)!r} was not written by save_checkpoint: an entry is missing or of "
            f"another type; use another copy"
        )
    return Checkpoint(path=str(path), **content)


def _is_whole(content: Mapping[str, Any]) -> bool:
    """Whether it has the entries of a checkpoint, each of its type."""
    if set(content) != {field.name for field in dataclasses.fields(Checkpoint)} - {"path"}:
        return False
    model, random = content["model"], content["random"]
    named = [content[name] for name in ("optimizer", "scheduler") if content[name] is not None]
    return (
        type(content["step"]) is int
        and isinstance(model, dict)
        and all(isinstance(t, Tensor) for t in model.values())
        and isinstance(random, dict)
        and all(isinstance(state, dict) and set(state) == {"class", "state"} for state in named)
    )


def _state(name: str, obj: Any) -> Any:
    if isinstance(obj, type) or not hasattr(obj, "state_dict"):
        raise TypeError(f"save_checkpoint: {name} is {obj!r:.60}; give an object with state_dict(), or None")
    return obj.state_dict()


def _named_state(name: str, obj: Any) -> dict[str, Any] | None:
    return None if obj is None else {"class": type(obj).__name__, "state": _state(name, obj)}


def _model_faults(model: Module, saved: Mapping[str, Tensor]) -> list[str]:
    own = model.state_dict()
    faults = [f"{name} is missing" for name in own if name not in saved]
    faults += [f"{name} is unexpected" for name in saved if name not in own]
    for name, t in own.items():
        if name in saved and (saved[name].shape, saved[name].dtype) != (t.shape, t.dtype):
            s = saved[name]
            faults.append(f"{name} is {s.dtype}{s.shape}, not {t.dtype}{t.shape}")
    return faults
