//! cache: what a sequence remembers, layer by layer.
//!
//! A [`Cache`] belongs to one sequence and holds a [`LayerCache`] for every layer that remembers
//! something; a forward pass is given one cache for each row of its batch, so splitting a batch
//! and merging it again is moving values. All layers stand at one offset, the number of tokens
//! written. Two kinds of layer share the trait [`Remembers`]: [`keys::KeyCache`] (of everything,
//! or of a sliding window) and [`state::StateCache`] (a recurrent state).
//!
//! Going back: keys can be cut off at any earlier offset (within a window's slack); a recurrent
//! state only exists at the offsets for which a snapshot was scheduled in the batch. A [`Mark`]
//! keeps what writing on would forget, so that the cache can come back to where it was taken.

pub mod keys;
pub mod state;

use mlx_rs::Array;

use crate::fault::{Code, Fault};
use keys::KeyCache;
use state::StateCache;

/// What the caches of all layers can do.
pub trait Remembers {
    /// Whether writing on forgets what is needed to come back to the present offset.
    fn forgets(&self) -> bool;
    /// Whether it can go back to `offset` tokens.
    fn reaches(&self, offset: usize) -> bool;
    /// Goes back to `offset` tokens, which it [`reaches`](Remembers::reaches).
    fn rollback(&mut self, offset: usize);
    /// The arrays that hold it, to be evaluated together with a pass's result.
    fn arrays(&self) -> Vec<&Array>;
    /// Bytes held.
    fn bytes(&self) -> usize {
        self.arrays().iter().map(|array| array.nbytes()).sum()
    }
}

/// What one layer remembers.
#[derive(Clone, Debug)]
pub enum LayerCache {
    /// Keys and values.
    Keys(KeyCache),
    /// A recurrent state.
    State(StateCache),
}

impl LayerCache {
    fn inner(&self) -> &dyn Remembers {
        match self {
            LayerCache::Keys(keys) => keys,
            LayerCache::State(state) => state,
        }
    }

    fn inner_mut(&mut self) -> &mut dyn Remembers {
        match self {
            LayerCache::Keys(keys) => keys,
            LayerCache::State(state) => state,
        }
    }
}

/// What a cache needs to come back to an offset: of each layer what it would forget, and nothing
/// of layers whose keys can be cut off anywhere.
#[derive(Clone, Debug)]
pub struct Mark {
    layers: Vec<Option<LayerCache>>,
    offset: usize,
}

impl Mark {
    /// Tokens written when it was taken.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flatten().map(|layer| layer.inner().bytes()).sum()
    }
}

/// What one sequence remembers.
///
/// Cloning it is a snapshot: the arrays are shared until one of the two writes.
#[derive(Clone, Debug)]
pub struct Cache {
    layers: Vec<LayerCache>,
    offset: usize,
}

impl Cache {
    /// An empty cache of the given layers, in the order of their slots.
    pub fn new(layers: Vec<LayerCache>) -> Cache {
        Cache { layers, offset: 0 }
    }

    /// Tokens written.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.inner().bytes()).sum()
    }

    /// The cache as it is now, for [`restore`](Cache::restore).
    pub fn snapshot(&self) -> Cache {
        self.clone()
    }

    /// Takes a snapshot's place: of this sequence or of another of the same model.
    pub fn restore(&mut self, snapshot: &Cache) {
        *self = snapshot.clone();
    }

    /// Whether writing on puts the present offset out of reach of some layer.
    pub fn forgets(&self) -> bool {
        self.layers.iter().any(|layer| layer.inner().forgets())
    }

    /// What [`Cache::return_to`] needs to come back here however much is written meanwhile.
    ///
    /// # Errors
    /// When MLX fails.
    pub fn mark(&self) -> Result<Mark, Fault> {
        let kept = |layer: &LayerCache| match layer {
            layer if !layer.inner().forgets() => Ok(None),
            LayerCache::Keys(keys) => keys.latest().map(LayerCache::Keys).map(Some),
            LayerCache::State(state) => Ok(Some(LayerCache::State(state.clone()))),
        };
        let layers = self.layers.iter().map(kept).collect::<Result<_, _>>();
        let layers =
            layers.map_err(|error| Fault::new(Code::Compute, format!("MLX: {}", error.what())))?;
        Ok(Mark { layers, offset: self.offset })
    }

    /// Comes back to a mark of this cache that is not beyond what is written now; the tokens up to
    /// it must not have been replaced by others.
    ///
    /// # Errors
    /// When the mark is beyond.
    pub fn return_to(&mut self, mark: &Mark) -> Result<(), Fault> {
        if mark.offset > self.offset || self.layers.len() != mark.layers.len() {
            let message =
                format!("a mark at {} tokens is not of a cache of {}", mark.offset, self.offset);
            return Err(Fault::new(Code::Internal, message));
        }
        for (layer, kept) in self.layers.iter_mut().zip(&mark.layers) {
            match kept {
                Some(kept) => *layer = kept.clone(),
                None => layer.inner_mut().rollback(mark.offset),
            }
        }
        self.offset = mark.offset;
        Ok(())
    }

    /// Whether every layer can go back to `offset` tokens.
    pub fn reaches(&self, offset: usize) -> bool {
        offset <= self.offset && self.layers.iter().all(|layer| layer.inner().reaches(offset))
    }

    /// Goes back to `offset` tokens.
    pub fn rollback(&mut self, offset: usize) -> Result<(), Fault> {
        if !self.reaches(offset) {
            let message = format!(
                "the cache cannot go back from {} tokens to {offset}: no snapshot was scheduled \
                 there",
                self.offset
            );
            return Err(Fault::new(Code::Internal, message));
        }
        for layer in &mut self.layers {
            layer.inner_mut().rollback(offset);
        }
        self.offset = offset;
        Ok(())
    }

    /// The arrays that hold it, to be evaluated together with a pass's result.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(|layer| layer.inner().arrays())
    }

    /// One layer's memory.
    pub fn layer(&self, slot: usize) -> &LayerCache {
        &self.layers[slot]
    }

    /// One layer's memory, to be written.
    pub fn layer_mut(&mut self, slot: usize) -> &mut LayerCache {
        &mut self.layers[slot]
    }

    /// Notes that all layers have been written `tokens` further.
    pub fn advance(&mut self, tokens: usize) {
        self.offset += tokens;
    }
}
