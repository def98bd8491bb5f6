"""`lathe run` against `mlx_lm.generate`, with the same weights, prompt and number of tokens.

mlx_lm is given what `lathe export --as mlx-lm` writes, so that both compute with the same numbers.
Both are started anew each time: the time to the first token is from the start of the program.
"""

import dataclasses
import json
import re
import statistics
import subprocess
import sys
import time

from common import Row

FORMATS = ["source", "int4", "int8", "mxfp4", "mxfp8", "nvfp4"]
ANSWER = 128
SENTENCE = "The old lighthouse keeper climbed the stairs every evening to light the lamp. "
# What decoding must be better by, then prefill; for bf16, and for the quantized formats.
TARGETS = {True: (2.5, 10), False: (8, 50)}
FIRST_TOKEN = 5


@dataclasses.dataclass
class Rates:
    """What one answer took."""

    prefill: float
    decode: float
    first: float
    prompt: int
    made: int


def run(context):
    prompt = SENTENCE * 28
    for format in context.formats or FORMATS:
        yield from compare(context, format, prompt)


def compare(context, format, prompt):
    store, folder = context.scratch / "store", context.scratch / f"mlx-{format}"
    name = f"bench:{format}"
    stored = ["--store", store]
    call([context.lathe, "create", name, context.model, "-q", format, *stored])
    call([context.lathe, "export", name, folder, "--as", "mlx-lm", *stored])
    lathe, mlx, bandwidths = [], [], []
    for _ in range(context.runs):
        # What else the machine does changes its bandwidth by the minute: before and after.
        before = memory_bandwidth()
        lathe.append(ours(context, name, prompt, stored))
        bandwidths.append((before + memory_bandwidth()) / 2)
        mlx.append(theirs(folder, prompt))
    # A few tokens apart: chat templates that say the date, or two of them in a row.
    assert abs(lathe[0].prompt - mlx[0].prompt) <= 4, (lathe[0], mlx[0])
    decode, prefill = TARGETS[format == "source"]
    for what, unit, target in [("prefill", "/s", prefill), ("decode", "/s", decode)]:
        pair = median(lathe, what), median(mlx, what)
        yield Row(f"run {format}: {what}, {lathe[0].prompt}+{ANSWER}", *pair, unit, target, True)
    pair = median(lathe, "first"), median(mlx, "first")
    yield Row(f"run {format}: start to first token", *pair, "s", FIRST_TOKEN)
    # Each token reads all weights once, those of a tied embedding as the head, and the cache.
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    size += cache_bytes(folder, lathe[0].prompt + ANSWER / 2)
    reached = median(lathe, "decode") * size / 1e9
    bandwidth = statistics.median(bandwidths)
    yield Row(f"run {format}: bytes read in decode", reached, bandwidth, "GB/s", 0.5, True)


def cache_bytes(folder, tokens):
    """Of keys and values, in f32 as on every CPU."""
    config = json.loads((folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    return config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * dim * 2 * 4 * tokens


def ours(context, name, prompt, stored):
    command = [context.lathe, "run", name, prompt, "--temperature", "0", "-n", str(ANSWER)]
    start = time.perf_counter()
    done = json.loads(call([*command, "--output", "json", *stored]))
    total = time.perf_counter() - start
    answer = done["statistics"]
    first = total - answer["decode_seconds"]
    rates = answer["prefill_tokens_per_second"], answer["decode_tokens_per_second"]
    return Rates(*rates, first, answer["prompt_tokens"], answer["answer_tokens"])


def theirs(folder, prompt):
    command = [sys.executable, "-m", "mlx_lm", "generate", "--model", folder, "--prompt", prompt]
    start = time.perf_counter()
    text = call([*command, "--temp", "0", "--max-tokens", str(ANSWER)])
    total = time.perf_counter() - start
    prompt = re.search(r"Prompt: (\d+) tokens, ([\d.]+) tokens-per-sec", text)
    made = re.search(r"Generation: (\d+) tokens, ([\d.]+) tokens-per-sec", text)
    first = total - int(made[1]) / float(made[2])
    return Rates(float(prompt[2]), float(made[2]), first, int(prompt[1]), int(made[1]))


def call(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def median(rates, key):
    return statistics.median(getattr(rate, key) for rate in rates)


def memory_bandwidth():
    """GB/s that summing large arrays on all cores reads, the best of some tries. A process for each
    core: numpy's sum uses one."""
    code = """
import multiprocessing, os, time
import numpy as np
def read(_):
    array = np.ones(1 << 26, np.float32)
    best = 0
    for _ in range(8):
        start = time.perf_counter()
        array.max()
        best = max(best, array.nbytes / (time.perf_counter() - start) / 1e9)
    return best
if __name__ == "__main__":
    cores = os.cpu_count()
    with multiprocessing.Pool(cores) as pool:
        print(sum(pool.map(read, range(cores), chunksize=1)))
"""
    return float(call([sys.executable, "-c", code]))
