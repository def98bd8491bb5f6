//! The parameters that a Modelfile can set, and their types: Ollama's table.

use serde::{Deserialize, Serialize};

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Texts, one for each time that the parameter is given.
    Texts(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    Int,
    Float,
    Texts,
}

/// A row of the table.
#[derive(Debug)]
pub struct Parameter {
    name: &'static str,
    kind: Kind,
    /// What it does, in one line.
    pub help: &'static str,
}

const fn row(name: &'static str, kind: Kind, help: &'static str) -> Parameter {
    Parameter { name, kind, help }
}

const TABLE: &[Parameter] = &[
    row("temperature", Kind::Float, "how freely tokens are drawn; 0 always takes the likeliest"),
    row("top_k", Kind::Int, "tokens to draw from, the likeliest first; 0 for all"),
    row(
        "top_p",
        Kind::Float,
        "draw from the likeliest tokens that reach this probability together",
    ),
    row("min_p", Kind::Float, "leave out tokens less likely than this share of the likeliest"),
    row("typical_p", Kind::Float, "draw from the tokens whose surprise is nearest the expected"),
    row("seed", Kind::Int, "of the random numbers; the same seed gives the same text"),
    row("num_predict", Kind::Int, "most tokens to generate; -1 for no limit but the context's"),
    row("num_ctx", Kind::Int, "tokens of context, at most what the model was trained for"),
    row("num_keep", Kind::Int, "tokens at the beginning that are kept when the context is full"),
    row("stop", Kind::Texts, "a text that ends the answer; may be given several times"),
    row("repeat_penalty", Kind::Float, "divides the score of tokens seen lately; 1 is none"),
    row("repeat_last_n", Kind::Int, "how many tokens count as lately; 0 none, -1 the context"),
    row("presence_penalty", Kind::Float, "taken from the score of tokens that occurred"),
    row("frequency_penalty", Kind::Float, "taken from the score for each time a token occurred"),
    row("draft_num_predict", Kind::Int, "most tokens to draft at once; 0 does not draft"),
    row("num_batch", Kind::Int, "tokens of a prompt that are processed at once"),
    row("num_gpu", Kind::Int, "layers on the GPU (Ollama)"),
    row("main_gpu", Kind::Int, "the GPU for small tensors (Ollama)"),
    row("num_thread", Kind::Int, "threads to compute with (Ollama)"),
    row("use_mmap", Kind::Bool, "whether weights are mapped (Ollama)"),
];

/// Parameters that Ollama knew once and passes over now.
pub const IGNORED: &[&str] = &[
    "f16_kv",
    "logits_all",
    "low_vram",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "numa",
    "penalize_newline",
    "tfs_z",
    "use_mlock",
    "vocab_only",
];

/// The row of a parameter.
pub fn find(name: &str) -> Option<&'static Parameter> {
    TABLE.iter().find(|row| row.name == name)
}

/// All names.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|row| row.name)
}

impl Parameter {
    /// Reads a value; the error says what the parameter takes.
    pub fn read(&self, text: &str) -> Result<Value, &'static str> {
        match self.kind {
            Kind::Texts => Ok(Value::Texts(vec![text.to_string()])),
            Kind::Int => text.parse().map(Value::Int).map_err(|_| "a whole number"),
            Kind::Float => match text.parse::<f64>() {
                // Ollama keeps these in 32 bits.
                Ok(number) if (number as f32).is_finite() => Ok(Value::Float(number)),
                _ => Err("a number"),
            },
            // The spellings that Go's ParseBool takes.
            Kind::Bool => match text {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
                "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
                _ => Err("true or false"),
            },
        }
    }
}
