#!/usr/bin/env python3
"""Builds lathe with MLX for NVIDIA's GPUs and starts it, on Linux without a GPU: `make check-cuda`.

MLX's library for CUDA is linked with the driver's, libcuda.so.1, which comes with a GPU's driver and from
nowhere else. A stand-in is compiled here, whose every function answers what the driver answers on a machine
that has no device. With it lathe must start and say that it computes on the CPU.

What this shows: everything compiles, all symbols are found, and a machine without a GPU is met with words.
What it cannot: that lathe computes on one.
"""

import json
import os
import pathlib
import subprocess
import sys

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def undefined(library):
    """The functions of the driver that a library takes for granted."""
    lines = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", library], check=True, capture_output=True, text=True
    ).stdout.split("\n")
    names = {line.split()[-1].split("@")[0] for line in lines if line.strip()}
    return {name for name in names if name[:2] == "cu" and name[2:3].isupper()}


def stand_in(names, folder):
    """libcuda.so.1 with these functions and those that CUDA's runtime asks the driver for by name."""
    names = sorted(names | {"cuInit", "cuDriverGetVersion", "cuGetProcAddress", "cuGetProcAddress_v2"})
    source = "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in names)
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libcuda.so.1"
    compiler = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", library]
    subprocess.run(compiler, input=source, text=True, check=True)


def main():
    mlx = pathlib.Path(".mlx/check/cuda/mlx").absolute()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target")).absolute() / "cuda"
    stand_in(undefined(mlx / "lib/libmlx.so"), target / "stand-in")
    environment = dict(
        os.environ,
        MLX_DIR=str(mlx),
        CARGO_TARGET_DIR=str(target),
        LD_LIBRARY_PATH=str(target / "stand-in"),
    )
    build = ["cargo", "build", "--locked", "--profile", "cross", "--bin", "lathe"]
    if subprocess.run(build, env=environment).returncode:
        sys.exit(1)
    program = target / "cross/lathe"
    doctor = subprocess.run(
        [program, "doctor", "--output", "json"], env=environment, capture_output=True, text=True
    )
    if not doctor.stdout:
        sys.exit(f"{program} does not start: {doctor.stderr}")
    report = json.loads(doctor.stdout)
    print(json.dumps({key: report[key] for key in ("mlx", "computes")}, indent=1))
    if not report["mlx"].get("lacks_gpu") or report["computes"]["backend"] != "cpu":
        sys.exit("this is not how lathe speaks of a machine without a GPU")


main()
