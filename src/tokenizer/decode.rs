//! Tokens back into text, as a whole or while they are made.
//!
//! A vocabulary's decoder is a few small steps over the spelling of each token. Here each token
//! becomes *bytes*, and bytes become text only when they make whole characters: bytes of an
//! unfinished character wait for the next token, and a byte that can no longer become part of
//! one is shown as U+FFFD.
//!
//! Invalid bytes are shown as the vocabulary's own library shows them: in byte-level vocabularies
//! one U+FFFD for each maximal part of a character (Unicode 15, section 3.9, as Rust and Python
//! decode), in those with byte-fallback tokens one for each byte (as SentencePiece decodes).

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::ranks::letters;
use crate::fault::{Code, Fault};

/// How the spelling of tokens becomes bytes.
#[derive(Debug)]
pub(super) struct Decoder {
    steps: Vec<Step>,
    /// How much of the beginning of a text is dropped: up to so many of the character.
    strip_start: Option<(char, usize)>,
    /// What stands between two tokens (only for vocabularies without a decoder).
    between: &'static str,
    invalid: Invalid,
}

/// One step over the spelling of a token.
#[derive(Debug)]
enum Step {
    Replace {
        pattern: Regex,
        by: String,
    },
    /// Letters stand for bytes, as in GPT-2.
    ByteLevel,
    /// `<0x0A>` stands for a byte.
    ByteFallback,
    /// `▁` stands for a space, except in the first token.
    Metaspace {
        replacement: char,
        drop_first: bool,
    },
    /// Drops characters at both ends of each token.
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
}

/// How bytes that make no character are shown.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Invalid {
    ByPart,
    ByByte,
}

/// A decoder as `tokenizer.json` spells it.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum Spelled {
    Sequence { decoders: Vec<Spelled> },
    ByteLevel {},
    ByteFallback {},
    Fuse {},
    Replace { pattern: Pattern, content: String },
    Strip { content: char, start: usize, stop: usize },
    Metaspace { replacement: char, prepend_scheme: Option<String>, add_prefix_space: Option<bool> },
}

#[derive(Deserialize)]
enum Pattern {
    String(String),
    Regex(String),
}

impl Decoder {
    /// The decoder of a vocabulary.
    pub(super) fn of(vocabulary: &tokenizers::Tokenizer) -> Result<Self, Fault> {
        let mut decoder =
            Decoder { steps: Vec::new(), strip_start: None, between: "", invalid: Invalid::ByPart };
        let Some(spelled) = vocabulary.get_decoder() else {
            decoder.between = " ";
            return Ok(decoder);
        };
        let spelled = serde_json::to_value(spelled).unwrap_or(Value::Null);
        let parsed: Spelled = serde_json::from_value(spelled.clone()).map_err(|_| {
            Fault::new(Code::Tokenizer, format!("lathe does not know the decoder {spelled}")).help(
                "decoders are made of ByteLevel, ByteFallback, Metaspace, Replace, Fuse and Strip",
            )
        })?;
        let mut fused = false;
        decoder.add(parsed, &mut fused)?;
        if decoder.steps.iter().any(|step| matches!(step, Step::ByteFallback)) {
            decoder.invalid = Invalid::ByByte;
        }
        Ok(decoder)
    }

    /// `fused`: from here on the steps see the whole text and no longer tokens.
    fn add(&mut self, spelled: Spelled, fused: &mut bool) -> Result<(), Fault> {
        let step = match spelled {
            Spelled::Sequence { decoders } => {
                return decoders.into_iter().try_for_each(|inner| self.add(inner, fused));
            }
            Spelled::Fuse {} => {
                *fused = true;
                return Ok(());
            }
            Spelled::Strip { content, start, stop: 0 } if *fused => {
                self.strip_start = Some((content, start));
                return Ok(());
            }
            _ if *fused => {
                return Err(Fault::new(
                    Code::Tokenizer,
                    "the decoder rewrites the whole text after Fuse, which cannot be streamed",
                ));
            }
            Spelled::ByteLevel {} => {
                *fused = true;
                Step::ByteLevel
            }
            Spelled::ByteFallback {} => Step::ByteFallback,
            Spelled::Strip { content, start, stop } => Step::Strip { content, start, stop },
            Spelled::Metaspace { replacement, prepend_scheme, add_prefix_space } => {
                let never = prepend_scheme.as_deref() == Some("never");
                Step::Metaspace {
                    replacement,
                    drop_first: !never && add_prefix_space.unwrap_or(true),
                }
            }
            Spelled::Replace { pattern, content } => {
                let pattern = match pattern {
                    Pattern::String(text) => regex::escape(&text),
                    Pattern::Regex(text) => text,
                };
                let pattern = Regex::new(&pattern).map_err(|error| {
                    Fault::new(Code::Tokenizer, format!("a pattern of the decoder: {error}"))
                })?;
                Step::Replace { pattern, by: content }
            }
        };
        self.steps.push(step);
        Ok(())
    }

    /// The bytes of one token.
    pub(super) fn bytes(&self, token: String, first: bool) -> Vec<u8> {
        let mut token = token;
        for step in &self.steps {
            match step {
                Step::ByteLevel => return byte_level(&token),
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&token) {
                        return vec![byte];
                    }
                }
                Step::Replace { pattern, by } => {
                    if let std::borrow::Cow::Owned(replaced) =
                        pattern.replace_all(&token, regex::NoExpand(by))
                    {
                        token = replaced;
                    }
                }
                Step::Metaspace { replacement, drop_first } => {
                    let by = if first && *drop_first { "" } else { " " };
                    token = token.replace(*replacement, by);
                }
                Step::Strip { content, start, stop } => {
                    token = strip(&token, *content, *start, *stop).to_owned();
                }
            }
        }
        token.into_bytes()
    }
}

/// The bytes that the letters of a byte-level token stand for; its own, if one stands for none.
fn byte_level(token: &str) -> Vec<u8> {
    /// The byte of each letter below U+0144, the last that stands for one.
    static BYTES: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
        let mut bytes = [None; 0x144];
        for (byte, letter) in (0..=255).zip(letters()) {
            bytes[letter as usize] = Some(byte);
        }
        bytes
    });
    let bytes = token.chars().map(|letter| BYTES.get(letter as usize).copied().flatten());
    bytes.collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

fn strip(token: &str, content: char, start: usize, stop: usize) -> &str {
    let mut kept = token;
    for _ in 0..start {
        kept = kept.strip_prefix(content).unwrap_or(kept);
    }
    for _ in 0..stop {
        kept = kept.strip_suffix(content).unwrap_or(kept);
    }
    kept
}

/// Which special tokens become text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// None.
    None,
    /// These.
    These(BTreeSet<u32>),
    /// All.
    All,
}

/// Text of an answer while its tokens are made. What [`push`](Stream::push) and
/// [`finish`](Stream::finish) return, joined, is the text of the whole.
pub struct Stream<'a> {
    vocabulary: &'a tokenizers::Tokenizer,
    decoder: &'a Decoder,
    kept: Kept,
    /// Bytes of an unfinished character: at most three.
    waiting: Vec<u8>,
    first: bool,
    to_strip: usize,
}

impl<'a> Stream<'a> {
    pub(super) fn new(
        vocabulary: &'a tokenizers::Tokenizer,
        decoder: &'a Decoder,
        kept: Kept,
    ) -> Self {
        let to_strip = decoder.strip_start.map_or(0, |(_, count)| count);
        Stream { vocabulary, decoder, kept, waiting: Vec::new(), first: true, to_strip }
    }

    /// Adds a token; gives the characters that it completes.
    ///
    /// Special tokens give nothing unless they are kept; ids outside the vocabulary give nothing.
    pub fn push(&mut self, id: u32) -> String {
        let Some(token) = self.vocabulary.id_to_token(id) else { return String::new() };
        if self.hides(id, &token) {
            return String::new();
        }
        if !self.first {
            self.waiting.extend_from_slice(self.decoder.between.as_bytes());
        }
        self.waiting.extend(self.decoder.bytes(token, self.first));
        self.first = false;
        self.take(false)
    }

    /// The text of a special token that is not kept; `None` of all others.
    pub fn hidden(&self, id: u32) -> Option<String> {
        self.vocabulary.id_to_token(id).filter(|token| self.hides(id, token))
    }

    fn hides(&self, id: u32, token: &str) -> bool {
        let special = || self.vocabulary.get_added_vocabulary().is_special_token(token);
        match &self.kept {
            Kept::None => special(),
            Kept::These(ids) => !ids.contains(&id) && special(),
            Kept::All => false,
        }
    }

    /// Ends the text: what still waits can no longer be completed.
    pub fn finish(&mut self) -> String {
        self.take(true)
    }

    fn take(&mut self, last: bool) -> String {
        let text = take_characters(&mut self.waiting, self.decoder.invalid, last);
        let Some((content, _)) = self.decoder.strip_start else { return text };
        let mut kept = text.as_str();
        while self.to_strip > 0 && !kept.is_empty() {
            match kept.strip_prefix(content) {
                Some(rest) => (kept, self.to_strip) = (rest, self.to_strip - 1),
                None => self.to_strip = 0,
            }
        }
        kept.to_owned()
    }
}

/// Takes whole characters off the front, and U+FFFD for what cannot become one.
fn take_characters(bytes: &mut Vec<u8>, invalid: Invalid, last: bool) -> String {
    let mut text = String::new();
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let error = match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                at = bytes.len();
                break;
            }
            Err(error) => error,
        };
        let valid = error.valid_up_to();
        text.push_str(std::str::from_utf8(&rest[..valid]).unwrap_or_default());
        at += valid;
        let broken = match error.error_len() {
            Some(length) => length,
            None if last => bytes.len() - at,
            None => break,
        };
        let shown = if invalid == Invalid::ByByte { broken } else { 1 };
        text.extend(std::iter::repeat_n('\u{FFFD}', shown));
        at += broken;
    }
    bytes.drain(..at);
    text
}
