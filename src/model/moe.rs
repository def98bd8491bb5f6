//! Mixture of experts (Shazeer et al. 2017).
//!
//! The router scores every expert for each token; the best `top_k` do the work, and their outputs
//! are summed with weights. What routers differ in are independent choices here: softmax over all
//! logits (Mixtral), over the chosen ones (gpt-oss), or sigmoid (DeepSeek-V3); a correction added
//! for the choice only; choosing from the best groups only; normalized or scaled weights.
//!
//! Experts are stacked matrices, `[experts, out, in]`, and a gathered product works on the chosen
//! ones only.

use mlx_rs::ops::indexing::topk_axis;
use mlx_rs::ops::indexing::{Ellipsis, TryIndexOp};
use mlx_rs::ops::{argpartition_axis, maximum, select, sigmoid, softmax_axis};
use mlx_rs::{Array, Dtype};

use super::batch::Pass;
use super::build::Builder;
use super::linear::{Linear, Matrix};
use super::module::{Module, run};
use super::norm::Norm;
use super::ops::{Function, Result, last_axis, one_more, soft_cap, times};
use crate::decoder::description::{self, ExpertLayout, ExpertTensor, Names};

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
    /// Reads a mixture in layer `layer`.
    pub fn build(to: &mut Builder, moe: &description::Moe, layer: usize) -> Option<Moe> {
        to.under(&moe.path, |to| {
            let router = Router::build(to, &moe.router);
            let experts = Experts::build(to, &moe.experts);
            let input_norm = match &moe.input_norm {
                Some(norm) => Norm::build(to, norm, false),
                None => None,
            };
            let latent = match (&moe.latent_in, &moe.latent_out) {
                (Some(entry), Some(exit)) if to.holds(&moe.latent, true) => {
                    let bias = to.holds(&moe.latent_bias, false);
                    let entry = Linear::build(to, entry, bias);
                    let exit = Linear::build(to, exit, bias);
                    Some((entry?, exit?))
                }
                _ => None,
            };
            let shared = match &moe.shared {
                Some(shared) if to.holds(&shared.when, true) => {
                    let steps = Module::build_all(to, &shared.steps, layer);
                    let gate = match &shared.gate {
                        Some(name) => Some(Linear::build_sized(to, name, false, 1)?),
                        None => None,
                    };
                    let average = to.holds(&shared.average, false);
                    Some(Shared { steps, gate, average })
                }
                _ => None,
            };
            let (router, experts) = (router?, experts?);
            let routed = i64::from(router.projection.outputs());
            for stacked in experts.counts() {
                to.expect(&moe.router.tensor, "rows", routed, i64::from(stacked))?;
            }
            Some(Moe { router, experts, input_norm, latent, shared })
        })
    }

    /// `[rows, tokens, hidden]` to the same.
    pub fn forward(&self, x: &Array, pass: &mut Pass) -> Result<Array> {
        let hidden = x.dim(-1);
        let flat = x.reshape(&[-1, hidden])?;
        let (chosen, weights) = self.router.choose(&flat)?;
        let mut input = match &self.input_norm {
            Some(norm) => norm.forward(&flat)?,
            None => flat,
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
        let out = out.reshape(x.shape())?;
        let Some(shared) = &self.shared else { return Ok(out) };
        let mut beside = run(&shared.steps, x, pass)?;
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

/// What logits become.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ScoreKind {
    /// Softmax over all experts.
    Softmax,
    /// Softmax over the chosen ones.
    SoftmaxOfChosen,
    /// Each by itself.
    Sigmoid,
}

const SCORE_KINDS: [(&str, ScoreKind); 3] = [
    ("softmax", ScoreKind::Softmax),
    ("softmax_of_chosen", ScoreKind::SoftmaxOfChosen),
    ("sigmoid", ScoreKind::Sigmoid),
];

impl Router {
    fn build(to: &mut Builder, router: &description::Router) -> Option<Router> {
        let bias = to.holds(&router.bias, false);
        let projection = Linear::build(to, &router.tensor, bias)?;
        let experts = projection.outputs();
        let norm = match &router.norm {
            Some(norm) => Norm::build(to, norm, false),
            None => None,
        };
        let top_k = to.int(&router.top_k, "top_k")? as i32;
        let groups = to.int_or(&router.groups, 1)?.max(1) as i32;
        let top_groups = to.int_or(&router.top_groups, i64::from(groups))? as i32;
        if top_k < 1 || top_k > experts || experts % groups != 0 || top_groups > groups {
            to.fault(format!(
                "a router cannot choose {top_k} of {experts} experts from {top_groups} of \
                 {groups} groups"
            ));
            return None;
        }
        let kind = Router::score_kind(to, &router.scores)?;
        let names = match &router.correction {
            None => &[][..],
            Some(description::Correction::Names(names)) => names.list(),
            Some(description::Correction::When { when, tensor }) => {
                let holds = to.holds(&Some(when.clone()), true);
                if holds { std::slice::from_ref(tensor) } else { &[] }
            }
        };
        let correction = match names {
            [] => None,
            names => {
                let name = names.iter().find(|name| to.find(name).is_some()).unwrap_or(&names[0]);
                let name = to.weight_name(name)?;
                Some(to.vector_as(&name, Dtype::Float32)?)
            }
        };
        let expert_scale = match &router.expert_scale {
            Some(name) => {
                let name = to.full_name(name);
                Some(to.vector_as(&name, Dtype::Float32)?)
            }
            None => None,
        };
        let soft_cap = to.maybe_float(&router.soft_cap)?.filter(|&cap| cap != 0.0);
        Some(Router {
            projection,
            norm,
            top_k,
            scores: kind,
            soft_cap: soft_cap.map(|cap| cap as f32),
            correction,
            groups,
            top_groups,
            normalize: to.holds(&router.normalize, false),
            scale: to.float_or(&router.scale, 1.0)? as f32,
            expert_scale,
        })
    }

    fn score_kind(to: &mut Builder, scores: &description::Scores) -> Option<ScoreKind> {
        let named = |name: &str| SCORE_KINDS.iter().find(|(known, _)| *known == name);
        if let Some((_, kind)) = named(&scores.0) {
            return Some(*kind);
        }
        let value = to.scope.text(&description::Expr::Text(scores.0.clone()));
        if let Ok(Some((_, kind))) = value.map(|text| text.and_then(|text| named(&text))) {
            return Some(*kind);
        }
        let known: Vec<_> = SCORE_KINDS.iter().map(|(name, _)| *name).collect();
        to.fault(format!("router scores `{}` are none of {}", scores.0, known.join(", ")));
        None
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
    entry: Entry,
    /// Of gate and up together or of what there is in one; of gate; of up.
    entry_bias: Option<Array>,
    gate_bias: Option<Array>,
    up_bias: Option<Array>,
    down: Matrix,
    down_bias: Option<Array>,
    function: Function,
    clamp: Option<(f32, f32)>,
}

#[derive(Clone, Debug)]
enum Entry {
    Plain(Matrix),
    Split(Matrix, Matrix),
    Fused { both: Matrix, interleaved: bool },
}

impl Experts {
    fn build(to: &mut Builder, experts: &description::Experts) -> Option<Experts> {
        let function = to.function(&experts.activation)?;
        let fused = experts.gate_up.as_ref().filter(|tensor| find(to, tensor).is_some());
        let entry = match (fused, &experts.gate, &experts.up) {
            (Some(tensor), ..) => {
                let interleaved = to.holds(&experts.interleaved, false);
                stacked(to, tensor).map(|both| Entry::Fused { both, interleaved })
            }
            (None, Some(gate), Some(up)) => {
                let gate = stacked(to, &ExpertTensor::Name(gate.clone()));
                let up = stacked(to, &ExpertTensor::Name(up.clone()));
                Some(Entry::Split(gate?, up?))
            }
            (None, None, Some(up)) => {
                stacked(to, &ExpertTensor::Name(up.clone())).map(Entry::Plain)
            }
            _ => match &experts.gate_up {
                Some(tensor) => stacked(to, tensor).map(Entry::Plain),
                None => {
                    to.fault("experts name neither up nor gate_up");
                    None
                }
            },
        };
        let down = stacked(to, &experts.down);
        let mut bias = |names: &Option<Names>, there: bool| match names.as_ref().map(Names::list) {
            Some(names @ [first, ..]) if there => {
                let name = names.iter().find(|name| to.find(name).is_some()).unwrap_or(first);
                let name = to.weight_name(name)?;
                to.vector(&name).map(Some)
            }
            _ => Some(None),
        };
        let is_split = matches!(entry, Some(Entry::Split(..)));
        let entry_bias = bias(&experts.gate_up_bias, !is_split);
        let gate_bias = bias(&experts.gate_bias, is_split);
        let up_bias = bias(&experts.up_bias, is_split);
        let down_bias = bias(&experts.down_bias, true);
        let clamp = match &experts.clamp {
            Some(clamp) => {
                let limit = to.float(&clamp.limit, "limit")?;
                Some((limit as f32, to.float(&clamp.alpha, "alpha")? as f32))
            }
            None => None,
        };
        let (entry, down) = (entry?, down?);
        for (what, message) in Experts::misfits(&entry, &down) {
            to.fault(format!("experts: {what} {message}"));
        }
        Some(Experts {
            entry,
            entry_bias: entry_bias?,
            gate_bias: gate_bias?,
            up_bias: up_bias?,
            down,
            down_bias: down_bias?,
            function,
            clamp,
        })
    }

    /// The way in that does not fit the way out: one of both is stored `[.., in, out]`.
    fn misfits(entry: &Entry, down: &Matrix) -> Vec<(&'static str, String)> {
        let sides = |matrix: &Matrix| match matrix.shape().as_slice() {
            [.., out, inputs] => [*out, *inputs],
            _ => [0, 0],
        };
        let [hidden, inner] = sides(down);
        let entries: &[(&str, &Matrix, i32)] = match entry {
            Entry::Plain(up) => &[("up", up, inner)],
            Entry::Split(gate, up) => &[("gate", gate, inner), ("up", up, inner)],
            Entry::Fused { both, .. } => &[("gate_up", both, 2 * inner)],
        };
        let misfit = |(what, matrix, out): &(&'static str, &Matrix, i32)| {
            let found = sides(matrix);
            let message = format!("is {found:?} ([out, in]) and down {:?}", [hidden, inner]);
            (found != [*out, hidden]).then_some((*what, message))
        };
        entries.iter().filter_map(misfit).collect()
    }

    /// How many experts each of the stacks has.
    fn counts(&self) -> impl Iterator<Item = i32> {
        let entry = match &self.entry {
            Entry::Plain(up) => [Some(up), None],
            Entry::Split(gate, up) => [Some(gate), Some(up)],
            Entry::Fused { both, .. } => [Some(both), None],
        };
        let stacks = entry.into_iter().flatten().chain([&self.down]);
        stacks.map(|stack| stack.shape().first().copied().unwrap_or(0))
    }

    /// `[tokens, width]` and the experts of each, `[tokens, top_k]`, to `[tokens, top_k, width]`.
    fn forward(&self, x: &Array, chosen: &Array) -> Result<Array> {
        let x = x.expand_dims_axes(&[-2, -3])?;
        let biased = |x: Array, bias: &Option<Array>| match bias {
            Some(bias) => x.add(bias.take_axis(chosen, 0)?.expand_dims(-2)?),
            None => Ok(x),
        };
        let inner = match &self.entry {
            Entry::Plain(up) => {
                self.function.of(&biased(up.apply_experts(&x, chosen)?, &self.entry_bias)?)?
            }
            Entry::Split(gate, up) => {
                let gate = biased(gate.apply_experts(&x, chosen)?, &self.gate_bias)?;
                self.gated(&gate, &biased(up.apply_experts(&x, chosen)?, &self.up_bias)?)?
            }
            Entry::Fused { both, interleaved } => {
                let both = biased(both.apply_experts(&x, chosen)?, &self.entry_bias)?;
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
        let out = biased(self.down.apply_experts(&inner, chosen)?, &self.down_bias)?;
        out.squeeze_axes(&[-2])
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

/// The layout of a stacked tensor that the model has.
fn find(to: &Builder, tensor: &ExpertTensor) -> Option<(String, bool)> {
    match tensor {
        ExpertTensor::Name(name) => to.find(name).map(|name| (name, false)),
        ExpertTensor::Many(layouts) => {
            let known = |layout: &ExpertLayout| {
                to.find(&layout.tensor).map(|name| (name, layout.transposed))
            };
            layouts.iter().find_map(known)
        }
    }
}

fn stacked(to: &mut Builder, tensor: &ExpertTensor) -> Option<Matrix> {
    match (find(to, tensor), tensor) {
        (Some((name, transposed)), _) => to.matrix(&name, transposed),
        (None, ExpertTensor::Name(name)) => {
            to.weight_name(name)?;
            None
        }
        (None, ExpertTensor::Many(layouts)) => {
            to.weight_name(layouts.first().map_or("", |layout| &layout.tensor))?;
            None
        }
    }
}
