#!/usr/bin/env python3
"""Compiles and links lathe for a Mac with Apple silicon, on any system: `make check-macos`.

zig compiles C and C++ and links; it carries macOS's C headers and the list of what libSystem exports. What
else a program is linked with on a Mac, Apple's SDK describes in text files (.tbd) that name a library and
its symbols. The SDK may be used on Macs only, so such files are written here, with the symbols of SYMBOLS
and no others. A symbol that lathe or a dependency comes to use, and that is not there, fails the link:
look it up in Apple's documentation, and add it to the framework that it belongs to.

What this shows: everything compiles and all symbols are found. What it cannot: that it runs.
"""

import os
import pathlib
import struct
import subprocess
import sys

TARGET = "aarch64-apple-darwin"
FRAMEWORKS = "/System/Library/Frameworks"

# Where a library is on a Mac, and what of it is used.
SYMBOLS = {
    "/usr/lib/libobjc.A.dylib": """
    """,
    f"{FRAMEWORKS}/Accelerate.framework/Versions/A/Accelerate": """
        _cblas_sgemm
    """,
    f"{FRAMEWORKS}/CoreFoundation.framework/Versions/A/CoreFoundation": """
        _CFDataGetBytes _CFDataGetLength _CFDataGetTypeID _CFGetTypeID _CFRelease _CFRetain
        _CFStringCreateWithBytesNoCopy _kCFAllocatorDefault _kCFAllocatorNull
    """,
    f"{FRAMEWORKS}/Foundation.framework/Versions/C/Foundation": """
    """,
    f"{FRAMEWORKS}/IOKit.framework/Versions/A/IOKit": """
        _IOIteratorNext _IOObjectRelease _IORegistryEntryCreateCFProperty _IORegistryEntryGetName
        _IOServiceGetMatchingServices _IOServiceMatching _kIOMasterPortDefault
    """,
}


def write_stubs(folder):
    for library, symbols in SYMBOLS.items():
        if library.startswith(FRAMEWORKS):
            name = library.rsplit("/", 1)[1]
            at = folder / f"{name}.framework" / f"{name}.tbd"
        else:
            at = folder / (library.rsplit("/", 1)[1].split(".")[0] + ".tbd")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(
            "--- !tapi-tbd\n"
            "tbd-version: 4\n"
            "targets: [ arm64-macos ]\n"
            f"install-name: '{library}'\n"
            "exports:\n"
            "  - targets: [ arm64-macos ]\n"
            f"    symbols: [ {', '.join(symbols.split())} ]\n"
            "...\n"
        )


def loaded(program):
    """The libraries that a Mach-O program for Apple silicon loads."""
    data = program.read_bytes()
    magic, cpu, _, kind, commands = struct.unpack_from("<5I", data)
    if (magic, cpu, kind) != (0xFEEDFACF, 0x0100000C, 2):
        sys.exit(f"{program} is no program for a Mac with Apple silicon")
    at, names = 32, []
    for _ in range(commands):
        command, size = struct.unpack_from("<2I", data, at)
        if command == 0xC:
            start = at + struct.unpack_from("<I", data, at + 8)[0]
            names.append(data[start : at + size].split(b"\0")[0].decode())
        at += size
    return names


def main():
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target")).absolute()
    stubs = target / TARGET / "stubs"
    write_stubs(stubs)
    tools = pathlib.Path(sys.executable).parent
    environment = dict(
        os.environ,
        PATH=f"{tools}:{os.environ['PATH']}",
        MLX_DIR=str(pathlib.Path(".mlx/check/metal/mlx").absolute()),
    )
    command = ["cargo-zigbuild", "rustc", "--locked", "--profile", "cross", "--target", TARGET]
    # Only the last link is given the stubs: nothing else is built anew when they change.
    command += ["--bin", "lathe", "--"]
    command += [f"-Lnative={stubs}", f"-Lframework={stubs}"]
    if subprocess.run(command, env=environment).returncode:
        sys.exit(1)
    program = target / TARGET / "cross" / "lathe"
    names = loaded(program)
    if not any(name.endswith("libmlxc.dylib") for name in names):
        sys.exit(f"{program} does not load MLX, but {names}")
    print(f"{program}: {program.stat().st_size / 1e6:.0f} MB, loads " + ", ".join(names))


main()
