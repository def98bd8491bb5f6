//! The recurrent state of one sequence in one layer.
//!
//! A state cannot be cut off like keys. So a base is kept, the state at an earlier offset, and what
//! entered the recurrence since: a rejected draft, a failed pass or a cut answer costs running those
//! tokens again through the recurrence alone, and no state for each token.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::Kept;
use crate::model::graph::ops::{join, part};

/// Tokens whose inputs are kept, at most: as much memory as one state of a large layer.
const KEPT: usize = 64;

/// A state at one offset.
#[derive(Clone, Debug)]
pub struct Carry {
    /// The last inputs of the convolution, `[kernel - 1, channels]`.
    pub conv: Array,
    /// The state proper, f32; a convolution alone has none.
    pub state: Option<Array>,
}

/// The recurrent state of one sequence in one layer.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The state at `at`; `None` is that before the first token.
    base: Option<Numbered>,
    at: usize,
    /// What has entered since, a pass's after the other.
    since: Vec<Entered>,
    /// The state at `end`; `None` when it must be made of the base and what entered since.
    live: Option<Numbered>,
    end: usize,
    /// Whether what has entered since the base is not kept: it was too much at once.
    leaps: bool,
}

/// A state that copies of a cache hold together.
#[derive(Clone, Debug)]
struct Numbered {
    conv: Kept,
    state: Option<Kept>,
}

/// What entered in one pass.
#[derive(Clone, Debug)]
struct Entered {
    /// `[n, …]` each.
    arrays: Vec<Kept>,
    /// Tokens of it that stay: the first ones.
    tokens: usize,
}

impl Numbered {
    fn new(held: Carry) -> Numbered {
        Numbered { conv: Kept::new(held.conv), state: held.state.map(Kept::new) }
    }

    fn held(&self) -> Carry {
        Carry {
            conv: self.conv.array.clone(),
            state: self.state.as_ref().map(|kept| kept.array.clone()),
        }
    }

    fn kept(&self) -> impl Iterator<Item = &Kept> {
        [Some(&self.conv), self.state.as_ref()].into_iter().flatten()
    }
}

impl State {
    /// Runs the inputs of the next tokens, `[tokens, …]` each, through `step`, which makes of the
    /// state before them the one after, and what it gives of them. The state before the first token
    /// is `None`.
    ///
    /// # Errors
    /// What `step` says. The state is as it was then.
    pub fn run<R>(
        &mut self,
        inputs: Vec<Array>,
        mut step: impl FnMut(Option<Carry>, &[Array]) -> Result<(Carry, R), Exception>,
    ) -> Result<R, Exception> {
        let tokens = inputs.first().map_or(0, |input| input.dim(0) as usize);
        let live = match &self.live {
            Some(live) => Some(live.clone()),
            None if self.since.is_empty() => self.base.clone(),
            None => {
                let base = self.base.as_ref().map(Numbered::held);
                let (live, _) = step(base, &self.entered()?)?;
                Some(Numbered::new(live))
            }
        };
        let (after, made) = step(live.as_ref().map(Numbered::held), &inputs)?;
        // Until here a failure leaves the base and what has entered since.
        if self.leaps || self.end - self.at + tokens > KEPT {
            (self.base, self.at) = (live, self.end);
            self.since.clear();
        }
        self.leaps = tokens > KEPT;
        if !self.leaps {
            let arrays = inputs.into_iter().map(Kept::new).collect();
            self.since.push(Entered { arrays, tokens });
        }
        self.live = Some(Numbered::new(after));
        self.end += tokens;
        Ok(made)
    }

    /// What has entered since the base, all passes' together.
    fn entered(&self) -> Result<Vec<Array>, Exception> {
        let count = self.since.first().map_or(0, |entered| entered.arrays.len());
        let input = |at: usize| {
            let parts = self
                .since
                .iter()
                .map(|entered| part(&entered.arrays[at].array, 0, &(0..entered.tokens)));
            join(parts.collect::<Result<_, _>>()?, 0)
        };
        (0..count).map(input).collect()
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
        let mut left = offset - self.at;
        self.since.retain_mut(|entered| {
            entered.tokens = entered.tokens.min(left);
            left -= entered.tokens;
            entered.tokens > 0
        });
        (self.live, self.end, self.leaps) = (None, offset, false);
    }

    pub fn allocations(&self, each: &mut dyn FnMut(usize, usize)) {
        self.kept().for_each(|kept| kept.tell(each));
    }

    pub fn arrays(&self) -> Vec<&Array> {
        self.live.iter().flat_map(Numbered::kept).map(|kept| &kept.array).collect()
    }

    fn kept(&self) -> impl Iterator<Item = &Kept> {
        let since = self.since.iter().flat_map(|entered| &entered.arrays);
        self.base.iter().chain(&self.live).flat_map(Numbered::kept).chain(since)
    }
}
