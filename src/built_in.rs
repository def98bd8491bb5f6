//! The files of `policies/` that are compiled in, and what counts as a policy file in a folder.

use std::path::{Path, PathBuf};

use crate::fault::Fault;

mod files {
    include!(concat!(env!("OUT_DIR"), "/policies.rs"));
}

/// The policies of architectures: (file, YAML).
pub const ARCHITECTURES: &[(&str, &str)] = files::ARCHITECTURES;

/// The layouts of producers, their claims and programs: (file, YAML).
pub const SOURCES: &[(&str, &str)] = files::SOURCES;

/// The parsers of answers: (name, YAML).
pub fn parsers() -> impl Iterator<Item = (&'static str, &'static str)> {
    files::PARSERS.iter().map(|&(file, text)| {
        let name = file.strip_prefix("parsers/").and_then(|name| name.strip_suffix(".yaml"));
        (name.unwrap_or(file), text)
    })
}

/// The policy files of a folder, sorted by name. Tests of policies (`*.test.yaml`) are not among
/// them.
pub fn policy_files(dir: &Path) -> Result<Vec<PathBuf>, Fault> {
    let fault = |error: &std::io::Error| Fault::io("read the policy folder", dir, error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|error| fault(&error))? {
        let path = entry.map_err(|error| fault(&error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let policy = name.ends_with(".yaml") || name.ends_with(".yml") || name.ends_with(".toml");
        let other = ["formats.toml", "backends.toml", "parsers.toml"].contains(&name.as_str());
        if policy && !other && !name.contains(".test.") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
