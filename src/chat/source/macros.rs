//! Macros whose bodies speak of `varargs` or `kwargs`: minijinja refuses what a macro has no parameter
//! for, so these get parameters of those names, and a filter that gathers what they take.

use std::ops::Range;

use super::edits::Edit;
use super::tokens::{Kind, Token};
use crate::chat::python::GATHER;

/// The names by which a body speaks of further arguments, and what they are without any.
const FURTHER: [(&str, &str); 2] = [("varargs", "[]"), ("kwargs", "{}")];

/// The macros that are open at a place of a template.
#[derive(Default)]
pub struct Macros {
    open: Vec<Macro>,
}

struct Macro {
    name: String,
    /// Where its parameters end.
    parameters: usize,
    /// Whether there is none.
    bare: bool,
    /// Which of [`FURTHER`] its body speaks of.
    uses: [bool; 2],
}

impl Macros {
    /// Takes the next statement or expression of the template; at the end of a macro the edits.
    pub fn block(
        &mut self,
        text: &str,
        tokens: &[Token],
        is_statement: bool,
        end: usize,
    ) -> Vec<Edit> {
        let word = |token: &Token| &text[token.range.clone()];
        let first = tokens.first().map(word).filter(|_| is_statement);
        if let (Some("macro"), [_, name, open, .., close]) = (first, tokens) {
            let (name, parameters) = (word(name).to_owned(), close.range.start);
            let bare =
                open.range.end == parameters || text[open.range.end..parameters].trim().is_empty();
            self.open.push(Macro { name, parameters, bare, uses: [false; 2] });
        }
        if let Some(inner) = self.open.last_mut() {
            let names = tokens.iter().filter(|token| token.kind == Kind::Name).map(word);
            for name in names {
                for (at, (further, _)) in FURTHER.iter().enumerate() {
                    inner.uses[at] |= name == *further;
                }
            }
        }
        if first != Some("endmacro") {
            return Vec::new();
        }
        let Some(Macro { name, parameters, bare, uses }) = self.open.pop() else {
            return Vec::new();
        };
        let further = FURTHER.iter().zip(uses).filter(|(_, used)| *used);
        let further: Vec<String> =
            further.map(|((name, nothing), _)| format!("{name}={nothing}")).collect();
        if further.is_empty() {
            return Vec::new();
        }
        let comma = if bare { "" } else { ", " };
        // White space behind is trimmed as it was.
        let sign = text[..end].strip_suffix("%}").map_or("", |before| &before[before.len() - 1..]);
        let sign = if ["-", "+"].contains(&sign) { sign } else { "" };
        let empty = |at: usize| -> Range<usize> { at..at };
        vec![
            (empty(parameters), format!("{comma}{}", further.join(", "))),
            (empty(end), format!("{{% set {name} = {name}|{GATHER} {sign}%}}")),
        ]
    }
}
