//! Stop strings: text in pieces in, text up to the first stop string out, and never a part of one.

/// Watches a streamed text for stop strings.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    /// Text that may still become a stop string.
    held: String,
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
        StopStrings { stops, held: String::new(), done: false }
    }

    /// Adds text; gives what may be shown. After a stop string nothing more is.
    pub fn push(&mut self, text: &str) -> Stopped {
        if self.done {
            return Stopped { text: String::new(), stop: true };
        }
        self.held.push_str(text);
        let first = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = first {
            self.held.truncate(at);
            self.done = true;
            return Stopped { text: std::mem::take(&mut self.held), stop: true };
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let shown = self.held.len() - keep;
        Stopped { text: self.held.drain(..shown).collect(), stop: false }
    }

    /// Ends the text: what was held back is no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest end of `text` that is a beginning of `mark`, and not all of it.
pub(crate) fn overlap(text: &str, mark: &str) -> usize {
    let most = mark.len().saturating_sub(1).min(text.len());
    (1..=most).rev().find(|&n| mark.is_char_boundary(n) && text.ends_with(&mark[..n])).unwrap_or(0)
}
