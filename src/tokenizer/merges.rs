//! `vocab.json` and `merges.txt`, GPT-2's form of a vocabulary, as a `tokenizer.json`.
//!
//! The files hold the tokens and the pairs that become one. How text is cut before is known by the
//! tokenizer's class: `policies/vocabularies.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Converted, Files};
use crate::fault::{Code, Fault};

/// Classes that say nothing about how text is cut.
const GENERAL: [&str; 4] =
    ["PreTrainedTokenizer", "TokenizersBackend", "PythonBackend", "PreTrainedTokenizerBase"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    vocabulary: Vec<Entry>,
}

/// How the vocabularies of some classes are used.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    classes: Vec<String>,
    model_types: Vec<String>,
    normalizer: Option<String>,
    #[serde(default)]
    digits: bool,
    pattern: Option<String>,
    tokens: BTreeMap<String, String>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    toml::from_str(include_str!("../../policies/vocabularies.toml")).expect("tested: it reads")
});

/// The entry for a model's configs.
fn entry(config: &Value, model: &Value) -> Result<&'static Entry, Fault> {
    let class = config["tokenizer_class"].as_str().or(model["tokenizer_class"].as_str());
    let class = class.map(|class| class.trim_end_matches("Fast"));
    let of_class = |entry: &&Entry| entry.classes.iter().any(|known| Some(known.as_str()) == class);
    if let Some(entry) = TABLE.vocabulary.iter().find(of_class) {
        return Ok(entry);
    }
    if let Some(class) = class.filter(|class| !GENERAL.contains(class)) {
        let what = format!("lathe does not know how {class} uses a vocab.json and merges.txt");
        return Err(Fault::new(Code::Tokenizer, what)
            .in_file("vocab.json")
            .help("put the model's tokenizer.json into its folder (transformers writes one)"));
    }
    let model_type = model["model_type"].as_str();
    let of_type =
        |entry: &&Entry| entry.model_types.iter().any(|known| Some(known.as_str()) == model_type);
    Ok(TABLE.vocabulary.iter().find(of_type).unwrap_or(&TABLE.vocabulary[0]))
}

/// The special tokens of the class; none where the class is not known.
pub(super) fn class_tokens(
    config: &Value,
    model: &Value,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    let entry = entry(config, model).ok();
    let tokens = entry.into_iter().flat_map(|entry| &entry.tokens);
    tokens.map(|(name, token)| (name.as_str(), token.as_str()))
}

/// Puts tokens, by text and id, around plain texts.
///
/// # Errors
/// None but those of the library.
pub(super) fn put_around(
    inner: &mut tokenizers::Tokenizer,
    begin: Option<(String, u32)>,
    end: Option<(String, u32)>,
) -> Result<(), Fault> {
    let special = |token: &Option<(String, u32)>| {
        token.as_ref().map(|(text, _)| json!({"SpecialToken": {"id": text, "type_id": 0}}))
    };
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let single: Vec<Value> =
        special(&begin).into_iter().chain([text]).chain(special(&end)).collect();
    let tokens: serde_json::Map<String, Value> = begin
        .iter()
        .chain(&end)
        .map(|(text, id)| (text.clone(), json!({"id": text, "ids": [id], "tokens": [text]})))
        .collect();
    let template = json!({
        "type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": tokens,
    });
    let template = serde_json::from_value::<tokenizers::PostProcessorWrapper>(template);
    let template = template.map_err(|error| Fault::new(Code::Internal, error.to_string()))?;
    inner.with_post_processor(Some(template));
    Ok(())
}

/// Converts the two files.
///
/// # Errors
/// When one of them cannot be read, or it is not known how the class cuts text.
pub(super) fn convert(files: &Files, config: &Value) -> Result<Converted, Fault> {
    let model = files.json("config.json")?.unwrap_or(Value::Null);
    let entry = entry(config, &model)?;
    let vocab = files.json("vocab.json")?.unwrap_or(Value::Null);
    let text = files.text("merges.txt")?.unwrap_or_default();
    let mut merges = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("#version") {
            continue;
        }
        let Some((left, right)) = line.split_once(' ').filter(|(_, right)| !right.contains(' '))
        else {
            let what = format!("line {} is not two tokens with a space between", number + 1);
            return Err(Fault::new(Code::Tokenizer, what).in_file("merges.txt"));
        };
        merges.push(json!([left, right]));
    }
    let spaced = config["add_prefix_space"].as_bool().unwrap_or(false);
    let byte_level = |regex: bool| {
        json!({"type": "ByteLevel", "add_prefix_space": spaced, "trim_offsets": true,
               "use_regex": regex})
    };
    let mut cuts = Vec::new();
    if entry.digits {
        cuts.push(json!({"type": "Digits", "individual_digits": true}));
    }
    if let Some(pattern) = &entry.pattern {
        cuts.push(json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                         "invert": false}));
    }
    cuts.push(byte_level(entry.pattern.is_none()));
    let json = json!({
        "version": "1.0",
        "normalizer": entry.normalizer.as_ref().map(|kind| json!({"type": kind})),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "decoder": byte_level(true),
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    });
    Ok(Converted { json, space_in_front: false })
}
