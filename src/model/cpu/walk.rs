//! What modules share during one pass.

use std::collections::HashMap;
use std::rc::Rc;

use super::Layer;
use super::cache::{Keys, State};
use crate::cache::Cache;
use crate::decoder::parts;
use crate::model::pass::{Pass, Place, Stretch};

/// A pass on its way through the modules. What they give each other are rows `[tokens, width]`, those
/// of all spans one after the other.
pub struct Walk<'w, 'c> {
    caches: &'w mut [&'c mut Cache<Layer>],
    /// Where each span's tokens are.
    pub spans: Vec<Stretch>,
    tokens: usize,
    /// Per-layer embeddings, `[tokens, layers × width]`, and the width.
    pub per_layer: Option<(Vec<f32>, usize)>,
    ropes: &'w [parts::Rope],
    angles: HashMap<(usize, Place), Rc<Angles>>,
}

/// Cosines and sines of a span's tokens, `[tokens, pairs]` each.
#[derive(Debug)]
pub struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    interleaved: bool,
}

impl Angles {
    /// The same for the kernels.
    pub fn turn(&self) -> lathe_kernels::Angles<'_> {
        let Angles { cos, sin, interleaved } = self;
        lathe_kernels::Angles { cos, sin, interleaved: *interleaved }
    }
}

impl<'w, 'c> Walk<'w, 'c> {
    /// A pass that begins.
    pub fn new(
        pass: &Pass,
        caches: &'w mut [&'c mut Cache<Layer>],
        ropes: &'w [parts::Rope],
    ) -> Walk<'w, 'c> {
        let (spans, tokens) = (pass.stretches(), pass.tokens());
        Walk { caches, spans, tokens, per_layer: None, ropes, angles: HashMap::new() }
    }

    /// So many rows, for modules that each row goes through by itself.
    pub fn of_rows(tokens: usize) -> Walk<'w, 'c> {
        let (spans, angles) = (Vec::new(), HashMap::new());
        Walk { caches: &mut [], spans, tokens, per_layer: None, ropes: &[], angles }
    }

    /// Elements of each of the pass's rows.
    pub fn width(&self, x: &[f32]) -> usize {
        x.len() / self.tokens.max(1)
    }

    /// Multiplies rows by a layer's part of the per-layer embedding.
    pub fn times_per_layer(&self, layer: usize, x: &mut [f32]) {
        let Some((per_layer, width)) = &self.per_layer else { return };
        let all = per_layer.len() / self.tokens.max(1);
        let parts = per_layer.chunks_exact(all).map(|row| &row[layer * width..(layer + 1) * width]);
        for (row, part) in x.chunks_exact_mut(*width).zip(parts) {
            row.iter_mut().zip(part).for_each(|(x, by)| *x *= by);
        }
    }

    /// A span's keys in a slot.
    pub fn keys(&mut self, span: usize, slot: usize) -> &mut Keys {
        match self.caches[span].layer_mut(slot) {
            Layer::Keys(keys) => keys,
            Layer::State(_) => unreachable!("slots are given by the modules that use them"),
        }
    }

    /// A span's state in a slot.
    pub fn state(&mut self, span: usize, slot: usize) -> &mut State {
        match self.caches[span].layer_mut(slot) {
            Layer::State(state) => state,
            Layer::Keys(_) => unreachable!("slots are given by the modules that use them"),
        }
    }

    /// The angles of a rotation at a place, worked out once for all modules.
    pub fn angles(&mut self, rope: usize, place: Place) -> Rc<Angles> {
        let parts::Rope { rotation, interleaved, .. } = &self.ropes[rope];
        let make = || {
            let (frequencies, factor) = rotation.of_length(place.whole);
            // Angles in f32, as the reference computes them.
            let angles = (place.position..place.position + place.tokens)
                .flat_map(|at| frequencies.iter().map(move |frequency| at as f32 * frequency));
            let (cos, sin) =
                angles.map(|angle| (angle.cos() * factor, angle.sin() * factor)).unzip();
            Rc::new(Angles { cos, sin, interleaved: *interleaved })
        };
        self.angles.entry((rope, place)).or_insert_with(make).clone()
    }
}
