//! The schemas in `schemas/` are those of the types, and the files that people copy obey them.
//! `LATHE_UPDATE=1 cargo test --test schemas` writes them anew.

use std::path::{Path, PathBuf};

use lathe::policy::text::Document;
use lathe::schema;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The policies and their tests.
fn architectures() -> Vec<PathBuf> {
    let dir = std::fs::read_dir(root().join("policies/architectures")).unwrap();
    dir.map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().unwrap() == "yaml")
        .collect()
}

fn kind(path: &Path) -> &'static str {
    if path.to_string_lossy().ends_with(".test.yaml") { "policy-test" } else { "policy" }
}

#[test]
fn schemas_are_fresh() {
    let mut stale = Vec::new();
    for named in schema::ALL {
        let path = root().join("schemas").join(named.file());
        if std::env::var_os("LATHE_UPDATE").is_some() {
            std::fs::write(&path, named.text()).unwrap();
        }
        if std::fs::read_to_string(&path).unwrap_or_default() != named.text() {
            stale.push(named.file());
        }
    }
    assert!(stale.is_empty(), "stale: {stale:?}; run LATHE_UPDATE=1 cargo test --test schemas");
}

fn obeys(schema: &str, path: &Path) {
    let schema = serde_json::from_str(&schema::get(schema).unwrap().text()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let body = std::fs::read_to_string(path).unwrap();
    let document = Document::parse(path.display().to_string(), body).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(&document.root.to_json()).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{}: {errors:?}", path.display());
}

#[test]
fn built_in_files_obey_their_schemas() {
    obeys("formats", &root().join("policies/formats.toml"));
    obeys("parsers", &root().join("policies/parsers.toml"));
    for path in architectures() {
        obeys(kind(&path), &path);
    }
}

#[test]
fn every_policy_names_its_schema_for_editors() {
    for path in architectures() {
        let body = std::fs::read_to_string(&path).unwrap();
        let first = body.lines().next().unwrap();
        let schema = kind(&path);
        let expected =
            format!("# yaml-language-server: $schema=../../schemas/{schema}.schema.json");
        assert_eq!(first, expected, "{}", path.display());
    }
}
