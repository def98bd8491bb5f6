//! What modules remember of a sequence, in plain memory: [`Keys`] of attention, [`State`]s of
//! recurrences.

mod keys;
mod state;

#[cfg(test)]
mod tests;

pub use keys::{Keys, Sizes, Step};
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

/// Calls the same method of either.
macro_rules! either {
    ($layer:expr, $inner:ident => $body:expr) => {
        match $layer {
            Layer::Keys($inner) => $body,
            Layer::State($inner) => $body,
        }
    };
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
        match self {
            Layer::Keys(keys) => Layer::Keys(keys.share()),
            Layer::State(state) => Layer::State(state.share()),
        }
    }

    fn latest(&mut self) -> Layer {
        match self {
            Layer::Keys(keys) => Layer::Keys(keys.latest()),
            Layer::State(state) => Layer::State(state.share()),
        }
    }

    fn allocations(&self, each: &mut dyn FnMut(usize, usize)) {
        either!(self, layer => layer.allocations(each));
    }
}
