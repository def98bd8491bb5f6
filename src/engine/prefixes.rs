//! What has been run already: beginnings of sequences, so that a prompt that begins like one of them
//! runs only what is new.
//!
//! A beginning is its tokens and a cache that stands after them. Its segments are shared with the
//! sequence that it was taken of and with all that go on from it; a budget bounds the bytes of all
//! beginnings, each allocation counted once, and the least recently used go first.

use std::collections::HashMap;

use crate::fault::Fault;
use crate::model::{Cache, Model};

/// Tokens that have been run, and what a model remembers of them.
#[derive(Debug)]
pub struct Beginning {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The cache after them.
    pub cache: Cache,
    /// Length of the sequence as which the first of them were run together: as many of them, or
    /// more. Each of the others was run when the sequence ended with it.
    pub whole: usize,
}

/// Beginnings of sequences of one model.
#[derive(Debug)]
pub struct Prefixes {
    kept: Vec<Kept>,
    budget: usize,
    /// Bytes of each allocation, and how many beginnings have it.
    allocations: HashMap<usize, (usize, usize)>,
    bytes: usize,
    clock: u64,
}

#[derive(Debug)]
struct Kept {
    of: Beginning,
    used: u64,
}

impl Default for Prefixes {
    /// Without a bound.
    fn default() -> Prefixes {
        Prefixes::new(usize::MAX)
    }
}

impl Prefixes {
    /// None yet; their bytes stay within `budget`.
    pub fn new(budget: usize) -> Prefixes {
        Prefixes { kept: Vec::new(), budget, allocations: HashMap::new(), bytes: 0, clock: 0 }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Prefixes::new(self.budget);
    }

    /// The longest beginning of a prompt that has been run as it would be for this prompt, which
    /// leaves at least one token to run; an empty one if there is none.
    ///
    /// # Errors
    /// When a cache cannot go back where it says that it can: a fault of lathe.
    pub fn find(&mut self, model: &Model, prompt: &[u32]) -> Result<Beginning, Fault> {
        let most = prompt.len().saturating_sub(1);
        let usable = |kept: &Kept| {
            let of = &kept.of;
            let shared = of.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(most);
            let turned = model.turns_alike(of.whole, prompt.len())
                && (shared <= of.whole || model.turns_alike(shared, prompt.len()));
            (turned && of.cache.reaches(shared)).then_some(shared)
        };
        let all = self.kept.iter().enumerate();
        let best = all.filter_map(|(at, kept)| Some((usable(kept)?, at))).max();
        let whole = prompt.len();
        let Some((count, at)) = best.filter(|&(count, _)| count > 0) else {
            return Ok(Beginning { tokens: Vec::new(), cache: model.new_cache(), whole });
        };
        self.clock += 1;
        self.kept[at].used = self.clock;
        let mut cache = self.kept[at].of.cache.share();
        cache.settle(count)?;
        Ok(Beginning { tokens: prompt[..count].to_vec(), cache, whole })
    }

    /// Keeps a beginning, in the place of what it makes needless, as far as the budget allows.
    pub fn keep(&mut self, of: Beginning) {
        if of.tokens.is_empty() {
            return;
        }
        // What can be cut down to another beginning stands for it.
        let needless = |kept: &Kept| {
            let other = &kept.of;
            of.whole == other.whole
                && of.tokens.starts_with(&other.tokens)
                && of.cache.reaches(other.tokens.len())
        };
        let mut at = 0;
        while at < self.kept.len() {
            match needless(&self.kept[at]) {
                true => self.drop(at),
                false => at += 1,
            }
        }
        self.clock += 1;
        of.cache.allocations(&mut |address, bytes| {
            let known = self.allocations.entry(address).or_insert((bytes, 0));
            self.bytes += if known.1 == 0 { bytes } else { 0 };
            known.1 += 1;
        });
        self.kept.push(Kept { of, used: self.clock });
        while self.bytes > self.budget {
            let oldest = (0..self.kept.len()).min_by_key(|&at| self.kept[at].used);
            let Some(oldest) = oldest else { break };
            self.drop(oldest);
        }
    }

    fn drop(&mut self, at: usize) {
        let Kept { of, .. } = self.kept.swap_remove(at);
        of.cache.allocations(&mut |address, _| {
            if let Some(known) = self.allocations.get_mut(&address) {
                known.1 -= 1;
                if known.1 == 0 {
                    self.bytes -= known.0;
                    self.allocations.remove(&address);
                }
            }
        });
    }
}
