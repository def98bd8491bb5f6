//! Which tokens have a meaning of their own, as the files beside a vocabulary say.
//!
//! The order is that of transformers (`tokenization_utils_base.py`, `_from_pretrained`):
//! `tokenizer_config.json`; over it, where that has no `added_tokens_decoder`,
//! `special_tokens_map.json`; under both what the tokenizer's class is known for. The same key decides
//! whether tokens that were added later are those of `added_tokens_decoder` or of `added_tokens.json`.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::{Files, merges};
use crate::checkpoint::vocabulary::Vocabulary;
use crate::fault::{Code, Fault};

/// The special tokens as text, by the names that chat templates know them by: `bos_token`, ….
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpecialTexts(BTreeMap<String, String>);

impl SpecialTexts {
    /// The token of that name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All names, and the token of each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, token)| (name.as_str(), token.as_str()))
    }
}

/// What the files say of special and added tokens.
pub(super) struct Declared {
    pub texts: SpecialTexts,
    /// Tokens that were added to the vocabulary later, with their ids where these are said.
    pub added: Vec<(Option<u32>, AddedToken)>,
}

/// Reads what the files say; `config` is `tokenizer_config.json`.
///
/// # Errors
/// When one of the files cannot be read.
pub(super) fn declared(
    files: &Files,
    config: &Value,
    vocabulary: Vocabulary,
) -> Result<Declared, Fault> {
    let mut said: Map<String, Value> = config.as_object().cloned().unwrap_or_default();
    let decoder = config["added_tokens_decoder"].as_object();
    if decoder.is_none()
        && let Some(Value::Object(map)) = files.json("special_tokens_map.json")?
    {
        said.extend(map);
    }
    if vocabulary == Vocabulary::Merges {
        let model = files.json("config.json")?.unwrap_or(Value::Null);
        for (name, token) in merges::class_tokens(config, &model) {
            said.entry(name).or_insert_with(|| token.into());
        }
    }
    let named = said.iter().filter(|(name, _)| name.ends_with("_token"));
    let texts: BTreeMap<String, String> =
        named.filter_map(|(name, value)| Some((name.clone(), token_text(value)?))).collect();
    let lists = ["additional_special_tokens", "extra_special_tokens"];
    let more: Vec<&Value> =
        lists.iter().filter_map(|name| said.get(*name)?.as_array()).flatten().collect();
    let is_special = |text: &str| {
        let more = || more.iter().filter_map(|value| token_text(value));
        texts.values().any(|token| token == text) || more().any(|token| token == text)
    };

    let mut added = Vec::new();
    match decoder {
        Some(decoder) => {
            for (id, value) in decoder {
                let (Ok(id), Some(text)) = (id.parse(), token_text(value)) else { continue };
                let special = value["special"].as_bool().unwrap_or(false) || is_special(&text);
                added.push((Some(id), token(&text, value, special)));
            }
        }
        None => {
            let listed = files.json("added_tokens.json")?.unwrap_or(Value::Null);
            for (text, id) in listed.as_object().into_iter().flatten() {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
                    Fault::new(Code::Tokenizer, format!("the id of {text:?} is {id}"))
                        .in_file("added_tokens.json")
                })?;
                added.push((Some(id), token(text, &Value::Null, is_special(text))));
            }
        }
    }
    added.sort_by_key(|(id, _)| *id);
    let named = texts.keys().filter_map(|name| said.get(name));
    for value in named.chain(more.iter().copied()) {
        if let Some(text) = token_text(value) {
            added.push((None, token(&text, value, true)));
        }
    }
    Ok(Declared { texts: SpecialTexts(texts), added })
}

/// A token as files write it: a text, or an object with its `content`.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}

/// The token, with the flags that its object has.
fn token(text: &str, value: &Value, special: bool) -> AddedToken {
    let flag = |name: &str| value[name].as_bool();
    AddedToken::from(text, special)
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .single_word(flag("single_word").unwrap_or(false))
        .normalized(flag("normalized").unwrap_or(!special))
}

/// Gives a vocabulary the tokens that it lacks, each under the id that is said of it. A token whose id
/// would become another one is left out.
///
/// # Errors
/// When the vocabulary refuses one.
pub(super) fn add(
    inner: &mut tokenizers::Tokenizer,
    added: Vec<(Option<u32>, AddedToken)>,
) -> Result<(), Fault> {
    let known = inner.get_added_tokens_decoder();
    let mut ids: HashSet<u32> = known.keys().copied().collect();
    let mut texts: HashSet<String> = known.into_values().map(|token| token.content).collect();
    let mut next = u32::try_from(inner.get_vocab_size(true)).unwrap_or(u32::MAX);
    let mut late = Vec::new();
    for (id, token) in added {
        let of_vocabulary = inner.token_to_id(&token.content);
        if texts.contains(&token.content) || id.is_some_and(|id| ids.contains(&id)) {
            continue; // the vocabulary knows better
        }
        // One that is only named, and that the vocabulary lacks, has no row in the embedding.
        let Some(would_be) = of_vocabulary.or(id.is_some().then_some(next)) else { continue };
        if id.is_some_and(|id| id != would_be) {
            continue;
        }
        next += u32::from(of_vocabulary.is_none());
        ids.insert(would_be);
        texts.insert(token.content.clone());
        late.push(token);
    }
    inner.add_tokens(late).map(drop).map_err(|error| {
        Fault::new(Code::Tokenizer, format!("the added tokens cannot be used: {error}"))
    })
}
