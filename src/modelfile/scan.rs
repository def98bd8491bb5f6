//! Cutting a Modelfile into commands and values.

use std::ops::Range;

use super::Spanned;

/// A command as it stands in the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Raw {
    /// The first word of the line.
    pub command: String,
    /// Where it is.
    pub command_span: Range<usize>,
    /// The word before a quotation, for the commands that take two values.
    first: Option<Spanned>,
    /// The rest of the line, or what stands between the quotes.
    pub value: String,
    /// Where that is, quotes included.
    pub value_span: Range<usize>,
    /// Whether it was quoted.
    pub quoted: bool,
}

impl Raw {
    /// The value with its place.
    pub fn spanned(&self) -> Spanned {
        Spanned { value: self.value.clone(), span: self.value_span.clone() }
    }

    /// The two values of `PARAMETER` and `MESSAGE`.
    pub fn split(&self) -> Option<(Spanned, Spanned)> {
        Some((self.first.clone()?, self.spanned()))
    }
}

/// Commands whose first word is a value of its own.
const TWO_VALUES: [&str; 2] = ["PARAMETER", "MESSAGE"];

/// All commands of a text, and the place of a quotation that is never closed.
pub fn scan(text: &str) -> (Vec<Raw>, Option<Range<usize>>) {
    let mut raws = Vec::new();
    let mut at = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    while at < text.len() {
        let line = at..line_end(text, at);
        let next = (line.end + 1).min(text.len()).max(line.end);
        let words = trimmed(text, line.clone());
        if words.is_empty() || text[words.clone()].starts_with('#') {
            at = next;
            continue;
        }
        let command_span = word(text, words.clone());
        let command = text[command_span.clone()].to_string();
        let mut rest = trimmed(text, command_span.end..line.end);
        let mut first = None;
        if TWO_VALUES.iter().any(|name| name.eq_ignore_ascii_case(&command)) {
            let span = word(text, rest.clone());
            let after = trimmed(text, span.end..line.end);
            if !after.is_empty() {
                first = Some(Spanned { value: text[span.clone()].into(), span });
                rest = after;
            }
        }
        match quotation(text, rest.start) {
            Quotation::None => {
                let value = text[rest.clone()].to_string();
                let value_span = rest;
                raws.push(Raw { command, command_span, first, value, value_span, quoted: false });
                at = next;
            }
            Quotation::Closed { inside, end } => {
                let value = text[inside].replace("\r\n", "\n");
                let value_span = rest.start..end;
                raws.push(Raw { command, command_span, first, value, value_span, quoted: true });
                at = (line_end(text, end) + 1).min(text.len());
            }
            Quotation::Open { quotes } => return (raws, Some(rest.start..rest.start + quotes)),
        }
    }
    (raws, None)
}

enum Quotation {
    /// The value is not quoted.
    None,
    /// It is, and ends.
    Closed { inside: Range<usize>, end: usize },
    /// It is, and does not end.
    Open { quotes: usize },
}

/// The quotation that begins at `start`. It ends with the first quotes of its kind that are the
/// last of their line, so that quotes may stand inside.
fn quotation(text: &str, start: usize) -> Quotation {
    let rest = &text[start..];
    let quotes = if rest.starts_with("\"\"\"") {
        "\"\"\""
    } else if rest.starts_with('"') {
        "\""
    } else {
        return Quotation::None;
    };
    let open = start + quotes.len();
    let mut from = open;
    while let Some(found) = text[from..].find(quotes) {
        let close = from + found;
        let end = close + quotes.len();
        // `say "yes""""` ends with the block's quotes, and a quote before them.
        let more = text[end..].starts_with('"');
        if !more && text[end..line_end(text, end)].trim().is_empty() {
            return Quotation::Closed { inside: open..close, end };
        }
        from = close + 1;
    }
    Quotation::Open { quotes: quotes.len() }
}

/// Where the line of `at` ends: at its newline, or the end of the text.
fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |found| at + found)
}

/// A range without white space at its ends.
fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + (part.len() - part.trim_start().len());
    let end = start + part.trim().len();
    start..end
}

/// The first word of a trimmed range.
fn word(text: &str, range: Range<usize>) -> Range<usize> {
    let length = text[range.clone()].find(char::is_whitespace).unwrap_or(range.len());
    range.start..range.start + length
}
