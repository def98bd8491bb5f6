"""`lathe create` against the machine's own speed: T is the time in which `openssl` hashes the source.

The same model is made in a store in memory (where /dev/shm is), which shows what lathe itself takes
and which the target is for, and in one on the disk, whose time is compared with that of plainly
writing as many bytes there. Processor time and the machine's limits, measured in the same run, stand
below each pair, then peak memory, then a synthetic
model of LATHE_BENCH_GB gigabytes (8 unless said otherwise; 0 leaves it away).
"""

import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from common import Row, alternate, measure, median, places

# Request and the multiple of T that it may take.
REQUESTS = [
    ("none", 1.2),
    ("int4", 1.1),
    ("int8", 1.1),
    ("mxfp8", 1.1),
    ("nvfp4", 1.3),
    ("mxfp4", 1.3),
]
PEAK_MB = 120
BIG_FORMAT = "int4"
BIG_MEMORY_MB = 1000


def run(context):
    source = context.model / "model.safetensors"
    size = source.stat().st_size
    stores = {where: folder / "write-store" for where, folder in places(context).items()}
    yield from against_hash(context, source, size, stores)
    yield from peaks(context, stores)
    yield from big(context, stores["disk"])


def create(context, request, store, model=None, extra=()):
    shutil.rmtree(store, ignore_errors=True)
    quantize = [] if request == "none" else ["--quantize", request]
    return [context.lathe, "create", "bench", model or context.model, "--store", store, "--quiet",
            "--no-smoke", *quantize, *extra]


def against_hash(context, source, size, stores):
    hashing = lambda: measure(["openssl", "dgst", "-sha256", source])
    for request, multiple in REQUESTS:
        makers = [
            lambda store=store: measure(create(context, request, store)) for store in stores.values()
        ]
        hashed, *made = alternate(context.runs, hashing, *makers)
        t = median(hashed, "seconds")
        written = sum(f.stat().st_size for f in (stores["disk"] / "blobs").iterdir())
        machine, disk = limits(context, size, t, written)
        for where, runs in zip(stores, made):
            ours = median(runs, "seconds")
            name = f"{request} ({where}) {size / ours / 1e9:.2f} GB/s in"
            if where == "disk" and len(stores) > 1:
                yield Row(f"{name}, against the disk", ours, disk, "s")
            else:
                yield Row(f"{name}, against T", ours, t, "s", 1 / multiple)
        cpu = median(made[-1], "cpu")
        print(
            f"  processor time {cpu:.2f} s on {os.cpu_count()} cores, hashing took "
            f"{median(hashed, 'cpu'):.2f} s; load {os.getloadavg()[0]:.1f}"
        )
        print(machine, flush=True)


def limits(context, size, t, written):
    """What the machine could do, in the same minute, in words; and the time that the disk takes."""
    block = bytearray(os.urandom(1 << 20)) * 64
    begun = time.perf_counter()
    for _ in range(8):
        bytes(block)
    copy = 8 * len(block) / (time.perf_counter() - begun) / 1e9
    path = context.scratch / "limit"
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        with open(path, "wb") as file:
            for at in range(0, written, len(block)):
                file.write(block[: written - at])
            file.flush()
            os.fsync(file.fileno())
        times.append(time.perf_counter() - begun)
        path.unlink()
    disk = statistics.median(times)
    words = (
        f"  machine: copies {copy:.1f} GB/s, hashes {size / t / 1e9:.2f} GB/s (T {t:.3f} s), "
        f"disk {written / disk / 1e9:.2f} GB/s ({disk:.3f} s for the {written / 1e6:.0f} MB written)"
    )
    return words, disk


@dataclasses.dataclass
class Sampled:
    """A run whose memory was looked at all the time."""

    anonymous_mb: float
    resident_mb: float  # with mapped files
    seconds: float
    cpu: float


def sampled(command):
    """Runs a program to its end and samples its memory."""
    begun = time.perf_counter()
    child = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    anonymous = resident = ended = 0
    while not ended:
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
        except OSError:
            status = ""
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "RssAnon" in fields:
            anonymous = max(anonymous, int(fields["RssAnon"].split()[0]))
            resident = max(resident, int(fields["VmHWM"].split()[0]))
        time.sleep(0.002)
        ended, code, usage = os.wait4(child.pid, os.WNOHANG)
    seconds = time.perf_counter() - begun
    child.returncode = os.waitstatus_to_exitcode(code)
    if child.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {child.returncode}")
    cpu = usage.ru_utime + usage.ru_stime
    return Sampled(anonymous * 1024 / 1e6, resident * 1024 / 1e6, seconds, cpu)


def peaks(context, stores):
    if not Path("/proc/self/status").exists():
        return
    store = list(stores.values())[-1]
    for request, _ in REQUESTS:
        runs = [sampled(create(context, request, store)) for _ in range(3)]
        anonymous = max(run.anonymous_mb for run in runs)
        resident = max(run.resident_mb for run in runs)
        name = f"{request} anonymous peak ({resident:.0f} MB with files)"
        yield Row(name, anonymous, PEAK_MB, "MB", 1)


def big(context, store):
    """Time and memory over a synthetic llama, whole and of half the layers: time must be linear."""
    gigabytes = float(os.environ.get("LATHE_BENCH_GB", "8"))
    if not gigabytes or not Path("/proc/self/status").exists():
        return
    folder = context.scratch / "big"
    results = []
    for part in (gigabytes / 2, gigabytes):
        size = synthetic(folder, part)
        command = create(context, BIG_FORMAT, store, folder, ["--memory", f"{BIG_MEMORY_MB}MB"])
        run = sampled(command)
        results.append((size, run.seconds))
        name = f"{BIG_FORMAT} of {size / 1e9:.1f} GB, anonymous peak"
        yield Row(name, run.anonymous_mb, BIG_MEMORY_MB + 100, "MB", 1)
        print(
            f"  {size / 1e9:.1f} GB took {run.seconds:.1f} s, {size / run.seconds / 1e9:.2f} GB/s in, "
            f"{run.cpu:.1f} s of processor time"
        )
        shutil.rmtree(folder)
        shutil.rmtree(store, ignore_errors=True)
    (half, half_time), (whole, whole_time) = results
    yield Row("seconds per GB, half against whole", whole_time / whole * 1e9, half_time / half * 1e9, "s")


def synthetic(folder, gigabytes):
    """A llama of 4096 wide layers with repeated random weights; its size."""
    folder.mkdir(parents=True)
    shapes = {
        "self_attn.q_proj": (4096, 4096),
        "self_attn.k_proj": (1024, 4096),
        "self_attn.v_proj": (1024, 4096),
        "self_attn.o_proj": (4096, 4096),
        "mlp.gate_proj": (14336, 4096),
        "mlp.up_proj": (14336, 4096),
        "mlp.down_proj": (4096, 14336),
    }
    a_layer = sum(rows * columns * 2 for rows, columns in shapes.values())
    layers = max(1, round(gigabytes * 1e9 / a_layer))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32000,
    }
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for layer in range(layers):
        for name, shape in shapes.items():
            end = at + shape[0] * shape[1] * 2
            key = f"model.layers.{layer}.{name}.weight"
            header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
            at = end
    text = json.dumps(header).encode()
    # BF16 numbers below 1 of either sign: the high byte is a sign and a small exponent.
    block = bytearray(os.urandom(32 << 20))
    block[1::2] = bytes((byte & 0x80) | 0x3C | (byte & 3) for byte in block[1::2])
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        left = at
        while left:
            left -= file.write(block[: min(left, len(block))])
    return at
