//! Methods of Python's strings that minijinja-contrib lacks, or has with fewer arguments.

use std::sync::LazyLock;

use minijinja::value::{Tuple, Value as JinjaValue};
use regex::Regex;

use super::{Call, Result, is_printable, is_space, refuse};

/// `None` for methods that are not here.
pub(super) fn method(text: &str, method: &str, args: &[JinjaValue]) -> Option<Result<JinjaValue>> {
    Some(match method {
        "find" | "index" | "rfind" | "rindex" => find(text, method, args),
        "count" => count(text, args),
        "startswith" | "endswith" => begins(text, method == "startswith", args),
        "removeprefix" | "removesuffix" => Call::of(args, &["part"]).and_then(|call| {
            let part = call.needed_text(0)?;
            let cut = match method {
                "removeprefix" => text.strip_prefix(part),
                _ => text.strip_suffix(part),
            };
            Ok(cut.unwrap_or(text).into())
        }),
        "partition" | "rpartition" => partition(text, method == "partition", args),
        "split" => split(text, args, false),
        "rsplit" => split(text, args, true),
        "splitlines" => Call::of(args, &["keepends"]).map(|call| lines(text, call.holds(0, false))),
        "strip" | "lstrip" | "rstrip" => strip(text, method, args),
        "zfill" => Call::of(args, &["width"]).and_then(|call| {
            let sign = text.len()
                - text.trim_start_matches(['+', '-']).len().max(text.len().saturating_sub(1));
            let missing = missing(text, call.int(0)?);
            Ok(format!("{}{}{}", &text[..sign], "0".repeat(missing), &text[sign..]).into())
        }),
        "center" | "ljust" | "rjust" => pad(text, method, args),
        "expandtabs" => Call::of(args, &["tabsize"])
            .and_then(|call| Ok(expand_tabs(text, call.int(0)?.unwrap_or(8)).into())),
        "join" => join(text, args),
        _ => return plain(text, method).map(|value| Call::of(args, &[]).map(|_| value)),
    })
}

/// Methods without arguments.
fn plain(text: &str, method: &str) -> Option<JinjaValue> {
    let all = |holds: fn(char) -> bool| !text.is_empty() && text.chars().all(holds);
    Some(match method {
        "swapcase" => text
            .chars()
            .flat_map(|c| -> Vec<char> {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            })
            .collect::<String>()
            .into(),
        "casefold" => text.to_lowercase().replace('ß', "ss").replace('ς', "σ").into(),
        "title" => title(text).into(),
        "istitle" => {
            let letters = text.chars().any(|c| c.is_uppercase() || c.is_lowercase());
            (letters && title(text) == text).into()
        }
        "isspace" => all(is_space).into(),
        "isdecimal" => all(is_decimal).into(),
        "isdigit" => all(|c| is_decimal(c) || is_digit(c)).into(),
        "isprintable" => text.chars().all(is_printable).into(),
        "isidentifier" => is_identifier(text).into(),
        _ => return None,
    })
}

/// Every letter after what is no letter is a capital one, and all others are small.
fn title(text: &str) -> String {
    let mut inside = false;
    let mut out = String::new();
    for c in text.chars() {
        let letter = c.is_alphabetic();
        match (letter, inside) {
            (true, true) => out.extend(c.to_lowercase()),
            (true, false) => out.extend(c.to_uppercase()),
            (false, _) => out.push(c),
        }
        inside = letter;
    }
    out
}

fn is_decimal(c: char) -> bool {
    static DECIMAL: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\p{Nd}").ok());
    let is = |decimal: &Regex| decimal.is_match(c.encode_utf8(&mut [0; 4]));
    c.is_ascii_digit() || (!c.is_ascii() && DECIMAL.as_ref().is_some_and(is))
}

/// Digits that are no decimal ones: raised, lowered and in circles.
fn is_digit(c: char) -> bool {
    matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉' | '①'..='⑨' | '⑴'..='⑼' | '⒈'..='⒐')
}

fn is_identifier(text: &str) -> bool {
    static NAME: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"^[\p{XID_Start}_]\p{XID_Continue}*$").ok());
    NAME.as_ref().is_some_and(|name| name.is_match(text))
}

/// Python's slice bounds within so many things.
pub(super) fn bounds(length: usize, start: Option<i64>, end: Option<i64>) -> (usize, usize) {
    let at = |index: i64| match usize::try_from(index) {
        Ok(index) => index.min(length),
        Err(_) => length.saturating_sub(usize::try_from(index.unsigned_abs()).unwrap_or(length)),
    };
    (start.map_or(0, at), end.map_or(length, at))
}

/// The part of a text between two of its characters, and the number of the first of them; `None`
/// where the end is before the start.
fn part<'t>(text: &'t str, call: &Call) -> Result<Option<(usize, &'t str)>> {
    let length = text.chars().count();
    let (start, end) = bounds(length, call.int(1)?, call.int(2)?);
    if start > end || call.int(1)?.is_some_and(|start| start > length as i64) {
        return Ok(None);
    }
    let offset = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
    Ok(Some((start, &text[offset(start)..offset(end)])))
}

const WITHIN: [&str; 3] = ["sub", "start", "end"];

fn find(text: &str, method: &str, args: &[JinjaValue]) -> Result<JinjaValue> {
    let call = Call::of(args, &WITHIN)?;
    let wanted = call.needed_text(0)?;
    let found = part(text, &call)?.and_then(|(start, part)| {
        let at = if method.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) }?;
        Some(start + part[..at].chars().count())
    });
    match found {
        Some(at) => Ok(at.into()),
        None if method.ends_with("find") => Ok((-1).into()),
        None => Err(refuse("substring not found")),
    }
}

fn count(text: &str, args: &[JinjaValue]) -> Result<JinjaValue> {
    let call = Call::of(args, &WITHIN)?;
    let wanted = call.needed_text(0)?;
    Ok(part(text, &call)?.map_or(0, |(_, part)| part.matches(wanted).count()).into())
}

fn begins(text: &str, at_start: bool, args: &[JinjaValue]) -> Result<JinjaValue> {
    let call = Call::of(args, &WITHIN)?;
    let Some((_, part)) = part(text, &call)? else { return Ok(false.into()) };
    let holds = |wanted: &JinjaValue| {
        let wanted =
            wanted.as_str().ok_or_else(|| refuse("a text or a tuple of texts is wanted"))?;
        Ok(if at_start { part.starts_with(wanted) } else { part.ends_with(wanted) })
    };
    let wanted = call.needed(0)?;
    if wanted.downcast_object_ref::<Tuple>().is_none() {
        return holds(wanted).map(JinjaValue::from);
    }
    for one in wanted.try_iter()? {
        if holds(&one)? {
            return Ok(true.into());
        }
    }
    Ok(false.into())
}

fn partition(text: &str, first: bool, args: &[JinjaValue]) -> Result<JinjaValue> {
    let call = Call::of(args, &["sep"])?;
    let separator = not_empty(call.needed_text(0)?)?;
    let found = if first { text.split_once(separator) } else { text.rsplit_once(separator) };
    Ok(match found {
        Some((before, after)) => (before, separator, after).into(),
        None if first => (text, "", "").into(),
        None => ("", "", text).into(),
    })
}

fn not_empty(separator: &str) -> Result<&str> {
    if separator.is_empty() { Err(refuse("empty separator")) } else { Ok(separator) }
}

fn split(text: &str, args: &[JinjaValue], from_end: bool) -> Result<JinjaValue> {
    let call = Call::of(args, &["sep", "maxsplit"])?;
    let most = call.int(1)?.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let most = most.saturating_add(1);
    let Some(separator) = call.text(0)? else { return Ok(words(text, most, from_end)) };
    let separator = not_empty(separator)?;
    let mut parts: Vec<&str> = match from_end {
        false => text.splitn(most, separator).collect(),
        true => text.rsplitn(most, separator).collect(),
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().collect())
}

/// Words between white space, at most so many; those that stay together keep the spaces between.
fn words(text: &str, most: usize, from_end: bool) -> JinjaValue {
    let mut parts = Vec::new();
    let trimmed = |text| match from_end {
        true => str::trim_end_matches(text, is_space),
        false => str::trim_start_matches(text, is_space),
    };
    let mut rest = trimmed(text);
    while !rest.is_empty() {
        if parts.len() + 1 >= most {
            parts.push(rest);
            break;
        }
        let cut = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut else {
            parts.push(rest);
            break;
        };
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        let (word, left) = match from_end {
            true => (&rest[at + width..], &rest[..at]),
            false => (&rest[..at], &rest[at..]),
        };
        parts.push(word);
        rest = trimmed(left);
    }
    if from_end {
        parts.reverse();
    }
    parts.into_iter().collect()
}

fn lines(text: &str, keep: bool) -> JinjaValue {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let after = &rest[at..];
        let length = if after.starts_with("\r\n") {
            2
        } else {
            after.chars().next().map_or(1, char::len_utf8)
        };
        parts.push(&rest[..if keep { at + length } else { at }]);
        rest = &rest[at + length..];
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts.into_iter().collect()
}

fn strip(text: &str, method: &str, args: &[JinjaValue]) -> Result<JinjaValue> {
    let call = Call::of(args, &["chars"])?;
    let chars = call.text(0)?;
    let drop = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    Ok(match method {
        "lstrip" => text.trim_start_matches(drop),
        "rstrip" => text.trim_end_matches(drop),
        _ => text.trim_matches(drop),
    }
    .into())
}

/// Characters that a text lacks to this width.
fn missing(text: &str, width: Option<i64>) -> usize {
    let width = width.and_then(|width| usize::try_from(width).ok()).unwrap_or(0);
    width.saturating_sub(text.chars().count())
}

fn pad(text: &str, method: &str, args: &[JinjaValue]) -> Result<JinjaValue> {
    let call = Call::of(args, &["width", "fillchar"])?;
    let fill = call.text(1)?.unwrap_or(" ");
    if fill.chars().count() != 1 {
        return Err(refuse("the fill character must be one character"));
    }
    call.needed(0)?;
    Ok(match method {
        "center" => centered(text, call.int(0)?, fill),
        "ljust" => format!("{text}{}", fill.repeat(missing(text, call.int(0)?))),
        _ => format!("{}{text}", fill.repeat(missing(text, call.int(0)?))),
    }
    .into())
}

/// In the middle, as Python has it: of an odd number of places the left gets one more where the
/// width is odd.
pub(super) fn centered(text: &str, width: Option<i64>, fill: &str) -> String {
    let missing = missing(text, width);
    let left = missing / 2 + (missing & usize::try_from(width.unwrap_or(0)).unwrap_or(0) & 1);
    format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left))
}

fn expand_tabs(text: &str, size: i64) -> String {
    let size = usize::try_from(size).unwrap_or(0);
    let mut column = 0;
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    out
}

fn join(separator: &str, args: &[JinjaValue]) -> Result<JinjaValue> {
    let call = Call::of(args, &["iterable"])?;
    let mut parts = Vec::new();
    for item in call.needed(0)?.try_iter()? {
        let part = item.as_str().ok_or_else(|| refuse("only texts can be joined"))?;
        parts.push(part.to_owned());
    }
    Ok(parts.join(separator).into())
}
