//! Lists the built-in policy files, so that adding one is adding a file; and tells the linker
//! where binaries find the libraries of MLX.

use std::fmt::Write;
use std::path::Path;

fn main() {
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let mut table = String::new();
    for folder in ["architectures", "parsers", "sources"] {
        let dir = Path::new(&root).join("policies").join(folder);
        println!("cargo::rerun-if-changed={}", dir.display());
        let mut names: Vec<String> = std::fs::read_dir(&dir)
            .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
            .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".yaml") || name.ends_with(".toml"))
            .filter(|name| !name.contains(".test."))
            .collect();
        names.sort();
        let upper = folder.to_uppercase();
        writeln!(table, "pub const {upper}: &[(&str, &str)] = &[").expect("to a string");
        for name in names {
            let path = dir.join(&name);
            writeln!(table, "    (\"{folder}/{name}\", include_str!({path:?})),")
                .expect("to a string");
        }
        table.push_str("];\n");
    }
    std::fs::write(Path::new(&out).join("policies.rs"), table).expect("OUT_DIR is writable");
    link_mlx();
}

/// An installed binary finds the libraries beside itself, in `../lib/lathe`, and so can be moved. One
/// that is run where it was built finds them where mlx-sys put them, unless it is built to be
/// installed (`make install`).
fn link_mlx() {
    println!("cargo::rerun-if-env-changed=LATHE_RELOCATABLE");
    let Ok(runtime) = std::env::var("DEP_MLX_RUNTIME") else { return };
    let macos = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "macos");
    let beside = if macos { "@executable_path" } else { "$ORIGIN" };
    println!("cargo::rustc-link-arg=-Wl,-rpath,{beside}/../lib/lathe");
    if std::env::var_os("LATHE_RELOCATABLE").is_none() {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{runtime}");
    }
}
