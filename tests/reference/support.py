"""What the reference checks share: running lathe, and reading what it wrote without lathe's help.

A check runs the binary that cargo built ($LATHE overrules), on the model folder that `make model`
made ($LATHE_MODEL overrules), and compares with the real mlx and mlx_lm.
"""

import functools
import json
import os
import subprocess
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
MODEL = Path(os.environ.get("LATHE_MODEL", ROOT / "models/SmolLM2-135M-Instruct"))
LATHE = os.environ.get("LATHE") or ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/lathe"

# MLX's own words for lathe's formats: mode, bits, group size.
FORMATS = {
    "int4": ("affine", 4, 64),
    "int8": ("affine", 8, 64),
    "mxfp4": ("mxfp4", 4, 32),
    "mxfp8": ("mxfp8", 8, 32),
    "nvfp4": ("nvfp4", 4, 16),
}

SCRATCH = tempfile.TemporaryDirectory(prefix="lathe-reference-")
STORE = Path(SCRATCH.name) / "store"

# On a GPU the products would be others, and the comparison with float32 looser.
mx.set_default_device(mx.cpu)


def lathe(*arguments):
    """Runs lathe on the temporary store, and gives what it printed."""
    command = [str(LATHE), *map(str, arguments), "--store", str(STORE)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


@functools.cache
def created(format):
    """The name of the model, quantized to `format`; made at the first call."""
    modelfile = Path(SCRATCH.name) / "Modelfile"
    modelfile.write_text(f"FROM {MODEL}\n")
    lathe("create", f"smol-{format}", "-f", modelfile, "--quantize", format)
    return f"smol-{format}"


def blobs(name):
    """(layer of the manifest, header metadata, name -> (dtype, shape, bytes)) of tensor blobs."""
    manifest = STORE / "manifests/registry.ollama.ai/library" / name / "latest"
    for layer in json.loads(manifest.read_text())["layers"]:
        if layer["mediaType"] == "application/vnd.ollama.image.tensor":
            path = STORE / "blobs" / layer["digest"].replace(":", "-")
            yield layer, *read_safetensors(path)


def read_safetensors(path):
    """(metadata, name -> (dtype, shape, bytes))"""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    metadata = header.pop("__metadata__", {})
    tensors = {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }
    return metadata, tensors


@functools.cache
def source():
    """Name -> array of the model folder."""
    return mx.load(str(MODEL / "model.safetensors"))


def bytes_of(array):
    """The bytes of an array, row-major."""
    words = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}[array.dtype.size]
    return np.array(mx.contiguous(array).view(words)).tobytes()


DTYPES = {"BF16": mx.bfloat16, "F16": mx.float16, "F32": mx.float32, "U32": mx.uint32, "U8": mx.uint8}


def array(dtype, shape, data):
    """An array from a safetensors entry."""
    words = {1: np.uint8, 2: np.uint16, 4: np.uint32}[DTYPES[dtype].size]
    return mx.array(np.frombuffer(data, words).reshape(shape)).view(DTYPES[dtype])


def packing(metadata, name):
    """(mode, bits, group size) of a quantized tensor; None for one that is not."""
    kind = metadata.get(f"{name}.quant_type", metadata.get("quant_type"))
    if kind is None:
        return None
    mode, bits, _ = FORMATS.get(kind, (kind, None, None))
    bits = int(metadata.get(f"{name}.bits", metadata.get("bits", bits)))
    return mode, bits, int(metadata.get(f"{name}.group_size", metadata["group_size"]))
