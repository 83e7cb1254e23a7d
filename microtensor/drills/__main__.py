"""Find a bug that everybody makes once. Without a command: the list of drills."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from microtensor.drills import check, hint, read_drills, start


def python(folder: Path) -> str:
    """This Python, as a shell in that folder finds it: by the shorter of two ways."""
    return shlex.quote(min(os.path.relpath(sys.executable, folder.resolve()), sys.executable, key=len))


def main(arguments: list[str] | None = None) -> int:
    """0 if all went well and, for check, the drill is mended; 1 if it is not; 2 for what cannot be done."""
    parser = argparse.ArgumentParser("python -m microtensor.drills", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="start | check | hint")
    command = commands.add_parser("start", help="put a drill into a folder")
    command.add_argument("name")
    command.add_argument("folder", nargs="?", type=Path, help="a new one (default: the drill's name)")
    for name, text in (("check", "is it mended?"), ("hint", "one step at a time")):
        command = commands.add_parser(name, help=text)
        command.add_argument("folder", nargs="?", type=Path, default=Path(), help="default: this one")
    try:
        return run(parser.parse_args(arguments))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def run(given: argparse.Namespace) -> int:
    """What was asked for."""
    if given.command == "start":
        file = start(given.name, given.folder or Path(given.name))
        this = python(file.parent)
        print(f"{read_drills()[given.name].title}\n\n"
              f"    cd {shlex.quote(str(file.parent))}\n"
              f"    {this} symptom.py                # shows it\n"
              f"    {this} -m microtensor.drills hint\n"
              f"    {this} -m microtensor.drills check\n\n"
              f"The bug is in {file.name}, nothing else needs a change.")  # fmt: skip
        return 0
    if given.command is not None:
        mended, said = check(given.folder) if given.command == "check" else (True, hint(given.folder))
        print(said)
        return 0 if mended else 1
    drills = read_drills()
    width = max(map(len, drills))
    for name, drill in drills.items():
        print(f"{name:{width}}  {drill.title}")
    print(f"\n{python(Path())} -m microtensor.drills start NAME [FOLDER]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
