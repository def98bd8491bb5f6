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
    range: Range,
    /// What it does, in one line.
    pub help: &'static str,
}

/// The numbers that a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Range {
    Any,
    /// From 0 to 1.
    Share,
    /// Above 0 and at most 1.
    ShareAboveNone,
    FromNone,
    FromOne,
    AboveNone,
}

impl Range {
    fn holds(self, number: f64) -> bool {
        // In 32 bits, as they are kept: what is nothing there is nothing.
        let some = (number as f32) > 0.0;
        match self {
            Range::Any => true,
            Range::Share => (0.0..=1.0).contains(&number),
            Range::ShareAboveNone => some && number <= 1.0,
            Range::FromNone => number >= 0.0,
            Range::FromOne => number >= 1.0,
            Range::AboveNone => some,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Range::Any => "",
            Range::Share => " from 0 to 1",
            Range::ShareAboveNone => " above 0 and at most 1",
            Range::FromNone => ", 0 or more",
            Range::FromOne => ", 1 or more",
            Range::AboveNone => " above 0",
        }
    }
}

const fn row(name: &'static str, kind: Kind, range: Range, help: &'static str) -> Parameter {
    Parameter { name, kind, range, help }
}

const TABLE: &[Parameter] = &[
    row(
        "temperature",
        Kind::Float,
        Range::FromNone,
        "how freely tokens are drawn; 0 always takes the likeliest",
    ),
    row("top_k", Kind::Int, Range::Any, "tokens to draw from, the likeliest first; 0 for all"),
    row(
        "top_p",
        Kind::Float,
        Range::Share,
        "draw from the likeliest tokens that reach this probability together",
    ),
    row(
        "min_p",
        Kind::Float,
        Range::Share,
        "leave out tokens less likely than this share of the likeliest",
    ),
    row(
        "typical_p",
        Kind::Float,
        Range::ShareAboveNone,
        "draw from the tokens whose surprise is nearest the expected",
    ),
    row("seed", Kind::Int, Range::Any, "of the random numbers; -1 for others each time"),
    row(
        "num_predict",
        Kind::Int,
        Range::Any,
        "most tokens to generate; -1 for no limit but the context's",
    ),
    row(
        "num_ctx",
        Kind::Int,
        Range::FromOne,
        "tokens of context, at most what the model was trained for",
    ),
    row(
        "num_keep",
        Kind::Int,
        Range::Any,
        "tokens at the beginning that are kept when the context is full",
    ),
    row("stop", Kind::Texts, Range::Any, "a text that ends the answer; may be given several times"),
    row(
        "repeat_penalty",
        Kind::Float,
        Range::AboveNone,
        "divides the score of tokens seen lately; 1 is none",
    ),
    row(
        "repeat_last_n",
        Kind::Int,
        Range::Any,
        "how many tokens count as lately; 0 none, -1 the context",
    ),
    row(
        "presence_penalty",
        Kind::Float,
        Range::Any,
        "taken from the score of tokens that occurred",
    ),
    row(
        "frequency_penalty",
        Kind::Float,
        Range::Any,
        "taken from the score for each time a token occurred",
    ),
    row(
        "draft_num_predict",
        Kind::Int,
        Range::FromNone,
        "most tokens to draft at once; 0 does not draft",
    ),
    row("num_batch", Kind::Int, Range::Any, "tokens of a prompt that are processed at once"),
    row("num_gpu", Kind::Int, Range::Any, "layers on the GPU (Ollama)"),
    row("main_gpu", Kind::Int, Range::Any, "the GPU for small tensors (Ollama)"),
    row("num_thread", Kind::Int, Range::Any, "threads to compute with (Ollama)"),
    row("use_mmap", Kind::Bool, Range::Any, "whether weights are mapped (Ollama)"),
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

/// All names.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|row| row.name)
}

impl Parameter {
    /// The parameter of that name.
    pub fn named(name: &str) -> Option<&'static Parameter> {
        TABLE.iter().find(|row| row.name == name)
    }

    /// Whether Ollama knew a parameter of that name once, and passes it over now.
    pub fn is_ignored(name: &str) -> bool {
        IGNORED.contains(&name)
    }

    /// Whether it is a number.
    pub fn is_number(&self) -> bool {
        matches!(self.kind, Kind::Int | Kind::Float)
    }

    /// Reads a value; the error says what the parameter takes.
    ///
    /// # Errors
    /// When it is of another kind or out of range.
    pub fn read(&self, text: &str) -> Result<Value, String> {
        match self.kind {
            Kind::Texts => Ok(Value::Texts(vec![text.to_string()])),
            Kind::Int => self.within(whole(text), |number| number as f64).map(Value::Int),
            Kind::Float => {
                // Ollama keeps these in 32 bits.
                let number = text.parse::<f64>().ok();
                let number = number.filter(|&number| (number as f32).is_finite());
                self.within(number, |number| number).map(Value::Float)
            }
            // The spellings that Go's ParseBool takes.
            Kind::Bool => match text {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
                "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
                _ => Err(self.wanted()),
            },
        }
    }

    /// The number that a JSON value, or a text of it, is; the error says what the parameter takes.
    ///
    /// # Errors
    /// As [`read`](Parameter::read).
    pub fn number(&self, value: &serde_json::Value) -> Result<f64, String> {
        let text = match value {
            serde_json::Value::String(text) => text.trim().to_owned(),
            serde_json::Value::Number(number) => number.to_string(),
            _ => return Err(self.wanted()),
        };
        match self.read(&text)? {
            Value::Int(number) => Ok(number as f64),
            Value::Float(number) => Ok(number),
            _ => Err(self.wanted()),
        }
    }

    /// What it takes.
    pub fn wanted(&self) -> String {
        match self.kind {
            Kind::Bool => "true or false".into(),
            Kind::Texts => "a text".into(),
            Kind::Int => format!("a whole number{}", self.range.words()),
            Kind::Float => format!("a number{}", self.range.words()),
        }
    }

    fn within<N: Copy>(&self, number: Option<N>, as_float: fn(N) -> f64) -> Result<N, String> {
        number.filter(|&number| self.range.holds(as_float(number))).ok_or_else(|| self.wanted())
    }
}

/// A whole number, also where it is written as `40.0`.
fn whole(text: &str) -> Option<i64> {
    let float =
        || text.parse::<f64>().ok().filter(|float| float.fract() == 0.0 && float.abs() < 9e15);
    text.parse().ok().or_else(|| float().map(|float| float as i64))
}
