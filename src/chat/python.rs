//! What templates expect of Python: the methods of its strings, and its way to write JSON.

use minijinja::value::{Value as JinjaValue, from_args};
use minijinja::{Error, State};
use serde_json::Value;

/// Methods of Python's types that templates call: those of minijinja-contrib, and a few more.
pub(super) fn method(
    state: &mut State,
    value: &JinjaValue,
    method: &str,
    args: &[JinjaValue],
) -> Result<JinjaValue, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = string_method(text, method, args)
    {
        return result;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// `None` for methods that are not here.
fn string_method(
    text: &str,
    method: &str,
    args: &[JinjaValue],
) -> Option<Result<JinjaValue, Error>> {
    let apply: fn(&str, &str) -> JinjaValue = match method {
        "removeprefix" => |text, arg| text.strip_prefix(arg).unwrap_or(text).into(),
        "removesuffix" => |text, arg| text.strip_suffix(arg).unwrap_or(text).into(),
        "partition" => |text, arg| match text.split_once(arg) {
            Some((before, after)) => (before, arg, after).into(),
            None => (text, "", "").into(),
        },
        "rpartition" => |text, arg| match text.rsplit_once(arg) {
            Some((before, after)) => (before, arg, after).into(),
            None => ("", "", text).into(),
        },
        "rsplit" => return Some(rsplit(text, args)),
        _ => return None,
    };
    Some(from_args::<(&str,)>(args).map(|(arg,)| apply(text, arg)))
}

fn rsplit(text: &str, args: &[JinjaValue]) -> Result<JinjaValue, Error> {
    let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
    let Some(separator) = separator.filter(|separator| !separator.is_empty()) else {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        if let Some(most) = most.and_then(|most| usize::try_from(most).ok())
            && words.len() > most + 1
        {
            // The words that stay together keep the spaces between them.
            let kept = words.split_off(words.len() - most);
            let end = kept.first().map_or(text.len(), |word| offset(text, word));
            return Ok(std::iter::once(text[..end].trim_end()).chain(kept).collect());
        }
        return Ok(words.into_iter().collect());
    };
    let mut parts: Vec<&str> = match most.and_then(|most| usize::try_from(most).ok()) {
        Some(most) => text.rsplitn(most + 1, separator).collect(),
        None => text.rsplit(separator).collect(),
    };
    parts.reverse();
    Ok(parts.into_iter().collect())
}

/// Where a part of `text` begins in it.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// How `json.dumps` is asked to write.
#[derive(Default)]
pub(super) struct JsonStyle {
    /// One level of indentation; `None` for everything on one line.
    pub indent: Option<String>,
    /// Between entries, and between key and value; `None` for Python's own.
    pub separators: Option<(String, String)>,
    /// Keys in order of their text.
    pub sort_keys: bool,
    /// `\uXXXX` for everything beyond ASCII.
    pub ascii: bool,
}

/// Writes JSON as Python's `json.dumps`.
pub(super) fn json(value: &Value, style: &JsonStyle) -> String {
    let (comma, colon) = match &style.separators {
        Some((comma, colon)) => (comma.as_str(), colon.as_str()),
        None if style.indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let mut text = String::new();
    Writer { style, comma, colon }.write(value, 0, &mut text);
    text
}

struct Writer<'a> {
    style: &'a JsonStyle,
    comma: &'a str,
    colon: &'a str,
}

impl Writer<'_> {
    fn write(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Null | Value::Bool(_) => out.push_str(&value.to_string()),
            Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) => out.push_str(&float_text(float)),
                None => out.push_str(&number.to_string()),
            },
            Value::String(text) => self.write_string(text, out),
            Value::Array(items) => {
                self.write_all(('[', ']'), items.iter(), depth, out, |item, out| {
                    self.write(item, depth + 1, out);
                });
            }
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.style.sort_keys {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.write_all(('{', '}'), entries.into_iter(), depth, out, |(key, item), out| {
                    self.write_string(key, out);
                    out.push_str(self.colon);
                    self.write(item, depth + 1, out);
                });
            }
        }
    }

    fn write_all<T>(
        &self,
        (open, close): (char, char),
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(T, &mut String),
    ) {
        out.push(open);
        let empty = items.len() == 0;
        for (i, item) in items.enumerate() {
            if i > 0 {
                out.push_str(self.comma);
            }
            self.new_line(depth + 1, out);
            write(item, out);
        }
        if !empty {
            self.new_line(depth, out);
        }
        out.push(close);
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn write_string(&self, text: &str, out: &mut String) {
        let quoted = Value::from(text).to_string();
        if !self.style.ascii {
            // serde_json writes DEL as it is, and so does Python.
            out.push_str(&quoted);
            return;
        }
        for letter in quoted.chars() {
            if letter.is_ascii() && letter != '\u{7F}' {
                out.push(letter);
            } else {
                let mut units = [0; 2];
                for unit in letter.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
}

/// A float as Python's `repr` writes it: the shortest digits that read back the same, with an
/// exponent below 1e-4 and from 1e16 on.
fn float_text(float: f64) -> String {
    if float == 0.0 || (1e-4..1e16).contains(&float.abs()) {
        return format!("{float:?}");
    }
    let scientific = format!("{float:e}");
    match scientific.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => scientific,
    }
}
