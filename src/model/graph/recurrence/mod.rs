//! The linear recurrence of gated delta nets and Mamba-2.
//!
//! A state S per value head, `[key_dim, value_dim]` in f32. With each token it decays, S ← e^g S;
//! takes something in, S ← S + k ⊗ u; and is read, out = qᵀS. What it takes in is the value, u = v, or
//! with the delta rule u = β (v - kᵀS), what the state lacks of it.
//!
//! A chunk of many tokens is cut into blocks of [`BLOCK`]. What goes on inside a block is products
//! for all blocks at once (Yang et al. 2024; Dao and Gu 2024), so that only the way from block to
//! block is a sequence.

#[cfg(test)]
mod tests;

use mlx_rs::ops::{concatenate, select, stack, zeros_dtype};
use mlx_rs::{Array, Dtype};

use super::ops::{Result, part};

/// Tokens that are worked on together.
const BLOCK: i32 = 64;

/// Inputs of some tokens, all f32. `value_heads / key_heads` value heads share a key head.
#[derive(Debug)]
pub struct Inputs {
    /// q, `[tokens, key_heads, key_dim]`.
    pub queries: Array,
    /// k, as the queries.
    pub keys: Array,
    /// v, `[tokens, value_heads, value_dim]`.
    pub values: Array,
    /// g, at most 0, `[tokens, value_heads]`.
    pub decay: Array,
    /// β of the delta rule, `[tokens, value_heads]`.
    pub write: Option<Array>,
}

/// The sizes of inputs.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    tokens: i32,
    key_heads: i32,
    /// Value heads that share a key head.
    group: i32,
    key_dim: i32,
    value_dim: i32,
}

/// Computes a recurrence.
#[derive(Clone, Debug)]
pub struct Recurrence;

impl Inputs {
    fn sizes(&self) -> Sizes {
        let key_heads = self.keys.dim(1);
        Sizes {
            tokens: self.keys.dim(0),
            key_heads,
            group: self.values.dim(1) / key_heads,
            key_dim: self.keys.dim(2),
            value_dim: self.values.dim(2),
        }
    }
}

impl Recurrence {
    /// One with the delta rule, or without.
    pub fn new(_delta: bool) -> Recurrence {
        Recurrence
    }

    /// What is read at each token, `[tokens, value_heads, value_dim]`, and the state after them,
    /// `[value_heads, key_dim, value_dim]`; before the first token of a sequence it is zero.
    pub fn run(&self, inputs: &Inputs, state: Option<Array>) -> Result<(Array, Array)> {
        let Sizes { tokens, key_heads, group, key_dim, value_dim } = inputs.sizes();
        let state = match state {
            Some(state) => state.reshape(&[key_heads, group, key_dim, value_dim])?,
            None => zeros_dtype(&[key_heads, group, key_dim, value_dim], Dtype::Float32)?,
        };
        let (out, state) = match tokens {
            1 => one(inputs, &state)?,
            _ => in_blocks(inputs, state)?,
        };
        let out = out.reshape(&[tokens, key_heads * group, value_dim])?;
        Ok((out, state.reshape(&[key_heads * group, key_dim, value_dim])?))
    }
}

/// A single token.
fn one(inputs: &Inputs, state: &Array) -> Result<(Array, Array)> {
    let Sizes { key_heads, group, key_dim, value_dim, .. } = inputs.sizes();
    let per_head = |x: &Array| x.reshape(&[key_heads, group, 1, 1]);
    let key = inputs.keys.reshape(&[key_heads, 1, 1, key_dim])?;
    let query = inputs.queries.reshape(&[key_heads, 1, 1, key_dim])?;
    let mut taken = inputs.values.reshape(&[key_heads, group, 1, value_dim])?;
    let state = state.multiply(per_head(&inputs.decay)?.exp()?)?;
    if let Some(write) = &inputs.write {
        taken = taken.subtract(key.matmul(&state)?)?.multiply(per_head(write)?)?;
    }
    let state = state.add(key.swap_axes(-1, -2)?.multiply(taken)?)?;
    Ok((query.matmul(&state)?, state))
}

/// Many tokens. With G the sum of g from a block's first token on, token i of it sees token j ≤ i
/// through e^(G_i - G_j) and the state before the block through e^(G_i). Each u depends by the delta
/// rule on those before it: (1 + A) u = β (v - e^G kᵀS) with A_ij = β_i e^(G_i - G_j) k_i·k_j below
/// the diagonal.
fn in_blocks(inputs: &Inputs, mut state: Array) -> Result<(Array, Array)> {
    let Sizes { tokens, key_heads, group, key_dim, value_dim } = inputs.sizes();
    let block = tokens.min(BLOCK);
    let blocks = tokens.div_euclid(block) + i32::from(tokens % block > 0);
    // [blocks, key_heads, group, block, width]; tokens of zeros at the end change nothing.
    let cut = |x: &Array, group: i32, width: i32| -> Result<Array> {
        let x = x.reshape(&[tokens, key_heads, group, width])?;
        let missing = blocks * block - tokens;
        let x = if missing > 0 {
            let zeros = zeros_dtype(&[missing, key_heads, group, width], x.dtype())?;
            concatenate(&[x, zeros], 0)?
        } else {
            x
        };
        let x = x.reshape(&[blocks, block, key_heads, group, width])?;
        x.transpose_axes(&[0, 2, 3, 1, 4])
    };
    let (queries, keys) = (cut(&inputs.queries, 1, key_dim)?, cut(&inputs.keys, 1, key_dim)?);
    let values = cut(&inputs.values, group, value_dim)?;
    let sums = cut(&inputs.decay, group, 1)?.cumsum(-2, None, None)?;
    let to_keys = keys.swap_axes(-1, -2)?;
    let between = sums.subtract(sums.swap_axes(-1, -2)?)?;
    let never = Array::from_f32(f32::NEG_INFINITY);
    let seen = select(lower(block, 0)?, &between, &never)?.exp()?;
    let mixing = queries.matmul(&to_keys)?.multiply(&seen)?;
    let since = sums.exp()?;
    let reading = queries.multiply(&since)?;
    let last = part(&sums, 3, &(block as usize - 1..block as usize))?;
    let taking = to_keys.multiply(last.subtract(&sums)?.exp()?.swap_axes(-1, -2)?)?;
    let kept = last.exp()?;
    let (values, removing) = match &inputs.write {
        Some(write) => {
            let write = cut(write, group, 1)?;
            let strictly = lower(block, -1)?.as_dtype(Dtype::Float32)?;
            let depends = keys.matmul(&to_keys)?.multiply(&seen)?.multiply(&write)?;
            let solved = inverse(&depends.multiply(strictly)?, block)?;
            let removing = keys.multiply(write.multiply(&since)?)?;
            (solved.matmul(values.multiply(&write)?)?, Some(solved.matmul(removing)?))
        }
        None => (values, None),
    };
    let mut outs = Vec::with_capacity(blocks as usize);
    for at in 0..blocks as usize {
        let of_block = |x: &Array| part(x, 0, &(at..at + 1))?.squeeze_axes(&[0]);
        let mut taken = of_block(&values)?;
        if let Some(removing) = &removing {
            taken = taken.subtract(of_block(removing)?.matmul(&state)?)?;
        }
        let out = of_block(&reading)?.matmul(&state)?;
        outs.push(out.add(of_block(&mixing)?.matmul(&taken)?)?);
        let entered = of_block(&taking)?.matmul(&taken)?;
        state = state.multiply(of_block(&kept)?)?.add(entered)?;
    }
    let out = stack(&outs, 0)?.transpose_axes(&[0, 3, 1, 2, 4])?;
    let out = out.reshape(&[blocks * block, key_heads * group, value_dim])?;
    Ok((part(&out, 0, &(0..tokens as usize))?, state))
}

/// True on and below a diagonal, `[size, size]`.
fn lower(size: i32, diagonal: i32) -> Result<Array> {
    Array::tri::<f32>(size, None, Some(diagonal))?.as_dtype(Dtype::Bool)
}

/// (1 + A)⁻¹ of matrices A `[…, size, size]` that are zero on and above the diagonal.
///
/// Blocks of the diagonal are inverted, and then those of twice the size from them: [[a, 0], [c, b]]⁻¹
/// is [[a⁻¹, 0], [-b⁻¹ c a⁻¹, b⁻¹]]. Unlike the series of the powers of A this is as exact as solving
/// row by row: powers grow without bound where keys are alike.
fn inverse(a: &Array, size: i32) -> Result<Array> {
    let mut inverse = Array::eye::<f32>(size, None, None)?;
    let mut half = 1;
    while half < size {
        let beside = |at: i32| (at / half) % 2;
        let corner = (0..size * size).map(|at| {
            let (i, j) = (at / size, at % size);
            f32::from(u8::from(
                beside(i) == 1 && beside(j) == 0 && i / (2 * half) == j / (2 * half),
            ))
        });
        let corner = Array::from_slice(&corner.collect::<Vec<f32>>(), &[size, size]);
        let corner = a.multiply(corner)?;
        let moved = match half {
            1 => corner,
            _ => inverse.matmul(corner)?.matmul(&inverse)?,
        };
        inverse = inverse.subtract(moved)?;
        half *= 2;
    }
    Ok(inverse)
}
