//! The recurrent state of one sequence in one layer.
//!
//! A state cannot be cut off like keys. So a base is kept, the state at an earlier offset, and what
//! entered the recurrence since: a rejected draft, a failed pass or a cut answer costs running those
//! rows again through the recurrence alone, and no state for each token. The base is shared by
//! sequences and marks; the state that is worked on is the sequence's own.

use std::sync::Arc;

/// Tokens whose inputs are kept, at most: as much memory as one state of a large layer.
const KEPT: usize = 64;

/// A state at one offset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Carry {
    /// The last inputs of the convolution, `[kernel - 1, channels]`.
    pub conv: Vec<f32>,
    /// The state proper.
    pub state: Vec<f32>,
}

/// The recurrent state of one sequence in one layer.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The state at `at`; `None` is that before the first token.
    base: Option<Arc<Carry>>,
    at: usize,
    /// What has entered since, a row for each token.
    since: Vec<f32>,
    /// The state at `end`; `None` when it must be made of the base and what entered since.
    live: Option<Carry>,
    end: usize,
    /// Whether what has entered since the base is not kept: it was too much at once.
    leaps: bool,
}

impl State {
    /// Runs the inputs of the next tokens, a row of `width` elements for each, through `step`, which
    /// changes the state by them. `empty` makes the state before the first token.
    pub fn run<R>(
        &mut self,
        inputs: &[f32],
        width: usize,
        empty: impl Fn() -> Carry,
        mut step: impl FnMut(&mut Carry, &[f32]) -> R,
    ) -> R {
        let tokens = inputs.len() / width;
        let mut live = match self.live.take() {
            Some(live) => live,
            None => {
                let mut live = self.base.as_deref().cloned().unwrap_or_else(&empty);
                if !self.since.is_empty() {
                    step(&mut live, &self.since);
                }
                live
            }
        };
        if self.leaps || self.since.len() / width + tokens > KEPT {
            self.rebase(&live);
        }
        let made = step(&mut live, inputs);
        // Until here a failure leaves the base and what has entered since.
        self.leaps = tokens > KEPT;
        if !self.leaps {
            self.since.extend_from_slice(inputs);
        }
        self.live = Some(live);
        self.end += tokens;
        made
    }

    /// Makes the state at the end the base.
    fn rebase(&mut self, live: &Carry) {
        self.base = Some(Arc::new(live.clone()));
        (self.at, self.leaps) = (self.end, false);
        self.since.clear();
    }

    /// See [`crate::cache::Layer`], as for what follows.
    pub fn forgets(&self) -> bool {
        true
    }

    pub fn reaches(&self, offset: usize) -> bool {
        offset == self.end
            || offset == 0
            || offset == self.at
            || (self.at..self.end).contains(&offset) && !self.leaps
    }

    pub fn settle(&mut self, offset: usize) {
        if offset == self.end {
            return;
        }
        if offset < self.at {
            // The state before the first token needs no base.
            *self = State::default();
            return;
        }
        let (kept, all) = (offset - self.at, self.end - self.at);
        self.since.truncate(if self.leaps { 0 } else { self.since.len() / all * kept });
        (self.live, self.end, self.leaps) = (None, offset, false);
    }

    pub fn share(&mut self) -> State {
        if let Some(live) = self.live.take() {
            if self.leaps {
                self.rebase(&live);
            }
            self.live = Some(live);
        }
        let State { base, at, since, end, leaps, live: _ } = &*self;
        let (base, since) = (base.clone(), since.clone());
        State { base, at: *at, since, live: None, end: *end, leaps: *leaps }
    }

    pub fn allocations(&self, each: &mut dyn FnMut(usize, usize)) {
        let mut floats = |at: &[f32]| {
            if !at.is_empty() {
                each(at.as_ptr() as usize, size_of_val(at));
            }
        };
        for held in self.base.as_deref().into_iter().chain(&self.live) {
            floats(&held.conv);
            floats(&held.state);
        }
        floats(&self.since);
    }
}
