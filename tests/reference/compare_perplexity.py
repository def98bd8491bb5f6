"""Compares the loss that lathe finds with mlx_lm's in float32, on the weights that lathe exports.

Run by hand, with `pip install mlx[cpu] mlx-lm`:

    cargo build --release --example perplexity
    python tests/reference/compare_perplexity.py target/release STORE NAME...

NAME is a model of STORE, such as smollm2:int4. Perplexities must be within one percent.
"""

import math
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm import load

TEXT = Path(__file__).resolve().parents[2].joinpath("README.md").read_text()
TOKENS = 128


def theirs(folder):
    model, tokenizer = load(str(folder))
    model.set_dtype(mx.float32)
    ids = mx.array([tokenizer.encode(TEXT)[:TOKENS]])
    logits = model(ids[:, :-1]).astype(mx.float32)
    return nn.losses.cross_entropy(logits, ids[:, 1:], reduction="mean").item()


def main(programs, store, *names):
    mx.set_default_device(mx.cpu)
    programs = Path(programs)
    worst = 0
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            export = [programs / "lathe", "export", name, folder, "--as", "mlx-lm", "--store", store]
            subprocess.run(export, check=True, capture_output=True)
            other = theirs(folder)
        command = [programs / "examples/perplexity", store, name, str(TOKENS)]
        done = subprocess.run(command, input=TEXT, text=True, capture_output=True, check=True)
        ours = float(done.stdout)
        off = abs(math.exp(ours - other) - 1)
        worst = max(worst, off)
        print(f"{name}: {math.exp(ours):.3f}, mlx_lm {math.exp(other):.3f}: {100 * off:.3f} % apart")
    return worst > 0.01


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    sys.exit(main(*sys.argv[1:]))
