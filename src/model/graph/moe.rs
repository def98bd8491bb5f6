//! Mixture of experts (Shazeer et al. 2017).
//!
//! The router scores every expert for each token; the best `top_k` do the work, and their outputs
//! are summed with weights. What routers differ in are independent choices here: softmax over all
//! logits (Mixtral), over the chosen ones (gpt-oss), or sigmoid (DeepSeek-V3); a correction added
//! for the choice only; choosing from the best groups only; normalized or scaled weights.
//!
//! Experts are stacked matrices, `[experts, out, in]`, and a gathered product works on the chosen
//! ones only.

use mlx_rs::ops::indexing::{Ellipsis, TryIndexOp, topk_axis};
use mlx_rs::ops::{argpartition_axis, argsort, maximum, select, sigmoid, softmax_axis};
use mlx_rs::{Array, Dtype};

use super::loader::Loader;
use super::matrix::{Linear, Matrix};
use super::module::{Module, run};
use super::norm::Norm;
use super::ops::{Function, Result, last_axis, one_more, soft_cap, times};
use super::walk::Walk;
use crate::decoder::parts::{self, Entry, ScoreKind};

/// Pairs of a token and an expert from which on they are sorted by expert: a matrix is then read once
/// for all tokens that ask for it.
const SORTED: usize = 64;

/// A mixture of experts.
#[derive(Clone, Debug)]
pub struct Moe {
    router: Router,
    experts: Experts,
    input_norm: Option<Norm>,
    latent: Option<(Linear, Linear)>,
    shared: Option<Shared>,
}

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
                let (entry, exit) = (Linear::load(from, entry), Linear::load(from, exit));
                Some((entry?, exit?))
            }
            None => None,
        };
        let shared = match &moe.shared {
            Some(shared) => {
                let steps = Module::load_all(from, &shared.steps);
                let gate = Linear::maybe(from, &shared.gate)?;
                Some(Shared { steps, gate, average: shared.average })
            }
            None => None,
        };
        Some(Moe { router: router?, experts: experts?, input_norm: input_norm?, latent, shared })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &Array, walk: &mut Walk) -> Result<Array> {
        let (chosen, weights) = self.router.choose(x)?;
        let mut input = match &self.input_norm {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        if let Some((entry, _)) = &self.latent {
            input = entry.forward(&input)?;
        }
        // [tokens, top_k, width]
        let outs = self.experts.forward(&input, &chosen)?;
        let weights = weights.as_dtype(outs.dtype())?.expand_dims(-1)?;
        let mut out = outs.multiply(weights)?.sum_axes(&[-2], false)?;
        if let Some((_, exit)) = &self.latent {
            out = exit.forward(&out)?;
        }
        let Some(shared) = &self.shared else { return Ok(out) };
        let mut beside = run(&shared.steps, x, walk)?;
        if let Some(gate) = &shared.gate {
            beside = beside.multiply(sigmoid(gate.forward(x)?)?)?;
        }
        let out = out.add(beside)?;
        if shared.average { times(&out, 0.5) } else { Ok(out) }
    }
}

/// Who takes which token.
#[derive(Clone, Debug)]
struct Router {
    projection: Linear,
    norm: Option<Norm>,
    top_k: i32,
    scores: ScoreKind,
    soft_cap: Option<f32>,
    correction: Option<Array>,
    groups: i32,
    top_groups: i32,
    normalize: bool,
    scale: f32,
    expert_scale: Option<Array>,
}

impl Router {
    fn load(from: &mut Loader, router: &parts::Router) -> Option<Router> {
        let projection = Linear::load(from, &router.projection);
        let norm = Norm::maybe(from, &router.norm);
        let correction = from.maybe_wide(&router.correction);
        let expert_scale = from.maybe_wide(&router.expert_scale);
        Some(Router {
            projection: projection?,
            norm: norm?,
            top_k: router.top_k,
            scores: router.scores,
            soft_cap: router.soft_cap.map(|cap| cap as f32),
            correction: correction?,
            groups: router.groups,
            top_groups: router.top_groups,
            normalize: router.normalize,
            scale: router.scale as f32,
            expert_scale: expert_scale?,
        })
    }

    /// For each of `[tokens, hidden]`: the experts chosen, `[tokens, top_k]`, and their weights.
    fn choose(&self, x: &Array) -> Result<(Array, Array)> {
        let x = match &self.norm {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        let mut logits = self.projection.forward(&x)?.as_dtype(Dtype::Float32)?;
        if let Some(cap) = self.soft_cap {
            logits = soft_cap(&logits, cap)?;
        }
        let scores = match self.scores {
            ScoreKind::Softmax => softmax_axis(&logits, -1, true)?,
            ScoreKind::SoftmaxOfChosen => logits,
            ScoreKind::Sigmoid => sigmoid(&logits)?,
        };
        let mut ranked = match &self.correction {
            Some(correction) => scores.add(correction)?,
            None => scores.clone(),
        };
        if self.top_groups < self.groups {
            ranked = self.best_groups_only(&ranked)?;
        }
        let order = argpartition_axis(&ranked.negative()?, self.top_k - 1, -1)?;
        let chosen = last_axis(&order, 0, self.top_k)?;
        let mut weights = scores.take_along_axis(&chosen, -1)?;
        if self.scores == ScoreKind::SoftmaxOfChosen {
            weights = softmax_axis(&weights, -1, true)?;
        }
        if self.normalize {
            let sum = weights.sum_axes(&[-1], true)?.add(Array::from_f32(1e-20))?;
            weights = weights.divide(sum)?;
        }
        if self.scale != 1.0 {
            weights = times(&weights, self.scale)?;
        }
        if let Some(scale) = &self.expert_scale {
            weights = weights.multiply(scale.take(&chosen)?)?;
        }
        Ok((chosen, weights))
    }

    /// Scores with those of all but the best groups at minus infinity; a group is as good as its
    /// best two experts together (DeepSeek-V3).
    fn best_groups_only(&self, scores: &Array) -> Result<Array> {
        let (tokens, experts) = (scores.dim(0), scores.dim(1));
        let grouped = scores.reshape(&[tokens, self.groups, experts / self.groups])?;
        let best_two = topk_axis(&grouped, 2.min(experts / self.groups), -1)?;
        let goodness = best_two.sum_axes(&[-1], false)?;
        let least = topk_axis(&goodness, self.top_groups, -1)?.min_axes(&[-1], true)?;
        let kept = goodness.ge(least)?.expand_dims(-1)?;
        let never = Array::from_f32(f32::NEG_INFINITY);
        select(&kept, &grouped, &never)?.reshape(&[tokens, experts])
    }
}

/// The stacked experts.
#[derive(Clone, Debug)]
struct Experts {
    entry: Entry<Matrix>,
    /// Of gate and up together or of what there is in one; of gate; of up.
    entry_bias: Option<Array>,
    gate_bias: Option<Array>,
    up_bias: Option<Array>,
    down: Matrix,
    down_bias: Option<Array>,
    function: Function,
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
            function: experts.function,
            clamp: experts.clamp.map(|(limit, alpha)| (limit as f32, alpha as f32)),
        })
    }

    /// `[tokens, width]` and the experts of each, `[tokens, top_k]`, to `[tokens, top_k, width]`.
    fn forward(&self, x: &Array, chosen: &Array) -> Result<Array> {
        if chosen.size() < SORTED {
            let out = self.work(&x.expand_dims_axes(&[-2, -3])?, chosen, false)?;
            return out.squeeze_axes(&[-2]);
        }
        let top_k = chosen.dim(-1);
        let flat = chosen.reshape(&[-1])?;
        let order = argsort(&flat)?;
        let asking = order.floor_divide(Array::from_int(top_k).as_dtype(order.dtype())?)?;
        let sorted = x.take_axis(&asking, 0)?.expand_dims(-2)?;
        let out = self.work(&sorted, &flat.take_axis(&order, 0)?, true)?;
        let out = out.squeeze_axes(&[-2])?.take_axis(argsort(&order)?, 0)?;
        out.reshape(&[chosen.dim(0), top_k, -1])
    }

    /// As [`Matrix::apply_experts`].
    fn work(&self, x: &Array, experts: &Array, sorted: bool) -> Result<Array> {
        let apply = |matrix: &Matrix, x: &Array, bias: &Option<Array>| -> Result<Array> {
            let product = matrix.apply_experts(x, experts, sorted)?;
            match bias {
                Some(bias) => product.add(bias.take_axis(experts, 0)?.expand_dims(-2)?),
                None => Ok(product),
            }
        };
        let inner = match &self.entry {
            Entry::Plain(up) => self.function.of(&apply(up, x, &self.entry_bias)?)?,
            Entry::Split(gate, up) => {
                let gate = apply(gate, x, &self.gate_bias)?;
                self.gated(&gate, &apply(up, x, &self.up_bias)?)?
            }
            Entry::Fused { both, interleaved } => {
                let both = apply(both, x, &self.entry_bias)?;
                let inner = both.dim(-1) / 2;
                if *interleaved {
                    let mut pairs = both.shape().to_vec();
                    pairs.pop();
                    pairs.extend([inner, 2]);
                    let pairs = both.reshape(&pairs)?;
                    let gate = pairs.try_index((Ellipsis, 0))?;
                    self.gated(&gate, &pairs.try_index((Ellipsis, 1))?)?
                } else {
                    let gate = last_axis(&both, 0, inner)?;
                    self.gated(&gate, &last_axis(&both, inner, 2 * inner)?)?
                }
            }
        };
        apply(&self.down, &inner, &self.down_bias)
    }

    fn gated(&self, gate: &Array, up: &Array) -> Result<Array> {
        let Some((limit, alpha)) = self.clamp else {
            return self.function.of(gate)?.multiply(up);
        };
        let most = Array::from_f32(limit).as_dtype(gate.dtype())?;
        let gate = mlx_rs::ops::minimum(gate, &most)?;
        let up = maximum(mlx_rs::ops::minimum(up, &most)?, &most.negative()?)?;
        gate.multiply(sigmoid(times(&gate, alpha)?)?)?.multiply(one_more(&up)?)
    }
}
