"""`python -m microtensor.testing.golden mine`: a line for each case, and 1 if anything is wrong."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from microtensor.testing.golden import PACK, check_case, read_pack, signature


def main(arguments: list[str] | None = None) -> int:
    """0 if something was checked and all of it is right, 1 if not, 2 if there is nothing to check."""
    parser = argparse.ArgumentParser("python -m microtensor.testing.golden", description=__doc__)
    parser.add_argument("module", nargs="?", help="a module's name, or its file; without one, list the cases")
    parser.add_argument("cases", nargs="*", help="these cases or functions only")
    parser.add_argument("--pack", type=Path, default=PACK, metavar="FOLDER", help="another folder of cases")
    options = parser.parse_args(arguments)
    try:
        pack = read_pack(options.pack)
        module = None if options.module is None else load(options.module)
    except (Exception, SystemExit) as error:  # a module's sys.exit(0) would say that all is right
        why = f"golden: {options.module!r} cannot be imported: {type(error).__name__}: {error}"
        print(error if str(error).startswith("golden: ") else why, file=sys.stderr)
        return 2
    known = {word for case in pack for word in (case["case"], case["function"])}
    if unknown := set(options.cases) - known:
        print(f"golden: there is no {', '.join(sorted(unknown))}; the cases: {', '.join(sorted(known))}",
              file=sys.stderr)  # fmt: skip
        return 2
    chosen = [c for c in pack if not options.cases or {c["case"], c["function"]} & set(options.cases)]
    if module is None:
        for case in chosen:
            print(f"{case['case']:28} {signature(case)}\n{'':28} {case['says']}")
        return 0
    return report([(case["case"], check_case(case, module)) for case in chosen])


def load(name: str) -> Any:
    """A module by its name, looked for in the current folder too, or by the path of its file.

    Raises: ImportError saying what could not be imported.
    """
    if not name.endswith(".py") and importlib.util.find_spec(name.partition(".")[0]):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    if spec is None or spec.loader is None or not Path(name).exists():
        raise ImportError(f"golden: there is no {name}; give the path of a .py file, or a module's name")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def report(results: list[tuple[str, str]]) -> int:
    """Print the results and their sum; 1 if something is wrong or nothing was there to check."""
    for name, result in results:
        print(f"{name:28} {result}")
    kinds = ("ok", "WRONG", "no gradients", "missing")
    counts = {kind: sum(result.startswith(kind) for _, result in results) for kind in kinds}
    print(f"{len(results)} cases: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
    return 1 if counts["WRONG"] or counts["missing"] == len(results) else 0


if __name__ == "__main__":
    sys.exit(main())
