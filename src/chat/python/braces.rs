//! `"{0} of {1!r}".format(a, b)`: Python's newer way to put values into a text.
//!
//! Fields are found and their values looked up here; how a value is written by its format
//! (`:>8.2f`) is minijinja-contrib's, but for percentages.

use minijinja::value::{Kwargs, Rest, Value as JinjaValue, ValueKind, from_args};
use minijinja::{Error, State};

use super::{Result, ascii, refuse, repr, str};

/// One `{field!conversion:spec}`.
struct Field<'t> {
    name: &'t str,
    conversion: Option<&'t str>,
    spec: &'t str,
}

/// The text with its fields filled.
pub(super) fn format(state: &mut State, text: &str, args: &[JinjaValue]) -> Result<JinjaValue> {
    let (given, named): (Rest<JinjaValue>, Kwargs) = from_args(args)?;
    let mut out = String::new();
    let mut rest = text;
    let mut next = 0;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(refuse("a single '}' stands in a format"));
        }
        let end = closing(rest).ok_or_else(|| refuse("a '{' in a format is never closed"))?;
        let (name, spec) = rest[..end].split_once(':').unwrap_or((&rest[..end], ""));
        let (name, conversion) = match name.split_once('!') {
            Some((name, conversion)) => (name, Some(conversion)),
            None => (name, None),
        };
        rest = &rest[end + 1..];
        let field = Field { name, conversion, spec };
        let value = field.value(&given, &named, &mut next)?;
        out.push_str(&field.write(state, value, args)?);
    }
    out.push_str(rest);
    Ok(out.into())
}

/// Where the brace closes that is open at the beginning.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1_usize;
    text.char_indices().find_map(|(at, c)| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

impl Field<'_> {
    /// The value that it names: an argument by place or by name, and what is looked up in it.
    fn value(&self, given: &[JinjaValue], named: &Kwargs, next: &mut usize) -> Result<JinjaValue> {
        let end = self.name.find(['.', '[']).unwrap_or(self.name.len());
        let (first, mut path) = self.name.split_at(end);
        let missing = || refuse(format!("the format has no argument {first:?}"));
        let place = match first.parse::<usize>() {
            Ok(place) => Some(place),
            Err(_) if first.is_empty() => {
                *next += 1;
                Some(*next - 1)
            }
            Err(_) => None,
        };
        let mut value = match place {
            Some(place) => given.get(place).cloned().ok_or_else(missing)?,
            None if named.has(first) => named.get(first)?,
            None => return Err(missing()),
        };
        while !path.is_empty() {
            let key: &str;
            if let Some(rest) = path.strip_prefix('[') {
                (key, path) = rest.split_once(']').ok_or_else(missing)?;
                value = match key.parse::<usize>() {
                    Ok(index) => value.get_item(&index.into())?,
                    Err(_) => value.get_item(&key.into())?,
                };
            } else {
                let rest = path.strip_prefix('.').ok_or_else(missing)?;
                (key, path) = rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len()));
                value = value.get_attr(key)?;
            }
        }
        Ok(value)
    }

    fn write(&self, state: &mut State, value: JinjaValue, args: &[JinjaValue]) -> Result<String> {
        let value: JinjaValue = match self.conversion {
            None => value,
            Some("s") => str(&value).into(),
            Some("r") => repr(&value).into(),
            Some("a") => ascii(&value).into(),
            Some(other) => return Err(refuse(format!("there is no conversion {other:?}"))),
        };
        // A width may be an argument too.
        let spec = match self.spec.contains('{') {
            true => str(&format(state, self.spec, args)?),
            false => self.spec.to_owned(),
        };
        if let Some(spec) = spec.strip_suffix('%') {
            return percentage(state, spec, &value);
        }
        // None, lists and dicts take no format but the empty one.
        match value.kind() {
            _ if spec.is_empty() => Ok(str(&value)),
            ValueKind::String | ValueKind::Number | ValueKind::Bool => by(state, &spec, value),
            kind => Err(refuse(format!("{kind} cannot be written by {spec:?}"))),
        }
    }
}

/// A value by its format.
fn by(state: &mut State, spec: &str, value: JinjaValue) -> Result<String> {
    let text = JinjaValue::from(format!("{{:{spec}}}"));
    let callback = minijinja_contrib::pycompat::unknown_method_callback;
    Ok(str(&callback(state, &text, "format", &[value])?))
}

/// `{:>8.1%}`: a hundred times the number, and the sign.
fn percentage(state: &mut State, spec: &str, value: &JinjaValue) -> Result<String> {
    let number = f64::try_from(value.clone())
        .map_err(|_| -> Error { refuse("a percentage is that of a number") })?;
    // Fill, alignment, sign and width, then the digits.
    let (before, digits) = match spec.find('.') {
        Some(at) => spec.split_at(at),
        None => (spec, ""),
    };
    let sign: String = before.chars().filter(|c| *c == '+' || *c == ' ').take(1).collect();
    let text = by(state, &format!("{sign}{digits}f"), (number * 100.0).into())? + "%";
    let before = before.replace(['+', '-'], "");
    match before.is_empty() {
        true => Ok(text),
        false if before.contains(['<', '>', '^']) => by(state, &before, text.into()),
        false => by(state, &format!(">{before}"), text.into()),
    }
}
