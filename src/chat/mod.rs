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

use crate::fault::Fault;
use crate::tokenizer::{Files, SpecialTexts};

/// The name of a model's template, and the template: of the file `chat_template.jinja`, else of
/// `tokenizer_config.json` (a string, or a list of named templates). `named` asks for one of a
/// list (`tool_use`); `default` is taken where that is not there.
///
/// # Errors
/// When a file cannot be read.
pub fn template_of(files: &Files, named: &str) -> Result<Option<(String, String)>, Fault> {
    if let Some(text) = files.text("chat_template.jinja")? {
        return Ok(Some(("chat_template.jinja".into(), text.into())));
    }
    for file in ["chat_template.json", "tokenizer_config.json"] {
        let Some(config) = files.json(file)? else { continue };
        let found = match &config["chat_template"] {
            Value::String(text) => Some(text.clone()),
            Value::Array(list) => [named, "default"].into_iter().find_map(|wanted| {
                let entry = list.iter().find(|entry| entry["name"] == *wanted)?;
                entry["template"].as_str().map(str::to_owned)
            }),
            Value::Object(map) => [named, "default"]
                .into_iter()
                .find_map(|wanted| map.get(wanted)?.as_str().map(str::to_owned)),
            _ => None,
        };
        if let Some(text) = found {
            return Ok(Some((format!("{file}: chat_template"), text)));
        }
    }
    Ok(None)
}

/// The special tokens, as templates know them.
pub fn special_variables(texts: &SpecialTexts) -> Map<String, Value> {
    let named = [
        ("bos_token", &texts.bos),
        ("eos_token", &texts.eos),
        ("unk_token", &texts.unk),
        ("pad_token", &texts.pad),
    ];
    named
        .into_iter()
        .filter_map(|(name, text)| Some((name.to_owned(), text.clone()?.into())))
        .collect()
}

#[cfg(test)]
mod tests;
