//! Mamba-2 (Dao and Gu 2024).
//!
//! A state S `[dim, state]` per head: S ← e^(Δ A) S + Δ x ⊗ B; y = S C + D x. Heads of a group
//! share B and C.
//!
//! Many tokens are worked on by chunks (state space duality, section 6 there). With L(t, i) the
//! product of the decays of the tokens after i up to t, and S₀ the state before the chunk, L(t, 0)
//! counting from there:
//!
//! y_t = L(t, 0) S₀ C_t + Σ_{i≤t} L(t, i) (C_t·B_i) Δ_i x_i + D x_t;
//! S = L(n, 0) S₀ + Σ L(n, i) Δ_i x_i ⊗ B_i.

use super::{Band, CHUNK, LEAST_FACTOR, LEAST_VALUE, MANY, cut};
use crate::attention::scores_of;
use crate::elements::exp;
use crate::team::{threads, with_scratch};
use crate::vectorized::{at_least, dot, vectorized};
use crate::{Columns, Gemm, in_parallel};

/// What enters Mamba-2.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2<'a> {
    /// Heads.
    pub heads: usize,
    /// Groups of neighbouring heads that share B and C.
    pub groups: usize,
    /// `[tokens, heads × dim]`.
    pub x: Band<'a>,
    /// B, `[tokens, groups × state]`.
    pub b: Band<'a>,
    /// C, `[tokens, groups × state]`.
    pub c: Band<'a>,
    /// Δ > 0, after softplus and bounds, `[tokens, heads]`.
    pub dt: &'a [f32],
    /// A < 0, `[heads]`.
    pub a: &'a [f32],
    /// D, `[heads]`.
    pub d: &'a [f32],
}

/// `out` `[tokens, heads × dim]` of a sequence's tokens in order, and the state after them. The
/// state is `[heads, dim, state]`, zeros when a sequence begins.
///
/// # Panics
/// When lengths do not fit each other.
pub fn mamba2(given: &Mamba2, state: &mut [f32], out: &mut [f32], gemm: Gemm) {
    let Mamba2 { heads, groups, x, b, c, dt, a, d } = *given;
    assert!(groups > 0 && heads.is_multiple_of(groups) && heads > 0, "heads");
    let tokens = x.rows();
    assert!(b.rows() == tokens && c.rows() == tokens, "tokens");
    assert!(x.width().is_multiple_of(heads) && b.width().is_multiple_of(groups), "widths");
    assert!(b.width() == c.width() && x.width() > 0 && b.width() > 0, "widths");
    let (dim, size) = (x.width() / heads, b.width() / groups);
    assert!(dt.len() == tokens * heads && a.len() == heads && d.len() == heads, "gates");
    assert_eq!(state.len(), heads * dim * size, "state");
    assert_eq!(out.len(), tokens * x.width(), "out");
    if tokens == 0 {
        return;
    }
    // The heads of a group together, unless too few threads would find work.
    let group = heads / groups;
    let parts = if tokens < MANY { group } else { threads().div_ceil(groups).min(group) };
    let states = Columns { start: state.as_mut_ptr(), stride: dim * size };
    let out = Columns { start: out.as_mut_ptr(), stride: x.width() };
    let worth = tokens * heads * dim * size >= 32 * 1024;
    in_parallel(groups * parts, worth, &|piece| {
        let (which, part) = (piece / parts, piece % parts);
        let shared = which * size..(which + 1) * size;
        let (b, c) = (b.columns(shared.clone()), c.columns(shared));
        let heads = (part * group / parts..(part + 1) * group / parts).map(|head| {
            let head = which * group + head;
            // SAFETY: a head is one piece's alone, and its state inside.
            let state =
                unsafe { std::slice::from_raw_parts_mut(states.below(head).at(0), dim * size) };
            let columns = head * dim..(head + 1) * dim;
            let out = out.right_of(columns.start);
            Head { head, given, x: x.columns(columns), state, out }
        });
        if tokens < MANY {
            steps(b, c, heads);
        } else {
            chunks(b, c, &mut heads.collect::<Vec<Head>>(), gemm);
        }
    });
}

/// A head's own.
struct Head<'a> {
    head: usize,
    given: &'a Mamba2<'a>,
    x: Band<'a>,
    state: &'a mut [f32],
    /// Its own columns.
    out: Columns,
}

impl Head<'_> {
    /// e^(Δ A) and Δ of a token.
    fn gates(&self, token: usize) -> (f32, f32) {
        let dt = at_least(LEAST_VALUE, self.given.dt[token * self.given.heads + self.head]);
        (at_least(LEAST_FACTOR, exp(dt * self.given.a[self.head])), dt)
    }

    /// A token's row of what leaves.
    fn out(&mut self, token: usize) -> &mut [f32] {
        // SAFETY: so many columns of each row are this head's, which is lent whole.
        unsafe { std::slice::from_raw_parts_mut(self.out.below(token).at(0), self.x.width()) }
    }
}

/// Token by token: what the state before a token gives is read, decays and gets its part of what is
/// written, so that the new state need not be read again.
fn steps<'a>(b: Band, c: Band, heads: impl Iterator<Item = Head<'a>>) {
    let size = b.width();
    for mut head in heads {
        let (d, dim) = (head.given.d[head.head], head.x.width());
        with_scratch(2 * size + 2 * dim, |scratch| {
            let [of_b, of_c, written, read] = cut(scratch, [size, size, dim]);
            for token in 0..b.rows() {
                let (decay, dt) = head.gates(token);
                load(b.row(token), 1.0, of_b);
                load(c.row(token), 1.0, of_c);
                let x = head.x.row(token);
                load(x, dt, written);
                scores_of(of_c, head.state, size, read);
                let same = product(of_b, of_c);
                step(read, written, x, [decay, same, d], head.out(token));
                change(head.state, decay, written, of_b);
            }
        });
    }
}

vectorized! {
    /// x × factor.
    fn load(x: &[f32], factor: f32, out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = at_least(LEAST_VALUE, at_least(LEAST_VALUE, *x) * factor);
        }
    }

    fn product(b: &[f32], c: &[f32]) -> f32 {
        at_least(LEAST_VALUE, dot(b, c))
    }

    /// decay × (S C) + Δ x (B C) + D x.
    fn step(read: &[f32], written: &[f32], x: &[f32], by: [f32; 3], out: &mut [f32]) {
        let [decay, same, d] = by;
        for (((out, read), written), x) in out.iter_mut().zip(read).zip(written).zip(x) {
            let kept = decay * at_least(LEAST_VALUE, *read) + written * same;
            *out = at_least(LEAST_VALUE, kept + d * at_least(LEAST_VALUE, *x));
        }
    }

    /// S ← decay × S + Δ x ⊗ B.
    fn change(state: &mut [f32], decay: f32, written: &[f32], b: &[f32]) {
        for (row, written) in state.chunks_exact_mut(b.len()).zip(written) {
            for (s, b) in row.iter_mut().zip(b) {
                *s = at_least(LEAST_VALUE, decay * *s + written * b);
            }
        }
    }
}

/// Chunk by chunk, for heads that share B and C.
fn chunks(b: Band, c: Band, heads: &mut [Head], gemm: Gemm) {
    let (tokens, size) = (b.rows(), b.width());
    let dim = heads.first().map_or(0, |head| head.x.width());
    let n = CHUNK.min(tokens);
    let of_group = 2 * n * size + n * n;
    let of_heads = 4 * n * dim + n * n + n + dim * size;
    with_scratch(of_group + of_heads, |scratch| {
        for from in (0..tokens).step_by(CHUNK) {
            let n = CHUNK.min(tokens - from);
            let [of_b, of_c, products, rest] = cut(scratch, [n * size, n * size, n * n]);
            for i in 0..n {
                load(b.row(from + i), 1.0, &mut of_b[i * size..][..size]);
                load(c.row(from + i), 1.0, &mut of_c[i * size..][..size]);
            }
            // SAFETY: `of_b` and `of_c` are [n, size], and `products` [n, n].
            unsafe {
                let (c, b, to) = (of_c.as_ptr(), of_b.as_ptr(), products.as_mut_ptr());
                gemm.0(n, n, size, c, b, true, to, n);
            }
            let shared = Shared { n, size, b: of_b, c: of_c, products };
            for head in heads.iter_mut() {
                chunk(&shared, head, from, rest, gemm);
            }
        }
    });
}

/// What heads share of a chunk.
struct Shared<'a> {
    n: usize,
    size: usize,
    /// `[n, size]`.
    b: &'a [f32],
    /// `[n, size]`.
    c: &'a [f32],
    /// Of C with B, `[n, n]`.
    products: &'a [f32],
}

fn chunk(shared: &Shared, head: &mut Head, from: usize, scratch: &mut [f32], gemm: Gemm) {
    let Shared { n, size, b, c, products } = *shared;
    let dim = head.x.width();
    let [written, weights, decays, rest] = cut(scratch, [n * dim, n * n, n]);
    let [read, mixed, turned, changed] = cut(rest, [n * dim, n * dim, n * dim]);
    // SAFETY: `c` is [n, size], the state [dim, size], and `read` [n, dim].
    unsafe {
        let (c, state) = (c.as_ptr(), head.state.as_ptr());
        gemm.0(n, dim, size, c, state, true, read.as_mut_ptr(), dim);
    }
    let mut since = 1.0;
    for t in 0..n {
        let (decay, dt) = head.gates(from + t);
        load(head.x.row(from + t), dt, &mut written[t * dim..][..dim]);
        since = at_least(LEAST_FACTOR, since * decay);
        // The decays to this token from those before it.
        decays[t] = 1.0;
        weigh(&mut decays[..t], decay);
        let row = &mut weights[t * n..(t + 1) * n];
        times(&decays[..=t], &products[t * n..][..=t], &mut row[..=t]);
        row[t + 1..].fill(0.0);
        let d = head.given.d[head.head];
        keep(&mut read[t * dim..][..dim], since, head.x.row(from + t), d);
    }
    // SAFETY: `weights` is [n, n], `written` and `mixed` [n, dim].
    unsafe {
        let (weights, written) = (weights.as_ptr(), written.as_ptr());
        gemm.0(n, dim, n, weights, written, false, mixed.as_mut_ptr(), dim);
    }
    for (t, mixed) in mixed.chunks_exact(dim).enumerate() {
        sum(&read[t * dim..][..dim], mixed, head.out(from + t));
    }
    for (column, turned) in turned.chunks_exact_mut(n).enumerate() {
        for ((i, turned), decay) in turned.iter_mut().enumerate().zip(&*decays) {
            *turned = at_least(LEAST_VALUE, written[i * dim + column] * decay);
        }
    }
    let changed = &mut changed[..dim * size];
    // SAFETY: `turned` is [dim, n], `b` [n, size], and `changed` [dim, size].
    unsafe {
        let (turned, b) = (turned.as_ptr(), b.as_ptr());
        gemm.0(dim, size, n, turned, b, false, changed.as_mut_ptr(), size);
    }
    add(head.state, since, changed);
}

vectorized! {
    fn weigh(decays: &mut [f32], decay: f32) {
        decays.iter_mut().for_each(|x| *x = at_least(LEAST_FACTOR, *x * decay));
    }

    fn times(decays: &[f32], products: &[f32], out: &mut [f32]) {
        for ((out, decay), product) in out.iter_mut().zip(decays).zip(products) {
            *out = at_least(LEAST_VALUE, decay * at_least(LEAST_VALUE, *product));
        }
    }

    /// What is read of the state before the chunk, and D x.
    fn keep(read: &mut [f32], since: f32, x: &[f32], d: f32) {
        for (read, x) in read.iter_mut().zip(x) {
            *read = since * at_least(LEAST_VALUE, *read) + d * at_least(LEAST_VALUE, *x);
        }
    }

    fn sum(read: &[f32], mixed: &[f32], out: &mut [f32]) {
        for ((out, read), mixed) in out.iter_mut().zip(read).zip(mixed) {
            *out = at_least(LEAST_VALUE, read + mixed);
        }
    }

    fn add(state: &mut [f32], since: f32, changed: &[f32]) {
        for (s, changed) in state.iter_mut().zip(changed) {
            *s = at_least(LEAST_VALUE, since * *s + changed);
        }
    }
}
