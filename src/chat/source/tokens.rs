//! The tokens of a template's expressions and statements.

use std::ops::Range;

/// What a token of an expression is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A quoted text.
    Text,
    /// A number.
    Number,
    /// A name or a keyword.
    Name,
    /// An opening bracket.
    Open,
    /// A closing bracket.
    Close,
    /// Anything else.
    Operator,
}

/// A token.
#[derive(Clone, Debug)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// Its bytes in the template.
    pub range: Range<usize>,
}

/// Operators of two characters.
const DOUBLE: [&str; 6] = ["**", "//", "==", "!=", "<=", ">="];

/// The tokens from here to the end of the expression or statement, without the signs that trim white
/// space, and where it ends.
pub fn tokens(text: &str, begin: usize) -> (Vec<Token>, usize) {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut depth = 0_usize;
    let sign = text[begin..].starts_with(['-', '+']);
    let mut at = begin + usize::from(sign);
    while let Some(&byte) = bytes.get(at) {
        let rest = &text[at..];
        let signed = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        if depth == 0 && (signed.starts_with("}}") || signed.starts_with("%}")) {
            return (found, at + rest.len() - signed.len() + 2);
        }
        let length = |holds: fn(char) -> bool| rest.find(|c| !holds(c)).unwrap_or(rest.len());
        let (kind, length) = match byte {
            b'\'' | b'"' => (Kind::Text, quoted(rest)),
            b'0'..=b'9' => (Kind::Number, length(|c| c.is_alphanumeric() || c == '_' || c == '.')),
            b'(' | b'[' | b'{' => (Kind::Open, 1),
            b')' | b']' | b'}' => (Kind::Close, 1),
            _ if DOUBLE.iter().any(|operator| rest.starts_with(operator)) => (Kind::Operator, 2),
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

/// The opening bracket of a closing one.
pub fn matching(tokens: &[Token], close: usize) -> Option<usize> {
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
pub fn closing(tokens: &[Token], open: usize) -> Option<usize> {
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
