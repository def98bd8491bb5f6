//! SentencePiece's `tokenizer.model` as a `tokenizer.json`.
//!
//! The file is a protobuf `ModelProto` (sentencepiece_model.proto of google/sentencepiece); only
//! the fields that decide about ids are read. BPE models hold scores and no merges: every way to
//! cut a piece into two pieces is a merge, ranked by the score of the whole, as transformers does.
//!
//! What the file cannot say comes from `tokenizer_config.json`: `legacy` (absent: true, as in
//! transformers) puts the space before *every* stretch of text between special tokens, otherwise
//! only before the first, as SentencePiece does; `add_prefix_space` false puts none;
//! `add_bos_token` and `add_eos_token` (absent: true and false) put tokens around a plain text.

use std::collections::HashMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use prost::Message;
use serde_json::{Value, json};

use super::Converted;
use crate::fault::{Code, Fault};

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(string, required, tag = "1")]
    text: String,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(enumeration = "Kind", optional, tag = "3", default = "Normal")]
    kind: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
enum Kind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

#[derive(Clone, PartialEq, Message)]
struct Trainer {
    #[prost(enumeration = "Algorithm", optional, tag = "3", default = "Unigram")]
    algorithm: Option<i32>,
    #[prost(bool, optional, tag = "24", default = false)]
    treat_whitespace_as_suffix: Option<bool>,
    #[prost(bool, optional, tag = "35", default = false)]
    byte_fallback: Option<bool>,
    #[prost(int32, optional, tag = "40", default = 0)]
    unk_id: Option<i32>,
    #[prost(int32, optional, tag = "41", default = 1)]
    bos_id: Option<i32>,
    #[prost(int32, optional, tag = "42", default = 2)]
    eos_id: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
enum Algorithm {
    Unigram = 1,
    Bpe = 2,
    Word = 3,
    Char = 4,
}

#[derive(Clone, PartialEq, Message)]
struct Normalizer {
    #[prost(bytes = "vec", optional, tag = "2")]
    precompiled_charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3", default = true)]
    add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4", default = true)]
    remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5", default = true)]
    escape_whitespaces: Option<bool>,
}

/// The mark that stands for a space.
const SPACE: &str = "▁";

/// Converts a `tokenizer.model`; `config` is `tokenizer_config.json`.
///
/// # Errors
/// When it is not one, or of a kind that `tokenizers` has no counterpart for.
pub(super) fn convert(bytes: &[u8], config: &Value) -> Result<Converted, Fault> {
    let proto = ModelProto::decode(bytes).map_err(|error| {
        Fault::new(Code::Tokenizer, format!("not a SentencePiece model: {error}"))
    })?;
    let trainer = proto.trainer.clone().unwrap_or_default();
    let normalizer = proto.normalizer.clone().unwrap_or_default();
    let refuse = |what: &str| {
        Fault::new(Code::Tokenizer, format!("lathe does not read SentencePiece models {what}"))
            .help("put the model's tokenizer.json into its folder (transformers writes one)")
    };
    if proto.pieces.is_empty() {
        return Err(refuse("without pieces"));
    }
    if trainer.treat_whitespace_as_suffix() {
        return Err(refuse("that put the space after a word"));
    }
    if !normalizer.escape_whitespaces() {
        return Err(refuse("that do not mark spaces"));
    }
    let unk = usize::try_from(trainer.unk_id())
        .ok()
        .filter(|&id| id < proto.pieces.len())
        .ok_or_else(|| refuse("without an unknown piece"))?;
    let model = match trainer.algorithm() {
        Algorithm::Unigram => json!({
            "type": "Unigram",
            "unk_id": unk,
            "vocab": proto.pieces.iter().map(|p| json!([p.text, p.score()])).collect::<Vec<_>>(),
            "byte_fallback": trainer.byte_fallback(),
        }),
        Algorithm::Bpe => json!({
            "type": "BPE",
            "unk_token": proto.pieces[unk].text,
            "fuse_unk": true,
            "byte_fallback": trainer.byte_fallback(),
            "vocab": proto.pieces.iter().enumerate()
                .map(|(id, piece)| (piece.text.clone(), Value::from(id)))
                .collect::<serde_json::Map<_, _>>(),
            "merges": merges(&proto.pieces),
        }),
        Algorithm::Word => return Err(refuse("of whole words")),
        Algorithm::Char => return Err(refuse("of single characters")),
    };
    let prefix =
        config["add_prefix_space"].as_bool().unwrap_or(true) && normalizer.add_dummy_prefix();
    let legacy = config["legacy"].as_bool().unwrap_or(true);
    let front = prefix && !legacy;
    let converted = json!({
        "version": "1.0",
        "added_tokens": added_tokens(&proto.pieces),
        "normalizer": spaces(&normalizer, prefix && legacy, front),
        "pre_tokenizer": null,
        "post_processor": around(&proto.pieces, &trainer, config),
        "decoder": decoder(prefix),
        "model": model,
    });
    Ok(Converted { json: converted, space_in_front: front })
}

/// Every pair of pieces that makes a third, the best score first; among equals the longer parts,
/// then the earlier pieces, first. Control pieces and the like are never merged into.
fn merges(pieces: &[Piece]) -> Vec<Value> {
    let ids: HashMap<&str, usize> =
        pieces.iter().enumerate().map(|(id, piece)| (piece.text.as_str(), id)).collect();
    let mut found = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.kind() == Kind::Normal) {
        for (cut, _) in piece.text.char_indices().skip(1) {
            let (left, right) = piece.text.split_at(cut);
            if let (Some(&l), Some(&r)) = (ids.get(left), ids.get(right)) {
                found.push((piece.score(), left, right, l, r));
            }
        }
    }
    found.sort_by(|a, b| {
        b.0.total_cmp(&a.0)
            .then_with(|| b.1.chars().count().cmp(&a.1.chars().count()))
            .then_with(|| b.2.chars().count().cmp(&a.2.chars().count()))
            .then_with(|| (a.3, a.4).cmp(&(b.3, b.4)))
    });
    found.into_iter().map(|(_, left, right, ..)| json!([left, right])).collect()
}

/// Pieces that are found in a text before anything else, whole.
fn added_tokens(pieces: &[Piece]) -> Vec<Value> {
    let special = |kind| matches!(kind, Kind::Unknown | Kind::Control);
    pieces
        .iter()
        .enumerate()
        .filter(|(_, piece)| special(piece.kind()) || piece.kind() == Kind::UserDefined)
        .map(|(id, piece)| {
            json!({"id": id, "content": piece.text, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false, "special": special(piece.kind())})
        })
        .collect()
}

/// The normalizer: how spaces are written; `prefix` puts one before each stretch of text, `front`
/// tells that there is one before the first already, to be kept.
fn spaces(spec: &Normalizer, prefix: bool, front: bool) -> Value {
    let replace =
        |pattern: Value, by: &str| json!({"type": "Replace", "pattern": pattern, "content": by});
    let mut steps = Vec::new();
    if !spec.precompiled_charsmap().is_empty() {
        let map = BASE64_STANDARD.encode(spec.precompiled_charsmap());
        steps.push(json!({"type": "Precompiled", "precompiled_charsmap": map}));
    }
    if spec.remove_extra_whitespaces() {
        steps.push(replace(json!({"Regex": if front { " +$" } else { "^ +| +$" }}), ""));
        steps.push(replace(json!({"Regex": " {2,}"}), " "));
    }
    if prefix {
        steps.push(json!({"type": "Prepend", "prepend": SPACE}));
    }
    steps.push(replace(json!({"String": " "}), SPACE));
    json!({"type": "Sequence", "normalizers": steps})
}

/// The tokens put around a plain text.
fn around(pieces: &[Piece], trainer: &Trainer, config: &Value) -> Value {
    let piece = |id: i32| {
        let id = usize::try_from(id).ok()?;
        pieces.get(id).map(|piece| (piece.text.as_str(), id))
    };
    let wanted = |key: &str, default| config[key].as_bool().unwrap_or(default);
    let bos = piece(trainer.bos_id()).filter(|_| wanted("add_bos_token", true));
    let eos = piece(trainer.eos_id()).filter(|_| wanted("add_eos_token", false));
    template(bos, eos)
}

/// A post-processor that puts one token before a plain text.
pub(super) fn beginning(token: &str, id: usize) -> Value {
    template(Some((token, id)), None)
}

fn template(bos: Option<(&str, usize)>, eos: Option<(&str, usize)>) -> Value {
    let special = |token: &str| json!({"SpecialToken": {"id": token, "type_id": 0}});
    let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    let wrap = |name: &str| {
        let before = bos.map(|(token, _)| special(token));
        let after = eos.map(|(token, _)| special(token));
        before.into_iter().chain([text(name)]).chain(after).collect::<Vec<_>>()
    };
    let specials: serde_json::Map<String, Value> = [bos, eos]
        .into_iter()
        .flatten()
        .map(|(token, id)| (token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]})))
        .collect();
    let pair: Vec<Value> = wrap("A").into_iter().chain(wrap("B")).collect();
    json!({"type": "TemplateProcessing", "single": wrap("A"), "pair": pair,
           "special_tokens": specials})
}

fn decoder(prefix: bool) -> Value {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}
