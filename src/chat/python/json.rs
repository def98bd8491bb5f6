//! `tojson` as transformers defines it: Python's `json.dumps` with `ensure_ascii` off.

use minijinja::State;
use minijinja::value::{Kwargs, Rest, Value as JinjaValue, ValueKind};
use serde_json::Value;

use super::{Call, Result, float_text, refuse};

/// How it is asked to write.
struct Style {
    /// One level of indentation; `None` for everything on one line.
    indent: Option<String>,
    comma: String,
    colon: String,
    /// Keys in order of their text.
    sort_keys: bool,
    /// `\uXXXX` for everything beyond ASCII.
    ascii: bool,
}

/// The filter.
pub(in crate::chat) fn to_json(
    _state: &State,
    value: &JinjaValue,
    given: Rest<JinjaValue>,
    named: Kwargs,
) -> Result<String> {
    let call = Call::with(&given, &named, &["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = call.get(1).map(|indent| match indent.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(usize::try_from(indent.clone()).unwrap_or(0)),
    });
    let between = if indent.is_some() { "," } else { ", " };
    let (mut comma, mut colon) = (between.to_owned(), ": ".to_owned());
    if let Some(separators) = call.get(2) {
        let pair: Vec<JinjaValue> = separators.try_iter()?.collect();
        match &pair[..] {
            [first, second] => (comma, colon) = (super::str(first), super::str(second)),
            _ => return Err(refuse("separators are two texts")),
        }
    }
    let style = Style {
        indent,
        comma,
        colon,
        sort_keys: call.holds(3, false),
        ascii: call.holds(0, false),
    };
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(out)
}

impl Style {
    fn write(&self, value: &JinjaValue, depth: usize, out: &mut String) -> Result<()> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq => {
                let items: Vec<JinjaValue> = value.try_iter()?.collect();
                self.write_all(('[', ']'), &items, depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut entries: Vec<(String, JinjaValue)> = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    let key = key_text(&key)?;
                    match entries.iter_mut().find(|(known, _)| *known == key) {
                        Some(known) => known.1 = item,
                        None => entries.push((key, item)),
                    }
                }
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_all(('{', '}'), &entries, depth, out, |(key, item), out| {
                    self.write_text(key, out);
                    out.push_str(&self.colon);
                    self.write(item, depth + 1, out)
                })?;
            }
            kind => return Err(refuse(format!("{kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn write_all<T>(
        &self,
        (open, close): (char, char),
        items: &[T],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&T, &mut String) -> Result<()>,
    ) -> Result<()> {
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.comma);
            }
            self.new_line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            self.new_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn write_text(&self, text: &str, out: &mut String) {
        // serde_json writes DEL as it is, and so does Python.
        let quoted = Value::from(text).to_string();
        out.push_str(&if self.ascii { ascii(&quoted) } else { quoted });
    }
}

fn number(value: &JinjaValue) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) if float.is_nan() => "NaN".into(),
        Ok(float) if float == f64::INFINITY => "Infinity".into(),
        Ok(float) if float == f64::NEG_INFINITY => "-Infinity".into(),
        Ok(float) => float_text(float),
        Err(_) => value.to_string(),
    }
}

/// A key as `json.dumps` writes it: numbers, booleans and none become texts.
fn key_text(key: &JinjaValue) -> Result<String> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => Ok(number(key)),
        kind => Err(refuse(format!("a key must not be a {kind}"))),
    }
}

/// `\uXXXX` for everything beyond ASCII.
pub(super) fn ascii(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        if letter.is_ascii() && letter != '\u{7F}' {
            out.push(letter);
        } else {
            let mut units = [0; 2];
            for unit in letter.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}
