//! What templates expect of Python and of jinja2: methods, filters, and how values are written.
//!
//! A template's values enter and leave; where Python raises an exception, an error leaves.

mod braces;
mod filters;
mod gather;
mod json;
mod lists;
mod order;
mod percent;
mod strings;

use std::sync::LazyLock;

use minijinja::value::{Kwargs, Rest, Tuple, Value as JinjaValue, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use regex::Regex;

pub(super) use filters::{EACH, add_to};
pub(super) use gather::GATHER;
pub(super) use json::to_json;
pub(super) use order::COMPARE;
pub(super) use percent::{FILTER as PERCENT, percent};

type Result<T> = std::result::Result<T, Error>;

/// An error as Python would raise one.
fn refuse(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// The arguments of a call, by the names of its parameters, each by place or by name.
struct Call(Vec<Option<JinjaValue>>);

impl Call {
    fn of(args: &[JinjaValue], names: &[&str]) -> Result<Call> {
        let (given, named): (Rest<JinjaValue>, Kwargs) = from_args(args)?;
        Call::with(&given, &named, names)
    }

    fn with(given: &[JinjaValue], named: &Kwargs, names: &[&str]) -> Result<Call> {
        if given.len() > names.len() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        let mut found = Vec::with_capacity(names.len());
        for (at, name) in names.iter().enumerate() {
            found.push(match given.get(at) {
                Some(value) => Some(value.clone()),
                None if named.has(name) => Some(named.get::<JinjaValue>(name)?),
                None => None,
            });
        }
        named.assert_all_used()?;
        Ok(Call(found))
    }

    /// An argument that was given; `none` is as good as none.
    fn get(&self, at: usize) -> Option<&JinjaValue> {
        self.0[at].as_ref().filter(|value| !value.is_none())
    }

    fn text(&self, at: usize) -> Result<Option<&str>> {
        let Some(value) = self.get(at) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| refuse("a text is wanted"))
    }

    fn int(&self, at: usize) -> Result<Option<i64>> {
        self.get(at).map(|value| i64::try_from(value.clone())).transpose()
    }

    fn holds(&self, at: usize, default: bool) -> bool {
        self.0[at].as_ref().map_or(default, JinjaValue::is_true)
    }

    fn needed(&self, at: usize) -> Result<&JinjaValue> {
        self.0[at].as_ref().ok_or_else(|| Error::from(ErrorKind::MissingArgument))
    }

    fn needed_text(&self, at: usize) -> Result<&str> {
        self.text(at)?.ok_or_else(|| refuse("a text is wanted"))
    }
}

/// Methods of Python's types that templates call: those here, else those of minijinja-contrib.
pub(super) fn method(
    state: &mut State,
    value: &JinjaValue,
    method: &str,
    args: &[JinjaValue],
) -> Result<JinjaValue> {
    let own = match value.kind() {
        ValueKind::String if method == "format" => {
            Some(braces::format(state, value.as_str().unwrap_or_default(), args))
        }
        ValueKind::String => strings::method(value.as_str().unwrap_or_default(), method, args),
        ValueKind::Seq => lists::method(value, method, args),
        ValueKind::Map if method == "copy" => Some(Call::of(args, &[]).map(|_| value.clone())),
        _ => None,
    };
    match own {
        Some(result) => result,
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// A value as Python's `str` writes it.
pub(super) fn str(value: &JinjaValue) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        _ => repr(value),
    }
}

/// A value as Python's `repr` writes it.
fn repr(value: &JinjaValue) -> String {
    let joined = |items: Vec<String>| items.join(", ");
    let items = || -> Vec<String> {
        value.try_iter().map(|items| items.map(|item| repr(&item)).collect()).unwrap_or_default()
    };
    if let Some(group) = value.downcast_object_ref::<order::Group>() {
        return repr(&group.pair().into());
    }
    match value.kind() {
        ValueKind::Undefined => "Undefined".into(),
        ValueKind::String => repr_text(value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float_text)
        }
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_some() => {
            let items = items();
            let comma = if items.len() == 1 { "," } else { "" };
            format!("({}{comma})", joined(items))
        }
        ValueKind::Seq => format!("[{}]", joined(items())),
        // Those that are functions or loops say what they are.
        ValueKind::Map
            if value.as_object().is_none_or(|object| object.enumerator_len().is_some()) =>
        {
            let entries = value.try_iter().map(|keys| {
                let entry = |key: JinjaValue| {
                    let item = value.get_item(&key).unwrap_or_default();
                    format!("{}: {}", repr(&key), repr(&item))
                };
                keys.map(entry).collect()
            });
            format!("{{{}}}", joined(entries.unwrap_or_default()))
        }
        _ => value.to_string(),
    }
}

/// A value as Python's `ascii` writes it.
fn ascii(value: &JinjaValue) -> String {
    let mut out = String::new();
    for c in repr(value).chars() {
        if c.is_ascii() { out.push(c) } else { out.push_str(&escape(c)) }
    }
    out
}

/// A character by its number.
fn escape(c: char) -> String {
    match u32::from(c) {
        code @ 0..=0xff => format!("\\x{code:02x}"),
        code @ 0..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

fn repr_text(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => out.push_str(&escape(c)),
        }
    }
    out.push(quote);
    out
}

/// Whether Python calls the character printable.
fn is_printable(c: char) -> bool {
    static NOT: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[\p{C}\p{Z}]").ok());
    c == ' '
        || c.is_ascii_graphic()
        || NOT.as_ref().is_some_and(|not| !not.is_match(c.encode_utf8(&mut [0; 4])))
}

/// Whether Python calls the character white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// A float as Python's `repr` writes it: the shortest digits that read back the same, with an
/// exponent below 1e-4 and from 1e16 on.
fn float_text(float: f64) -> String {
    if float.is_nan() {
        return "nan".into();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf" } else { "-inf" }.into();
    }
    if float == 0.0 || (1e-4..1e16).contains(&float.abs()) {
        return format!("{float:?}");
    }
    with_exponent(&format!("{float:e}"))
}

/// Rust's `1.5e-7` as Python writes it: `1.5e-07`.
fn with_exponent(scientific: &str) -> String {
    match scientific.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => scientific.to_owned(),
    }
}
