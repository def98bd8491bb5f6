"""Digests of blobs as Ollama's importer packs them, written from facts about its form alone:
the header is JSON of a map with keys in byte order (`__metadata__` among them, its own keys sorted
too), without spaces, `<`, `>` and `&` escaped, each tensor {"dtype", "shape", "data_offsets"} in that
order, padded with spaces to 8 bytes; then the data in the order of packing.

The digests stand in tests/found/policies.rs; this says where they came from.
"""
import hashlib
import json
import struct


def blob(tensors, metadata=None):
    entries, at = {}, 0
    for name, dtype, shape, data in tensors:
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    if metadata:
        entries["__metadata__"] = dict(sorted(metadata.items()))
    entries = dict(sorted(entries.items(), key=lambda entry: entry[0].encode()))
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    header = text.encode()
    header += b" " * (-len(header) % 8)
    whole = struct.pack("<Q", len(header)) + header + b"".join(t[3] for t in tensors)
    return "sha256:" + hashlib.sha256(whole).hexdigest()


def pattern(seed, length):
    return bytes((seed + 7 * i) % 64 for i in range(length))


print("plain", blob([("model.norm.weight", "BF16", [32], pattern(1, 64))]))

# ModelOpt's NVFP4: readers know the group of nvfp4, and the importer does not write it.
NVFP4 = {"quant_type": "nvfp4"}
kept = "model.layers.0.self_attn.q_proj.weight"
print("nvfp4", blob([
    (kept, "U32", [32, 8], pattern(2, 1024)),
    (f"{kept}.scale", "U8", [32, 4], pattern(3, 128)),
    (f"{kept}.global_scale", "F32", [], struct.pack("<f", 0.5)),
], NVFP4))

name = "model.layers.0.self_attn.k_proj.weight"
print("affine", blob([
    (name, "U32", [32, 8], pattern(4, 1024)),
    (f"{name}.scale", "BF16", [32, 1], pattern(5, 64)),
    (f"{name}.bias", "BF16", [32, 1], pattern(6, 64)),
], {"quant_type": "int4", "group_size": "64"}))

PROJECTIONS = (("down_proj", 10), ("gate_proj", 20), ("up_proj", 30))
group = "model.layers.0.mlp.experts"
print("experts", blob([
    (f"{group}.{proj}.weight", "BF16", [2, 32, 32], pattern(seed, 2048) + pattern(seed + 1, 2048))
    for proj, seed in PROJECTIONS
]))

group = "model.layers.1.mlp.experts"
tensors = []
for proj, seed in PROJECTIONS:
    tensor = f"{group}.{proj}.weight"
    tensors += [
        (tensor, "U32", [2, 32, 8], pattern(seed, 1024) + pattern(seed + 1, 1024)),
        (f"{tensor}.scale", "U8", [2, 32, 4], pattern(seed + 2, 128) + pattern(seed + 3, 128)),
        (f"{tensor}.global_scale", "F32", [2], struct.pack("<2f", 0.5, 0.25)),
    ]
print("nvfp4 experts", blob(tensors, NVFP4))
