"""`lathe create` against `mlx_lm.convert -q`, on the same folder."""

import itertools
import shutil
import sys

from common import Row, alternate, measure, median


def run(context):
    for format, bits in (("int4", 4), ("int8", 8)):
        yield from compare(context, format, bits)


def compare(context, format, bits):
    modelfile = context.scratch / "Modelfile"
    modelfile.write_text(f"FROM {context.model.absolute()}\n")
    count = itertools.count()

    def ours():
        store = context.scratch / f"store-{next(count)}"
        create = [context.lathe, "create", "bench", "-f", modelfile, "-q", format]
        return clean_after(store, [*create, "--store", store])

    def theirs():
        folder = context.scratch / f"mlx-{next(count)}"
        convert = [sys.executable, "-m", "mlx_lm", "convert", "-q", "--q-bits", str(bits)]
        paths = ["--hf-path", context.model, "--mlx-path", folder]
        return clean_after(folder, [*convert, *paths])

    ours, theirs = alternate(context.runs, ours, theirs)
    name = f"create {format}"
    pairs = [("seconds", "s", 5), ("peak_mb", "MB", 4)]
    for key, unit, target in pairs:
        what = "time" if unit == "s" else "peak memory"
        yield Row(f"{name}: {what}", median(ours, key), median(theirs, key), unit, target)


def clean_after(folder, command):
    try:
        return measure(command)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
