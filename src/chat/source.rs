//! A template's text as minijinja is given it, so that it means there what it means to jinja2.
//!
//! Line ends of any kind are one newline; the line end after `{% raw %}` stays; `{% generation %}`
//! (which marks the model's own words for training) says nothing; and `%`, which minijinja has for
//! numbers only, becomes a filter.

use std::borrow::Cow;
use std::ops::Range;

use regex::{Captures, Regex};

use super::python::PERCENT;

/// The text, with what minijinja would read otherwise put in its words.
pub(super) fn for_minijinja(source: &str) -> String {
    let lines = source.replace("\r\n", "\n").replace('\r', "\n");
    let text =
        replaced(r"\{%[-+]?\s*raw\s*%\}\n", lines.into(), |found| format!("{}\n", &found[0]));
    let text = replaced(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}", text, |found| {
        let block = if found.get(2).is_some() { "endif" } else { "if true" };
        format!("{{%{} {block} {}%}}", &found[1], &found[3])
    });
    with_percent_filter(&text)
}

fn replaced<'t>(
    pattern: &str,
    text: Cow<'t, str>,
    by: impl Fn(&Captures) -> String,
) -> Cow<'t, str> {
    match Regex::new(pattern) {
        Ok(pattern) => Cow::Owned(pattern.replace_all(&text, by).into_owned()),
        Err(_) => text,
    }
}

/// What a token of an expression is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Text,
    Number,
    Name,
    Open,
    Close,
    Operator,
}

#[derive(Clone, Debug)]
struct Token {
    kind: Kind,
    range: Range<usize>,
}

fn with_percent_filter(text: &str) -> String {
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    let mut at = 0;
    while let Some(found) = text[at..].find('{') {
        let begin = at + found;
        let rest = &text[begin..];
        at = begin + 1;
        if rest.starts_with("{#") {
            at = rest.find("#}").map_or(text.len(), |end| begin + end + 2);
        } else if rest.starts_with("{{") || rest.starts_with("{%") {
            let (tokens, end) = tokens(text, begin + 2);
            at = end;
            if tokens.first().is_some_and(|first| &text[first.range.clone()] == "raw") {
                at = text[end..].find("endraw").map_or(text.len(), |raw| end + raw);
            } else {
                edits.extend(operators(text, &tokens));
            }
        }
    }
    edits.sort_by_key(|(range, _)| (range.start, range.end));
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for (range, by) in edits {
        out.push_str(&text[from..range.start]);
        out.push_str(&by);
        from = range.end;
    }
    out.push_str(&text[from..]);
    out
}

/// The tokens from here to the end of the expression or statement, and where it ends.
fn tokens(text: &str, begin: usize) -> (Vec<Token>, usize) {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut depth = 0_usize;
    let mut at = begin;
    while let Some(&byte) = bytes.get(at) {
        let rest = &text[at..];
        if depth == 0 && (rest.starts_with("}}") || rest.starts_with("%}")) {
            return (found, at + 2);
        }
        let length = |holds: fn(char) -> bool| rest.find(|c| !holds(c)).unwrap_or(rest.len());
        let (kind, length) = match byte {
            b'\'' | b'"' => (Kind::Text, quoted(rest)),
            b'0'..=b'9' => (Kind::Number, length(|c| c.is_alphanumeric() || c == '_' || c == '.')),
            b'(' | b'[' | b'{' => (Kind::Open, 1),
            b')' | b']' | b'}' => (Kind::Close, 1),
            _ if rest.starts_with("**") || rest.starts_with("//") => (Kind::Operator, 2),
            _ if rest.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                (Kind::Name, length(|c| c.is_alphanumeric() || c == '_'))
            }
            _ if rest.starts_with(char::is_whitespace) => {
                at += length(char::is_whitespace);
                continue;
            }
            _ => (Kind::Operator, rest.chars().next().map_or(1, char::len_utf8)),
        };
        match kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        found.push(Token { kind, range: at..at + length });
        at += length;
    }
    (found, text.len())
}

/// The length of a quoted text.
fn quoted(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            byte if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The edits that make a filter of each `%` between two operands. Those that stand with other
/// operators of the same rank (`a * b % c`) are numbers', and stay.
fn operators(text: &str, tokens: &[Token]) -> Vec<(Range<usize>, String)> {
    let is = |at: usize, what: &str| tokens.get(at).is_some_and(|t| &text[t.range.clone()] == what);
    let mut edits = Vec::new();
    for at in (0..tokens.len()).filter(|&at| is(at, "%")) {
        let Some(left) = begin_of_operand(text, tokens, at) else { continue };
        let ranked = ["*", "/", "//", "%", "**"];
        if left > 0 && ranked.iter().any(|operator| is(left - 1, operator)) {
            continue;
        }
        let Some(right) = end_of_operand(text, tokens, at + 1) else { continue };
        if is(right, "**") || is(right, "is") {
            continue;
        }
        let number = right == at + 2 && tokens[at + 1].kind == Kind::Number;
        if number && tokens[at - 1].kind != Kind::Text {
            continue;
        }
        let end = tokens[right - 1].range.end;
        edits.push((tokens[at].range.clone(), format!("|{PERCENT}(")));
        edits.push((end..end, ")".to_owned()));
    }
    edits
}

/// The first token of the operand that ends before `end`: a value with what is called, looked up and
/// filtered of it.
fn begin_of_operand(text: &str, tokens: &[Token], end: usize) -> Option<usize> {
    let mut at = end.checked_sub(1)?;
    loop {
        let before = at.checked_sub(1);
        let kind_before = before.map(|before| tokens[before].kind);
        match tokens[at].kind {
            Kind::Close => {
                at = matching(tokens, at)?;
                let before = at.checked_sub(1);
                let operand = before.is_some_and(|before| ends_operand(text, &tokens[before]));
                let group = &text[tokens[at].range.clone()] == "{";
                if group || !operand {
                    return Some(at);
                }
                at -= 1;
            }
            Kind::Text if kind_before == Some(Kind::Text) => at -= 1,
            Kind::Name | Kind::Text | Kind::Number => {
                let joins = |token: &Token| [".", "|"].contains(&&text[token.range.clone()]);
                match before.filter(|&before| before > 0 && joins(&tokens[before])) {
                    Some(before) => at = before - 1,
                    None => return Some(at),
                }
            }
            Kind::Open | Kind::Operator => return None,
        }
    }
}

/// The token after the operand that begins at `begin`.
fn end_of_operand(text: &str, tokens: &[Token], begin: usize) -> Option<usize> {
    let is = |at: usize, what: &str| tokens.get(at).is_some_and(|t| &text[t.range.clone()] == what);
    let mut at = begin;
    while is(at, "-") || is(at, "+") {
        at += 1;
    }
    at = match tokens.get(at)?.kind {
        Kind::Open => closing(tokens, at)? + 1,
        Kind::Text => {
            let texts = tokens[at..].iter().take_while(|token| token.kind == Kind::Text);
            at + texts.count()
        }
        Kind::Number | Kind::Name => at + 1,
        _ => return None,
    };
    loop {
        if is(at, ".") || is(at, "|") {
            at += 2;
        } else if is(at, "(") || is(at, "[") {
            at = closing(tokens, at)? + 1;
        } else {
            return (at <= tokens.len()).then_some(at);
        }
    }
}

/// Whether what follows in brackets is a call or a look-up.
fn ends_operand(text: &str, token: &Token) -> bool {
    const KEYWORDS: [&str; 7] = ["in", "is", "not", "and", "or", "if", "else"];
    match token.kind {
        Kind::Name => !KEYWORDS.contains(&&text[token.range.clone()]),
        Kind::Close | Kind::Text => true,
        _ => false,
    }
}

/// The opening bracket of a closing one.
fn matching(tokens: &[Token], close: usize) -> Option<usize> {
    let mut depth = 0_usize;
    (0..=close).rev().find(|&at| {
        match tokens[at].kind {
            Kind::Close => depth += 1,
            Kind::Open => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}

/// The closing bracket of an opening one.
fn closing(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    (open..tokens.len()).find(|&at| {
        match tokens[at].kind {
            Kind::Open => depth += 1,
            Kind::Close => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_becomes_a_filter_where_it_may_format() {
        for (given, expected) in [
            ("{{ 'a%s' % x }}", "{{ 'a%s' |P( x) }}"),
            ("{{ 'a%s' % (x, y)|z ~ 1 }}", "{{ 'a%s' |P( (x, y)|z) ~ 1 }}"),
            ("{{ f.g('%')[0]|t % -x.y }}", "{{ f.g('%')[0]|t |P( -x.y) }}"),
            ("{% if loop.index0 % 2 == 0 %}", "{% if loop.index0 % 2 == 0 %}"),
            ("{{ a * b % c }}", "{{ a * b % c }}"),
            ("{{ a % b % c }}", "{{ a |P( b) % c }}"),
            ("{% if (x % y) != 0 %}%d % x{% endif %}", "{% if (x |P( y)) != 0 %}%d % x{% endif %}"),
            (
                "{# 'a' % b #}{% raw %}{{ 'a' % b }}{% endraw %}{{ 'c' % d }}",
                "{# 'a' % b #}{% raw %}{{ 'a' % b }}{% endraw %}{{ 'c' |P( d) }}",
            ),
            ("{{ {'a': '%s' % b}['a'] }} 5 % 3", "{{ {'a': '%s' |P( b)}['a'] }} 5 % 3"),
            ("{{ 'a' % ", "{{ 'a' % "),
            ("{{ ) % ( }} {{ % }}", "{{ ) % ( }} {{ % }}"),
        ] {
            assert_eq!(for_minijinja(given), expected.replace("|P(", &format!("|{PERCENT}(")));
        }
    }
}
