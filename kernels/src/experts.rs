//! A mixture of experts (Shazeer et al. 2017): what the experts chosen for each token make of it,
//! summed with weights.
//!
//! Tokens are sorted by expert. Each stage, in and out, is one parallel work of all experts'
//! products, so that threads share also what single tokens are multiplied with. The sum over a
//! token's experts is made in the order that they are chosen in, whatever other tokens there are.

use std::ops::Range;

use crate::elements::{by_rows_of, clamped_gate};
use crate::vectorized::vectorized;
use crate::{Gate, Gemm, Job, Matrix, each_product};

/// Matrices of experts, all `[rows, columns]`.
#[derive(Clone, Copy)]
pub struct Stack<'a> {
    /// Experts.
    pub count: usize,
    /// The matrix of each.
    pub of: &'a (dyn Fn(usize) -> Matrix<'a> + Sync),
    /// Added to what comes out, `[count, rows]`.
    pub bias: Option<&'a [f32]>,
}

/// What experts do first.
#[derive(Clone, Copy)]
pub enum Entry<'a> {
    /// function(up).
    Plain(Stack<'a>),
    /// function(gate) × up.
    Split {
        /// What the function is of.
        gate: Stack<'a>,
        /// What that is multiplied with.
        up: Stack<'a>,
    },
    /// The same, in one matrix.
    Fused {
        /// Gate above up, or row by row in turns.
        both: Stack<'a>,
        /// Whether they take turns, a gate's row first.
        interleaved: bool,
    },
}

/// Experts: down(function(gate(x)) × up(x)) or down(function(up(x))), with biases.
#[derive(Clone, Copy)]
pub struct Experts<'a> {
    /// What is done first.
    pub entry: Entry<'a>,
    /// The function.
    pub function: Gate,
    /// Limit and alpha of [`clamped_gate`], which then takes the place of the function where there
    /// is a gate.
    pub clamp: Option<(f32, f32)>,
    /// What is done last.
    pub down: Stack<'a>,
}

/// Who works on which token.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    /// Experts of a token.
    pub top_k: usize,
    /// `[tokens, top_k]`.
    pub experts: &'a [u32],
    /// `[tokens, top_k]`.
    pub weights: &'a [f32],
}

/// `out` `[tokens, rows of down]`: of each row of `x` `[tokens, columns of the entry]`, the sum of
/// what its experts make of it.
///
/// # Panics
/// When lengths do not fit each other, or an expert is not there.
pub fn mixture(experts: &Experts, chosen: &Chosen, x: &[f32], out: &mut [f32], gemm: Gemm) {
    let Chosen { top_k, experts: named, weights } = *chosen;
    assert!(top_k > 0 && named.len().is_multiple_of(top_k), "chosen");
    assert_eq!(named.len(), weights.len(), "weights");
    let tokens = named.len() / top_k;
    if tokens == 0 {
        assert!(x.is_empty() && out.is_empty(), "tokens");
        return;
    }
    assert!(x.len().is_multiple_of(tokens) && out.len().is_multiple_of(tokens), "tokens");
    let sorted = Sorted::new(named);
    let first = Entering { x, width: x.len() / tokens, top_k, sorted: &sorted };
    let inner = first.inner(experts, gemm);
    // Row i of `inner` is that of the i-th pair in order, and so is that of `made`.
    let width = out.len() / tokens;
    let mut made = vec![0.0; named.len() * width];
    let columns = inner.len() / named.len();
    let mut left = &mut made[..];
    let mut jobs = Vec::with_capacity(sorted.runs.len());
    for (expert, range) in &sorted.runs {
        let (to, rest) = left.split_at_mut(range.len() * width);
        left = rest;
        let x = &inner[range.start * columns..range.end * columns];
        jobs.push(Job { x, matrix: experts.down.matrix(*expert, width, columns), out: to });
    }
    each_product(&mut jobs, gemm);
    let bias = |expert: usize| experts.down.bias.map(|bias| &bias[expert * width..][..width]);
    if let Some(bias) = experts.down.bias {
        assert_eq!(bias.len(), experts.down.count * width, "bias");
    }
    by_rows_of(out, width, made.len(), &|token, out| {
        out.fill(0.0);
        for pair in token * top_k..(token + 1) * top_k {
            let made = &made[sorted.places[pair] * width..][..width];
            add(out, made, bias(named[pair] as usize), weights[pair]);
        }
    });
}

vectorized! {
    fn add(out: &mut [f32], made: &[f32], bias: Option<&[f32]>, weight: f32) {
        match bias {
            Some(bias) => {
                for ((out, made), bias) in out.iter_mut().zip(made).zip(bias) {
                    *out += weight * (made + bias);
                }
            }
            None => out.iter_mut().zip(made).for_each(|(out, made)| *out += weight * made),
        }
    }
}

impl<'a> Stack<'a> {
    /// The matrix of an expert, which must be `[rows, columns]`.
    fn matrix(&self, expert: usize, rows: usize, columns: usize) -> Matrix<'a> {
        assert!(expert < self.count, "expert {expert} of {}", self.count);
        let matrix = (self.of)(expert);
        assert!(matrix.rows == rows && matrix.columns == columns, "an expert's matrix");
        matrix
    }

    /// Rows of all its matrices.
    fn rows(&self) -> usize {
        assert!(self.count > 0, "no experts");
        let rows = (self.of)(0).rows;
        assert!(self.bias.is_none_or(|bias| bias.len() == self.count * rows), "bias");
        rows
    }
}

/// Pairs of a token and one of its experts, by expert.
struct Sorted {
    /// Pairs in order of experts; those of an expert in order of tokens.
    pairs: Vec<usize>,
    /// Where each pair is in that order.
    places: Vec<usize>,
    /// Each expert that is named, and where its pairs are.
    runs: Vec<(usize, Range<usize>)>,
}

impl Sorted {
    fn new(named: &[u32]) -> Sorted {
        let mut pairs: Vec<usize> = (0..named.len()).collect();
        pairs.sort_by_key(|&pair| named[pair]);
        let mut places = vec![0; pairs.len()];
        pairs.iter().enumerate().for_each(|(place, &pair)| places[pair] = place);
        let mut from = 0;
        let runs = pairs.chunk_by(|&a, &b| named[a] == named[b]).map(|same| {
            from += same.len();
            (named[same[0]] as usize, from - same.len()..from)
        });
        let runs = runs.collect();
        Sorted { pairs, places, runs }
    }
}

/// What enters, and who works on it.
struct Entering<'a> {
    x: &'a [f32],
    width: usize,
    top_k: usize,
    sorted: &'a Sorted,
}

/// Some rows of a stack's matrices.
struct Slice<'a> {
    of: Stack<'a>,
    rows: Range<usize>,
}

impl Entering<'_> {
    /// What goes to the last stage, for each pair in order.
    fn inner(&self, experts: &Experts, gemm: Gemm) -> Vec<f32> {
        let (mut gate, up) = match experts.entry {
            Entry::Plain(up) => {
                let [mut up] = self.products([Slice { of: up, rows: 0..up.rows() }], gemm);
                experts.function.of(&mut up);
                return up;
            }
            Entry::Split { gate, up } => {
                let rows = gate.rows();
                assert_eq!(up.rows(), rows, "gate and up");
                let parts = [gate, up].map(|of| Slice { of, rows: 0..rows });
                self.products(parts, gemm).into()
            }
            Entry::Fused { both, interleaved: false } => {
                let rows = both.rows() / 2;
                assert_eq!(both.rows(), 2 * rows, "gate and up");
                let parts = [0..rows, rows..2 * rows].map(|rows| Slice { of: both, rows });
                self.products(parts, gemm).into()
            }
            Entry::Fused { both, interleaved: true } => {
                let rows = both.rows();
                assert!(rows.is_multiple_of(2), "gate and up");
                let [both] = self.products([Slice { of: both, rows: 0..rows }], gemm);
                both.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip()
            }
        };
        match experts.clamp {
            Some((limit, alpha)) => clamped_gate(&mut gate, &up, limit, alpha),
            None => experts.function.apply(&mut gate, &up),
        }
        gate
    }

    /// Of each pair in order, what each part makes of its token, with biases.
    fn products<const N: usize>(&self, parts: [Slice; N], gemm: Gemm) -> [Vec<f32>; N] {
        let Entering { x, width, top_k, sorted } = *self;
        let row = |pair: usize| &x[pair / top_k * width..][..width];
        // Tokens that share an expert, together; one alone is where it was.
        let gathered: Vec<Vec<f32>> = sorted
            .runs
            .iter()
            .map(|(_, range)| match &sorted.pairs[range.clone()] {
                [_] => Vec::new(),
                pairs => pairs.iter().flat_map(|&pair| row(pair)).copied().collect(),
            })
            .collect();
        let mut made = parts.each_ref().map(|part| vec![0.0; sorted.pairs.len() * part.rows.len()]);
        let mut jobs = Vec::with_capacity(N * sorted.runs.len());
        for (part, made) in parts.iter().zip(&mut made) {
            let whole = part.of.rows();
            let mut left = &mut made[..];
            for ((expert, range), gathered) in sorted.runs.iter().zip(&gathered) {
                let (out, rest) = left.split_at_mut(range.len() * part.rows.len());
                left = rest;
                let matrix = part.of.matrix(*expert, whole, width);
                let matrix = matrix.part(part.rows.start, part.rows.len());
                let alone = gathered.is_empty();
                let x = if alone { row(sorted.pairs[range.start]) } else { gathered };
                jobs.push(Job { x, matrix, out });
            }
        }
        each_product(&mut jobs, gemm);
        drop(jobs);
        for (part, made) in parts.iter().zip(&mut made) {
            let Some(bias) = part.of.bias else { continue };
            let (rows, whole) = (part.rows.len(), part.of.rows());
            for (expert, range) in &sorted.runs {
                let bias = &bias[expert * whole..][part.rows.clone()];
                crate::add_bias(&mut made[range.start * rows..range.end * rows], bias);
            }
        }
        made
    }
}
