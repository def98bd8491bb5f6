//! Operators and statements as minijinja has to be given them: the tokens of one in, edits of the
//! template's text out.

use std::ops::Range;

use super::tokens::{Kind, Token, closing, matching};
use crate::chat::python::{COMPARE, EACH, PERCENT};

/// What takes the place of a range of the text.
pub type Edit = (Range<usize>, String);

/// The edits that make a filter of each `%` between two operands. Those that stand with other
/// operators of the same rank (`a * b % c`) are numbers', and stay.
pub fn percents(text: &str, tokens: &[Token]) -> Vec<Edit> {
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

/// The edits that make a filter of each comparison by order, which Python refuses of values that have
/// none. Those in a chain (`a < b < c`), and those beside `in` and `is`, stay.
pub fn comparisons(text: &str, tokens: &[Token], is_statement: bool) -> Vec<Edit> {
    let word = |at: usize| &text[tokens[at].range.clone()];
    let mut edits = Vec::new();
    for at in (0..tokens.len()).filter(|&at| ["<", ">", "<=", ">="].contains(&word(at))) {
        if tokens[at].kind != Kind::Operator {
            continue;
        }
        let first = usize::from(is_statement);
        let (Some(begin), Some(end)) =
            (begin_of_side(text, tokens, at, first), end_of_side(text, tokens, at + 1))
        else {
            continue;
        };
        if begin == at || end == at + 1 {
            continue;
        }
        let (start, stop) = (tokens[begin].range.start, tokens[end - 1].range.end);
        edits.push((start..start, "(".to_owned()));
        edits.push((tokens[at].range.clone(), format!(")|{COMPARE}('{}',", word(at))));
        edits.push((stop..stop, ")".to_owned()));
    }
    edits
}

/// What a token is to a side of a comparison.
enum Edge {
    /// A part of it.
    Inside,
    /// The end of it.
    Ends,
    /// Another comparison in the same chain.
    Chains,
}

fn edge(text: &str, token: &Token) -> Edge {
    let word = &text[token.range.clone()];
    match token.kind {
        Kind::Operator if [",", "=", ":"].contains(&word) => Edge::Ends,
        Kind::Operator if ["<", ">", "<=", ">=", "==", "!="].contains(&word) => Edge::Chains,
        Kind::Name if ["and", "or", "if", "else"].contains(&word) => Edge::Ends,
        Kind::Name if ["in", "is", "recursive"].contains(&word) => Edge::Chains,
        _ => Edge::Inside,
    }
}

/// The first token of the left side of the comparison at `end`.
fn begin_of_side(text: &str, tokens: &[Token], end: usize, first: usize) -> Option<usize> {
    let mut begin = end;
    while begin > first {
        let at = begin - 1;
        let is_attribute = at > first && &text[tokens[at - 1].range.clone()] == ".";
        match (tokens[at].kind, edge(text, &tokens[at])) {
            (Kind::Open, _) => break,
            (Kind::Close, _) => begin = matching(tokens, at)?,
            (Kind::Name, _) if is_attribute => begin = at,
            (Kind::Name, _) if &text[tokens[at].range.clone()] == "not" => break,
            (_, Edge::Inside) => begin = at,
            (_, Edge::Ends) => break,
            (_, Edge::Chains) => return None,
        }
    }
    Some(begin)
}

/// The token after the right side that begins at `begin`.
fn end_of_side(text: &str, tokens: &[Token], begin: usize) -> Option<usize> {
    let mut at = begin;
    while let Some(token) = tokens.get(at) {
        let is_attribute = at > begin && &text[tokens[at - 1].range.clone()] == ".";
        match (token.kind, edge(text, token)) {
            (Kind::Close, _) => break,
            (Kind::Open, _) => at = closing(tokens, at)? + 1,
            (Kind::Name, _) if is_attribute => at += 1,
            (Kind::Name, _) if &text[token.range.clone()] == "not" => return None,
            (_, Edge::Inside) => at += 1,
            (_, Edge::Ends) => break,
            (_, Edge::Chains) => return None,
        }
    }
    Some(at)
}

/// The edits that put the characters that a text names by a letter, as Python's do, by their numbers.
pub fn escapes(text: &str, tokens: &[Token]) -> Vec<Edit> {
    let mut edits = Vec::new();
    for token in tokens.iter().filter(|token| token.kind == Kind::Text) {
        let mut letters = text[token.range.clone()].char_indices();
        while let Some((at, letter)) = letters.next() {
            if letter != '\\' {
                continue;
            }
            let named = letters.next().map(|(_, named)| named);
            let known = [('a', "\\x07"), ('v', "\\x0b")];
            if let Some((_, by)) = known.iter().find(|(name, _)| Some(*name) == named) {
                let start = token.range.start + at;
                edits.push((start..start + 2, (*by).to_owned()));
            }
        }
    }
    edits
}

/// The edits that make a loop refuse none, as Python does.
pub fn loops(text: &str, tokens: &[Token]) -> Vec<Edit> {
    let word = |at: usize| tokens.get(at).map(|token| &text[token.range.clone()]);
    if word(0) != Some("for") {
        return Vec::new();
    }
    let at_top = |words: &[&str], from: usize| {
        let mut at = from;
        while let Some(token) = tokens.get(at) {
            match token.kind {
                Kind::Open => at = closing(tokens, at)?,
                Kind::Name if words.contains(&&text[token.range.clone()]) => return Some(at),
                _ => {}
            }
            at += 1;
        }
        None
    };
    let Some(begin) = at_top(&["in"], 1).map(|at| at + 1) else { return Vec::new() };
    let end = at_top(&["if", "recursive"], begin).unwrap_or(tokens.len());
    if begin >= end {
        return Vec::new();
    }
    let (start, stop) = (tokens[begin].range.start, tokens[end - 1].range.end);
    vec![(start..start, "(".to_owned()), (stop..stop, format!(")|{EACH}"))]
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
