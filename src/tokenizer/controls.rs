//! Tokens that steer a model when they are meant, and are mere text when somebody spells them.
//!
//! A vocabulary finds `<|im_end|>` in a prompt wherever it stands, whoever wrote it. [`Controls`]
//! knows these tokens, and encodes a text in which some of them are [`Rendered::spelled`]: these
//! become the tokens of their characters. The others are put in as stand-ins that no text holds,
//! for a copy of the vocabulary that knows the stand-ins alone; so each piece between them is cut
//! as it is in any text.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::Model;

use super::Tokenizer;
use crate::fault::{Code, Fault};

/// A conversation as the model is to read it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Where, in bytes, control tokens stand in it that are not meant, in order.
    pub spelled: Vec<Range<usize>>,
}

impl From<String> for Rendered {
    fn from(text: String) -> Self {
        Rendered { text, spelled: Vec::new() }
    }
}

/// The control tokens of a vocabulary.
pub struct Controls {
    texts: Vec<String>,
    ids: HashSet<u32>,
    finder: AhoCorasick,
    /// The copy of the vocabulary, made when the first text needs it.
    copy: OnceLock<Result<Copy, Fault>>,
}

/// A vocabulary that knows stand-ins instead of control tokens.
struct Copy {
    inner: tokenizers::Tokenizer,
    /// What its added tokens are in the original.
    ids: HashMap<u32, u32>,
}

impl Controls {
    /// Those of a vocabulary's added tokens that are special, or that `steers` says to be (many are
    /// ordinary text: runs of spaces, tags of HTML).
    ///
    /// # Errors
    /// When there are too many to look for.
    pub fn new(tokenizer: &Tokenizer, steers: impl Fn(&str) -> bool) -> Result<Self, Fault> {
        let added = tokenizer.inner.get_added_tokens_decoder();
        let (ids, texts): (HashSet<u32>, Vec<String>) = added
            .into_iter()
            .filter(|(_, token)| !token.content.trim().is_empty())
            .filter(|(_, token)| token.special || steers(&token.content))
            .map(|(id, token)| (id, token.content))
            .unzip();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&texts)
            .map_err(|error| Fault::new(Code::Tokenizer, format!("control tokens: {error}")))?;
        Ok(Controls { texts, ids, finder, copy: OnceLock::new() })
    }

    /// Where control tokens stand in a text, in bytes, in order; at one place the longest.
    pub fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
        self.finder.find_iter(text).map(|found| found.range())
    }

    /// Where at the end of a text a control token begins that what follows may complete.
    pub fn begun(&self, text: &str) -> Option<usize> {
        let longest = self.texts.iter().map(String::len).max()?;
        let from = text.len().saturating_sub(longest.saturating_sub(1));
        // White space that a template trims is no beginning.
        let end = text.char_indices().rev().take_while(|(at, _)| *at >= from);
        let visible = end.filter(|(_, c)| !c.is_whitespace()).map(|(at, _)| at);
        visible.filter(|&at| self.texts.iter().any(|token| token.starts_with(&text[at..]))).last()
    }

    /// The ids of a conversation.
    ///
    /// # Errors
    /// When it cannot be tokenized, or a control token cannot be written in characters.
    pub fn encode(&self, tokenizer: &Tokenizer, rendered: &Rendered) -> Result<Vec<u32>, Fault> {
        let Rendered { text, spelled } = rendered;
        if spelled.is_empty() {
            return tokenizer.encode_rendered(text);
        }
        let copy = self.copy.get_or_init(|| self.copy_of(&tokenizer.inner));
        let Copy { inner, ids } = copy.as_ref().map_err(Clone::clone)?;
        let begins_meant = spelled[0].start > 0 && tokenizer.begins_special(text);
        let mut given = String::new();
        if tokenizer.space_in_front && !begins_meant {
            given.push(' ');
        }
        let mut at = 0;
        for found in self.finder.find_iter(text) {
            if spelled.binary_search_by_key(&found.start(), |range| range.start).is_err() {
                given.push_str(&text[at..found.start()]);
                given.push_str(&stand_in(found.pattern().as_usize()));
                at = found.end();
            }
        }
        given.push_str(&text[at..]);
        let encoding = inner.encode_fast(given, false).map_err(|error| {
            Fault::new(Code::Tokenizer, format!("the text cannot be tokenized: {error}"))
        })?;
        let mut out = Vec::new();
        for id in encoding.get_ids() {
            match ids.get(id) {
                Some(&id) => out.push(id),
                None if self.ids.contains(id) => {
                    let pieces = in_pieces(inner, *id);
                    let plain = |pieces: &Vec<u32>| pieces.iter().all(|id| !self.ids.contains(id));
                    out.extend(pieces.filter(plain).ok_or_else(|| unwritable(inner, *id))?);
                }
                None => out.push(*id),
            }
        }
        Ok(out)
    }

    fn copy_of(&self, of: &tokenizers::Tokenizer) -> Result<Copy, Fault> {
        let fault = |error: tokenizers::Error| {
            Fault::new(Code::Tokenizer, format!("the vocabulary cannot be copied: {error}"))
        };
        let mut inner = tokenizers::Tokenizer::new(of.get_model().clone());
        inner.with_normalizer(of.get_normalizer().cloned()).map_err(fault)?;
        inner.with_pre_tokenizer(of.get_pre_tokenizer().cloned());
        let places: HashMap<&str, usize> =
            self.texts.iter().enumerate().map(|(place, text)| (text.as_str(), place)).collect();
        let mut added: Vec<_> = of.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        for (_, token) in &mut added {
            if let Some(&place) = places.get(token.content.as_str()) {
                token.content = stand_in(place);
            }
        }
        inner.add_tokens(added.iter().map(|(_, token)| token.clone())).map_err(fault)?;
        let id_of = |token: &str| inner.token_to_id(token);
        let ids = added.iter().filter_map(|(id, token)| Some((id_of(&token.content)?, *id)));
        Ok(Copy { ids: ids.collect(), inner })
    }
}

/// What stands for a control token: noncharacters, which Unicode leaves to programs for their own
/// use (The Unicode Standard, 23.7), and so no text holds.
fn stand_in(place: usize) -> String {
    let mut out = String::from('\u{FDD0}');
    let digits = format!("{place:x}");
    let digit = |c: char| c.to_digit(16).and_then(|digit| char::from_u32(0xFDD4 + digit));
    out.extend(digits.chars().filter_map(digit));
    out.push('\u{FDD1}');
    out
}

/// The tokens of what a control token is spelled with, for a vocabulary whose model takes it for a
/// piece of text: its first character, and the rest.
fn in_pieces(inner: &tokenizers::Tokenizer, id: u32) -> Option<Vec<u32>> {
    let text = inner.id_to_token(id)?;
    let first = text.chars().next()?.len_utf8();
    let of = |text| Some(inner.get_model().tokenize(text).ok()?.into_iter().map(|token| token.id));
    Some(of(&text[..first])?.chain(of(&text[first..])?).collect())
}

fn unwritable(inner: &tokenizers::Tokenizer, id: u32) -> Fault {
    let text = inner.id_to_token(id).unwrap_or_default();
    let what = format!("the vocabulary has no characters to write {text:?} with");
    Fault::new(Code::Tokenizer, what).help("take it out of the conversation")
}
