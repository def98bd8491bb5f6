"""Makes quantize.json: digests of what MLX's own quantizer (CPU) makes of numbers that both this
script and src/write/kernels/tests.rs generate, bit for bit.

    pip install 'mlx[cpu]==0.32.4' numpy && python quantize.py > quantize.json
"""

import hashlib
import json

import mlx.core as mx
import numpy as np

GROUPS = 64
MASK = (1 << 64) - 1


class Stream:
    """SplitMix64 (Steele, Lea, Flood 2014)."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)


# name: mlx dtype, numpy bits, bits of an element, of its significand, infinity
TYPES = {
    "F32": (mx.float32, np.uint32, 32, 23, 0x7F800000),
    "F16": (mx.float16, np.uint16, 16, 10, 0x7C00),
    "BF16": (mx.bfloat16, np.uint16, 16, 7, 0x7F80),
}

KINDS = ["any", "near", "denormal", "special", "constant", "sparse", "ties"]


def generate(kind, stream, dtype, group):
    _, unsigned, width, mantissa, infinity = TYPES[dtype]
    sign = 1 << (width - 1)
    one = infinity & ~((1 << mantissa) - 1)  # exponent of infinity, for exponents below
    bias = (one >> mantissa) // 2
    quiet = infinity | (1 << (mantissa - 1))
    pool = [infinity, infinity | sign, quiet, quiet | sign, 0, sign]
    out = []

    def near(base, span):
        magnitude = max(0, base - stream.next() % (span << mantissa))
        return magnitude | (sign if stream.next() & 1 else 0)

    for _ in range(GROUPS):
        base = stream.next() % infinity
        span = 1 + stream.next() % 8
        place = stream.next() % group
        for i in range(group):
            if kind == "any":
                out.append(stream.next() & ((1 << width) - 1))
            elif kind == "near":
                out.append(near(base, span))
            elif kind == "denormal":
                out.append(stream.next() % (2 << mantissa) | (sign if stream.next() & 1 else 0))
            elif kind == "special":
                pick = stream.next() % 24
                out.append(pool[pick] if pick < len(pool) else near(base, span))
            elif kind == "constant":
                out.append(base)
            elif kind == "sparse":
                out.append(base if i == place else (sign if stream.next() & 1 else 0))
            else:  # quarters of a power of two
                quarters = stream.next() % 25
                value = 0
                if quarters:
                    top = quarters.bit_length() - 1
                    exponent = bias + int(base % 8) - 6 + top
                    value = exponent << mantissa | (quarters - (1 << top)) << (mantissa - top)
                out.append(value | (sign if stream.next() & 1 else 0))
    return np.array(out, dtype=np.uint64).astype(unsigned)


def digest(mode, bits, group, dtype, raw):
    kind, unsigned, width, _, _ = TYPES[dtype]
    rows = mx.array(raw.reshape(-1, group * 4)).view(kind)
    parts = mx.quantize(rows, group_size=group, bits=bits, mode=mode)
    sha = hashlib.sha256()
    for part in parts:
        if part.dtype == kind:
            part = part.view(mx.uint32 if width == 32 else mx.uint16)
        sha.update(np.array(part).tobytes())
    return sha.hexdigest()


def main():
    formats = [("affine", b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
    formats += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
    cases = {}
    for mode, bits, group in formats:
        for dtype in TYPES:
            for seed, kind in enumerate(KINDS):
                raw = generate(kind, Stream(seed), dtype, group)
                cases[f"{mode} {bits} {group} {dtype} {kind}"] = digest(mode, bits, group, dtype, raw)
    print(json.dumps({"mlx": mx.__version__, "sha256": cases}, indent=1))


main()
