//! chat: a conversation in, the text that the model reads out; the text that the model writes in,
//! its thinking, its words and its tool calls out.
//!
//! [`Template`] renders the folder's Jinja template; [`Answers`] describes how a family of models
//! marks its thinking and its tool calls (`policies/parsers/*.yaml`, chosen by the policy's
//! `parser`), and an [`AnswerParser`] takes one streamed answer apart.

#[cfg(feature = "mlx")]
mod answer;
mod python;
mod source;
#[cfg(feature = "mlx")]
pub mod spelled;
mod template;
#[cfg(feature = "mlx")]
mod tools;

#[cfg(feature = "mlx")]
use serde_json::{Map, Value};

#[cfg(feature = "mlx")]
pub use answer::{AnswerParser, Answers, DEFAULT, Piece};
pub use template::{Conversation, Template, is_go};
#[cfg(feature = "mlx")]
pub use tools::ToolCall;

#[cfg(feature = "mlx")]
use crate::tokenizer::SpecialTexts;

/// The special tokens, as templates know them.
#[cfg(feature = "mlx")]
pub fn special_variables(texts: &SpecialTexts) -> Map<String, Value> {
    texts.iter().map(|(name, text)| (name.to_owned(), text.into())).collect()
}

#[cfg(all(test, feature = "mlx"))]
mod tests;
