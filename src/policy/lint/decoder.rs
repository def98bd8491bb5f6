//! The texts of a decoder's description: expressions are compiled and name what is known, activations,
//! scores and kinds of rotations exist, names can be those of tensors, and values are used.
//!
//! What a text is, is told by the schema of the description, so that a new key needs no word here.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value as Json;

use super::{Lint, Linter, globs, known_config_paths, near};
use crate::decoder::Decoder;
use crate::decoder::parts::{Function, ScoreKind};
use crate::decoder::rope;
use crate::document::Step;
use crate::expr::Expr;
use crate::path;
use crate::policy::pattern;

static SCHEMA: LazyLock<Json> = LazyLock::new(|| schemars::schema_for!(Decoder).to_value());

/// What expressions may name besides keys of a config and `let` values.
const NAMES: [&str; 4] = ["config", "converted", "layer", "type"];

/// What stands for the index of a layer.
const INDEX: &str = "{i}";

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A value worked out from the config.
    Expr,
    /// A function of an element, or an expression that gives its name.
    Activation,
    /// What becomes of a router's logits, or an expression that gives its name.
    Scores,
    /// A kind of rotation.
    Rotation,
    /// A tensor's name, or a part of one.
    Name,
    /// A glob over names.
    Glob,
    /// What the config or another program is free to call so.
    Free,
}

impl Kind {
    /// Of a text at a path of the description, by the name of its type there; `None` for what is no
    /// text by its type.
    fn of(definition: &str, schema: &Json, at: &[Step]) -> Option<Kind> {
        match definition {
            "Expr" => return Some(Kind::Expr),
            "Activation" => return Some(Kind::Activation),
            "Scores" => return Some(Kind::Scores),
            _ => {}
        }
        let of_type = &schema["type"];
        let is_text = |one: &Json| one == "string";
        if !is_text(of_type) && !of_type.as_array().is_some_and(|all| all.iter().any(is_text)) {
            return None;
        }
        let keys: Vec<&str> = at.iter().filter_map(Step::key).collect();
        Some(match keys.as_slice() {
            [_, "config", ..] | [_, "converted", "by" | "format" | "key"] => Kind::Free,
            [_, "unused", ..] | [_, "converted", "tensor"] => Kind::Glob,
            [.., "kinds", _] => Kind::Rotation,
            _ => Kind::Name,
        })
    }

    /// Whether it is worked out, or may be.
    fn is_expression(self) -> bool {
        matches!(self, Kind::Expr | Kind::Activation | Kind::Scores)
    }

    /// The words that it may be.
    fn words(self) -> Vec<&'static str> {
        match self {
            Kind::Activation => Function::NAMES.to_vec(),
            Kind::Scores => ScoreKind::NAMES.map(|(name, _)| name).to_vec(),
            Kind::Rotation => rope::KINDS.iter().flat_map(|kind| kind.names).copied().collect(),
            _ => Vec::new(),
        }
    }
}

/// A text of a description, and the path to it from the top of the policy's file.
struct Text {
    kind: Kind,
    at: Vec<Step>,
    text: String,
}

fn texts(decoder: &Decoder) -> Vec<Text> {
    let mut found = Vec::new();
    let value = serde_json::to_value(decoder).unwrap_or_default();
    gather("", &SCHEMA, &value, &mut vec![Step::from("decoder")], &mut found);
    found
}

fn gather(
    definition: &str,
    schema: &Json,
    value: &Json,
    at: &mut Vec<Step>,
    found: &mut Vec<Text>,
) {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
        return gather(name, &SCHEMA["$defs"][name], value, at, found);
    }
    if let Json::String(text) = value
        && let Some(kind) = Kind::of(definition, schema, at)
    {
        // One of several forms of a value may be a text, and another of them too.
        if found.last().is_none_or(|last| last.at != *at) {
            found.push(Text { kind, at: at.clone(), text: text.clone() });
        }
        return;
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        for one in schema[choice].as_array().into_iter().flatten() {
            gather("", one, value, at, found);
        }
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let of_key = schema["properties"].get(key).unwrap_or(&schema["additionalProperties"]);
        at.push(Step::from(key.as_str()));
        gather("", of_key, value, at, found);
        at.pop();
    }
    for (index, value) in value.as_array().into_iter().flatten().enumerate() {
        at.push(Step::Index(index));
        gather("", &schema["items"], value, at, found);
        at.pop();
    }
}

/// The expressions of a description that can be understood.
pub fn expressions(decoder: &Decoder) -> Vec<Expr> {
    let expressions = texts(decoder).into_iter().filter(|text| text.kind.is_expression());
    expressions.filter_map(|text| Expr::compile(&text.text).ok()).collect()
}

impl Linter<'_> {
    /// The file's own decoder.
    pub(super) fn decoder(&mut self) {
        let entry = self.entry.clone();
        let Some(description) = &entry.file.decoder else { return };
        let known = names(description);
        let texts = texts(description);
        for text in &texts {
            match text.kind {
                Kind::Expr => self.expression(text, &known),
                Kind::Activation | Kind::Scores | Kind::Rotation => self.word(text, &known),
                Kind::Name => self.tensor_name(text),
                Kind::Glob => {
                    let impossible = globs::impossible(&text.text).map(str::to_owned);
                    if let Some(why) = impossible.or(pattern::compile(&text.text).err()) {
                        let message = format!("`{}` can match no tensor: {why}", text.text);
                        self.find(Lint::ImpossibleGlob, &text.at, message, "mend or remove it");
                    }
                }
                Kind::Free => {}
            }
        }
        let values = [
            (path!["decoder", "let"].to_vec(), &description.values),
            (path!["decoder", "layers", "let"].to_vec(), &description.layers.values),
        ];
        for (at, values) in values {
            for name in values.keys() {
                let at = [at.as_slice(), path![name.as_str()]].concat();
                let uses = |text: &Text| {
                    text.kind.is_expression()
                        && text.at != at
                        && Expr::compile(&text.text).is_ok_and(|expr| expr.uses(name))
                };
                if !texts.iter().any(uses) {
                    let message = format!("no expression of the decoder uses the value `{name}`");
                    self.find(Lint::UnusedValue, &at, message, "remove it");
                }
            }
        }
    }

    /// What cannot be understood, and what names no key that is known, for which `??` would silently
    /// take its other side.
    fn expression(&mut self, text: &Text, known: &BTreeSet<String>) {
        let expr = match Expr::compile(&text.text) {
            Ok(expr) => expr,
            Err(bad) => {
                self.find(Lint::BadExpression, &text.at, bad.message, "correct the expression");
                return;
            }
        };
        for path in unknown(&expr, known) {
            let last = path.rsplit('.').find(|part| !known.contains(*part)).unwrap_or(path);
            let help = match crate::format::nearest(last, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "if a model has it, add it to policies/known/config-keys.txt".into(),
            };
            let message = format!("no known config has `{path}`");
            self.find(Lint::UnknownConfigPath, &text.at, message, help);
        }
    }

    /// A word of a list, or, where the kind allows that, an expression that gives one.
    fn word(&mut self, text: &Text, known: &BTreeSet<String>) {
        let words = text.kind.words();
        let word = text.text.as_str();
        if words.contains(&word) {
            return;
        }
        let is_plain = word.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
        if text.kind.is_expression() && (!is_plain || known.contains(word)) {
            return self.expression(text, known);
        }
        let (what, else_) = match text.kind {
            Kind::Activation => ("activation", ", and no known config has such a key"),
            Kind::Scores => ("score of a router", ", and no known config has such a key"),
            _ => ("kind of rotation", ""),
        };
        let message = format!("no {what} is named `{word}`{else_}");
        let keys = known.iter().map(String::as_str).filter(|_| text.kind.is_expression());
        let help = match crate::format::nearest(word, words.iter().copied().chain(keys)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => near("", &words),
        };
        self.find(Lint::UnknownWord, &text.at, message, help);
    }

    fn tensor_name(&mut self, text: &Text) {
        let name = text.text.as_str();
        let keys: Vec<&str> = text.at.iter().filter_map(Step::key).collect();
        let of_layer = keys == ["decoder", "layers", "tensor"];
        let plain = if of_layer { name.replacen(INDEX, "0", 1) } else { name.into() };
        let odd = plain.chars().find(|c| !c.is_alphanumeric() && !"._-".contains(*c));
        let why = match odd {
            _ if name.is_empty() && keys.last() == Some(&"root") => return,
            _ if name.is_empty() => "it is empty".to_owned(),
            Some(odd) => format!("it has `{odd}` in it"),
            None if plain.split('.').any(str::is_empty) => "a part of it is empty".to_owned(),
            None if of_layer && !name.contains(INDEX) => {
                format!("it is that of every layer: `{INDEX}` stands for a layer's index")
            }
            None => return,
        };
        let help = "this key takes a tensor's name, or what names begin with, and no expression";
        let message = format!("`{name}` can be no tensor's name: {why}");
        self.find(Lint::ImpossibleName, &text.at, message, help);
    }
}

/// What the expressions of a description may name.
fn names(decoder: &Decoder) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = NAMES.map(String::from).into();
    let paths = known_config_paths();
    names.extend(paths.iter().flat_map(|path| path.split('.')).map(str::to_owned));
    let values = decoder.values.keys().chain(decoder.layers.values.keys());
    names.extend(values.cloned());
    keys(&serde_json::to_value(&decoder.defaults).unwrap_or_default(), &mut names);
    names
}

fn keys(value: &Json, names: &mut BTreeSet<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        names.insert(key.clone());
        keys(value, names);
    }
}

/// The paths of an expression, or names alone, of which a part is not known.
fn unknown<'e>(expr: &'e Expr, known: &BTreeSet<String>) -> Vec<&'e str> {
    let paths = expr.paths();
    let alone = expr.names().into_iter().filter(|name| {
        !paths.iter().any(|path| path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
    });
    let all: BTreeSet<&str> = paths.iter().copied().chain(alone).collect();
    all.into_iter().filter(|path| path.split('.').any(|part| !known.contains(part))).collect()
}
