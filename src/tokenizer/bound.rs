//! How many tokens a text has at least.
//!
//! Every byte of a text is part of a token, and no token is longer than the longest of the vocabulary:
//! this holds where nothing is dropped on the way, and no run of what is unknown becomes one token.

use serde_json::Value;
use tokenizers::{ModelWrapper, Tokenizer};

/// How much shorter normalization to composed characters makes a text at most (Unicode Standard Annex
/// 15: a composed character has at most three or four; in bytes it is less).
const COMPOSED: usize = 4;

/// Tokens that `text` has at least; 0 where the vocabulary does not let it be told.
pub(super) fn least_tokens(vocabulary: &Tokenizer, text: &str) -> usize {
    let Some(shrinks) = shrinks(vocabulary) else { return 0 };
    let added = vocabulary.get_added_tokens_decoder();
    // White space beside some tokens is theirs, however much it is.
    let strips = added.values().any(|token| token.lstrip || token.rstrip);
    let bytes = match strips {
        true => text.chars().filter(|c| !c.is_whitespace()).map(char::len_utf8).sum(),
        false => text.len(),
    };
    let tokens = vocabulary.get_vocab(true);
    let longest = tokens.keys().map(String::len).max().unwrap_or(1).max(1);
    bytes / (longest * shrinks)
}

/// By how much the text may become shorter before it is merged; `None` where that is not known.
fn shrinks(vocabulary: &Tokenizer) -> Option<usize> {
    let ModelWrapper::BPE(model) = vocabulary.get_model() else { return None };
    let kinds = |part: Option<Value>| -> Vec<String> {
        let part = part.unwrap_or(Value::Null);
        let inner = ["pretokenizers", "normalizers"].iter().find_map(|key| part[key].as_array());
        let parts = inner.map_or(std::slice::from_ref(&part), Vec::as_slice);
        parts.iter().filter_map(|part| part["type"].as_str().map(str::to_owned)).collect()
    };
    let json = |part: Option<serde_json::Result<Value>>| part.and_then(Result::ok);
    let cuts = kinds(json(vocabulary.get_pre_tokenizer().map(serde_json::to_value)));
    let normal = kinds(json(vocabulary.get_normalizer().map(serde_json::to_value)));
    let byte_level = cuts.iter().any(|kind| kind == "ByteLevel");
    if !(byte_level || model.byte_fallback) {
        return None;
    }
    let cuts_keep = ["ByteLevel", "Split", "Digits", "Metaspace"];
    if !cuts.iter().all(|kind| cuts_keep.contains(&kind.as_str())) {
        return None;
    }
    match normal.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Some(1),
        ["NFC"] => Some(COMPOSED),
        // SentencePiece's: a mark in front, and spaces that become marks of three bytes.
        _ if normal.iter().all(|kind| ["Prepend", "Replace"].contains(&kind.as_str())) => Some(1),
        _ => None,
    }
}
