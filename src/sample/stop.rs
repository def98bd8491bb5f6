//! Stop strings: text in pieces in, text up to the first stop string out, and never a part of one.

use std::ops::Range;

/// Watches a streamed text for stop strings.
///
/// Some of the text may be hidden, such as that of special tokens: it is watched like the rest (a
/// stop string may be a special token, or hold one), and not shown.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    /// Text that may still become a stop string.
    held: String,
    /// Which bytes of it are hidden, in order.
    hidden: Vec<Range<usize>>,
    done: bool,
}

/// Text that may be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// The text.
    pub text: String,
    /// Whether a stop string ended it.
    pub stop: bool,
}

impl StopStrings {
    /// Watches for these; empty ones are passed over.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        StopStrings { stops, held: String::new(), hidden: Vec::new(), done: false }
    }

    /// Adds text; gives what may be shown. After a stop string nothing more is.
    pub fn push(&mut self, text: &str) -> Stopped {
        if self.done {
            return Stopped { text: String::new(), stop: true };
        }
        self.held.push_str(text);
        let first = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = first {
            self.done = true;
            return Stopped { text: self.take(at), stop: true };
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        Stopped { text: self.take(self.held.len() - keep), stop: false }
    }

    /// Adds text that is not shown.
    pub fn push_hidden(&mut self, text: &str) -> Stopped {
        let from = self.held.len();
        self.hidden.push(from..from + text.len());
        self.push(text)
    }

    /// Ends the text: what was held back is no stop string.
    pub fn finish(&mut self) -> String {
        if self.done { String::new() } else { self.take(self.held.len()) }
    }

    /// Takes the first `length` bytes off the held text; gives those of them that are shown.
    fn take(&mut self, length: usize) -> String {
        let mut text = String::new();
        let mut from = 0;
        for hidden in &self.hidden {
            text.push_str(&self.held[from..hidden.start.clamp(from, length)]);
            from = hidden.end.clamp(from, length);
        }
        text.push_str(&self.held[from..length]);
        self.held.drain(..length);
        let rest = self.hidden.iter().filter(|hidden| hidden.end > length);
        self.hidden =
            rest.map(|hidden| hidden.start.saturating_sub(length)..hidden.end - length).collect();
        text
    }
}

/// Length of the longest end of `text` that is a beginning of `mark`, and not all of it.
pub(crate) fn overlap(text: &str, mark: &str) -> usize {
    let most = mark.len().saturating_sub(1).min(text.len());
    (1..=most).rev().find(|&n| mark.is_char_boundary(n) && text.ends_with(&mark[..n])).unwrap_or(0)
}
