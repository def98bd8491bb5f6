//! The schemas in `schemas/` are those of the types, and the files that people copy obey them.
//! `LATHE_UPDATE=1 cargo test --test schemas` writes them anew.

use std::path::{Path, PathBuf};

use lathe::document::Document;
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
    for entry in std::fs::read_dir(root().join("policies/parsers")).unwrap() {
        obeys("parser", &entry.unwrap().path());
    }
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

/// The kinds of the decoder section, from its schema: names and their properties.
fn decoder_kinds() -> Vec<(String, Vec<(String, String)>)> {
    let schema: serde_json::Value =
        serde_json::from_str(&schema::get("policy").unwrap().text()).unwrap();
    let mut left = vec!["Decoder".to_owned()];
    let mut seen = Vec::new();
    while let Some(name) = left.pop() {
        let kind = &schema["$defs"][&name];
        let text = kind.to_string();
        let named = text.split("\"#/$defs/").skip(1).filter_map(|rest| rest.split('"').next());
        left.extend(named.map(str::to_owned).filter(|next| *next != name));
        let needed: Vec<&str> =
            kind["required"].as_array().into_iter().flatten().filter_map(|k| k.as_str()).collect();
        let properties = kind["properties"].as_object().into_iter().flatten();
        let rows = properties.map(|(key, value)| {
            let text = value["description"].as_str().unwrap_or_default();
            let mark = if needed.contains(&key.as_str()) { " (needed)" } else { "" };
            let text: Vec<&str> = text.split_whitespace().collect();
            (key.clone(), format!("| `{key}`{mark} | {} |", text.join(" ")))
        });
        seen.push((name, rows.collect()));
        left.retain(|next| !seen.iter().any(|(other, _)| other == next));
    }
    seen
}

#[test]
fn the_decoder_chapter_has_every_key_with_its_meaning() {
    let chapter = std::fs::read_to_string(root().join("docs/decoder.md")).unwrap();
    let kinds = decoder_kinds();
    assert!(kinds.len() > 25, "{}", kinds.len());
    for (kind, rows) in kinds {
        let table: Vec<&str> = rows.iter().map(|(_, row)| row.as_str()).collect();
        if !table.is_empty() {
            let table = table.join("\n");
            assert!(
                chapter.contains(&table),
                "docs/decoder.md lacks the table of {kind}:\n{table}"
            );
        }
    }
}

#[test]
fn the_decoder_chapter_has_every_kind_of_rotation() {
    let chapter = std::fs::read_to_string(root().join("docs/decoder.md")).unwrap();
    let table = lathe::decoder::rope::Kind::table();
    assert!(chapter.contains(&table), "docs/decoder.md lacks the table of kinds:\n{table}");
}
