#!/bin/sh
# Writes mlx-sys/src/bindings.rs from the headers of mlx-c. Run it (make bindings) after changing the
# version in mlx-sys/upstream/Cargo.toml. Needs cargo, cc and pip; fetches bindgen and libclang.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/.mlx/bindgen
[ -x "$tools/bin/bindgen" ] || cargo install --quiet --locked --root "$tools" bindgen-cli@0.72.1
[ -d "$tools/clang" ] || "${PYTHON:-python3}" -m pip install --quiet --target "$tools" libclang==18.1.1
manifest=$(cargo metadata --format-version=1 --manifest-path mlx-sys/upstream/Cargo.toml |
    grep -o '"manifest_path":"[^"]*/mlx-sys-[0-9.]*/Cargo.toml"' | cut -d'"' -f4)
sources=$(dirname "$manifest")/src/mlx-c
version=$(basename "$(dirname "$manifest")")
# mlx-c declares its half-precision functions where C has such types, which is on ARM. csrc/compat.hpp
# compiles them everywhere, and src/lib.rs has the Rust types.
header=$(mktemp --suffix=.h)
trap 'rm -f "$header"' EXIT
printf 'typedef struct { short bits; } float16_t, bfloat16_t;\n#include "mlx/c/mlx.h"\n' > "$header"
{
    echo "// From the mlx-c of $version (crates.io). Do not edit: \`make bindings\` writes it."
    echo
    # libclang alone comes without clang's own headers (stddef.h and so on): use the compiler's.
    LIBCLANG_PATH=$tools/clang/native "$tools/bin/bindgen" "$header" \
        --no-layout-tests --no-doc-comments --rust-target 1.85 --rust-edition 2024 \
        --allowlist-item '_?mlx_.*' --blocklist-type 'b?float16_t|FILE|_IO_.*|__off(64)?_t' \
        --raw-line 'use super::{FILE, bfloat16_t, float16_t};' \
        -- -DHAS_FLOAT16 -DHAS_BFLOAT16 "-I$sources" "-idirafter$(cc -print-file-name=include)"
} > mlx-sys/src/bindings.rs.new
mv mlx-sys/src/bindings.rs.new mlx-sys/src/bindings.rs
echo "mlx-sys/src/bindings.rs: $version"
