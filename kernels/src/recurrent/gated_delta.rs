//! Gated delta nets (Yang, Kautz and Hatamizadeh 2024).
//!
//! A state S `[key_dim, value_dim]` per value head is decayed, corrected and read at each token:
//!
//! S ← e^g S; u = β (v - kᵀS); S ← S + k ⊗ u; out = qᵀS.
//!
//! Many tokens are worked on by chunks (Yang et al. 2024, "Parallelizing linear transformers with
//! the delta rule"). With D(t, i) the product of the decays of the tokens after i up to t, and S₀
//! the state before the chunk, D(t, 0) counting from there:
//!
//! u_t = β_t (v_t - D(t, 0) k_tᵀS₀ - Σ_{i<t} D(t, i) (k_t·k_i) u_i), a triangular system;
//! out_t = D(t, 0) q_tᵀS₀ + Σ_{i≤t} D(t, i) (q_t·k_i) u_i;
//! S = D(n, 0) S₀ + Σ D(n, i) k_i ⊗ u_i.

use super::{Band, CHUNK, LEAST_FACTOR, LEAST_VALUE, MANY, cut};
use crate::attention::mix;
use crate::elements::exp;
use crate::team::{threads, with_scratch};
use crate::vectorized::{at_least, dot, vectorized};
use crate::{Columns, Gemm, in_parallel};

/// Elements of states and of what is written to them: 1e-20.
const LEAST_STATE: f32 = LEAST_VALUE / (1 << 15) as f32;

/// What is added to the squares of queries and keys.
const EPS: f32 = 1e-6;

/// What enters a gated delta net.
#[derive(Clone, Copy, Debug)]
pub struct GatedDelta<'a> {
    /// Heads of queries and keys. Each serves as many value heads as the others, neighbours.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Queries `[tokens, key_heads × key_dim]` as they are projected and convolved: they are
    /// divided by (|q|² + 1e-6)^½ × key_dim^½ here.
    pub q: Band<'a>,
    /// Keys, as `q`: they are divided by (|k|² + 1e-6)^½ here.
    pub k: Band<'a>,
    /// Values `[tokens, value_heads × value_dim]`.
    pub v: Band<'a>,
    /// g, of which e^g ≤ 1 is the decay, `[tokens, value_heads]`.
    pub decay: &'a [f32],
    /// β, `[tokens, value_heads]`.
    pub write: &'a [f32],
}

/// `out` `[tokens, value_heads × value_dim]` of a sequence's tokens in order, and the state after
/// them. The state is `[value_heads, key_dim, value_dim]`, zeros when a sequence begins.
///
/// # Panics
/// When lengths do not fit each other.
pub fn gated_delta(given: &GatedDelta, state: &mut [f32], out: &mut [f32], gemm: Gemm) {
    let GatedDelta { key_heads, value_heads, q, k, v, decay, write } = *given;
    assert!(key_heads > 0 && value_heads.is_multiple_of(key_heads) && value_heads > 0, "heads");
    let tokens = v.rows();
    assert!(q.rows() == tokens && k.rows() == tokens, "tokens");
    assert!(q.width() == k.width() && k.width().is_multiple_of(key_heads), "keys");
    assert!(v.width().is_multiple_of(value_heads), "values");
    assert!(q.width() > 0 && v.width() > 0, "nothing in a head");
    let (key_dim, value_dim) = (k.width() / key_heads, v.width() / value_heads);
    assert!(decay.len() == tokens * value_heads && write.len() == decay.len(), "gates");
    assert_eq!(state.len(), value_heads * key_dim * value_dim, "state");
    assert_eq!(out.len(), tokens * v.width(), "out");
    if tokens == 0 {
        return;
    }
    // The value heads of a key head together, unless too few threads would find work.
    let group = value_heads / key_heads;
    let parts = if tokens < MANY { group } else { threads().div_ceil(key_heads).min(group) };
    let heads = |part: usize| part * group / parts..(part + 1) * group / parts;
    let states = Columns { start: state.as_mut_ptr(), stride: key_dim * value_dim };
    let out = Columns { start: out.as_mut_ptr(), stride: v.width() };
    let work = tokens * value_heads * key_dim * value_dim;
    in_parallel(key_heads * parts, work >= 32 * 1024, &|piece| {
        let (key_head, part) = (piece / parts, piece % parts);
        let keys = key_head * key_dim..(key_head + 1) * key_dim;
        let (q, k) = (q.columns(keys.clone()), k.columns(keys));
        let heads = heads(part).map(|head| {
            let head = key_head * group + head;
            // SAFETY: a value head is one piece's alone, and its state inside.
            let state = unsafe {
                std::slice::from_raw_parts_mut(states.below(head).at(0), key_dim * value_dim)
            };
            let values = head * value_dim..(head + 1) * value_dim;
            let out = out.right_of(values.start);
            Head { head, given, v: v.columns(values), state, out }
        });
        if tokens < MANY {
            steps(q, k, heads);
        } else {
            chunks(q, k, &mut heads.collect::<Vec<Head>>(), gemm);
        }
    });
}

/// A value head's own.
struct Head<'a> {
    head: usize,
    given: &'a GatedDelta<'a>,
    v: Band<'a>,
    state: &'a mut [f32],
    /// Its own columns.
    out: Columns,
}

impl Head<'_> {
    /// e^g and β of a token.
    fn gates(&self, token: usize) -> (f32, f32) {
        let at = token * self.given.value_heads + self.head;
        let decay = at_least(LEAST_FACTOR, exp(self.given.decay[at]));
        (decay, at_least(LEAST_VALUE, self.given.write[at]))
    }

    /// A token's row of what leaves.
    fn out(&mut self, token: usize) -> &mut [f32] {
        // SAFETY: so many columns of each row are this head's, which is lent whole.
        unsafe { std::slice::from_raw_parts_mut(self.out.below(token).at(0), self.v.width()) }
    }
}

/// Token by token: the state is read once for k and q together, and written once.
fn steps<'a>(q: Band, k: Band, heads: impl Iterator<Item = Head<'a>>) {
    let (tokens, key_dim) = (k.rows(), k.width());
    for mut head in heads {
        let value_dim = head.v.width();
        with_scratch(2 * key_dim + 3 * value_dim, |scratch| {
            let (both, scratch) = scratch.split_at_mut(2 * key_dim);
            let (read, written) = scratch.split_at_mut(2 * value_dim);
            for token in 0..tokens {
                let (decay, write) = head.gates(token);
                let (unit_k, unit_q) = both.split_at_mut(key_dim);
                unit(k.row(token), 1.0, unit_k);
                unit(q.row(token), (key_dim as f32).powf(-0.5), unit_q);
                mix(both, head.state, 2, read);
                let v = head.v.row(token);
                let (unit_k, unit_q) = both.split_at(key_dim);
                step(unit_k, unit_q, v, [decay, write], read, written);
                change(head.state, decay, unit_k, written);
                head.out(token).copy_from_slice(&read[..value_dim]);
            }
        });
    }
}

vectorized! {
    /// x × scale × (|x|² + eps)^-½.
    fn unit(x: &[f32], scale: f32, out: &mut [f32]) {
        out.iter_mut().zip(x).for_each(|(out, x)| *out = at_least(LEAST_VALUE, *x));
        let factor = scale / (dot(out, out) + EPS).sqrt();
        out.iter_mut().for_each(|x| *x = at_least(LEAST_FACTOR, *x * factor));
    }

    /// From kᵀS and qᵀS of the state before a token: what is written, u, and what is read after
    /// that, e^g qᵀS + (q·k) u, in the place of kᵀS.
    fn step(k: &[f32], q: &[f32], v: &[f32], gates: [f32; 2], read: &mut [f32], u: &mut [f32]) {
        let [decay, write] = gates;
        let same = at_least(LEAST_FACTOR, dot(k, q));
        let (of_k, of_q) = read.split_at_mut(v.len());
        for (((of_k, of_q), u), v) in of_k.iter_mut().zip(of_q).zip(u).zip(v) {
            let kept = decay * at_least(LEAST_STATE, *of_k);
            *u = corrected(*v, kept, write);
            *of_k = at_least(LEAST_VALUE, decay * at_least(LEAST_STATE, *of_q) + same * *u);
        }
    }

    /// S ← e^g S + k ⊗ u.
    fn change(state: &mut [f32], decay: f32, k: &[f32], u: &[f32]) {
        for (row, k) in state.chunks_exact_mut(u.len()).zip(k) {
            for (s, u) in row.iter_mut().zip(u) {
                *s = at_least(LEAST_STATE, decay * *s + k * u);
            }
        }
    }
}

/// What is written of a value where so much is kept already.
#[inline(always)]
fn corrected(v: f32, kept: f32, write: f32) -> f32 {
    at_least(LEAST_STATE, write * at_least(LEAST_VALUE, at_least(LEAST_VALUE, v) - kept))
}

/// Chunk by chunk, for value heads that share keys.
fn chunks(q: Band, k: Band, heads: &mut [Head], gemm: Gemm) {
    let (tokens, key_dim) = (k.rows(), k.width());
    let value_dim = heads.first().map_or(0, |head| head.v.width());
    let n = CHUNK.min(tokens);
    let of_keys = 3 * n * key_dim + 2 * n * n;
    let of_values = 4 * n * value_dim + n * n + n + key_dim * value_dim;
    with_scratch(of_keys + of_values, |scratch| {
        for from in (0..tokens).step_by(CHUNK) {
            let n = CHUNK.min(tokens - from);
            let [both, turned, products, rest] =
                cut(scratch, [2 * n * key_dim, n * key_dim, 2 * n * n]);
            for i in 0..n {
                let (unit_k, unit_q) = both.split_at_mut(n * key_dim);
                unit(k.row(from + i), 1.0, &mut unit_k[i * key_dim..][..key_dim]);
                let scale = (key_dim as f32).powf(-0.5);
                unit(q.row(from + i), scale, &mut unit_q[i * key_dim..][..key_dim]);
            }
            for (column, turned) in turned.chunks_exact_mut(n).enumerate() {
                for (i, turned) in turned.iter_mut().enumerate() {
                    *turned = both[i * key_dim + column];
                }
            }
            // SAFETY: `both` is [2 n, key_dim], its first n rows [n, key_dim], and `products`
            // [2 n, n].
            unsafe {
                let (both, to) = (both.as_ptr(), products.as_mut_ptr());
                gemm.0(2 * n, n, key_dim, both, both, true, to, n);
            }
            let shared = Shared { n, key_dim, both, turned, products };
            for head in heads.iter_mut() {
                chunk(&shared, head, from, rest, gemm);
            }
        }
    });
}

/// What value heads share of a chunk.
struct Shared<'a> {
    n: usize,
    key_dim: usize,
    /// Keys and below them queries, `[2 n, key_dim]`.
    both: &'a [f32],
    /// Keys, `[key_dim, n]`.
    turned: &'a [f32],
    /// Of `both` with the keys, `[2 n, n]`.
    products: &'a [f32],
}

fn chunk(shared: &Shared, head: &mut Head, from: usize, scratch: &mut [f32], gemm: Gemm) {
    let Shared { n, key_dim, both, turned, products } = *shared;
    let width = head.v.width();
    let [read, written, weights, rest] = cut(scratch, [2 * n * width, n * width, n * n]);
    let [decays, mixed, changed, _] = cut(rest, [n, n * width, key_dim * width]);
    // SAFETY: `both` is [2 n, key_dim], the state [key_dim, width], and `read` [2 n, width].
    unsafe {
        let (both, state) = (both.as_ptr(), head.state.as_ptr());
        gemm.0(2 * n, width, key_dim, both, state, false, read.as_mut_ptr(), width);
    }
    let mut since = 1.0;
    for t in 0..n {
        let (decay, write) = head.gates(from + t);
        since = at_least(LEAST_FACTOR, since * decay);
        // The decays to this token from those before it.
        decays[t] = 1.0;
        scale(&mut decays[..t], decay);
        let (before, rest) = written.split_at_mut(t * width);
        let u = &mut rest[..width];
        let row = &mut weights[t * n..(t + 1) * n];
        times(&decays[..t], &products[t * n..][..t], &mut row[..t]);
        if t > 0 {
            mix(&row[..t], before, 1, u);
        } else {
            u.fill(0.0);
        }
        correct(u, head.v.row(from + t), &read[t * width..][..width], [since, write]);
        times(&decays[..=t], &products[(n + t) * n..][..=t], &mut row[..=t]);
        row[t + 1..].fill(0.0);
        keep(&mut read[(n + t) * width..][..width], since);
    }
    // SAFETY: `weights` is [n, n], `written` and `mixed` [n, width].
    unsafe {
        let (weights, written) = (weights.as_ptr(), written.as_ptr());
        gemm.0(n, width, n, weights, written, false, mixed.as_mut_ptr(), width);
    }
    for (t, mixed) in mixed.chunks_exact(width).enumerate() {
        sum(&read[(n + t) * width..][..width], mixed, head.out(from + t));
    }
    for (written, decay) in written.chunks_exact_mut(width).zip(&*decays) {
        weigh(written, *decay);
    }
    // SAFETY: `turned` is [key_dim, n], `written` [n, width], and `changed` [key_dim, width].
    unsafe {
        let (turned, written) = (turned.as_ptr(), written.as_ptr());
        gemm.0(key_dim, width, n, turned, written, false, changed.as_mut_ptr(), width);
    }
    add(head.state, since, changed);
}

vectorized! {
    fn scale(decays: &mut [f32], decay: f32) {
        decays.iter_mut().for_each(|x| *x = at_least(LEAST_FACTOR, *x * decay));
    }

    fn times(decays: &[f32], products: &[f32], out: &mut [f32]) {
        for ((out, decay), product) in out.iter_mut().zip(decays).zip(products) {
            *out = at_least(LEAST_FACTOR, decay * at_least(LEAST_FACTOR, *product));
        }
    }

    /// What is written at a token, in the place of what those before it in the chunk wrote for its
    /// key, given what the state before the chunk holds for it.
    fn correct(u: &mut [f32], v: &[f32], read: &[f32], gates: [f32; 2]) {
        let [since, write] = gates;
        for ((u, v), read) in u.iter_mut().zip(v).zip(read) {
            let kept = since * at_least(LEAST_STATE, *read) + at_least(LEAST_STATE, *u);
            *u = corrected(*v, kept, write);
        }
    }

    fn keep(read: &mut [f32], since: f32) {
        read.iter_mut().for_each(|x| *x = since * at_least(LEAST_STATE, *x));
    }

    fn weigh(written: &mut [f32], decay: f32) {
        written.iter_mut().for_each(|u| *u = at_least(LEAST_STATE, *u * decay));
    }

    fn sum(read: &[f32], mixed: &[f32], out: &mut [f32]) {
        for ((out, read), mixed) in out.iter_mut().zip(read).zip(mixed) {
            *out = at_least(LEAST_VALUE, read + mixed);
        }
    }

    fn add(state: &mut [f32], since: f32, changed: &[f32]) {
        for (s, changed) in state.iter_mut().zip(changed) {
            *s = at_least(LEAST_STATE, since * *s + changed);
        }
    }
}
