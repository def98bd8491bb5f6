//! tokenizer: text in, token ids out, and back again.
//!
//! What enters are a model's vocabulary files ([`Files`]): `tokenizer.json`, or where there is none
//! Mistral's `tekken.json`, SentencePiece's `tokenizer.model`, or `vocab.json` and `merges.txt`, which
//! become a `tokenizer.json` first. What leaves is a [`Tokenizer`], and per answer a [`Stream`] that never shows a broken
//! character.
//!
//! Where `tokenizer_config.json` and `tokenizer.json` disagree about how text is cut, the
//! `tokenizer.json` decides: its normalizer, pre-tokenizer and decoder are used as they stand,
//! whatever `tokenizer_class`, `add_prefix_space` or `legacy` claim. (DeepSeek's config names
//! Llama's SentencePiece class beside a byte-level pre-tokenizer.) The config is believed only
//! where `tokenizer.json` cannot know better: which tokens begin and end a text, whether a plain
//! prompt gets a beginning (`add_bos_token`), and tokens that were added after training.
//!
//! `truncation` and `padding` of a `tokenizer.json` are left from training and are not obeyed: a prompt
//! is what it is (transformers turns both off on encoding one).

mod bound;
mod controls;
mod decode;
mod files;
mod merges;
mod ranks;
mod sentencepiece;
mod special;

use std::collections::BTreeSet;

use serde_json::Value;

pub use controls::{Controls, Rendered};
pub use decode::{Kept, Stream};
pub use files::Files;
pub use special::SpecialTexts;

use crate::checkpoint::vocabulary::{self, Vocabulary};
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

impl Tokenizer {
    /// Loads the vocabulary that the files carry.
    ///
    /// # Errors
    /// When there is no vocabulary, or it cannot be understood, or it decodes by a rule that
    /// lathe does not know.
    pub fn load(files: &Files) -> Result<Self, Fault> {
        let config = files.json("tokenizer_config.json")?.unwrap_or(Value::Null);
        let Loaded { kind, name, mut inner, space_in_front } = load_vocabulary(files, &config)?;
        let declared = special::declared(files, &config, kind)?;
        special::add(&mut inner, declared.added).map_err(|fault| fault.in_file(name))?;
        let special_texts = declared.texts;
        let id = |named: &str| inner.token_to_id(special_texts.get(named)?);
        let bos = id("bos_token");
        let eos = end_tokens(files, id("eos_token"))?;
        // For vocab.json and merges.txt the two words of the config are all that is said of it.
        let wanted = |key: &str| config[key].as_bool() == Some(true);
        let add_bos = match kind {
            Vocabulary::Merges => {
                let around = [("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")];
                let [begin, end] = around.map(|(key, named)| {
                    special_texts
                        .get(named)
                        .filter(|_| wanted(key))
                        .and_then(|text| Some((text.to_owned(), inner.token_to_id(text)?)))
                });
                merges::put_around(&mut inner, begin, end)?;
                None
            }
            _ => config["add_bos_token"].as_bool(),
        };
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

    /// Tokens that a text has at least, told from its bytes alone; 0 where that cannot be told, or
    /// where the text may well be shorter than `enough` tokens.
    pub fn least_tokens(&self, text: &str, enough: usize) -> usize {
        // No token is shorter than a byte.
        if text.len() <= enough { 0 } else { bound::least_tokens(&self.inner, text) }
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
        self.special_texts.get("bos_token").is_some_and(|bos| text.starts_with(bos))
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

    /// The bytes that a token adds to a text; none where there is no such token.
    pub fn bytes(&self, id: u32) -> Vec<u8> {
        self.inner.id_to_token(id).map_or_else(Vec::new, |token| self.decoder.bytes(token, false))
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

/// A vocabulary that was read.
struct Loaded {
    kind: Vocabulary,
    /// The file that it came from.
    name: &'static str,
    inner: tokenizers::Tokenizer,
    /// As in [`Tokenizer`].
    space_in_front: bool,
}

fn load_vocabulary(files: &Files, config: &Value) -> Result<Loaded, Fault> {
    let kind = vocabulary::of(files.names()).ok_or_else(|| vocabulary::none_in(files.names()))?;
    let name = match kind {
        Vocabulary::TokenizerJson => "tokenizer.json",
        Vocabulary::Tekken => "tekken.json",
        Vocabulary::SentencePiece => "tokenizer.model",
        Vocabulary::Merges => "vocab.json",
    };
    let bytes = files.get(name).unwrap_or_default();
    let bad = |error: &dyn std::fmt::Display| {
        Fault::new(Code::Tokenizer, format!("the vocabulary cannot be understood: {error}"))
            .in_file(name)
    };
    let converted = match kind {
        Vocabulary::TokenizerJson => None,
        Vocabulary::Tekken => Some(ranks::from_tekken(bytes)),
        Vocabulary::SentencePiece => Some(sentencepiece::convert(bytes, config)),
        Vocabulary::Merges => Some(merges::convert(files, config)),
    };
    let (mut inner, space_in_front) = match converted {
        None => (tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| bad(&error))?, false),
        Some(converted) => {
            let in_file =
                |fault: Fault| if fault.file.is_some() { fault } else { fault.in_file(name) };
            let Converted { json, space_in_front } = converted.map_err(in_file)?;
            (serde_json::from_value(json).map_err(|error| bad(&error))?, space_in_front)
        }
    };
    inner.with_padding(None);
    inner.with_truncation(None).map_err(|error| bad(&error))?;
    Ok(Loaded { kind, name, inner, space_in_front })
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
