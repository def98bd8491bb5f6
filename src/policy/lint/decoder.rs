//! The expressions of a decoder's description: they are compiled, and what they name is known.
//!
//! In: a description. Out: its expressions with their places, and the names that they may use. Where
//! an expression stands is told by the schema of the description, so that a new key needs no word here.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value as Json;

use super::known_config_paths;
use crate::decoder::Decoder;
use crate::document::Step;
use crate::expr::Expr;

static SCHEMA: LazyLock<Json> = LazyLock::new(|| schemars::schema_for!(Decoder).to_value());

/// What expressions may name besides keys of a config and `let` values.
const NAMES: [&str; 4] = ["config", "converted", "layer", "type"];

/// The expressions of a description, each with the path to it from the top of the policy's file.
pub fn expressions(decoder: &Decoder) -> Vec<(Vec<Step>, String)> {
    let mut found = Vec::new();
    let value = serde_json::to_value(decoder).unwrap_or_default();
    gather(&SCHEMA, &value, &mut vec![Step::from("decoder")], &mut found);
    found.dedup();
    found
}

fn gather(schema: &Json, value: &Json, at: &mut Vec<Step>, found: &mut Vec<(Vec<Step>, String)>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
        match (name, value) {
            ("Expr", Json::String(text)) => found.push((at.clone(), text.clone())),
            _ => gather(&SCHEMA["$defs"][name], value, at, found),
        }
        return;
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        for one in schema[choice].as_array().into_iter().flatten() {
            gather(one, value, at, found);
        }
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let of_key = schema["properties"].get(key).unwrap_or(&schema["additionalProperties"]);
        at.push(Step::from(key.as_str()));
        gather(of_key, value, at, found);
        at.pop();
    }
    for (index, value) in value.as_array().into_iter().flatten().enumerate() {
        at.push(Step::Index(index));
        gather(&schema["items"], value, at, found);
        at.pop();
    }
}

/// What the expressions of a description may name.
pub fn names(decoder: &Decoder) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = NAMES.map(String::from).into();
    let paths = known_config_paths();
    names.extend(paths.iter().flat_map(|path| path.split('.')).map(str::to_owned));
    let values = decoder.values.keys().chain(decoder.layers.values.keys());
    names.extend(values.cloned());
    keys(&serde_json::to_value(&decoder.defaults).unwrap_or_default(), &mut names);
    names
}

fn keys(value: &Json, names: &mut BTreeSet<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        names.insert(key.clone());
        keys(value, names);
    }
}

/// The paths of an expression, or names alone, of which a part is not known.
pub fn unknown<'e>(expr: &'e Expr, known: &BTreeSet<String>) -> Vec<&'e str> {
    let paths = expr.paths();
    let alone = expr.names().into_iter().filter(|name| {
        !paths.iter().any(|path| path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
    });
    let all: BTreeSet<&str> = paths.iter().copied().chain(alone).collect();
    all.into_iter().filter(|path| path.split('.').any(|part| !known.contains(part))).collect()
}
