//! Vocabularies of ranked byte strings (tiktoken's kind) as a `tokenizer.json`.
//!
//! tiktoken merges whichever neighbours make the token of the lowest rank; the `tokenizers`
//! library merges by a list of pairs. The pair that makes a token is found by cutting it into
//! bytes and merging with the ranks below its own until two parts are left. Tokens that no merge
//! reaches can still be whole words, hence `ignore_merges`.

use std::collections::HashMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Converted;
use crate::fault::{Code, Fault};

/// Mistral's `tekken.json`, as far as text needs it.
#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    /// Absent in the first files, whose special tokens stood in Mistral's code.
    special_tokens: Option<Vec<TekkenSpecial>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct TekkenToken {
    rank: u32,
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: u32,
    token_str: String,
}

/// The special tokens of files that list none (mistral-common, `DEPRECATED_SPECIAL_TOKENS`).
const FIRST_SPECIALS: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Converts a `tekken.json`. Special tokens come first; a text's id is its rank after them.
///
/// # Errors
/// When it is not one, or its ranks have gaps.
pub(super) fn from_tekken(bytes: &[u8]) -> Result<Converted, Fault> {
    let bad =
        |what: String| Fault::new(Code::Tokenizer, format!("not a tekken vocabulary: {what}"));
    let tekken: Tekken = serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
    let first = tekken.config.default_num_special_tokens;
    let count = tekken
        .config
        .default_vocab_size
        .checked_sub(first)
        .filter(|&count| count <= tekken.vocab.len())
        .ok_or_else(|| bad("default_vocab_size does not fit the vocabulary".into()))?;
    let mut ranked = vec![Vec::new(); count];
    for token in &tekken.vocab {
        let Some(slot) = ranked.get_mut(token.rank as usize) else { continue };
        *slot = BASE64_STANDARD
            .decode(&token.token_bytes)
            .map_err(|error| bad(format!("rank {}: {error}", token.rank)))?;
    }
    let mut specials: Vec<String> = (0..first)
        .map(|id| match FIRST_SPECIALS.get(id) {
            Some(name) if tekken.special_tokens.is_none() => (*name).to_owned(),
            _ => format!("<SPECIAL_{id}>"),
        })
        .collect();
    for special in tekken.special_tokens.into_iter().flatten() {
        if let Some(slot) = specials.get_mut(special.rank as usize) {
            *slot = special.token_str;
        }
    }
    let bos = specials.iter().position(|name| name == "<s>");
    let json = build(&ranked, &specials, &tekken.config.pattern, bos).map_err(bad)?;
    Ok(Converted { json, space_in_front: false })
}

/// A `tokenizer.json`: `specials` are the first ids, then `ranked` in order of rank; `bos` begins
/// a plain text.
fn build(
    ranked: &[Vec<u8>],
    specials: &[String],
    pattern: &str,
    bos: Option<usize>,
) -> Result<Value, String> {
    let mut ranks: HashMap<&[u8], usize> = HashMap::with_capacity(ranked.len());
    for (rank, token) in ranked.iter().enumerate() {
        if token.is_empty() {
            return Err(format!("there is no token of rank {rank}"));
        }
        if ranks.insert(token, rank).is_some() {
            return Err(format!("the token of rank {rank} has an earlier rank too"));
        }
    }
    let letters = letters();
    let spell = |bytes: &[u8]| bytes.iter().map(|&b| letters[usize::from(b)]).collect::<String>();
    let mut vocab = Map::new();
    for (id, name) in specials.iter().enumerate() {
        vocab.insert(name.clone(), id.into());
    }
    let mut merges = Vec::new();
    for (rank, token) in ranked.iter().enumerate() {
        vocab.insert(spell(token), (specials.len() + rank).into());
        if let Some(cut) = last_merge(token, rank, &ranks) {
            merges.push(json!([spell(&token[..cut]), spell(&token[cut..])]));
        }
    }
    let added: Vec<Value> = specials
        .iter()
        .enumerate()
        .map(|(id, name)| {
            json!({"id": id, "content": name, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false,
                            "trim_offsets": false, "use_regex": false});
    Ok(json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            byte_level,
        ]},
        "post_processor": bos.map(|id| super::sentencepiece::beginning(&specials[id], id)),
        "decoder": byte_level,
        "model": {"type": "BPE", "ignore_merges": true, "vocab": vocab, "merges": merges},
    }))
}

/// Where the last merge that makes `token` joins its two parts; `None` for single bytes and for
/// tokens that merging never reaches.
fn last_merge(token: &[u8], rank: usize, ranks: &HashMap<&[u8], usize>) -> Option<usize> {
    // Ends of the parts; the first part begins at 0.
    let mut ends: Vec<usize> = (1..=token.len()).collect();
    while ends.len() > 2 {
        let best = (0..ends.len() - 1)
            .filter_map(|i| {
                let start = if i == 0 { 0 } else { ends[i - 1] };
                ranks.get(&token[start..ends[i + 1]]).map(|&rank| (rank, i))
            })
            .min()?;
        if best.0 >= rank {
            return None;
        }
        ends.remove(best.1);
    }
    (ends.len() == 2).then(|| ends[0])
}

/// The letter that stands for each byte in byte-level vocabularies (GPT-2's table).
pub(super) fn letters() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte as u8),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or_default()
        }
    })
}
