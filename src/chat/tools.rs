//! The forms in which models write tool calls. Each family uses one of a few; which, is data.

use serde_json::{Map, Value};

pub use crate::policy::parsers::Form;
use crate::policy::parsers::{argument_keys, name_key};

impl Form {
    /// Marks inside calls.
    pub(super) fn marks(&self) -> Vec<&str> {
        match self {
            Form::NamedJson { before, between, after } => [before, between, after]
                .into_iter()
                .map(String::as_str)
                .filter(|mark| !mark.is_empty())
                .collect(),
            Form::FunctionTags => vec!["</parameter>", "</function>"],
            // Their marks are plain text in every vocabulary that is known.
            Form::InvokeTags { .. } => Vec::new(),
            Form::KeyValueTags => vec!["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
            Form::Call { quote } => vec![quote],
            Form::Harmony => vec!["<|channel|>", "<|constrain|>", "<|message|>"],
            Form::Json { .. } => Vec::new(),
        }
    }
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// Its arguments, an object.
    pub arguments: Value,
}

/// The calls that a text between marks holds; `None` when it is no call of this form.
///
/// `schemas` are the tools that the model was given: they say whether an untyped value is a text.
pub(super) fn parse(form: &Form, text: &str, schemas: &[Value]) -> Option<Vec<ToolCall>> {
    let calls = match form {
        Form::Json { name, arguments } => json_calls(text, name, arguments)?,
        Form::NamedJson { before, between, after } => named_json(text, before, between, after)?,
        Form::FunctionTags => function_tags(text, schemas)?,
        Form::InvokeTags { prefix } => invoke_tags(text, prefix, schemas)?,
        Form::KeyValueTags => vec![key_values(text, schemas)?],
        Form::Call { quote } => call_notation(text, quote)?,
        Form::Harmony => vec![harmony(text)?],
    };
    (!calls.is_empty()).then_some(calls)
}

fn json_calls(text: &str, name: &str, arguments: &[String]) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let value = value.ok()?;
        let listed = value.as_array().map_or(std::slice::from_ref(&value), Vec::as_slice);
        for call in listed {
            let given = arguments.iter().find_map(|key| call.get(key));
            calls.push(ToolCall {
                name: call.get(name)?.as_str()?.to_owned(),
                arguments: object(given.cloned().unwrap_or_else(|| Value::Object(Map::new()))),
            });
        }
    }
    Some(calls)
}

/// Some models write the arguments as a text that holds JSON.
fn object(value: Value) -> Value {
    match &value {
        Value::String(text) => serde_json::from_str(text).unwrap_or(value),
        _ => value,
    }
}

fn named_json(text: &str, before: &str, between: &str, after: &str) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    // Without the mark between: a list of objects (Mistral's first models).
    if !rest.contains(between) {
        return json_calls(rest, &name_key(), &argument_keys());
    }
    while let Some((head, tail)) = rest.split_once(between) {
        let start = tail.find('{')?;
        // DeepSeek V3 and R1 write `function`, the mark, then the name and fenced JSON.
        let inner = tail[..start].trim().trim_end_matches("```json").trim();
        let outer = if before.is_empty() { head } else { head.rsplit(before).next()? };
        let name = if inner.is_empty() { outer.trim() } else { inner };
        let mut values = serde_json::Deserializer::from_str(&tail[start..]).into_iter::<Value>();
        let arguments = values.next()?.ok()?;
        rest = &tail[start + values.byte_offset()..];
        if !after.is_empty() {
            rest = rest.split_once(after).map_or(rest, |(_, rest)| rest);
        }
        calls.push(ToolCall { name: name.to_owned(), arguments });
    }
    Some(calls)
}

fn function_tags(text: &str, schemas: &[Value]) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for part in text.split("<function=").skip(1) {
        let part = part.split("</function>").next()?;
        let (name, body) = part.split_once('>')?;
        let mut arguments = Map::new();
        for parameter in body.split("<parameter=").skip(1) {
            let (key, value) = parameter.split_once('>')?;
            let value = value.split("</parameter>").next()?;
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            arguments.insert(key.trim().into(), typed(value, schema_of(schemas, name, key)));
        }
        calls.push(ToolCall { name: name.trim().into(), arguments: arguments.into() });
    }
    Some(calls)
}

/// The name in quotes and the content of each `<tag name="NAME">CONTENT</tag>`.
fn named_tags<'t>(text: &'t str, tag: &str) -> Option<Vec<(&'t str, &'t str)>> {
    let (open, close) = (format!("<{tag} name=\""), format!("</{tag}>"));
    let parts = text.split(open.as_str()).skip(1);
    parts.map(|part| part.split(close.as_str()).next()?.split_once("\">")).collect()
}

fn invoke_tags(text: &str, prefix: &str, schemas: &[Value]) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for (name, body) in named_tags(text, &format!("{prefix}invoke"))? {
        let mut arguments = Map::new();
        for (key, value) in named_tags(body, &format!("{prefix}parameter"))? {
            arguments.insert(key.into(), typed(value, schema_of(schemas, name, key)));
        }
        calls.push(ToolCall { name: name.into(), arguments: arguments.into() });
    }
    Some(calls)
}

fn key_values(text: &str, schemas: &[Value]) -> Option<ToolCall> {
    let mut parts = text.split("<arg_key>");
    let name = parts.next()?.trim();
    let mut arguments = Map::new();
    for part in parts {
        let (key, value) = part.split_once("</arg_key>")?;
        let (_, value) = value.split_once("<arg_value>")?;
        let value = value.split("</arg_value>").next()?;
        arguments.insert(key.trim().into(), typed(value, schema_of(schemas, name, key.trim())));
    }
    (!name.is_empty()).then(|| ToolCall { name: name.into(), arguments: arguments.into() })
}

/// The schema of a tool's parameter: of `{function: {name, parameters: {properties}}}`.
fn schema_of<'a>(schemas: &'a [Value], tool: &str, key: &str) -> Option<&'a Value> {
    let function = |schema: &'a Value| schema.get("function").unwrap_or(schema);
    let found = schemas.iter().map(function).find(|function| function["name"] == *tool.trim())?;
    found["parameters"]["properties"].get(key.trim())
}

/// A value written without quotes: a text where the schema says so or where it is no JSON.
fn typed(text: &str, schema: Option<&Value>) -> Value {
    let is_text = schema.is_some_and(|schema| schema["type"] == "string");
    if is_text {
        return text.into();
    }
    serde_json::from_str(text.trim()).unwrap_or_else(|_| text.into())
}

fn harmony(text: &str) -> Option<ToolCall> {
    let (head, body) = text.split_once("<|message|>")?;
    let to = head.split_once("to=").map_or(head, |(_, to)| to);
    let name = to.split(|c: char| c.is_whitespace() || c == '<').next()?;
    let name = name.strip_prefix("functions.").unwrap_or(name);
    let body = body.trim();
    let arguments = if body.is_empty() {
        Value::Object(Map::new())
    } else {
        serde_json::from_str(body).ok()?
    };
    Some(ToolCall { name: name.to_owned(), arguments })
}

/// `call:NAME{key:value,…}`: values are texts between quotes, numbers, words, `{…}` and `[…]`.
fn call_notation(text: &str, quote: &str) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while let Some(after) = rest.strip_prefix("call:") {
        let at = after.find('{')?;
        let mut reader = Notation { rest: &after[at..], quote };
        let arguments = reader.value(0)?;
        calls.push(ToolCall { name: after[..at].trim().to_owned(), arguments });
        rest = reader.rest.trim_start();
    }
    Some(calls)
}

struct Notation<'a> {
    rest: &'a str,
    quote: &'a str,
}

impl<'a> Notation<'a> {
    /// Values nested deeper than this are no call that a tool could have asked for.
    const DEPTH: usize = 64;

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > Self::DEPTH {
            return None;
        }
        self.rest = self.rest.trim_start();
        if let Some(text) = self.quoted() {
            return Some(text.into());
        }
        if self.eat('{') {
            let mut map = Map::new();
            while !self.eat('}') {
                let key = match self.quoted() {
                    Some(key) => key,
                    None => self.until(&[':'])?,
                };
                if !self.eat(':') {
                    return None;
                }
                map.insert(key.trim().into(), self.value(depth + 1)?);
                self.eat(',');
            }
            return Some(map.into());
        }
        if self.eat('[') {
            let mut list = Vec::new();
            while !self.eat(']') {
                list.push(self.value(depth + 1)?);
                self.eat(',');
            }
            return Some(list.into());
        }
        let word = self.until(&[',', '}', ']'])?;
        Some(serde_json::from_str(word.trim()).unwrap_or_else(|_| word.trim().into()))
    }

    fn quoted(&mut self) -> Option<&'a str> {
        self.rest = self.rest.trim_start();
        let inside = self.rest.strip_prefix(self.quote)?;
        let (text, rest) = inside.split_once(self.quote)?;
        self.rest = rest;
        Some(text)
    }

    fn eat(&mut self, letter: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(letter) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn until(&mut self, ends: &[char]) -> Option<&'a str> {
        let at = self.rest.find(ends)?;
        let (word, rest) = self.rest.split_at(at);
        self.rest = rest;
        Some(word)
    }
}
