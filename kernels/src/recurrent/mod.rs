//! Layers that keep a state of fixed size instead of keys and values: short convolutions, gated
//! delta nets, Mamba-2.
//!
//! What enters is one sequence's tokens in order and the state before them; what leaves is a row
//! for each token and the state after them. A sequence may be cut anywhere. Few tokens are worked
//! on one by one, which is a matter of reading the state; many by chunks, whose inner sums are
//! products of matrices.
//!
//! Nothing here is ever subnormal, although states decay towards zero: what is beneath a bound
//! becomes zero, and the bounds are such that products of what is left, and the last bits of such
//! products, are normal numbers.

mod band;
mod conv;
mod gated_delta;
mod mamba2;

pub use band::Band;
pub use conv::{Conv, conv};
pub use gated_delta::{GatedDelta, gated_delta};
pub use mamba2::{Mamba2, mamba2};

/// Factors of at most about 1: decays, elements of unit vectors, their products.
const LEAST_FACTOR: f32 = 1.0 / (1_u64 << 36) as f32;

/// What enters and leaves: 4e-16.
const LEAST_VALUE: f32 = 1.0 / (1_u64 << 51) as f32;

/// Tokens from which on chunks are faster than steps: the state is in a cache then, and its products
/// are the BLAS's.
const MANY: usize = 5;

/// Tokens of a chunk.
const CHUNK: usize = 64;

/// Three parts of so many elements, and the rest.
fn cut(mut all: &mut [f32], lengths: [usize; 3]) -> [&mut [f32]; 4] {
    let parts = lengths.map(|length| {
        let (part, rest) = std::mem::take(&mut all).split_at_mut(length);
        all = rest;
        part
    });
    let [a, b, c] = parts;
    [a, b, c, all]
}

#[cfg(test)]
mod tests;
