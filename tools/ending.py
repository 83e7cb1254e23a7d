"""How the programs beside this file end: with a line, no traceback. Imported before what takes long."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Says what is wrong in a line, and where help is to be had, and not all options every time."""

    def error(self, message: str) -> NoReturn:
        """Leave with status 2."""
        cure = "" if ";" in message else "; see --help"
        self.exit(2, f"{self.prog}: error: {message}{cure}\n")


def run(work: Callable[[], int | None]) -> int:
    """The exit status of work(): 130 after Ctrl-C, 141 if its reader has ended, 1 if a file is in the way."""
    try:
        status = work() or 0
        print(end="", flush=True)  # whoever reads this may be gone
        return status
    except BrokenPipeError:
        with suppress(OSError):
            _say("what reads its output has ended (Broken pipe); let it read all, or write into a file")
        for descriptor in (1, 2):  # Python would try once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        return 141
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends: a key that bounces shall not hide the line
        _say("stopped; start it again for all of its output")
        return 130
    except OSError as error:
        if error.filename is None:
            raise
        _say(f"{error.filename}: {error.strerror}; mend that, or name another")
        return 1


def _say(what: str) -> None:
    print(f"{Path(sys.argv[0]).stem}: {what}", file=sys.stderr)


def _stopped(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C outside of run: while modules are imported, which takes a second."""
    if issubclass(kind, KeyboardInterrupt):
        _say("stopped; start it again for all of its output")
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _stopped
