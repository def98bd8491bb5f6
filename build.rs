//! Lists the built-in policy files, so that adding one is adding a file.

use std::fmt::Write;
use std::path::Path;

fn main() {
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let mut table = String::new();
    for folder in ["architectures", "sources"] {
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
}
