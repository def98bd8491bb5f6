//! Control tokens that somebody spells in a conversation stay what they are: text.
//!
//! What users, tools and models wrote goes through the template with a mark behind the first
//! character of each control token in it (and of each that its end may begin). Where a mark comes
//! out before a control token, that one was not the template's. The marks are taken out again, so
//! the text is what it would have been; only a template that looks for control tokens in what a
//! user wrote does not find them.

use std::ops::{Range, RangeInclusive};

use serde_json::Value;

use super::Answers;
use crate::fault::{Code, Fault};
use crate::tokenizer::{Controls, Rendered};

/// The mark: a noncharacter, which Unicode leaves to programs for their own use.
const MARK: char = '\u{FDD2}';
/// The noncharacters of this block.
const RESERVED: RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// Marks control tokens in messages, and says whether there are any. System messages are the
/// program's own, and stay as they are; in what the model said, its family's marks (`</think>`, …) are
/// what templates look for.
///
/// # Errors
/// When a conversation that spells a control token holds noncharacters too.
pub fn mark(messages: &mut [Value], controls: &Controls, answers: &Answers) -> Result<bool, Fault> {
    let holder = messages.iter().position(holds_reserved);
    let mut marked = false;
    for message in messages {
        let role = message["role"].as_str().unwrap_or_default();
        if matches!(role, "system" | "developer") {
            continue;
        }
        let said = role == "assistant";
        let Some(fields) = message.as_object_mut() else { continue };
        for (key, value) in fields.iter_mut().filter(|(key, _)| *key != "role") {
            let own = said && !["tool_calls", "name"].contains(&key.as_str());
            let meant = |token: &str| own && answers.marks().any(|mark| mark.contains(token));
            marked |= mark_value(value, controls, &meant);
        }
    }
    match holder {
        Some(place) if marked => Err(Fault::new(
            Code::Usage,
            format!(
                "the conversation spells control tokens, and message {} holds noncharacters (U+FDD0 to \
                 U+FDEF), which Unicode leaves to programs for their own use",
                place + 1
            ),
        )
        .help("take the noncharacters out")),
        _ => Ok(marked),
    }
}

fn holds_reserved(value: &Value) -> bool {
    let in_text = |text: &str| text.contains(|c| RESERVED.contains(&c));
    match value {
        Value::String(text) => in_text(text),
        Value::Array(values) => values.iter().any(holds_reserved),
        Value::Object(fields) => {
            fields.iter().any(|(key, value)| in_text(key) || holds_reserved(value))
        }
        _ => false,
    }
}

fn mark_value(value: &mut Value, controls: &Controls, meant: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => mark_text(text, controls, meant),
        Value::Array(values) => {
            // Each is marked, whatever came before.
            let marked = values.iter_mut().map(|value| mark_value(value, controls, meant));
            marked.filter(|marked| *marked).count() > 0
        }
        Value::Object(fields) => {
            let mut any = false;
            let mark = |(mut key, mut value)| {
                any |= mark_text(&mut key, controls, meant);
                any |= mark_value(&mut value, controls, meant);
                (key, value)
            };
            *fields = std::mem::take(fields).into_iter().map(mark).collect();
            any
        }
        _ => false,
    }
}

fn mark_text(text: &mut String, controls: &Controls, meant: &dyn Fn(&str) -> bool) -> bool {
    let found = controls.find(text).filter(|range| !meant(&text[range.clone()]));
    let mut starts: Vec<usize> = found.map(|range| range.start).collect();
    starts.extend(controls.begun(text));
    starts.sort_unstable();
    starts.dedup();
    let mut marked = String::with_capacity(text.len() + starts.len() * MARK.len_utf8());
    let mut at = 0;
    for &start in &starts {
        let behind = second(text, start);
        marked.push_str(&text[at..behind]);
        marked.push(MARK);
        at = behind;
    }
    marked.push_str(&text[at..]);
    *text = marked;
    !starts.is_empty()
}

/// Where the second character of what begins at `start` stands.
fn second(text: &str, start: usize) -> usize {
    start + text[start..].chars().next().map_or(0, char::len_utf8)
}

/// Takes the marks out of what a template rendered from marked messages.
pub fn unmark(marked: &str, controls: &Controls) -> Rendered {
    let mut text = String::with_capacity(marked.len());
    // Where, in the text without marks, one stood.
    let mut marks = Vec::new();
    for c in marked.chars() {
        match c {
            MARK => marks.push(text.len()),
            c => text.push(c),
        }
    }
    let marked = |range: &Range<usize>| marks.binary_search(&second(&text, range.start)).is_ok();
    let spelled = controls.find(&text).filter(marked).collect();
    Rendered { text, spelled }
}

#[cfg(test)]
mod tests;
