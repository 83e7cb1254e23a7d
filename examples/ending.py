"""How the programs beside this file end: with a line instead of a traceback. Imported early."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType


def run(
    work: Callable[[], int | None],
    *needs: str,
    farewell: Callable[[], str] = lambda: "nothing is saved",
    words: Callable[[str], str] = str,
    mendable: tuple[type[Exception], ...] = (OSError,),
) -> int:
    """The exit status of work(), in which needs, modules, are imported; 130 after Ctrl-C, 143 after SIGTERM.

    And a line, words(what is wrong), for what the user can mend, missing modules and `mendable`: 2 for a
    value that was given wrongly (ValueError), else 1. A warning is such a line, too.
    """

    def say(what: Warning | str, *_: object) -> None:
        print(f"{Path(sys.argv[0]).stem}: {words(str(what))}", file=sys.stderr)

    try:
        if missing := [name for name in needs if find_spec(name) is None]:
            raise ModuleNotFoundError(
                f'No module named {", ".join(map(repr, missing))}; run pip install -e ".[examples]"'
            )
        from microtensor.train import tune_allocator  # here, so that this module is imported at once

        tune_allocator()  # what a step frees is used again by the next: 2000 page faults less
        with warnings.catch_warnings():
            warnings.showwarning = say
            status = work() or 0
        print(end="", flush=True)  # whoever reads this may be gone
        return status
    except BrokenPipeError:
        with suppress(OSError):
            say("what reads its output has ended (Broken pipe); let it read all, or write into a file")
        for descriptor in (1, 2):  # Python would try once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        return 141
    except KeyboardInterrupt as stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # it ends: a key that bounces shall not hide the line
        print(f"\nstopped; {farewell()}", flush=True)
        return getattr(stop, "code", 130)
    except (ModuleNotFoundError, *mendable) as error:
        say(_told(error))
        return 2 if isinstance(error, ValueError) else 1


def _told(error: Exception) -> str:
    """What is wrong; and what to do, where that is the system's to say, which does not."""
    if isinstance(error, MemoryError):
        return f"{str(error) or 'out of memory'}; give smaller numbers, or free some"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; mend that, or name another"
    return str(getattr(error, "strerror", None) or error)  # without the number of the error


def _stopped(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C outside of run: while modules are imported, which takes a second."""
    if issubclass(kind, KeyboardInterrupt):
        print("\nstopped; nothing is saved", flush=True)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _stopped
