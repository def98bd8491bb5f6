//! What modules share during one pass.

use std::collections::HashMap;
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::arange;

use super::Layer;
use super::cache::{Keys, State};
use super::ops::{Result, part};
use super::rope::Angles;
use crate::cache::Cache;
use crate::decoder::parts;
use crate::model::pass::{Pass, Stretch};

/// A pass on its way through the modules. What they give each other are rows `[tokens, width]`, those
/// of all spans one after the other.
pub struct Walk<'w, 'c> {
    caches: &'w mut [&'c mut Cache<Layer>],
    /// Where each span's tokens are.
    pub spans: Vec<Stretch>,
    /// Per-layer embeddings, `[tokens, layers, width]`.
    pub per_layer: Option<Array>,
    ropes: &'w [parts::Rope],
    turns: HashMap<usize, Rc<[Angles]>>,
    masks: HashMap<Sight, Array>,
}

/// Which keys tokens see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sight {
    /// Index of the first token among the keys.
    pub first: usize,
    /// How many tokens.
    pub tokens: usize,
    /// How many keys.
    pub keys: usize,
    /// Whether a token sees none after itself.
    pub causal: bool,
    /// How many tokens a token sees, itself included.
    pub window: Option<usize>,
}

impl<'w, 'c> Walk<'w, 'c> {
    /// A pass that begins.
    pub fn new(
        pass: &Pass,
        caches: &'w mut [&'c mut Cache<Layer>],
        ropes: &'w [parts::Rope],
    ) -> Walk<'w, 'c> {
        let spans = pass.stretches();
        let (turns, masks) = (HashMap::new(), HashMap::new());
        Walk { caches, spans, per_layer: None, ropes, turns, masks }
    }

    /// A layer's part of the per-layer embedding, `[tokens, width]`.
    pub fn per_layer(&self, layer: usize) -> Result<Array> {
        let missing = || Exception::custom("this model has no per-layer embedding");
        let per_layer = self.per_layer.as_ref().ok_or_else(missing)?;
        part(per_layer, 1, &(layer..layer + 1))?.squeeze_axes(&[1])
    }

    /// A span's keys in a slot.
    pub fn keys(&mut self, span: usize, slot: usize) -> Result<&mut Keys> {
        match self.caches[span].layer_mut(slot) {
            Layer::Keys(keys) => Ok(keys),
            Layer::State(_) => Err(another()),
        }
    }

    /// A span's state in a slot.
    pub fn state(&mut self, span: usize, slot: usize) -> Result<&mut State> {
        match self.caches[span].layer_mut(slot) {
            Layer::State(state) => Ok(state),
            Layer::Keys(_) => Err(another()),
        }
    }

    /// A span's rows of all, `[tokens, …]`, to be kept longer than the pass.
    pub fn rows(&self, x: &Array, span: &Stretch) -> Result<Array> {
        match self.spans.len() {
            1 => Ok(x.clone()),
            // A copy, lest they hold on to the others'.
            _ => part(x, 0, &span.rows)?.contiguous(),
        }
    }

    /// Rotates the heads of all rows, `[tokens, heads, 1, dim]`.
    pub fn rotate(&mut self, rope: usize, x: &Array) -> Result<Array> {
        let turns = match self.turns.get(&rope) {
            Some(turns) => turns.clone(),
            None => {
                let turns: Rc<[Angles]> = Angles::new(&self.ropes[rope], &self.spans).into();
                self.turns.insert(rope, turns.clone());
                turns
            }
        };
        Angles::apply(&turns, x)
    }

    /// True where a token sees a key, `[tokens, keys]`.
    pub fn mask(&mut self, sight: Sight) -> Result<Array> {
        if let Some(mask) = self.masks.get(&sight) {
            return Ok(mask.clone());
        }
        let Sight { first, tokens, keys, causal, window } = sight;
        let row = arange::<_, i32>(first as i32, (first + tokens) as i32, None)?.expand_dims(1)?;
        let key = arange::<_, i32>(None, keys as i32, None)?;
        let before = causal.then(|| key.le(&row)).transpose()?;
        let near = window.map(|window| key.gt(row.subtract(Array::from_int(window as i32))?));
        let mask = match (before, near.transpose()?) {
            (Some(before), Some(near)) => before.logical_and(near)?,
            (Some(mask), None) | (None, Some(mask)) => mask,
            (None, None) => Array::ones::<bool>(&[tokens as i32, keys as i32])?,
        };
        self.masks.insert(sight, mask.clone());
        Ok(mask)
    }
}

fn another() -> Exception {
    Exception::custom("this cache is another model's")
}
