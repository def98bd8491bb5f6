//! chat: a conversation in, the text that the model reads out; the text that the model writes in,
//! its thinking, its words and its tool calls out.
//!
//! [`Template`] renders the folder's Jinja template; [`Answers`] describes how a family of models
//! marks its thinking and its tool calls (`policies/parsers/*.yaml`, chosen by the policy's
//! `parser`), and an [`AnswerParser`] takes one streamed answer apart.

mod answer;
mod python;
mod template;
mod tools;

use serde_json::{Map, Value};

pub use answer::{AnswerParser, Answers, DEFAULT, Piece, ToolCall};
pub use template::{Conversation, Template, is_go};

use crate::tokenizer::SpecialTexts;

/// The special tokens, as templates know them.
pub fn special_variables(texts: &SpecialTexts) -> Map<String, Value> {
    texts.iter().map(|(name, text)| (name.to_owned(), text.into())).collect()
}

#[cfg(test)]
mod tests;
