"""Measures lathe against other programs, and prints a table.

usage: python scripts/bench --lathe BINARY --model FOLDER [NAME…]
"""

import argparse
import importlib
import os
import platform
import shutil
import tempfile
from pathlib import Path

from common import Context, own_peak_mb, places


def main():
    here = Path(__file__).parent
    known = sorted(p.stem for p in here.glob("*.py") if p.stem not in ("__main__", "common"))
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; or all")
    arguments.add_argument("--lathe", type=Path, required=True)
    arguments.add_argument("--model", type=Path, required=True)
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--formats", nargs="+", default=[], help="of the bench `run`; default: all")
    given = arguments.parse_args()
    if unknown := set(given.names) - set(known):
        arguments.error(f"unknown: {', '.join(unknown)}")
    load = "" if platform.system() == "Windows" else f", load {os.getloadavg()[0]:.1f}"
    print(f"{platform.machine()}, {os.cpu_count()} cores{load}; medians of {given.runs}, by turns")
    print(f"{'':34} {'lathe':>12} {'other':>12} {'better by':>10} {'must be':>8}")
    with tempfile.TemporaryDirectory(prefix="lathe-bench-") as scratch:
        context = Context(given.lathe.absolute(), given.model, given.runs, Path(scratch), given.formats)
        try:
            for name in given.names or known:
                for row in importlib.import_module(name).run(context):
                    print_row(row)
        finally:
            for folder in places(context).values():
                shutil.rmtree(folder, ignore_errors=True)
    print(f"(peak memory cannot be measured below {own_peak_mb():.0f} MB)")


def print_row(row):
    target = "" if row.target is None else f"{row.target:g}×"
    missed = row.target is not None and row.factor < row.target
    print(
        f"{row.name:34} {row.ours:>9.3g} {row.unit:<2} {row.theirs:>9.3g} {row.unit:<2} "
        f"{row.factor:>9.1f}× {target:>8}{'  missed' if missed else ''}",
        flush=True,
    )


if __name__ == "__main__":
    main()
