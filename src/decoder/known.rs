//! What of a config the decoder passes over, although it is known to change what a model computes.
//!
//! In: a description and config.json. Out: the keys, each with the reason why it matters, from
//! `policies/known/numbers.yaml` and, of rotary positions, from the kinds of [`super::rope`].

use std::collections::HashSet;
use std::sync::LazyLock;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value as Json;

use super::rope::{self, Kind};
use super::{Decoder, Defaults, Filled};

/// What is known of a key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// Values that change nothing.
    #[serde(default)]
    neutral: Vec<Json>,
    /// What it does, and whose it is.
    because: String,
}

static KNOWN: LazyLock<IndexMap<String, Known>> = LazyLock::new(|| {
    let text = include_str!("../../policies/known/numbers.yaml");
    serde_yaml::from_str(text).unwrap_or_default()
});

/// A key that is there and is not read.
#[derive(Clone, Debug, PartialEq)]
pub struct Unread {
    /// Its path in config.json.
    pub path: String,
    /// Its value.
    pub value: Json,
    /// Why it matters.
    pub because: String,
}

/// The keys of `config` that matter and that `decoder` does not read.
pub fn unread(decoder: &Decoder, config: &Json) -> Vec<Unread> {
    let read = words_of(decoder);
    let kinds = kinds_of(decoder);
    let filled = Filled::new(config, decoder.config.list(), &Defaults::new());
    let object = filled.object();
    let at = |key: &str| match &filled.inner {
        Some(inner) => format!("{inner}.{key}"),
        None => key.to_owned(),
    };
    let is_neutral = |known: &Known, value: &Json| {
        let same = |neutral: &Json| match (neutral.as_f64(), value.as_f64()) {
            (Some(one), Some(other)) => one == other,
            _ => neutral == value,
        };
        value.is_null() || known.neutral.iter().any(same)
    };
    let mut found: Vec<Unread> = KNOWN
        .iter()
        .filter(|(key, _)| !read.contains(key.as_str()))
        .filter_map(|(key, known)| Some((key, known, object.get(key)?)))
        .filter(|(_, known, value)| !is_neutral(known, value))
        .map(|(key, known, value)| {
            let because = known.because.clone();
            Unread { path: at(key), value: value.clone(), because }
        })
        .collect();
    if let Some(key) = rope::USUAL.into_iter().find(|key| object[key].is_object()) {
        let entries = object[key].as_object().into_iter().flatten();
        let nested: Vec<(String, &Json)> = entries
            .filter(|(_, value)| value.is_object())
            .map(|(kind, value)| (format!("{key}.{kind}"), value))
            .collect();
        let objects = if nested.is_empty() { vec![(key.to_owned(), &object[key])] } else { nested };
        for (path, parameters) in objects {
            let left = Kind::unread(parameters, &kinds).filter(|key| !read.contains(*key));
            found.extend(left.map(|key| Unread {
                path: at(&format!("{path}.{key}")),
                value: parameters[key].clone(),
                because: "its `rope_type` has no such key".into(),
            }));
        }
    }
    found
}

/// What the description takes names of kinds of rotations for.
fn kinds_of(decoder: &Decoder) -> IndexMap<String, String> {
    fn gather(value: &Json, kinds: &mut IndexMap<String, String>) {
        match value {
            Json::Array(items) => items.iter().for_each(|item| gather(item, kinds)),
            Json::Object(entries) => {
                let own = entries.get("kinds").and_then(Json::as_object);
                let own = own.into_iter().flatten();
                kinds.extend(
                    own.filter_map(|(name, kind)| Some((name.clone(), kind.as_str()?.into()))),
                );
                entries.values().for_each(|value| gather(value, kinds));
            }
            _ => {}
        }
    }
    let mut kinds = IndexMap::new();
    gather(&serde_json::to_value(decoder).unwrap_or_default(), &mut kinds);
    kinds
}

/// The words of all texts of a description: names of keys in its expressions are among them.
fn words_of(decoder: &Decoder) -> HashSet<String> {
    fn gather(value: &Json, words: &mut HashSet<String>) {
        match value {
            Json::String(text) => {
                let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
                words.extend(text.split(word).map(str::to_owned));
            }
            Json::Array(items) => items.iter().for_each(|item| gather(item, words)),
            Json::Object(entries) => entries.values().for_each(|value| gather(value, words)),
            _ => {}
        }
    }
    let mut words = HashSet::new();
    gather(&serde_json::to_value(decoder).unwrap_or_default(), &mut words);
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decoder(more: &str) -> Decoder {
        let text = format!(
            "{{embed: {{tensor: e}}, layers: {{tensor: l, count: n, steps: []}}, head: {{tensor: h}}, {more}}}"
        );
        serde_yaml::from_str(&text).unwrap()
    }

    fn paths(more: &str, config: Json) -> Vec<String> {
        unread(&decoder(more), &config).into_iter().map(|unread| unread.path).collect()
    }

    #[test]
    fn the_list_is_read_and_says_why() {
        assert!(KNOWN.len() > 50, "{}", KNOWN.len());
        assert!(KNOWN.values().all(|known| !known.because.is_empty()));
    }

    #[test]
    fn keys_that_matter_are_told_unless_they_are_read_or_change_nothing() {
        let config = json!({
            "index_topk": 2048, "embedding_multiplier": 1.0, "residual_multiplier": 0.5,
            "attention_chunk_size": null, "vocab_size": 96,
        });
        assert_eq!(paths("", config.clone()), ["residual_multiplier", "index_topk"]);
        assert_eq!(paths("exact_context: index_topk", config.clone()), ["residual_multiplier"]);
        let scaled = "let: {scale: residual_multiplier ?? 1.0}, exact_context: config.index_topk";
        assert_eq!(paths(scaled, config.clone()), [""; 0]);
        let inner = json!({"index_topk": 4, "text_config": config});
        assert_eq!(
            paths("config: text_config", inner),
            ["text_config.residual_multiplier", "text_config.index_topk"]
        );
    }

    #[test]
    fn keys_of_rotations_are_told_too() {
        let of = |rope: Json| paths("", json!({"rope_scaling": rope}));
        assert_eq!(
            of(json!({"type": "dynamic", "factor": 2.0, "alpha": 1000.0})),
            ["rope_scaling.alpha"]
        );
        assert_eq!(of(json!({"rope_type": "default", "factor": 2.0})), ["rope_scaling.factor"]);
        assert_eq!(
            of(json!({"type": "linear", "factor": 2.0, "original_max_position_embeddings": 8})),
            [""; 0]
        );
        assert_eq!(of(json!({"factor": 2.0})), [""; 0]);
        let nested = json!({"full": {"rope_type": "default", "alpha": 2.0}, "sliding": null});
        assert_eq!(of(nested), ["rope_scaling.full.alpha"]);
        assert_eq!(paths("", json!({"rope_scaling": null})), [""; 0]);
    }
}
