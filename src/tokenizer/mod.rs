//! tokenizer: text in, token ids out, and back again.
//!
//! What enters are a model's vocabulary files ([`Files`]): `tokenizer.json`, or where there is none
//! Mistral's `tekken.json` or SentencePiece's `tokenizer.model`, which become a `tokenizer.json`
//! first. What leaves is a [`Tokenizer`], and per answer a [`Stream`] that never shows a broken
//! character.
//!
//! Where `tokenizer_config.json` and `tokenizer.json` disagree about how text is cut, the
//! `tokenizer.json` decides: its normalizer, pre-tokenizer and decoder are used as they stand,
//! whatever `tokenizer_class`, `add_prefix_space` or `legacy` claim. (DeepSeek's config names
//! Llama's SentencePiece class beside a byte-level pre-tokenizer.) The config is believed only
//! where `tokenizer.json` cannot know better: which tokens begin and end a text, whether a plain
//! prompt gets a beginning (`add_bos_token`), and tokens that were added after training.

mod decode;
mod files;
mod ranks;
mod sentencepiece;

use std::collections::BTreeSet;

use serde_json::Value;
use tokenizers::AddedToken;

pub use decode::{Kept, Stream};
pub use files::Files;

use crate::fault::{Code, Fault};
use decode::Decoder;

/// A model's vocabulary, and the tokens with a meaning of their own.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    decoder: Decoder,
    /// Whether a space is put before a text that does not begin with a special token.
    space_in_front: bool,
    bos: Option<u32>,
    eos: BTreeSet<u32>,
    /// Whether a plain prompt begins with `bos`, where the config says so; else the vocabulary's
    /// post-processor decides.
    add_bos: Option<bool>,
    special_texts: SpecialTexts,
}

/// The special tokens as text, by the names that chat templates know them by.
#[derive(Clone, Debug, Default)]
pub struct SpecialTexts {
    /// `bos_token`.
    pub bos: Option<String>,
    /// `eos_token`.
    pub eos: Option<String>,
    /// `unk_token`.
    pub unk: Option<String>,
    /// `pad_token`.
    pub pad: Option<String>,
}

impl Tokenizer {
    /// Loads the vocabulary that the files carry.
    ///
    /// # Errors
    /// When there is no vocabulary, or it cannot be understood, or it decodes by a rule that
    /// lathe does not know.
    pub fn load(files: &Files) -> Result<Self, Fault> {
        let config = files.json("tokenizer_config.json")?.unwrap_or(Value::Null);
        let (name, mut inner, space_in_front) = load_vocabulary(files, &config)?;
        add_late_tokens(&mut inner, &config).map_err(|fault| fault.in_file(name))?;
        let special_texts = SpecialTexts {
            bos: token_text(&config["bos_token"]),
            eos: token_text(&config["eos_token"]),
            unk: token_text(&config["unk_token"]),
            pad: token_text(&config["pad_token"]),
        };
        let id = |text: &Option<String>| text.as_deref().and_then(|text| inner.token_to_id(text));
        let bos = id(&special_texts.bos);
        let eos = end_tokens(files, id(&special_texts.eos))?;
        let add_bos = config["add_bos_token"].as_bool();
        let decoder = Decoder::of(&inner).map_err(|fault| fault.in_file(name))?;
        Ok(Tokenizer { inner, decoder, space_in_front, bos, eos, add_bos, special_texts })
    }

    /// The ids of a plain text, with the beginning and end that the model wants of one.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Fault> {
        let mut ids = self.ids(text, true)?;
        let Some(bos) = self.bos else { return Ok(ids) };
        match self.add_bos {
            Some(true) if ids.first() != Some(&bos) => ids.insert(0, bos),
            Some(false) if ids.first() == Some(&bos) && !self.begins_with_bos(text) => {
                ids.remove(0);
            }
            _ => {}
        }
        Ok(ids)
    }

    /// The ids of a text that already holds its special tokens, as a chat template renders it.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, Fault> {
        self.ids(text, false)
    }

    fn ids(&self, text: &str, around: bool) -> Result<Vec<u32>, Fault> {
        let spaced = (self.space_in_front && !text.is_empty() && !self.begins_special(text))
            .then(|| format!(" {text}"));
        let text = spaced.as_deref().unwrap_or(text);
        let encoding = self.inner.encode_fast(text, around).map_err(|error| {
            Fault::new(Code::Tokenizer, format!("the text cannot be tokenized: {error}"))
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    fn begins_special(&self, text: &str) -> bool {
        let added = self.inner.get_added_tokens_decoder();
        added.values().any(|token| token.special && text.starts_with(&token.content))
    }

    fn begins_with_bos(&self, text: &str) -> bool {
        self.special_texts.bos.as_deref().is_some_and(|bos| text.starts_with(bos))
    }

    /// The text of a whole sequence; the same text that a [`Stream`] gives piece by piece.
    pub fn decode(&self, ids: &[u32], kept: Kept) -> String {
        let mut stream = self.stream(kept);
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Begins to decode an answer.
    pub fn stream(&self, kept: Kept) -> Stream<'_> {
        Stream::new(&self.inner, &self.decoder, kept)
    }

    /// Those of the marks' special tokens that must stay in the text for the marks to be found.
    pub fn kept<'m>(&self, marks: impl Iterator<Item = &'m str>) -> Kept {
        let marks: Vec<&str> = marks.collect();
        let in_marks = self.inner.get_added_tokens_decoder().into_iter().filter(|(_, token)| {
            token.special && marks.iter().any(|mark| mark.contains(&token.content))
        });
        Kept::These(in_marks.map(|(id, _)| id).collect())
    }

    /// The id of a token, by its exact text.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The exact text of a token as the vocabulary spells it (`▁the`, `Ġthe`, `<0x0A>`).
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// How many ids there are, added tokens included.
    pub fn size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Whether the token ends an answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.eos.contains(&id)
    }

    /// All tokens that end an answer.
    pub fn ends(&self) -> &BTreeSet<u32> {
        &self.eos
    }

    /// The special tokens as text, for chat templates.
    pub fn special_texts(&self) -> &SpecialTexts {
        &self.special_texts
    }
}

/// A vocabulary of another kind as a `tokenizer.json`.
struct Converted {
    json: Value,
    /// As in [`Tokenizer`].
    space_in_front: bool,
}

/// The name of the file that the vocabulary came from, the vocabulary, and whether a space is put
/// in front.
fn load_vocabulary(
    files: &Files,
    config: &Value,
) -> Result<(&'static str, tokenizers::Tokenizer, bool), Fault> {
    let bad = |name: &str, error: &dyn std::fmt::Display| {
        Fault::new(Code::Tokenizer, format!("the vocabulary cannot be understood: {error}"))
            .in_file(name)
    };
    if let Some(bytes) = files.get("tokenizer.json") {
        let inner = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|error| bad("tokenizer.json", &error))?;
        return Ok(("tokenizer.json", inner, false));
    }
    type Convert = fn(&[u8], &Value) -> Result<Converted, Fault>;
    const OTHERS: [(&str, Convert); 2] =
        [("tekken.json", ranks::from_tekken), ("tokenizer.model", sentencepiece::convert)];
    for (name, convert) in OTHERS {
        let Some(bytes) = files.get(name) else { continue };
        let converted = convert(bytes, config).map_err(|fault| fault.in_file(name))?;
        let inner = serde_json::from_value(converted.json).map_err(|error| bad(name, &error))?;
        return Ok((name, inner, converted.space_in_front));
    }
    let fault = Fault::new(Code::Tokenizer, "the model carries no vocabulary");
    Err(if files.names().any(|name| name.ends_with(".tiktoken")) {
        fault.help(
            "a .tiktoken file does not say how text is cut; put the model's tokenizer.json \
             (transformers writes one) into its folder and create the model again",
        )
    } else {
        fault.help(
            "put tokenizer.json, tekken.json or tokenizer.model into the model's folder and \
             create the model again",
        )
    })
}

/// Adds the tokens of the config's `added_tokens_decoder` that the vocabulary lacks.
///
/// transformers writes them there, under their ids, when a tokenizer was extended after its
/// `tokenizer.json` was made.
fn add_late_tokens(inner: &mut tokenizers::Tokenizer, config: &Value) -> Result<(), Fault> {
    let Some(listed) = config["added_tokens_decoder"].as_object() else { return Ok(()) };
    let mut late: Vec<(u32, AddedToken)> = Vec::new();
    let known = inner.get_added_tokens_decoder();
    for (id, token) in listed {
        let (Ok(id), Some(content)) = (id.parse::<u32>(), token["content"].as_str()) else {
            continue;
        };
        if known.contains_key(&id) || inner.token_to_id(content).is_some_and(|have| have != id) {
            continue; // the vocabulary knows better
        }
        let flag = |name: &str| token[name].as_bool().unwrap_or(false);
        let added = AddedToken::from(content, flag("special"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .single_word(flag("single_word"))
            .normalized(flag("normalized"));
        late.push((id, added));
    }
    late.sort_by_key(|(id, _)| *id);
    for (id, token) in late {
        let content = token.content.clone();
        if inner.token_to_id(&content).is_none() && inner.get_vocab_size(true) != id as usize {
            continue; // its id would be another one
        }
        inner.add_tokens([token]).map_err(|error| {
            Fault::new(Code::Tokenizer, format!("cannot add the token {content:?}: {error}"))
        })?;
    }
    Ok(())
}

/// A token of `tokenizer_config.json`: a string, or an object with its `content`.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}

/// The tokens that end an answer: those of `generation_config.json`, of `config.json` (its text
/// part too) and the tokenizer's own. A model ends on any of them.
fn end_tokens(files: &Files, own: Option<u32>) -> Result<BTreeSet<u32>, Fault> {
    let mut ends: BTreeSet<u32> = own.into_iter().collect();
    for name in ["generation_config.json", "config.json"] {
        let Some(config) = files.json(name)? else { continue };
        for value in [&config["eos_token_id"], &config["text_config"]["eos_token_id"]] {
            let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            ends.extend(
                listed.iter().filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok()),
            );
        }
    }
    Ok(ends)
}

#[cfg(test)]
mod tests;
