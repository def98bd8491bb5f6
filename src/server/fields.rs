//! The fields of a request: each is honoured, known to change no answer, or refused by name.

use serde_json::{Map, Value};

use super::problem::Problem;
use crate::engine::Options;

/// How deep a request may be nested.
pub const DEPTH: usize = 64;
/// Most messages of a conversation.
pub const MESSAGES: usize = 10_000;

/// The fields that one route of an API knows.
pub struct Table {
    /// Those that are honoured.
    pub honoured: &'static [&'static str],
    /// Those that change nothing about an answer, and are passed over.
    pub ignored: &'static [&'static str],
    /// Those that are refused unless they are null, false, or the value given here; and why.
    pub refused: &'static [(&'static str, &'static str)],
}

impl Table {
    /// Refuses what is not known or not honoured.
    ///
    /// # Errors
    /// For the first such field.
    pub fn check(&self, body: &Map<String, Value>) -> Result<(), Problem> {
        for (name, value) in body {
            let name = name.as_str();
            let neutral = matches!(value, Value::Null | Value::Bool(false))
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(Map::is_empty);
            if self.honoured.contains(&name) || self.ignored.contains(&name) || neutral {
                continue;
            }
            let why = self.refused.iter().find(|(refused, _)| *refused == name);
            return Err(Problem::refused(name, why.map_or("lathe does not know it", |why| why.1)));
        }
        Ok(())
    }
}

/// A JSON text as an object whose nesting is bounded.
///
/// # Errors
/// 400 when it is something else.
pub fn object(bytes: &[u8]) -> Result<Map<String, Value>, Problem> {
    let bad = |why: String| Problem::field("body", why);
    let (mut depth, mut inside, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match (inside, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => inside = !inside,
            (false, b'{' | b'[') => depth += 1,
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH {
            return Err(bad(format!("the body is nested deeper than {DEPTH} levels")));
        }
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad("the body is JSON but no object".into())),
        Err(error) => Err(bad(format!("the body is not JSON: {error}"))),
    }
}

/// A field as it was given, null counted as absent.
pub fn given<'a>(body: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    body.get(name).filter(|value| !value.is_null())
}

/// A text.
///
/// # Errors
/// When it is something else.
pub fn text<'a>(body: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, Problem> {
    let wrong = || Problem::field(name, format!("`{name}` takes a text"));
    given(body, name).map(|value| value.as_str().ok_or_else(wrong)).transpose()
}

/// A truth value.
///
/// # Errors
/// When it is something else.
pub fn flag(body: &Map<String, Value>, name: &str) -> Result<Option<bool>, Problem> {
    let wrong = || Problem::field(name, format!("`{name}` takes true or false"));
    given(body, name).map(|value| value.as_bool().ok_or_else(wrong)).transpose()
}

/// A whole number within bounds.
///
/// # Errors
/// When it is something else.
pub fn whole(
    body: &Map<String, Value>,
    name: &str,
    least: u64,
    most: u64,
) -> Result<Option<u64>, Problem> {
    let wrong =
        || Problem::field(name, format!("`{name}` takes a whole number from {least} to {most}"));
    let within = |number: &u64| (least..=most).contains(number);
    given(body, name).map(|v| v.as_u64().filter(within).ok_or_else(wrong)).transpose()
}

/// The model's name.
///
/// # Errors
/// When there is none.
pub fn model(body: &Map<String, Value>) -> Result<String, Problem> {
    let none = || Problem::field("model", "`model` names a model of the store, and is missing");
    text(body, "model")?.filter(|name| !name.is_empty()).map(str::to_owned).ok_or_else(none)
}

/// The list under a name; none is an empty one.
///
/// # Errors
/// When it is something else.
pub fn list<'a>(body: &'a Map<String, Value>, name: &str) -> Result<&'a [Value], Problem> {
    match given(body, name) {
        None => Ok(&[]),
        Some(Value::Array(list)) if list.len() <= MESSAGES => Ok(list),
        Some(_) => {
            Err(Problem::field(name, format!("`{name}` takes a list of at most {MESSAGES}")))
        }
    }
}

/// Texts that end an answer: one or a list.
///
/// # Errors
/// When it is something else, or one is empty.
pub fn stops(body: &Map<String, Value>, name: &str) -> Result<Option<Vec<String>>, Problem> {
    let wrong =
        || Problem::field(name, format!("`{name}` takes a text or up to 16, none of them empty"));
    let Some(value) = given(body, name) else { return Ok(None) };
    let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let one = |stop: &Value| stop.as_str().filter(|stop| !stop.is_empty()).map(str::to_owned);
    let stops: Option<Vec<String>> = listed.iter().map(one).collect();
    stops.filter(|stops| stops.len() <= 16).map(Some).ok_or_else(wrong)
}

/// Options by the names that Modelfiles know them by, each from a field.
///
/// # Errors
/// At the first that is out of range.
pub fn set(
    options: &mut Options,
    body: &Map<String, Value>,
    fields: &[(&str, &str)],
) -> Result<(), Problem> {
    for (field, option) in fields {
        if let Some(value) = given(body, field) {
            if !value.is_number() {
                return Err(Problem::field(field, format!("`{field}` takes a number")));
            }
            options.set(option, value).map_err(|fault| Problem::field(field, fault.to_string()))?;
        }
    }
    Ok(())
}

/// What a message says: a text, or a list of parts of which each is a text.
///
/// # Errors
/// When a part is something else.
pub fn content(value: &Value, place: &str) -> Result<String, Problem> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut all = String::new();
            for (at, part) in parts.iter().enumerate() {
                let kind = part["type"].as_str().unwrap_or_default();
                let text = match kind {
                    "text" | "input_text" | "output_text" => part["text"].as_str(),
                    "refusal" => part["refusal"].as_str(),
                    _ => {
                        let field = format!("{place}[{at}].type");
                        let why = format!("{kind:?} parts are not supported, only texts");
                        return Err(Problem::field(&field, why));
                    }
                };
                let none = || Problem::field(&format!("{place}[{at}]"), "a part has no text");
                all.push_str(text.ok_or_else(none)?);
            }
            Ok(all)
        }
        _ => Err(Problem::field(place, format!("`{place}` takes a text or a list of parts"))),
    }
}
