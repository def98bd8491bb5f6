//! cache: what a sequence remembers, layer by layer.
//!
//! A [`Cache`] belongs to one sequence and holds a [`Layer`] for every module that remembers
//! something. What a layer holds is its backend's (`model::cpu::cache`, `model::graph::cache`);
//! how layers go on, come back and are shared is here.
//!
//! **Staged and settled.** A pass writes its tokens beyond the settled ones. [`Cache::settle`] says
//! how many of all tokens stay: those of a pass that went well, the accepted ones of a draft, fewer
//! than there were when a conversation is cut. What a failed pass wrote is dropped by settling where
//! the cache was.
//!
//! **Coming back.** Keys can be cut off at any earlier offset (in a window's layer, within its
//! slack); a recurrent state is run again from its last base, as far back as that reaches. For
//! offsets beyond, a [`Mark`] keeps what writing on would forget, and [`Cache::share`] all of it:
//! by reference, as what is sealed is never written again.

use crate::fault::{Code, Fault};

/// What one module remembers of a sequence.
pub trait Layer: Clone {
    /// Whether writing on forgets what is needed to come back to the present offset.
    fn forgets(&self) -> bool;

    /// Whether [`settle`](Layer::settle) can go to `offset`, which is not beyond what is written.
    fn reaches(&self, offset: usize) -> bool;

    /// Keeps the first `offset` tokens, which it [`reaches`](Layer::reaches), and drops the others.
    fn settle(&mut self, offset: usize);

    /// A copy of the settled tokens that shares with this one what neither writes again.
    fn share(&mut self) -> Self;

    /// No more of it than the tokens to come see.
    fn latest(&mut self) -> Self;

    /// Tells each allocation: where it is, and its bytes. Shared ones are told by each that shares.
    fn allocations(&self, each: &mut dyn FnMut(usize, usize));
}

/// What one sequence remembers.
#[derive(Debug)]
pub struct Cache<L> {
    layers: Vec<L>,
    offset: usize,
    /// Tokens that a pass has written beyond.
    staged: usize,
}

/// What a cache needs to come back to an offset: of each layer what it would forget, and nothing
/// of layers that can be cut off anywhere.
#[derive(Clone, Debug)]
pub struct Mark<L> {
    layers: Vec<Option<L>>,
    offset: usize,
}

impl<L: Layer> Mark<L> {
    /// Tokens settled when it was taken.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        bytes(self.layers.iter().flatten())
    }
}

impl<L: Layer> Cache<L> {
    /// An empty cache of the given layers, in the order of their slots.
    pub fn new(layers: Vec<L>) -> Cache<L> {
        Cache { layers, offset: 0, staged: 0 }
    }

    /// Tokens settled.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Tokens that the last pass has written and that are not settled.
    pub fn staged(&self) -> usize {
        self.staged
    }

    /// Bytes held, what is shared too.
    pub fn bytes(&self) -> usize {
        bytes(self.layers.iter())
    }

    /// Tells each allocation, as [`Layer::allocations`].
    pub fn allocations(&self, each: &mut dyn FnMut(usize, usize)) {
        self.layers.iter().for_each(|layer| layer.allocations(each));
    }

    /// Whether writing on puts the present offset out of reach of some layer.
    pub fn forgets(&self) -> bool {
        self.layers.iter().any(Layer::forgets)
    }

    /// Whether every layer can go to `offset`.
    pub fn reaches(&self, offset: usize) -> bool {
        offset <= self.offset + self.staged && self.layers.iter().all(|layer| layer.reaches(offset))
    }

    /// Keeps the first `offset` tokens, settled and staged ones, and drops the others.
    ///
    /// # Errors
    /// When some layer cannot go there; nothing is changed then.
    pub fn settle(&mut self, offset: usize) -> Result<(), Fault> {
        if !self.reaches(offset) {
            let message = format!(
                "the cache cannot go from {} tokens, {} of them staged, to {offset}",
                self.offset + self.staged,
                self.staged
            );
            return Err(Fault::new(Code::Internal, message));
        }
        self.layers.iter_mut().for_each(|layer| layer.settle(offset));
        (self.offset, self.staged) = (offset, 0);
        Ok(())
    }

    /// Settles all that is staged.
    pub fn commit(&mut self) {
        self.offset += self.staged;
        self.staged = 0;
        self.layers.iter_mut().for_each(|layer| layer.settle(self.offset));
    }

    /// Drops all that is staged, and what a pass that failed has written of some layers.
    pub fn discard(&mut self) {
        self.staged = 0;
        self.layers.iter_mut().for_each(|layer| layer.settle(self.offset));
    }

    /// The cache as it is, for this sequence or another of the same model: what is sealed is shared.
    pub fn share(&mut self) -> Cache<L> {
        self.discard();
        let layers = self.layers.iter_mut().map(Layer::share).collect();
        Cache { layers, offset: self.offset, staged: 0 }
    }

    /// What [`Cache::return_to`] needs to come back here however much is written meanwhile.
    pub fn mark(&mut self) -> Mark<L> {
        self.discard();
        let kept = |layer: &mut L| layer.forgets().then(|| layer.latest());
        Mark { layers: self.layers.iter_mut().map(kept).collect(), offset: self.offset }
    }

    /// Comes back to a mark of this cache that is not beyond what is settled now; the tokens up to
    /// it must not have been replaced by others.
    ///
    /// # Errors
    /// When the mark is beyond, or another model's.
    pub fn return_to(&mut self, mark: &Mark<L>) -> Result<(), Fault> {
        if mark.offset > self.offset || self.layers.len() != mark.layers.len() {
            let message =
                format!("a mark at {} tokens is not of a cache of {}", mark.offset, self.offset);
            return Err(Fault::new(Code::Internal, message));
        }
        for (layer, kept) in self.layers.iter_mut().zip(&mark.layers) {
            match kept {
                Some(kept) => *layer = kept.clone(),
                None => layer.settle(mark.offset),
            }
        }
        (self.offset, self.staged) = (mark.offset, 0);
        Ok(())
    }

    /// The layers, by slot.
    pub fn layers(&self) -> &[L] {
        &self.layers
    }

    /// One layer's memory, to be written by a pass.
    pub fn layer_mut(&mut self, slot: usize) -> &mut L {
        &mut self.layers[slot]
    }

    /// Notes that a pass has written `tokens` of all layers.
    pub fn stage(&mut self, tokens: usize) {
        self.staged = tokens;
    }
}

fn bytes<'a, L: Layer + 'a>(layers: impl Iterator<Item = &'a L>) -> usize {
    let mut sum = 0;
    layers.for_each(|layer| layer.allocations(&mut |_, bytes| sum += bytes));
    sum
}
