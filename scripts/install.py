#!/usr/bin/env python3
"""Installs lathe and the libraries it needs in one folder, which can then be moved as a whole:

    PREFIX/bin/lathe
    PREFIX/lib/lathe/libmlxc.so, mlx/lib/…, libscipy_openblas.so, …
    PREFIX/lib/lathe/licenses/

usage: install.py PREFIX
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path


def main():
    prefix = Path(sys.argv[1]).expanduser().absolute()
    binary, runtime = build()
    programs, libraries = prefix / "bin", prefix / "lib/lathe"
    programs.mkdir(parents=True, exist_ok=True)
    if libraries.is_dir():
        shutil.rmtree(libraries)
    for source, place in files(runtime):
        target = libraries / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    # A binary that runs cannot be overwritten, but it can be replaced.
    fresh = programs / ".lathe.new"
    shutil.copy(binary, fresh)
    fresh.replace(programs / "lathe")
    copy_licenses(runtime, libraries / "licenses")
    print(f"{programs / 'lathe'}, with its libraries in {libraries}")


def build():
    """Builds lathe to find its libraries beside itself; the binary and mlx-sys's runtime folder."""
    command = ["cargo", "build", "--release", "--bin", "lathe"]
    command.append("--message-format=json-render-diagnostics")
    environment = os.environ | {"LATHE_RELOCATABLE": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    binary = runtime = None
    for message in map(json.loads, done.stdout.splitlines()):
        if message["reason"] == "compiler-artifact" and message["target"]["name"] == "lathe":
            binary = message.get("executable") or binary
        if message["reason"] == "build-script-executed" and "/mlx-sys#" in message["package_id"]:
            runtime = Path(message["out_dir"]) / "runtime"
    if not binary or not runtime:
        raise SystemExit("cargo told neither where lathe is nor where its libraries are")
    return Path(binary), runtime


def files(runtime):
    """(file, place under lib/lathe) of every library. MLX's keep the places that they have beside
    each other in the wheel, since they find each other by them."""
    wheel = (runtime / "mlx").resolve().parent
    found = {}
    for source in [*runtime.iterdir(), *(runtime / "mlx/lib").iterdir()]:
        if source.is_file() and re.search(r"\.(so|dylib|metallib)(\.|$)", source.name):
            found[str(source.relative_to(runtime))] = source.resolve()
    if sys.platform != "darwin":
        listed = subprocess.run(["ldd", runtime / "libmlxc.so"], capture_output=True, text=True)
        for path in re.findall(r"=> (/\S+)", listed.stdout):
            path = Path(path).resolve()
            if path.is_relative_to(wheel):
                found[str(path.relative_to(wheel))] = path
    return [(source, place) for place, source in found.items()]


def copy_licenses(runtime, folder):
    folder.mkdir(parents=True)
    root = Path(__file__).resolve().parent.parent
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        shutil.copyfile(root / name, folder / f"lathe-{name}")
    wheel = (runtime / "mlx").resolve().parent
    for source in wheel.glob("*.dist-info/licenses/*"):
        package = source.parent.parent.name.split("-")[0]
        shutil.copyfile(source, folder / f"{package}-{source.name}")


if __name__ == "__main__":
    main()
