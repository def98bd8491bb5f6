//! Mixture of experts (Shazeer et al. 2017).
//!
//! The router scores every expert for each token; the best `top_k` do the work, and their outputs
//! are summed with weights.

use std::sync::Arc;

use lathe_kernels::{Chosen, Gate, Scoring, Stack, mixture};

use super::loader::Loader;
use super::matrix::{BLAS, Floats, Linear, Matrix};
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
        let (top_k, (chosen, weights)) = (self.router.top_k, self.router.choose(x, walk.width(x)));
        let normalized = self.input_norm.as_ref().map(|norm| norm.forward(x, walk.width(x)));
        let input = normalized.as_deref().unwrap_or(x);
        let mut out = match &self.latent {
            Some((entry, exit)) => {
                let made = self.experts.forward(&entry.forward(input), &chosen, &weights, top_k);
                exit.forward(&made)
            }
            None => self.experts.forward(input, &chosen, &weights, top_k),
        };
        let Some(Shared { steps, gate, average }) = &self.shared else { return out };
        let mut beside = run(steps, x.to_vec(), walk);
        if let Some(gate) = gate {
            let mut open = gate.forward(x);
            Gate::Sigmoid.of(&mut open);
            lathe_kernels::scale_rows(&mut beside, &open);
        }
        lathe_kernels::add_all(&mut out, &[&beside], if *average { 0.5 } else { 1.0 });
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
    scoring: Scoring,
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
            scoring: match router.scores {
                ScoreKind::Softmax => Scoring::Softmax,
                ScoreKind::SoftmaxOfChosen => Scoring::SoftmaxOfChosen,
                ScoreKind::Sigmoid => Scoring::Sigmoid,
            },
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
        let how = lathe_kernels::Router {
            experts: self.projection.outputs(),
            top_k: self.top_k,
            scoring: self.scoring,
            correction: self.correction.as_deref(),
            groups: self.groups,
            top_groups: self.top_groups,
            normalize: self.normalize,
            scale: self.scale,
            expert_scale: self.expert_scale.as_deref(),
        };
        let count = logits.len() / how.experts * self.top_k;
        let (mut chosen, mut weights) = (vec![0; count], vec![0.0; count]);
        lathe_kernels::route(&how, &logits, &mut chosen, &mut weights);
        (chosen, weights)
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
    fn forward(&self, x: &[f32], experts: &[u32], weights: &[f32], top_k: usize) -> Vec<f32> {
        let of = [self.entry.first(), self.entry.second().unwrap_or(&self.down), &self.down];
        let of = of.map(|matrix| move |expert: usize| matrix.of(expert));
        let stack =
            |at: usize, matrix: &Matrix, bias| Stack { count: matrix.stacked, of: &of[at], bias };
        let biases = [&self.entry_bias, &self.gate_bias, &self.up_bias, &self.down_bias];
        let [entry_bias, gate_bias, up_bias, down_bias] = biases.map(Option::as_deref);
        let entry = match &self.entry {
            Entry::Plain(up) => lathe_kernels::Entry::Plain(stack(0, up, entry_bias)),
            Entry::Split(gate, up) => lathe_kernels::Entry::Split {
                gate: stack(0, gate, gate_bias),
                up: stack(1, up, up_bias),
            },
            Entry::Fused { both, interleaved } => lathe_kernels::Entry::Fused {
                both: stack(0, both, entry_bias),
                interleaved: *interleaved,
            },
        };
        let down = stack(2, &self.down, down_bias);
        let mixed =
            lathe_kernels::Experts { entry, function: self.function, clamp: self.clamp, down };
        let mut out = vec![0.0; experts.len() / top_k * self.down.rows];
        mixture(&mixed, &Chosen { top_k, experts, weights }, x, &mut out, BLAS);
        out
    }
}

impl Entry<Arc<Matrix>> {
    /// The matrix that is all of it, or the gate's.
    fn first(&self) -> &Matrix {
        match self {
            Entry::Plain(first) | Entry::Split(first, _) | Entry::Fused { both: first, .. } => {
                first
            }
        }
    }

    /// What a gate by itself opens.
    fn second(&self) -> Option<&Matrix> {
        match self {
            Entry::Split(_, up) => Some(up),
            Entry::Plain(_) | Entry::Fused { .. } => None,
        }
    }
}
