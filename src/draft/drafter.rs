//! What all drafters implement, and all that the engine knows of them.
//!
//! A round, for each sequence: the controller says a depth; [`Drafter::propose`] gives at most so
//! many tokens; the target checks them in one pass; [`accept`](super::accept::accept) says what is
//! committed; [`Drafter::committed`] hears it. Proposals are never heard of again: a drafter's state
//! comes from committed runs alone, and every one is reported, whether something was drafted or
//! not, the prompt's too. So a drafter may be asked at any time, and a draft that was rejected
//! needs no undoing.
//!
//! Nothing here belongs to a backend: what the target computed is rows of numbers or a handle that
//! the drafter's own backend knows.

use std::any::Any;

use super::accept::Proposal;
use crate::fault::{Code, Fault};
use crate::model::Tap;
use crate::sample::Settings;

/// What a drafter needs of the target; constant for a drafter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The most tokens that it can propose; the controller does not ask for more.
    pub deepest: usize,
    /// Where the target's states are tapped, for every committed token.
    pub taps: Vec<Tap>,
    /// Layers whose keys and values are read, and not written.
    pub keys: Vec<usize>,
    /// Whether it must hear of prompts too: without them it cannot propose.
    pub prompt: bool,
}

/// What the target computed for a run of tokens.
#[derive(Clone, Copy, Default)]
pub enum Taps<'a> {
    /// Nothing was asked for.
    #[default]
    None,
    /// For each of [`Needs::taps`] `[tokens, width]` rows in f32.
    Rows(&'a [&'a [f32]]),
    /// What a backend keeps on its device, in the order of [`Needs::taps`]; the drafter's network
    /// runs on the same backend and knows the type.
    Handle(&'a dyn Any),
}

/// Tokens that have become part of a sequence for good.
#[derive(Clone, Copy)]
pub struct Committed<'a> {
    /// The place of the first of them in the sequence, from 0.
    pub start: usize,
    /// The tokens.
    pub tokens: &'a [u32],
    /// What the target computed at them. A pass computes at what it is given: the last token that
    /// it chose has no state yet, and comes with the next run.
    pub taps: Taps<'a>,
}

impl<'a> Committed<'a> {
    /// Tokens alone.
    pub fn plain(start: usize, tokens: &'a [u32]) -> Self {
        Committed { start, tokens, taps: Taps::None }
    }

    /// Refuses a run that does not begin where the last one ended.
    ///
    /// # Errors
    /// A fault of code `internal`: the caller lost or repeated tokens.
    pub fn check_follows(&self, length: usize) -> Result<(), Fault> {
        if self.start == length {
            return Ok(());
        }
        let what = format!("a drafter at token {length} hears of tokens from {} on", self.start);
        Err(Fault::new(Code::Internal, what))
    }
}

/// How proposals are drawn: the sequence's settings and random numbers, so that a seed repeats.
pub struct Draw<'a> {
    /// The settings; greedy ones ask for the likeliest tokens.
    pub settings: &'a Settings,
    /// Random numbers, uniform in [0, 1).
    pub uniform: &'a mut dyn FnMut() -> f64,
}

/// The state of one sequence's drafter.
///
/// An error leaves the drafter unusable and the sequence as it is: the engine goes on without.
pub trait Drafter {
    /// What it needs of the target.
    fn needs(&self) -> Needs;

    /// Proposes up to `depth` tokens for the places after the last committed one; fewer, or none,
    /// where it has nothing good. Changes nothing that a later call depends on.
    ///
    /// # Errors
    /// When its network fails.
    fn propose(&mut self, depth: usize, draw: &mut Draw<'_>) -> Result<Vec<Proposal>, Fault>;

    /// Hears of tokens that were committed, in order and without gaps.
    ///
    /// # Errors
    /// When its network fails, or the run does not follow the last one.
    fn committed(&mut self, run: &Committed<'_>) -> Result<(), Fault>;

    /// Brings its state to the first `length` tokens of the sequence, no more than it heard of:
    /// what waits is computed, and what lies behind is cut off. Called when a sequence rests, so
    /// that its caches can be kept with the target's, and when a conversation is edited.
    ///
    /// # Errors
    /// When its network fails.
    fn settle(&mut self, length: usize) -> Result<(), Fault>;
}
