//! A model's answer, taken apart while it streams: thinking, words for the reader, tool calls.
//!
//! How a family marks these is data: `policies/parsers/NAME.yaml`, read into [`Answers`]. A mark
//! that may still be coming is held back, so no piece of one is ever shown.

use serde_json::Value;

use super::tools::{self, ToolCall};
pub use crate::policy::parsers::{Answers, DEFAULT};
use crate::sample::overlap;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Thinking, to be shown dimmed or not at all.
    Thinking(String),
    /// Words for the reader.
    Text(String),
    /// A call of a tool.
    Call(ToolCall),
}

impl Answers {
    /// All marks, so that special tokens among them are not lost in decoding.
    pub fn marks(&self) -> impl Iterator<Item = &str> {
        let thinking = self.thinking.iter().flat_map(|m| [m.open.as_str(), m.close.as_str()]);
        let tools = self
            .tools
            .iter()
            .flat_map(|m| [m.open.as_str(), m.close.as_str()].into_iter().chain(m.form.marks()));
        thinking.chain(tools).chain(self.drop.iter().map(String::as_str))
    }

    /// Begins an answer to a rendered prompt; `tools` are the schemas that the model was given.
    pub fn answer(&self, prompt: &str, tools: &[Value]) -> AnswerParser<'_> {
        let opened = self.thinking.as_ref().is_some_and(|m| prompt.trim_end().ends_with(&m.open));
        let state = if opened { State::Thinking } else { State::Text };
        let tools = tools.to_vec();
        AnswerParser { answers: self, tools, held: String::new(), state, fresh: opened }
    }
}

/// Takes one streamed answer apart.
pub struct AnswerParser<'a> {
    answers: &'a Answers,
    tools: Vec<Value>,
    /// Text that may still become a mark, or the inside of a tool call.
    held: String,
    state: State,
    /// Nothing was shown since the state began: white space is left out.
    fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Text,
    Thinking,
    /// Inside a call of this entry of `tools`.
    Tool(usize),
}

/// What a mark does.
#[derive(Clone, Copy)]
enum Change {
    To(State),
    Nothing,
}

impl<'a> AnswerParser<'a> {
    /// Adds text; gives the pieces that it completes.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        self.take(false)
    }

    /// Whether what comes next is thinking.
    pub fn thinks(&self) -> bool {
        matches!(self.state, State::Thinking)
    }

    /// Ends the answer: what was held back is shown, an unclosed call is read as it stands.
    pub fn finish(&mut self) -> Vec<Piece> {
        self.take(true)
    }

    fn take(&mut self, last: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while let Some((at, length, turn)) = self.next_mark() {
            if !last && self.may_grow(at) {
                break;
            }
            let before = self.held[..at].to_owned();
            self.held.drain(..at + length);
            self.give(before, turn_leaves(turn), &mut pieces);
            if let Change::To(state) = turn {
                self.state = state;
                self.fresh = true;
            }
        }
        if last {
            let rest = std::mem::take(&mut self.held);
            self.give(rest, true, &mut pieces);
        } else if !matches!(self.state, State::Tool(_)) {
            let keep = self.held_back();
            let rest: String = self.held.drain(..self.held.len() - keep).collect();
            self.give(rest, false, &mut pieces);
        }
        pieces
    }

    /// The marks that mean something in this state, with what they do.
    fn marks(&self) -> Vec<(&'a str, Change)> {
        let answers = self.answers;
        let thinking = answers.thinking.as_ref();
        match self.state {
            State::Tool(i) => vec![(answers.tools[i].close.as_str(), Change::To(State::Text))],
            State::Thinking => {
                thinking.map(|m| (m.close.as_str(), Change::To(State::Text))).into_iter().collect()
            }
            State::Text => {
                let opens = thinking.map(|m| (m.open.as_str(), Change::To(State::Thinking)));
                let tools = answers.tools.iter().enumerate();
                let calls = tools.map(|(i, m)| (m.open.as_str(), Change::To(State::Tool(i))));
                let dropped = answers.drop.iter().map(|mark| (mark.as_str(), Change::Nothing));
                opens.into_iter().chain(calls).chain(dropped).collect()
            }
        }
    }

    /// The first mark in the held text, the longest of those that begin there.
    fn next_mark(&self) -> Option<(usize, usize, Change)> {
        self.marks()
            .into_iter()
            .filter_map(|(mark, turn)| self.held.find(mark).map(|at| (at, mark.len(), turn)))
            .min_by_key(|&(at, length, _)| (at, std::cmp::Reverse(length)))
    }

    /// Whether all from `at` on is the beginning of a mark that is longer still.
    fn may_grow(&self, at: usize) -> bool {
        let rest = &self.held[at..];
        self.marks().iter().any(|(mark, _)| mark.len() > rest.len() && mark.starts_with(rest))
    }

    /// Bytes at the end of the held text that may not be shown yet: the beginning of a mark, and
    /// white space that is left out if thinking ends after it.
    fn held_back(&self) -> usize {
        let mark = self.may_become_mark();
        if self.state != State::Thinking {
            return mark;
        }
        let before = &self.held[..self.held.len() - mark];
        mark + before.len() - before.trim_end().len()
    }

    /// Bytes at the end of the held text that a mark may begin with.
    fn may_become_mark(&self) -> usize {
        self.marks().into_iter().map(|(mark, _)| overlap(&self.held, mark)).max().unwrap_or(0)
    }

    /// Shows text of the present state; `closes` when a mark ends it here.
    fn give(&mut self, text: String, closes: bool, pieces: &mut Vec<Piece>) {
        if let State::Tool(i) = self.state {
            if !text.trim().is_empty() {
                let calls = tools::parse(&self.answers.tools[i].form, &text, &self.tools);
                match calls {
                    Some(calls) => pieces.extend(calls.into_iter().map(Piece::Call)),
                    // Not a call after all: the reader may see what the model wrote.
                    None => pieces.push(Piece::Text(text)),
                }
            }
            return;
        }
        let mut text = text.as_str();
        if self.fresh {
            text = text.trim_start();
        }
        if closes && self.state == State::Thinking {
            text = text.trim_end();
        }
        if text.is_empty() {
            return;
        }
        self.fresh = false;
        pieces.push(match self.state {
            State::Thinking => Piece::Thinking(text.to_owned()),
            _ => Piece::Text(text.to_owned()),
        });
    }
}

fn turn_leaves(turn: Change) -> bool {
    matches!(turn, Change::To(_))
}
