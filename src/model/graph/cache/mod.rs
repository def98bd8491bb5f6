//! What modules remember of a sequence, as arrays of MLX: [`Keys`] of attention, [`State`]s of
//! recurrences.
//!
//! An array of MLX is never changed: an operation that writes makes a new one, in the same memory
//! where nobody else holds the old one. So copies hold the same arrays, and the first one that
//! writes on copies them.

mod keys;
mod state;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_rs::Array;

pub use keys::{Keys, Seen};
pub use state::{Carry, State};

use crate::cache;

/// What one module remembers.
#[derive(Clone, Debug)]
pub enum Layer {
    /// Keys and values.
    Keys(Keys),
    /// A recurrent state.
    State(State),
}

/// An array that copies of a cache hold together, and the number by which that is known.
#[derive(Clone, Debug)]
struct Kept {
    array: Array,
    number: usize,
}

impl Kept {
    fn new(array: Array) -> Kept {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        Kept { array, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    fn tell(&self, each: &mut dyn FnMut(usize, usize)) {
        each(self.number, self.array.nbytes());
    }
}

/// Calls the same method of either.
macro_rules! either {
    ($layer:expr, $inner:ident => $body:expr) => {
        match $layer {
            Layer::Keys($inner) => $body,
            Layer::State($inner) => $body,
        }
    };
}

impl Layer {
    /// What the next pass needs to be there.
    pub fn arrays(&self) -> Vec<&Array> {
        either!(self, layer => layer.arrays())
    }
}

impl cache::Layer for Layer {
    fn forgets(&self) -> bool {
        either!(self, layer => layer.forgets())
    }

    fn reaches(&self, offset: usize) -> bool {
        either!(self, layer => layer.reaches(offset))
    }

    fn settle(&mut self, offset: usize) {
        either!(self, layer => layer.settle(offset));
    }

    fn share(&mut self) -> Layer {
        self.clone()
    }

    fn latest(&mut self) -> Layer {
        match self {
            Layer::Keys(keys) => Layer::Keys(keys.latest()),
            Layer::State(state) => Layer::State(state.clone()),
        }
    }

    /// Arrays are told by number, which is no address.
    fn allocations(&self, each: &mut dyn FnMut(usize, usize)) {
        either!(self, layer => layer.allocations(each));
    }
}
