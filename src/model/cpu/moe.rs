//! Mixture of experts (Shazeer et al. 2017).
//!
//! The router scores every expert for each token; the best `top_k` do the work, and their outputs
//! are summed with weights.

use std::sync::Arc;

use lathe_kernels::Gate;

use super::ends::scale_by;
use super::loader::Loader;
use super::matrix::{BLAS, Floats, Linear, Matrix, add};
use super::module::{Module, run};
use super::norm::Norm;
use super::walk::Walk;
use crate::decoder::parts::{self, Entry, ScoreKind};

/// A mixture of experts.
#[derive(Clone, Debug)]
pub struct Moe {
    router: Router,
    experts: Experts,
    input_norm: Option<Norm>,
    latent: Option<(Linear, Linear)>,
    shared: Option<Shared>,
}

/// An expert that gets every token.
#[derive(Clone, Debug)]
struct Shared {
    steps: Vec<Module>,
    gate: Option<Linear>,
    average: bool,
}

impl Moe {
    /// Loads a mixture.
    pub fn load(from: &mut Loader, moe: &parts::Moe) -> Option<Moe> {
        let router = Router::load(from, &moe.router);
        let experts = Experts::load(from, &moe.experts);
        let input_norm = Norm::maybe(from, &moe.input_norm);
        let latent = match &moe.latent {
            Some((entry, exit)) => {
                let (entry, exit) = (from.linear(entry), from.linear(exit));
                Some((entry?, exit?))
            }
            None => None,
        };
        let shared = match &moe.shared {
            Some(shared) => {
                let steps = Module::load_all(from, &shared.steps);
                let gate = from.maybe_linear(&shared.gate)?;
                Some(Shared { steps, gate, average: shared.average })
            }
            None => None,
        };
        Some(Moe { router: router?, experts: experts?, input_norm: input_norm?, latent, shared })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &[f32], walk: &mut Walk) -> Vec<f32> {
        let (chosen, weights) = self.router.choose(x, walk.width(x));
        let normalized = self.input_norm.as_ref().map(|norm| norm.forward(x, walk.width(x)));
        let input = normalized.as_deref().unwrap_or(x);
        let mut out = match &self.latent {
            Some((entry, exit)) => {
                exit.forward(&self.experts.forward(&entry.forward(input), &chosen, &weights))
            }
            None => self.experts.forward(input, &chosen, &weights),
        };
        let Some(Shared { steps, gate, average }) = &self.shared else { return out };
        let mut beside = run(steps, x.to_vec(), walk);
        if let Some(gate) = gate {
            let mut open = gate.forward(x);
            Gate::Sigmoid.of(&mut open);
            let width = walk.width(&beside);
            for (row, open) in beside.chunks_exact_mut(width).zip(open) {
                row.iter_mut().for_each(|x| *x *= open);
            }
        }
        add(&mut out, &beside);
        if *average {
            scale_by(&mut out, 0.5);
        }
        out
    }
}

/// Who takes which token.
#[derive(Clone, Debug)]
struct Router {
    projection: Linear,
    norm: Option<Norm>,
    soft_cap: Option<f32>,
    top_k: usize,
    scores: ScoreKind,
    correction: Option<Floats>,
    groups: usize,
    top_groups: usize,
    normalize: bool,
    scale: f32,
    expert_scale: Option<Floats>,
}

impl Router {
    fn load(from: &mut Loader, router: &parts::Router) -> Option<Router> {
        let projection = from.linear(&router.projection);
        let norm = Norm::maybe(from, &router.norm);
        let correction = from.maybe_vector(&router.correction);
        let expert_scale = from.maybe_vector(&router.expert_scale);
        let [top_k, groups, top_groups] =
            [router.top_k, router.groups, router.top_groups].map(|count| count as usize);
        Some(Router {
            projection: projection?,
            norm: norm?,
            soft_cap: router.soft_cap.map(|cap| cap as f32),
            top_k,
            scores: router.scores,
            correction: correction?,
            groups,
            top_groups,
            normalize: router.normalize,
            scale: router.scale as f32,
            expert_scale: expert_scale?,
        })
    }

    /// For each of `[tokens, width]`: the experts chosen, `[tokens, top_k]`, and their weights.
    fn choose(&self, x: &[f32], width: usize) -> (Vec<u32>, Vec<f32>) {
        let normalized = self.norm.as_ref().map(|norm| norm.forward(x, width));
        let mut logits = self.projection.forward(normalized.as_deref().unwrap_or(x));
        if let Some(cap) = self.soft_cap {
            lathe_kernels::soft_cap(&mut logits, cap);
        }
        let how = super::missing::Route {
            top_k: self.top_k,
            scores: self.scores as u8,
            correction: self.correction.as_deref(),
            groups: self.groups,
            top_groups: self.top_groups,
            normalize: self.normalize,
            scale: self.scale,
            expert_scale: self.expert_scale.as_deref(),
        };
        super::missing::route(&logits, self.projection.outputs(), &how)
    }
}

/// The stacked experts.
#[derive(Clone, Debug)]
struct Experts {
    entry: Entry<Arc<Matrix>>,
    /// Of gate and up together or of what there is in one; of gate; of up.
    entry_bias: Option<Floats>,
    gate_bias: Option<Floats>,
    up_bias: Option<Floats>,
    down: Arc<Matrix>,
    down_bias: Option<Floats>,
    function: Gate,
    clamp: Option<(f32, f32)>,
}

impl Experts {
    fn load(from: &mut Loader, experts: &parts::Experts) -> Option<Experts> {
        let entry = match &experts.entry {
            Entry::Plain(up) => from.matrix(up).map(Entry::Plain),
            Entry::Split(gate, up) => {
                let (gate, up) = (from.matrix(gate), from.matrix(up));
                Some(Entry::Split(gate?, up?))
            }
            Entry::Fused { both, interleaved } => {
                let both = from.matrix(both);
                both.map(|both| Entry::Fused { both, interleaved: *interleaved })
            }
        };
        let down = from.matrix(&experts.down);
        let names = [&experts.entry_bias, &experts.gate_bias, &experts.up_bias, &experts.down_bias];
        let [entry_bias, gate_bias, up_bias, down_bias] = names.map(|name| from.maybe_vector(name));
        Some(Experts {
            entry: entry?,
            entry_bias: entry_bias?,
            gate_bias: gate_bias?,
            up_bias: up_bias?,
            down: down?,
            down_bias: down_bias?,
            function: experts.function.gate(),
            clamp: experts.clamp.map(|(limit, alpha)| (limit as f32, alpha as f32)),
        })
    }

    /// `[tokens, width]`, the experts of each, `[tokens, top_k]`, and their weights, to `[tokens,
    /// width]`.
    fn forward(&self, x: &[f32], chosen: &[u32], weights: &[f32]) -> Vec<f32> {
        let width = match &self.entry {
            Entry::Plain(entry) | Entry::Split(entry, _) | Entry::Fused { both: entry, .. } => {
                entry.columns
            }
        };
        let tokens = x.len() / width;
        let top_k = chosen.len() / tokens.max(1);
        let out_width = self.down.rows;
        let mut pairs: Vec<usize> = (0..chosen.len()).collect();
        pairs.sort_by_key(|&pair| chosen[pair]);
        let mut each = vec![0.0; chosen.len() * out_width];
        for same in pairs.chunk_by(|&a, &b| chosen[a] == chosen[b]) {
            let expert = chosen[same[0]] as usize;
            let row = |pair: &usize| &x[pair / top_k * width..][..width];
            let rows: Vec<f32> = same.iter().flat_map(row).copied().collect();
            let made = self.of_expert(expert, &rows);
            for (&pair, made) in same.iter().zip(made.chunks_exact(out_width)) {
                each[pair * out_width..][..out_width].copy_from_slice(made);
            }
        }
        let mut out = vec![0.0; tokens * out_width];
        for (pair, each) in each.chunks_exact(out_width).enumerate() {
            let to = &mut out[pair / top_k * out_width..][..out_width];
            to.iter_mut().zip(each).for_each(|(to, each)| *to += weights[pair] * each);
        }
        out
    }

    fn of_expert(&self, expert: usize, x: &[f32]) -> Vec<f32> {
        let product = |matrix: &Matrix, bias: &Option<Floats>, x: &[f32]| {
            let mut out = vec![0.0; x.len() / matrix.columns * matrix.rows];
            lathe_kernels::product(x, &matrix.of(expert), &mut out, BLAS);
            if let Some(bias) = bias {
                let bias = &bias[expert * matrix.rows..][..matrix.rows];
                out.chunks_exact_mut(matrix.rows).for_each(|row| add(row, bias));
            }
            out
        };
        let inner = match &self.entry {
            Entry::Plain(up) => {
                let mut inner = product(up, &self.entry_bias, x);
                self.function.of(&mut inner);
                inner
            }
            Entry::Split(gate, up) => {
                let gate = product(gate, &self.gate_bias, x);
                self.gated(gate, &product(up, &self.up_bias, x))
            }
            Entry::Fused { both, interleaved } => {
                let all = product(both, &self.entry_bias, x);
                let inner = both.rows / 2;
                let part = |from: usize| -> Vec<f32> {
                    let rows = all.chunks_exact(2 * inner);
                    match interleaved {
                        true => {
                            let row = |row: &[f32]| -> Vec<f32> {
                                row.iter().skip(from).step_by(2).copied().collect()
                            };
                            rows.flat_map(row).collect()
                        }
                        false => rows
                            .flat_map(|row| &row[from * inner..(from + 1) * inner])
                            .copied()
                            .collect(),
                    }
                };
                self.gated(part(0), &part(1))
            }
        };
        product(&self.down, &self.down_bias, &inner)
    }

    fn gated(&self, mut gate: Vec<f32>, up: &[f32]) -> Vec<f32> {
        let Some((limit, alpha)) = self.clamp else {
            self.function.apply(&mut gate, up);
            return gate;
        };
        for (gate, up) in gate.iter_mut().zip(up) {
            let open = gate.min(limit);
            let up = up.clamp(-limit, limit) + 1.0;
            *gate = open / (1.0 + (-alpha * open).exp()) * up;
        }
        gate
    }
}
