"""Runs all lessons, or those with the numbers given, and says what each took; or makes and runs notebooks.

    python examples/lessons/run.py                       # all sixteen; 05 or 05 07 for some
    python examples/lessons/run.py --notebooks notebooks # notebooks/01_tensor.ipynb …, with results

Each has a process of its own. One that fails does not stop the others.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

NEEDED = ("jupytext", "nbclient", "ipykernel")  # for notebooks: the extra `lessons`
LESSONS = sorted(Path(__file__).resolve().parent.glob("[0-9][0-9]_*.py"))


def run_script(path: Path) -> bool:
    """Did it end without an error? What it prints is seen at once."""
    # Ctrl-C, which would be a traceback, is not heard in a session of its own: it is killed when we hear that
    return subprocess.run([sys.executable, str(path)], start_new_session=True).returncode == 0


def run_notebook(path: Path, folder: Path) -> bool:
    """Did its notebook run without an error? It is written either way, with what its cells showed."""
    # nbclient makes Ctrl-C and SIGTERM an error of a kernel that died: where it is, neither is heard
    process = get_context("spawn").Process(target=write_notebook, args=(path, folder))
    process.start()
    try:
        process.join()
    finally:
        process.kill()
    return process.exitcode == 0


def write_notebook(path: Path, folder: Path) -> None:
    """The exit status of the process is 1 if a cell fails."""
    if hasattr(os, "setsid"):  # Windows has none
        os.setsid()
    import jupytext
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    from microtensor.train.files import replace_file

    notebook, failed = jupytext.read(path), None
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    try:
        NotebookClient(notebook, timeout=None, extra_arguments=["--log-level=ERROR"]).execute()
    except CellExecutionError as error:
        failed = error
    target = folder / f"{path.stem}.ipynb"
    replace_file(str(target), [nbformat.writes(notebook).encode()])
    print(f"wrote {target}" if failed is None else f"{target}: {failed}", flush=True)
    sys.exit(failed is not None)


class Parser(argparse.ArgumentParser):
    """Its errors are one line. Its own, since this folder needs none of the other examples."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"run: {message}{'' if ';' in message else '; see --help'}\n")


def place(text: str) -> Path:
    """For argparse, which would make "" the present folder."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no folder; name one")
    return Path(text)


def stop(number: int, frame: Any) -> None:
    """SIGTERM ends what was started here, too."""
    raise SystemExit(128 + number)


def main() -> int:
    """The exit status: 0 if every lesson holds what it claims."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("numbers", nargs="*", metavar="NN", help="of the lessons to run; default all")
    parser.add_argument("--smoke", action="store_true", help="short trainings, weaker claims: does all work?")
    parser.add_argument(
        "--notebooks", type=place, metavar="FOLDER", help="make notebooks there, and run them"
    )
    options = parser.parse_args()
    known = {path.name[:2]: path for path in LESSONS}
    if unknown := [number for number in options.numbers if number not in known]:
        parser.error(f"there is no lesson {', '.join(unknown) or repr('')}; choose among {', '.join(known)}")
    if options.smoke:
        os.environ["LESSON_SMOKE"] = "1"
    if options.notebooks is not None:
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            raise ModuleNotFoundError(f"No module named {', '.join(map(repr, missing))}")
        try:
            options.notebooks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--notebooks {options.notebooks} can be no folder ({error.strerror}); name another")
    signal.signal(signal.SIGTERM, stop)
    failed, started = [], time.perf_counter()
    for path in [known[number] for number in options.numbers] or LESSONS:
        print(f"== {path.stem}", flush=True)
        begun = time.perf_counter()
        if not (run_notebook(path, options.notebooks) if options.notebooks else run_script(path)):
            failed.append(path.stem)
        print(f"== {path.stem}: {time.perf_counter() - begun:.1f} s\n", flush=True)
    verdict = f"failed: {', '.join(failed)}" if failed else "all hold"
    print(f"{time.perf_counter() - started:.0f} s; {verdict}")
    return min(len(failed), 1)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would try once more
        said = "what reads its output has ended (Broken pipe); let it read all, or write into a file"
        print(f"run: {said}", file=sys.stderr)
        sys.exit(141)
    except ModuleNotFoundError as error:
        sys.exit(f'run: {error}; run pip install -e ".[lessons]"')
