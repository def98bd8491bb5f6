//! The one value that a forward pass takes, and what it gives.

use std::collections::HashMap;
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::rope::Angles;
use crate::cache::Cache;
use crate::cache::keys::Seen;

/// One sequence's part of a batch.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Its next tokens; rows of a batch may have different numbers of them, at least one each.
    pub tokens: Vec<u32>,
    /// Position of the first: the offset of the sequence's cache.
    pub position: usize,
    /// Tokens that its sequence has once the whole prompt has been run that these are a part of:
    /// rotations that depend on the length go by it. Less than there are after this pass means
    /// just those.
    pub whole: usize,
    /// Which sequence it is; for the caller's own use.
    pub sequence: u64,
    /// Offsets (numbers of tokens, counted from the start of the sequence) at which recurrent
    /// layers store their state, so that the cache can go back there. Ascending, each above
    /// `position` and below the offset after the pass, or equal to `position`.
    pub snapshots: Vec<usize>,
}

/// Where a row's tokens stand in their sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Position of the first.
    pub position: usize,
    /// How many there are.
    pub tokens: usize,
    /// How many the whole sequence has, at least up to the end of these.
    pub whole: usize,
}

impl Row {
    /// Where its tokens stand.
    pub fn span(&self) -> Span {
        let (position, tokens) = (self.position, self.tokens.len());
        Span { position, tokens, whole: self.whole.max(position + tokens) }
    }
}

/// Which positions' logits a pass works out: the head is the largest product of a small model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Logits {
    /// Each row's last token: `[rows, 1, vocabulary]`.
    #[default]
    Last,
    /// All tokens: `[rows, longest, vocabulary]`; past a row's true length they mean nothing.
    All,
    /// None: a chunk of a prompt that only fills the caches.
    None,
}

/// The input of a forward pass.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The sequences.
    pub rows: Vec<Row>,
    /// Which logits are wanted.
    pub logits: Logits,
    /// The hidden states that a draft is conditioned on, `[rows, longest, hidden]`.
    pub hidden: Option<Array>,
}

impl Batch {
    /// A batch of one row without snapshots.
    pub fn one(tokens: &[u32], position: usize, logits: Logits) -> Batch {
        let row = Row { tokens: tokens.to_vec(), position, ..Row::default() };
        Batch { rows: vec![row], logits, hidden: None }
    }

    /// The longest row's number of tokens.
    pub fn longest(&self) -> usize {
        self.rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0)
    }

    /// The tokens, `[rows, longest]`, shorter rows filled up with token 0.
    pub fn tokens(&self) -> Array {
        let longest = self.longest();
        let mut flat = Vec::with_capacity(self.rows.len() * longest);
        for row in &self.rows {
            flat.extend(row.tokens.iter().copied());
            flat.extend(std::iter::repeat_n(0, longest - row.tokens.len()));
        }
        Array::from_slice(&flat, &[self.rows.len() as i32, longest as i32])
    }
}

/// What a forward pass gives. Arrays are not evaluated: evaluate them together with the caches'.
#[derive(Clone, Debug)]
pub struct Output {
    /// Logits in f32, as [`Logits`] asked; `None` when it asked for none.
    pub logits: Option<Array>,
    /// Hidden states after the last norm, `[rows, longest, hidden]`: what the head works on, and
    /// what drafts are conditioned on.
    pub hidden: Array,
}

/// What modules share during one pass.
pub struct Pass<'a, 'c> {
    /// The batch.
    pub batch: &'a Batch,
    /// One cache for each row.
    pub caches: &'a mut [&'c mut Cache],
    /// Per-layer embeddings, `[rows, longest, layers, width]`.
    pub per_layer: Option<Array>,
    /// Keys and values that later layers read too, by layer, one for each row.
    pub seen: HashMap<usize, Vec<Seen>>,
    /// Rotations by rope and place.
    pub rotations: HashMap<(usize, Span), Rc<Angles>>,
    masks: HashMap<(usize, usize, usize, usize), Array>,
}

impl<'a, 'c> Pass<'a, 'c> {
    /// A pass over a batch.
    pub fn new(batch: &'a Batch, caches: &'a mut [&'c mut Cache]) -> Pass<'a, 'c> {
        Pass {
            batch,
            caches,
            per_layer: None,
            seen: HashMap::new(),
            rotations: HashMap::new(),
            masks: HashMap::new(),
        }
    }

    /// What another layer's keys and values show a row.
    pub fn seen_of(&self, layer: usize, row: usize) -> Option<&Seen> {
        self.seen.get(&layer).and_then(|rows| rows.get(row))
    }

    /// True where the token at `position + i` sees key `start + j`, `[length, keys]`: not after
    /// it, and at most `window` tokens back, itself included.
    pub fn mask(
        &mut self,
        position: usize,
        length: usize,
        start: usize,
        keys: usize,
        window: Option<usize>,
    ) -> Result<Array, Exception> {
        let key = (position - start, length, keys, window.unwrap_or(0));
        if let Some(mask) = self.masks.get(&key) {
            return Ok(mask.clone());
        }
        let mut flat = Vec::with_capacity(length * keys);
        for i in 0..length {
            let at = position + i;
            flat.extend((0..keys).map(|j| {
                let seen = start + j;
                seen <= at && window.is_none_or(|window| at - seen < window)
            }));
        }
        let mask = Array::from_slice(&flat, &[length as i32, keys as i32]);
        self.masks.insert(key, mask.clone());
        Ok(mask)
    }
}
