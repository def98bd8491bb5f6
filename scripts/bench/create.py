"""`lathe create` against `mlx_lm.convert -q`, on the same folder, in every mode that both have.

Both write on the disk and in memory. `create` ends when the data are on the disk, and
`mlx_lm.convert` when the system has taken them, so the target is that of the pair in memory.
"""

import itertools
import shutil
import sys

from common import Row, alternate, measure, median, places

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
    folders = places(context)
    for format, options in MODES:
        for where, folder in folders.items():
            judged = where == "memory" or len(folders) == 1
            yield from compare(context, format, options, where, folder, judged)


def compare(context, format, options, where, folder, judged):
    count = itertools.count()

    def ours():
        store = folder / f"store-{next(count)}"
        create = [context.lathe, "create", "bench", context.model, "--quantize", format]
        # mlx_lm.convert does not try what it wrote.
        create.append("--no-smoke")
        return clean_after(store, [*create, "--store", store])

    def theirs():
        made = folder / f"mlx-{next(count)}"
        convert = [sys.executable, "-m", "mlx_lm", "convert", "-q", *options]
        return clean_after(made, [*convert, "--hf-path", context.model, "--mlx-path", made])

    ours, theirs = alternate(context.runs, ours, theirs)
    for key, what, unit, target in TARGETS:
        name = f"create {format} ({where}): {what}"
        yield Row(name, median(ours, key), median(theirs, key), unit, target if judged else None)


def clean_after(folder, command):
    try:
        return measure(command)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
