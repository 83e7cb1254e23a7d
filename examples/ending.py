"""How the programs beside this file end: with a line instead of a traceback. Imported early."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType


def run(
    work: Callable[[], int | None],
    *needs: str,
    farewell: Callable[[], str] = lambda: "nothing is saved",
    words: Callable[[Exception], str] = str,
    mendable: tuple[type[Exception], ...] = (OSError,),
) -> int:
    """The exit status of work(), in which needs, modules, are imported; 130 after Ctrl-C, 143 after SIGTERM.

    And a line of words(error) for what the user can mend, missing modules and `mendable`: 2 for a value that
    was given wrongly (ValueError), else 1.
    """
    try:
        if missing := [name for name in needs if find_spec(name) is None]:
            raise ModuleNotFoundError(
                f'No module named {", ".join(map(repr, missing))}; run pip install -e ".[examples]"'
            )
        from microtensor.train import tune_allocator  # here, so that this module is imported at once

        tune_allocator()  # what a step frees is used again by the next: 2000 page faults less
        return work() or 0
    except KeyboardInterrupt as stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # it ends: a key that bounces shall not hide the line
        print(f"\nstopped; {farewell()}", flush=True)
        return getattr(stop, "code", 130)
    except (ModuleNotFoundError, *mendable) as error:
        print(f"{Path(sys.argv[0]).stem}: {words(error)}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


def _stopped(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C outside of run: while modules are imported, which takes a second."""
    if issubclass(kind, KeyboardInterrupt):
        print("\nstopped; nothing is saved", flush=True)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _stopped
