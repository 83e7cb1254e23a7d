"""What the command lines of the programs beside this file share: a wrong value is refused in one line."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn


def reader(kind: Callable[[str], Any], what: str) -> Callable[[str], Any]:
    """Reads a value for argparse; the empty one is none of any kind."""

    def read(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if text:
                return kind(text)
        raise argparse.ArgumentTypeError(f"is {text!r}; give {what}")

    return read


READERS = {
    int: reader(int, "a whole number"),
    float: reader(float, "a number"),
    str: reader(str, "a text"),
    Path: reader(Path, "a path"),
}


def seed(text: str) -> int:
    """Reads a seed for argparse: a number from 0 up."""
    value: int = READERS[int](text)
    try:
        check_count("", value, least=0)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).strip()) from None
    return value


class Parser(argparse.ArgumentParser):
    """Of options whose type is int, float, str or Path, with --seed and --smoke, which all programs have.

    short: what --smoke makes of a run. An error is one line, and the exit status 2.
    """

    def __init__(self, short: str, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        for kind, read in READERS.items():
            self.register("type", kind, read)
        self.add_argument("--seed", type=seed, default=0, help="of all that is random; default 0")
        self.add_argument("--smoke", action="store_true", help=f"{short}: does all work?")

    def error(self, message: str) -> NoReturn:
        """In the form of our own errors: `<program>: <what is wrong>; <what to do>`."""
        said = re.sub(r"^argument (\S+): ", r"\1 ", message)
        said = re.sub(r"invalid choice: (.*) \(choose from (.*)\)", r"is \1; choose among \2", said)
        self.exit(2, f"{Path(sys.argv[0]).stem}: {said}{'' if ';' in said else '; see --help'}\n")


@contextlib.contextmanager
def naming(option: str) -> Iterator[None]:
    """Inside, an error of a value names the option that gave it, in place of the class that found it."""
    try:
        yield
    except (OSError, ValueError) as error:
        said, found = re.subn(r"^[\w.]+: (?!there)\w+(?= is )", option, str(error))
        if isinstance(error, OSError) and error.filename is not None:
            said = f"{option} {error.filename}: {error.strerror}; name another"
        elif not found:
            said = re.sub(r"^([\w.]+: )?", f"{option}: ", said, count=1)
        raise ValueError(said) from None


def check_count(option: str, value: int, least: int) -> None:
    """Raises: ValueError for a number below least, and for one that float64, as schedules count, has not."""
    if value < least:
        raise ValueError(f"{option} is {value}; give at least {least}")
    if value > 2**53:
        raise ValueError(f"{option} is {value}; give at most {2**53}")


def check_folder(option: str, folder: Path) -> None:
    """Raises: ValueError if nothing can be written into the folder, which need not be there yet."""
    with naming(option):
        there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"{option} {folder}: {there} is no folder; name another")
    try:
        os.rmdir(tempfile.mkdtemp(dir=there))  # whether it may, only trying tells: root may not in /proc
    except OSError as error:
        raise ValueError(
            f"{option} {folder}: nothing can be written in {there} ({error.strerror}); name another"
        ) from None
