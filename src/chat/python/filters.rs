//! jinja2's filters, tests and functions, where minijinja has none or others.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex};

use minijinja::value::{
    Kwargs, Object, ObjectRepr, Rest, Value as JinjaValue, ValueKind, from_args,
};
use minijinja::{Environment, Error, ErrorKind, State};
use regex::Regex;

use super::lists::iterated;
use super::{Call, Result, gather, order, percent, refuse, repr, str, strings};

/// Filters and globals that minijinja has and jinja2 has not.
const NOT_JINJA2: [&str; 5] = ["split", "lines", "zip", "chain", "bool"];

/// The filter that a loop's items go through in templates: Python refuses to iterate over none.
pub(in crate::chat) const EACH: &str = "__each__";

/// Puts jinja2's own in place.
pub(in crate::chat) fn add_to(environment: &mut Environment<'static>) {
    for name in NOT_JINJA2 {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    environment
        .add_filter(percent::FILTER, |left: &JinjaValue, right: &JinjaValue| percent(left, right));
    environment.add_filter(
        "format",
        |text: &JinjaValue, given: Rest<JinjaValue>, named: Kwargs| {
            percent::filter(text, given, named)
        },
    );
    environment.add_filter("string", |value: &JinjaValue| str(value));
    environment.add_filter("pprint", |value: &JinjaValue| repr(value));
    environment.add_filter("wordcount", |value: &JinjaValue| {
        str(value)
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .filter(|w| !w.is_empty())
            .count()
    });
    environment.add_filter("striptags", |value: &JinjaValue| strip_tags(&str(value)));
    environment.add_filter("random", |value: &JinjaValue| -> Result<JinjaValue> {
        let items: Vec<JinjaValue> = value.try_iter()?.collect();
        let at = RandomState::new().hash_one(0) as usize % items.len().max(1);
        Ok(items.get(at).cloned().unwrap_or(JinjaValue::UNDEFINED))
    });
    for name in ["e", "escape", "forceescape"] {
        environment.add_filter(name, |value: &JinjaValue| match value.is_safe() {
            true => value.clone(),
            false => JinjaValue::from_safe_string(escaped(&str(value))),
        });
    }
    // These refuse none, which minijinja takes as an empty list.
    environment.add_filter("list", |value: &JinjaValue| -> Result<JinjaValue> {
        Ok(iterated(value)?.into_iter().collect())
    });
    environment.add_filter(EACH, |value: &JinjaValue| match value.kind() {
        ValueKind::None => Err(refuse("none is not iterable")),
        // Of the letters of a text a loop knows how many there are.
        ValueKind::String => Ok(iterated(value)?.into_iter().collect()),
        _ => Ok(value.clone()),
    });
    environment.add_filter(
        order::COMPARE,
        |left: &JinjaValue, operator: &str, right: &JinjaValue| {
            order::compare(left, operator, right)
        },
    );
    environment.add_filter(gather::GATHER, gather::gather);
    // An item of a dict is no attribute of it.
    environment.add_filter("attr", |value: &JinjaValue, name: &str| match value.kind() {
        ValueKind::Map if value.as_object().is_none_or(|map| map.enumerator_len().is_some()) => {
            Ok(JinjaValue::UNDEFINED)
        }
        _ => value.get_attr(name),
    });
    type Filter = fn(&JinjaValue, &Call) -> Result<JinjaValue>;
    let with_arguments: [(&'static str, &'static [&'static str], Filter); 15] = [
        ("center", &["width"], |value, call| {
            let width = call.int(0)?.unwrap_or(80);
            Ok(strings::centered(&str(value), Some(width), " ").into())
        }),
        ("default", &["default_value", "boolean"], default),
        ("d", &["default_value", "boolean"], default),
        ("float", &["default"], |value, call| {
            let default = call.0[0].clone().unwrap_or_else(|| 0.0.into());
            Ok(float_of(value).map_or(default, JinjaValue::from))
        }),
        ("int", &["default", "base"], int),
        ("indent", &["width", "first", "blank"], indent),
        ("truncate", &["length", "killwords", "end", "leeway"], truncate),
        ("wordwrap", &["width", "break_long_words", "wrapstring", "break_on_hyphens"], word_wrap),
        ("filesizeformat", &["binary"], file_size),
        ("xmlattr", &["autospace"], xml_attributes),
        ("urlencode", &[], |value, _| url_encode(value).map(JinjaValue::from)),
        ("dictsort", &["case_sensitive", "by", "reverse"], order::dict_sort),
        ("sort", &["reverse", "case_sensitive", "attribute"], order::sort),
        ("groupby", &["attribute", "default", "case_sensitive"], order::group_by),
        ("join", &["d", "attribute"], join),
    ];
    for (name, names, filter) in with_arguments {
        environment.add_filter(
            name,
            move |value: &JinjaValue, given: Rest<JinjaValue>, named: Kwargs| {
                filter(value, &Call::with(&given, &named, names)?)
            },
        );
    }
    environment.add_test("sequence", |value: &JinjaValue| {
        let countable = value.len().is_some() && value.kind() != ValueKind::Plain;
        countable || matches!(value.kind(), ValueKind::String | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: &JinjaValue| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
    });
    environment.add_test("callable", |value: &JinjaValue| {
        // Functions and macros are objects without a shape of their own.
        value.kind() == ValueKind::Plain && value.as_object().is_some()
    });
    environment.add_global("dict", JinjaValue::from_object(Dict));
    environment.add_function("cycler", |items: Rest<JinjaValue>| -> Result<JinjaValue> {
        match items.is_empty() {
            true => Err(refuse("at least one item has to be provided")),
            false => Ok(JinjaValue::from_object(Cycler { items: items.0, at: Mutex::new(0) })),
        }
    });
    environment.add_function("joiner", |separator: Option<String>| {
        let separator = separator.unwrap_or_else(|| ", ".into());
        JinjaValue::from_object(Joiner { separator, used: Mutex::new(false) })
    });
}

fn join(value: &JinjaValue, call: &Call) -> Result<JinjaValue> {
    let between = call.0[0].as_ref().map(str).unwrap_or_default();
    let items = iterated(value)?.into_iter().map(|item| match call.get(1) {
        Some(path) => order::attribute(&item, path).map(|value| str(&value)),
        None => Ok(str(&item)),
    });
    Ok(items.collect::<Result<Vec<_>>>()?.join(&between).into())
}

fn default(value: &JinjaValue, call: &Call) -> Result<JinjaValue> {
    let falls = value.is_undefined() || (call.holds(1, false) && !value.is_true());
    let default = call.0[0].clone().unwrap_or_else(|| "".into());
    Ok(if falls { default } else { value.clone() })
}

/// A number that Python's `float` reads.
fn float_of(value: &JinjaValue) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => without_underscores(value.as_str()?)?.parse().ok(),
        _ => None,
    }
}

/// The text without white space around it and without single underscores between digits.
fn without_underscores(text: &str) -> Option<String> {
    let text = text.trim();
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphanumeric);
    let between = |(at, _): (usize, &str)| at > 0 && digit(at - 1) && digit(at + 1);
    text.match_indices('_').all(between).then(|| text.replace('_', ""))
}

fn int(value: &JinjaValue, call: &Call) -> Result<JinjaValue> {
    let base = call.int(1)?.unwrap_or(10);
    let read = || -> Option<JinjaValue> {
        let text = without_underscores(value.as_str()?)?;
        let (sign, digits) = match text.strip_prefix(['-', '+']) {
            Some(digits) => (if text.starts_with('-') { -1 } else { 1 }, digits),
            None => (1, text.as_str()),
        };
        let lower = digits.to_ascii_lowercase();
        let (radix, digits) = [("0x", 16), ("0o", 8), ("0b", 2)]
            .into_iter()
            .find_map(|(prefix, radix)| {
                let rest = lower.strip_prefix(prefix).filter(|_| base == radix || base == 0)?;
                Some((u32::try_from(radix).ok()?, rest.to_owned()))
            })
            .or_else(|| {
                Some((u32::try_from(if base == 0 { 10 } else { base }).ok()?, lower.clone()))
            })?;
        if !(2..=36).contains(&radix) || digits.starts_with(['-', '+']) {
            return None;
        }
        i128::from_str_radix(&digits, radix).ok().map(|number| (sign * number).into())
    };
    let whole = || {
        let float = float_of(value).filter(|float| float.is_finite())?;
        Some((float.trunc() as i128).into())
    };
    let found = if value.is_integer() { Some(value.clone()) } else { read().or_else(whole) };
    Ok(found.unwrap_or_else(|| call.0[0].clone().unwrap_or_else(|| 0.into())))
}

fn indent(value: &JinjaValue, call: &Call) -> Result<JinjaValue> {
    let by = match call.get(0) {
        Some(width) if width.as_str().is_some() => str(width),
        Some(width) => " ".repeat(usize::try_from(width.clone())?),
        None => " ".repeat(4),
    };
    let (first, blank) = (call.holds(1, false), call.holds(2, false));
    let text = format!("{}\n", str(value));
    let mut lines: Vec<&str> = text.split('\n').map(|line| line.trim_end_matches('\r')).collect();
    lines.pop();
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if (at == 0 && first) || (at > 0 && (blank || !line.is_empty())) {
            out.push_str(&by);
        }
        out.push_str(line);
    }
    Ok(out.into())
}

fn truncate(value: &JinjaValue, call: &Call) -> Result<JinjaValue> {
    let text = str(value);
    let end = call.text(2)?.unwrap_or("...");
    let count = |n: Option<i64>, default: i64| usize::try_from(n.unwrap_or(default)).unwrap_or(0);
    let (length, leeway) = (count(call.int(0)?, 255), count(call.int(3)?, 5));
    if length < end.chars().count() {
        return Err(refuse("the length is shorter than the end"));
    }
    if text.chars().count() <= length + leeway {
        return Ok(text.into());
    }
    let cut: String = text.chars().take(length - end.chars().count()).collect();
    let kept = match call.holds(1, false) {
        true => cut.as_str(),
        false => cut.rsplit_once(' ').map_or(cut.as_str(), |(kept, _)| kept),
    };
    Ok(format!("{kept}{end}").into())
}

/// As Python's `textwrap` wraps each line: at white space, after hyphens, and inside long words.
fn word_wrap(value: &JinjaValue, call: &Call) -> Result<JinjaValue> {
    let width = usize::try_from(call.int(0)?.unwrap_or(79)).unwrap_or(1).max(1);
    let break_long = call.holds(1, true);
    let hyphens = call.holds(3, true);
    let end = call.text(2)?.unwrap_or("\n");
    let text = str(value);
    let mut lines = Vec::new();
    for line in text.lines() {
        let before = lines.len();
        let mut current = String::new();
        let mut chunks: std::collections::VecDeque<String> = chunks(line, hyphens).into();
        while let Some(chunk) = chunks.pop_front() {
            if current.is_empty() && lines.len() > before && chunk.trim().is_empty() {
                continue; // white space at the beginning of a wrapped line
            }
            let (have, more) = (current.chars().count(), chunk.chars().count());
            if have + more <= width {
                current.push_str(&chunk);
            } else if more > width && break_long && have < width {
                let at = chunk.char_indices().nth(width - have).map_or(chunk.len(), |(at, _)| at);
                current.push_str(&chunk[..at]);
                chunks.push_front(chunk[at..].to_owned());
                lines.push(std::mem::take(&mut current).trim_end().to_owned());
            } else if have == 0 {
                lines.push(chunk);
            } else {
                chunks.push_front(chunk);
                lines.push(std::mem::take(&mut current).trim_end().to_owned());
            }
        }
        if !current.trim().is_empty() || lines.len() == before {
            lines.push(current.trim_end().to_owned());
        }
    }
    Ok(lines.join(end).into())
}

/// Words, the white space between them, and the parts of words with hyphens.
fn chunks(line: &str, hyphens: bool) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut previous = '\0';
    for c in line.chars() {
        let apart = c.is_whitespace() != previous.is_whitespace()
            || (hyphens && previous == '-' && c.is_alphabetic());
        match out.last_mut() {
            Some(chunk) if !apart => chunk.push(c),
            _ => out.push(c.to_string()),
        }
        previous = c;
    }
    out
}

fn strip_tags(text: &str) -> String {
    static TAG: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"(?s)<!--.*?-->|<.*?>").ok());
    let bare = TAG.as_ref().map_or_else(|| text.into(), |tag| tag.replace_all(text, ""));
    let joined = bare.split_whitespace().collect::<Vec<_>>().join(" ");
    let names = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    names.iter().fold(joined, |text, (name, c)| text.replace(name, c))
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn xml_attributes(value: &JinjaValue, call: &Call) -> Result<JinjaValue> {
    let mut items = Vec::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        let name = str(&key);
        if item.is_none() || item.is_undefined() {
            continue;
        }
        if name.contains([' ', '/', '>', '=', '\t', '\n', '\x0c', '\r']) {
            return Err(refuse("invalid character in attribute name"));
        }
        items.push(format!("{}=\"{}\"", escaped(&name), escaped(&str(&item))));
    }
    let space = if call.holds(0, true) && !items.is_empty() { " " } else { "" };
    Ok(JinjaValue::from_safe_string(format!("{space}{}", items.join(" "))))
}

fn file_size(value: &JinjaValue, call: &Call) -> Result<JinjaValue> {
    let bytes = float_of(value).ok_or_else(|| refuse("a number of bytes is wanted"))?;
    let binary = call.holds(0, false);
    let (base, units) = match binary {
        true => (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]),
        false => (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]),
    };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc()).into());
    }
    let mut unit = base;
    for (at, name) in units.iter().enumerate() {
        unit *= base;
        if bytes < unit || at + 1 == units.len() {
            return Ok(format!("{:.1} {name}", base * bytes / unit).into());
        }
    }
    Ok(JinjaValue::from(()))
}

/// As `urllib.parse.quote`; pairs as a query, where a space is a plus.
fn url_encode(value: &JinjaValue) -> Result<String> {
    let quote = |value: &JinjaValue, slash: bool| -> String {
        let keep = |byte: u8| {
            byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte) || (slash && byte == b'/')
        };
        let text = str(value);
        text.bytes()
            .map(
                |byte| {
                    if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
                },
            )
            .collect()
    };
    let pair = |key: &JinjaValue, item: &JinjaValue| {
        let [key, item] = [key, item].map(|part| quote(part, false).replace("%20", "+"));
        format!("{key}={item}")
    };
    let mut pairs = Vec::new();
    match value.kind() {
        ValueKind::Map => {
            for key in value.try_iter()? {
                pairs.push(pair(&key, &value.get_item(&key)?));
            }
        }
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                let parts: Vec<JinjaValue> = item.try_iter()?.collect();
                let [key, item] = &parts[..] else { return Err(refuse("pairs are wanted")) };
                pairs.push(pair(key, item));
            }
        }
        _ => return Ok(quote(value, true)),
    }
    Ok(pairs.join("&"))
}

/// `dict(…)`: of a mapping or of pairs, and of what is named.
#[derive(Debug)]
struct Dict;

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &mut State, args: &[JinjaValue]) -> Result<JinjaValue> {
        let (from, named): (Option<JinjaValue>, Kwargs) = from_args(args)?;
        let mut entries = Vec::new();
        match from {
            Some(map) if map.kind() == ValueKind::Map => {
                for key in map.try_iter()? {
                    entries.push((key.clone(), map.get_item(&key)?));
                }
            }
            Some(pairs) => {
                for pair in iterated(&pairs)? {
                    let parts = iterated(&pair)?;
                    let [key, item] = &parts[..] else { return Err(refuse("pairs are wanted")) };
                    entries.push((key.clone(), item.clone()));
                }
            }
            None => {}
        }
        for name in named.args() {
            entries.push((name.into(), named.get(name)?));
        }
        Ok(map_of(entries))
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State,
        method: &str,
        args: &[JinjaValue],
    ) -> Result<JinjaValue> {
        if method != "fromkeys" {
            return Err(Error::from(ErrorKind::UnknownMethod));
        }
        let (keys, item): (JinjaValue, Option<JinjaValue>) = from_args(args)?;
        let item = item.unwrap_or_default();
        let item = if item.is_undefined() { ().into() } else { item };
        let entries = iterated(&keys)?.into_iter().map(|key| (key, item.clone()));
        Ok(map_of(entries))
    }
}

fn map_of(entries: impl IntoIterator<Item = (JinjaValue, JinjaValue)>) -> JinjaValue {
    JinjaValue::from_object(entries.into_iter().collect::<indexmap::IndexMap<_, _>>())
}

/// `cycler('a', 'b')`: each in turn.
#[derive(Debug)]
struct Cycler {
    items: Vec<JinjaValue>,
    at: Mutex<usize>,
}

impl Cycler {
    fn place(&self) -> std::sync::MutexGuard<'_, usize> {
        self.at.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &JinjaValue) -> Option<JinjaValue> {
        (key.as_str() == Some("current")).then(|| self.items[*self.place()].clone())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State,
        method: &str,
        _args: &[JinjaValue],
    ) -> Result<JinjaValue> {
        let mut at = self.place();
        match method {
            "next" => {
                let item = self.items[*at].clone();
                *at = (*at + 1) % self.items.len();
                Ok(item)
            }
            "reset" => {
                *at = 0;
                Ok(JinjaValue::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// `joiner(', ')`: nothing the first time, the separator after.
#[derive(Debug)]
struct Joiner {
    separator: String,
    used: Mutex<bool>,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &mut State, _args: &[JinjaValue]) -> Result<JinjaValue> {
        let mut used = self.used.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(if std::mem::replace(&mut used, true) {
            self.separator.as_str().into()
        } else {
            "".into()
        })
    }
}
