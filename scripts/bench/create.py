"""`lathe create` against `mlx_lm.convert -q`, on the same folder, in every mode that both have."""

import itertools
import shutil
import sys

from common import Row, alternate, measure, median

MODES = [
    ("int4", ["--q-bits", "4"]),
    ("int8", ["--q-bits", "8"]),
    ("mxfp8", ["--q-mode", "mxfp8", "--q-bits", "8", "--q-group-size", "32"]),
    ("nvfp4", ["--q-mode", "nvfp4", "--q-bits", "4", "--q-group-size", "16"]),
    ("mxfp4", ["--q-mode", "mxfp4", "--q-bits", "4", "--q-group-size", "32"]),
]
# How many times less time and memory lathe must take.
TARGETS = [("seconds", "time", "s", 15), ("peak_mb", "peak memory", "MB", 4)]


def run(context):
    for format, options in MODES:
        yield from compare(context, format, options)


def compare(context, format, options):
    count = itertools.count()

    def ours():
        store = context.scratch / f"store-{next(count)}"
        create = [context.lathe, "create", "bench", context.model, "--quantize", format]
        # mlx_lm.convert does not try what it wrote.
        create.append("--no-smoke")
        return clean_after(store, [*create, "--store", store])

    def theirs():
        folder = context.scratch / f"mlx-{next(count)}"
        convert = [sys.executable, "-m", "mlx_lm", "convert", "-q", *options]
        paths = ["--hf-path", context.model, "--mlx-path", folder]
        return clean_after(folder, [*convert, *paths])

    ours, theirs = alternate(context.runs, ours, theirs)
    for key, what, unit, target in TARGETS:
        name = f"create {format}: {what}"
        yield Row(name, median(ours, key), median(theirs, key), unit, target)


def clean_after(folder, command):
    try:
        return measure(command)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
