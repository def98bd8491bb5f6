//! Steps, and modules that work on each token by itself.

use super::resolver::Resolver;
use super::{Entry, Experts, GatedMlp, Linear, Matrix, Mlp, Moe, Router, ScoreKind, Shared, Step};
use crate::decoder::description::{self, Correction, ExpertTensor, Expr, LinearOrName, Names};

impl Resolver<'_> {
    /// The steps whose conditions hold in layer `layer`, from `width` elements of each token to
    /// `wanted`, where that is known.
    pub(super) fn steps(
        &mut self,
        steps: &[description::Step],
        layer: usize,
        mut width: i64,
        wanted: Option<i64>,
    ) -> Vec<Step> {
        let mut resolved = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            if let Some(step) = self.within(index, |to| to.step(step, layer, &mut width)) {
                resolved.push(step);
            }
        }
        // What is faulty above may have lacked a step.
        if let Some(wanted) = wanted
            && self.faults.0.is_empty()
            && width != wanted
        {
            let message = format!("these steps make {width} elements of {wanted}");
            self.fault("steps", message);
        }
        resolved
    }

    /// A step; `None` when its condition does not hold, or it is faulty.
    fn step(&mut self, step: &description::Step, layer: usize, width: &mut i64) -> Option<Step> {
        if !self.holds("when", &step.when, true) {
            return None;
        }
        let description::Step {
            when: _,
            residual,
            parallel,
            rms_norm,
            layer_norm,
            attention,
            latent_attention,
            gated_delta,
            mamba2,
            short_conv,
            gated_mlp,
            mlp,
            moe,
            linear,
            activation,
            scale,
            per_layer_input,
        } = step;
        let hidden = *width;
        let mut built: Vec<Option<Step>> = Vec::new();
        if let Some(steps) = residual {
            let steps = self.within("residual", |to| to.steps(steps, layer, hidden, Some(hidden)));
            built.push(Some(Step::Residual(steps)));
        }
        if let Some(branches) = parallel {
            let branches = self.within("parallel", |to| {
                let branch = |(index, steps): (usize, &Vec<description::Step>)| {
                    to.within(index, |to| to.steps(steps, layer, hidden, Some(hidden)))
                };
                let branches: Vec<_> = branches.iter().enumerate().map(branch).collect();
                branches.into_iter().filter(|branch| !branch.is_empty()).collect::<Vec<_>>()
            });
            built.push(Some(Step::Parallel(branches)));
        }
        if let Some(norm) = rms_norm {
            built.push(self.named_norm("rms_norm", norm, false, hidden).map(Step::Norm));
        }
        if let Some(norm) = layer_norm {
            built.push(self.named_norm("layer_norm", norm, true, hidden).map(Step::Norm));
        }
        if let Some(part) = attention {
            let part = self.module("attention", &part.path, |to| to.attention(part, layer, hidden));
            built.push(part.map(|part| Step::Attention(Box::new(part))));
        }
        if let Some(part) = latent_attention {
            let part =
                self.module("latent_attention", &part.path, |to| to.latent_attention(part, hidden));
            built.push(part.map(|part| Step::LatentAttention(Box::new(part))));
        }
        if let Some(part) = gated_delta {
            let part = self.module("gated_delta", &part.path, |to| to.gated_delta(part, hidden));
            built.push(part.map(|part| Step::GatedDelta(Box::new(part))));
        }
        if let Some(part) = mamba2 {
            let part = self.module("mamba2", &part.path, |to| to.mamba2(part, hidden));
            built.push(part.map(|part| Step::Mamba2(Box::new(part))));
        }
        if let Some(part) = short_conv {
            let part = self.module("short_conv", &part.path, |to| to.short_conv(part, hidden));
            built.push(part.map(|part| Step::ShortConv(Box::new(part))));
        }
        if let Some(part) = gated_mlp {
            let part = self.module("gated_mlp", &part.path, |to| to.gated_mlp(part, hidden));
            built.push(part.map(|part| Step::GatedMlp(Box::new(part))));
        }
        if let Some(part) = mlp {
            let part = self.module("mlp", &part.path, |to| to.mlp(part, hidden));
            built.push(part.map(|part| Step::Mlp(Box::new(part))));
        }
        if let Some(part) = moe {
            let part = self.module("moe", &part.path, |to| to.moe(part, layer, hidden));
            built.push(part.map(|part| Step::Moe(Box::new(part))));
        }
        if let Some(part) = linear {
            let part = self.within("linear", |to| to.named_linear(part, hidden));
            *width = part.as_ref().map_or(*width, |part| part.weight.outputs());
            built.push(part.map(Step::Linear));
        }
        if let Some(activation) = activation {
            built.push(self.function("activation", activation).map(Step::Activation));
        }
        if let Some(scale) = scale {
            self.within("scale", |to| {
                if let Some(by) = &scale.by {
                    built.push(to.number("by", by).map(Step::ScaleBy));
                }
                if let Some(name) = &scale.tensor {
                    built.push(to.scale_tensor(name, hidden).map(Step::ScaleByTensor));
                }
            });
        }
        if per_layer_input.is_some() {
            built.push(self.per_layer_input(layer, hidden));
        }
        if built.len() != 1 {
            let message = format!("a step names {} kinds of module; it needs one", built.len());
            self.fault("when", message);
            return None;
        }
        built.pop().flatten()
    }

    /// A module whose names hang on `path`.
    fn module<T>(
        &mut self,
        key: &str,
        path: &str,
        resolve: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        self.within(key, |to| to.under(path, resolve))
    }

    fn scale_tensor(&mut self, name: &str, width: i64) -> Option<String> {
        let full = self.full_name(name);
        let held = self.table.get(&full);
        let one = held.is_some_and(|held| held.shape.iter().product::<u64>() == 1);
        self.vector("tensor", &full, Some(if one { 1 } else { width }))
    }

    fn per_layer_input(&mut self, layer: usize, width: i64) -> Option<Step> {
        match self.per_layer {
            Some(known) if known == width => Some(Step::PerLayerInput(layer)),
            Some(known) => {
                let message =
                    format!("a per-layer embedding of {known} elements multiplies {width}");
                self.fault("per_layer_input", message);
                None
            }
            None => {
                self.fault("per_layer_input", "this model has no per-layer embedding");
                None
            }
        }
    }

    fn named_linear(&mut self, linear: &LinearOrName, inputs: i64) -> Option<Linear> {
        match linear {
            LinearOrName::Name(name) => self.linear("tensor", name, false, inputs),
            LinearOrName::Full(linear) => {
                let bias = self.holds("bias", &linear.bias, false);
                self.linear("tensor", &linear.tensor, bias, inputs)
            }
        }
    }

    fn gated_mlp(&mut self, mlp: &description::GatedMlp, hidden: i64) -> Option<GatedMlp> {
        let function = self.function("activation", &mlp.activation)?;
        let bias = self.holds("bias", &mlp.bias, false);
        let fused = mlp.gate_up.as_ref().filter(|name| self.find(name).is_some());
        let (entry, inner) = match (fused, &mlp.gate, &mlp.up) {
            (Some(name), ..) => {
                let both = self.linear("gate_up", name, bias, hidden)?;
                let rows = both.weight.outputs();
                if rows % 2 != 0 {
                    let message = format!("has {rows} rows, which are no two halves");
                    self.fault_of("gate_up", &both.weight.name, message);
                    return None;
                }
                (Entry::Fused { both, interleaved: false }, rows / 2)
            }
            (None, Some(gate), Some(up)) => {
                let gate = self.linear("gate", gate, bias, hidden);
                let inner = gate.as_ref().map(|gate| gate.weight.outputs());
                let up = match inner {
                    Some(inner) => self.sized("up", up, bias, (inner, hidden)),
                    None => self.linear("up", up, bias, hidden),
                };
                let (Some(gate), Some(up), Some(inner)) = (gate, up, inner) else {
                    self.linear("down", &mlp.down, bias, inner.unwrap_or(0));
                    return None;
                };
                (Entry::Split(gate, up), inner)
            }
            _ => {
                self.fault("path", "a gated MLP names neither gate and up nor gate_up");
                return None;
            }
        };
        let down = self.sized("down", &mlp.down, bias, (hidden, inner))?;
        Some(GatedMlp { entry, down, function })
    }

    fn mlp(&mut self, mlp: &description::Mlp, hidden: i64) -> Option<Mlp> {
        let function = self.function("activation", &mlp.activation)?;
        let bias = self.holds("bias", &mlp.bias, false);
        let up = self.linear("up", &mlp.up, bias, hidden)?;
        let down = self.sized("down", &mlp.down, bias, (hidden, up.weight.outputs()))?;
        Some(Mlp { up, down, function })
    }

    fn moe(&mut self, moe: &description::Moe, layer: usize, hidden: i64) -> Option<Moe> {
        let router = self.within("router", |to| to.router(&moe.router, hidden));
        let latent = match (&moe.latent_in, &moe.latent_out) {
            (Some(entry), Some(exit)) if self.holds("latent", &moe.latent, true) => {
                let bias = self.holds("latent_bias", &moe.latent_bias, false);
                let entry = self.linear("latent_in", entry, bias, hidden)?;
                let sizes = (hidden, entry.weight.outputs());
                Some((entry, self.sized("latent_out", exit, bias, sizes)?))
            }
            _ => None,
        };
        let width = latent.as_ref().map_or(hidden, |(entry, _)| entry.weight.outputs());
        let routed = router.as_ref().map(|router| router.projection.weight.outputs());
        let experts = self.within("experts", |to| to.experts(&moe.experts, routed, width));
        let input_norm = self.maybe_norm("input_norm", &moe.input_norm, hidden);
        let shared = match &moe.shared {
            Some(shared) => self.within("shared", |to| {
                if !to.holds("when", &shared.when, true) {
                    return Some(None);
                }
                to.shared_expert(shared, layer, hidden).map(Some)
            })?,
            None => None,
        };
        Some(Moe { router: router?, experts: experts?, input_norm, latent, shared })
    }

    fn shared_expert(
        &mut self,
        shared: &description::Shared,
        layer: usize,
        hidden: i64,
    ) -> Option<Shared> {
        let steps = self.within("steps", |to| to.steps(&shared.steps, layer, hidden, Some(hidden)));
        let gate = match &shared.gate {
            Some(name) => Some(self.sized("gate", name, false, (1, hidden))?),
            None => None,
        };
        let average = self.holds("average", &shared.average, false);
        Some(Shared { steps, gate, average })
    }

    fn router(&mut self, router: &description::Router, hidden: i64) -> Option<Router> {
        let bias = self.holds("bias", &router.bias, false);
        let projection = self.linear("tensor", &router.tensor, bias, hidden)?;
        let experts = projection.weight.outputs();
        let norm = self.maybe_norm("norm", &router.norm, hidden);
        let top_k = self.size("top_k", &router.top_k)?;
        let groups = self.int_or("groups", &router.groups, 1)?.max(1);
        let top_groups = self.int_or("top_groups", &router.top_groups, groups)?;
        let of_groups = experts / groups * top_groups.clamp(0, groups);
        if top_k > of_groups || experts % groups != 0 || !(1..=groups).contains(&top_groups) {
            let message = format!(
                "a router cannot choose {top_k} of {experts} experts from {top_groups} of {groups} \
                 groups"
            );
            self.fault("top_k", message);
            return None;
        }
        let scores = self.score_kind(&router.scores.0)?;
        let names = match &router.correction {
            None => &[][..],
            Some(Correction::Names(names)) => names.list(),
            Some(Correction::When { when, tensor }) => {
                let holds = self.holds("correction", &Some(when.clone()), true);
                if holds { std::slice::from_ref(tensor) } else { &[] }
            }
        };
        let correction = match names {
            [] => None,
            names => {
                let name = names.iter().find(|name| self.find(name).is_some()).unwrap_or(&names[0]);
                let name = self.weight_name("correction", name)?;
                Some(self.vector("correction", &name, Some(experts))?)
            }
        };
        let expert_scale = match &router.expert_scale {
            Some(name) => Some(self.vector_at("expert_scale", name, Some(experts))?),
            None => None,
        };
        let soft_cap = self.maybe_number("soft_cap", &router.soft_cap)?.filter(|&cap| cap != 0.0);
        Some(Router {
            projection,
            norm,
            top_k: top_k as i32,
            scores,
            soft_cap,
            correction,
            groups: groups as i32,
            top_groups: top_groups as i32,
            normalize: self.holds("normalize", &router.normalize, false),
            scale: self.number_or("scale", &router.scale, 1.0)?,
            expert_scale,
        })
    }

    fn score_kind(&mut self, scores: &str) -> Option<ScoreKind> {
        if let Some(kind) = ScoreKind::named(scores) {
            return Some(kind);
        }
        let value = self.scope.text(&Expr::Text(scores.into()));
        if let Ok(Some(kind)) = value.map(|text| text.and_then(|text| ScoreKind::named(&text))) {
            return Some(kind);
        }
        let known = ScoreKind::NAMES.map(|(name, _)| name).join(", ");
        self.fault("scores", format!("router scores `{scores}` are none of {known}"));
        None
    }

    fn experts(
        &mut self,
        experts: &description::Experts,
        routed: Option<i64>,
        width: i64,
    ) -> Option<Experts> {
        let function = self.function("activation", &experts.activation)?;
        let fused = experts.gate_up.as_ref().filter(|tensor| self.layout(tensor).is_some());
        let name = |name: &String| ExpertTensor::Name(name.clone());
        let entry = match (fused, &experts.gate, &experts.up) {
            (Some(tensor), ..) => {
                let interleaved = self.holds("interleaved", &experts.interleaved, false);
                let both = self.stacked("gate_up", tensor, routed, width);
                both.map(|both| Entry::Fused { both, interleaved })
            }
            (None, Some(gate), Some(up)) => {
                let gate = self.stacked("gate", &name(gate), routed, width);
                let up = self.stacked("up", &name(up), routed, width);
                match (gate, up) {
                    (Some(gate), Some(up)) => Some(Entry::Split(gate, up)),
                    _ => None,
                }
            }
            (None, None, Some(up)) => {
                self.stacked("up", &name(up), routed, width).map(Entry::Plain)
            }
            _ => match &experts.gate_up {
                Some(tensor) => self.stacked("gate_up", tensor, routed, width).map(Entry::Plain),
                None => {
                    self.fault("activation", "experts name neither up nor gate_up");
                    None
                }
            },
        };
        let rows = match &entry {
            Some(Entry::Fused { both, .. }) => Some((both.outputs(), both.outputs() / 2)),
            Some(Entry::Split(up, _) | Entry::Plain(up)) => Some((up.outputs(), up.outputs())),
            None => None,
        };
        if let Some(Entry::Split(gate, up)) = &entry {
            let (name, found) = (up.name.clone(), up.outputs());
            self.expect("up", &name, "rows", found, gate.outputs())?;
        }
        let down = self.stacked("down", &experts.down, routed, rows.map_or(0, |(_, inner)| inner));
        if let Some(down) = &down {
            self.expect("down", &down.name, "rows", down.outputs(), width)?;
        }
        let is_split = matches!(entry, Some(Entry::Split(..)));
        let of_entry = |rows: Option<(i64, i64)>| Some(rows?.0.saturating_mul(routed?));
        let of_down = routed.map(|routed| routed.saturating_mul(width));
        let entry_bias =
            self.expert_bias("gate_up_bias", &experts.gate_up_bias, !is_split, of_entry(rows));
        let gate_bias = self.expert_bias("gate_bias", &experts.gate_bias, is_split, of_entry(rows));
        let up_bias = self.expert_bias("up_bias", &experts.up_bias, is_split, of_entry(rows));
        let down_bias = self.expert_bias("down_bias", &experts.down_bias, true, of_down);
        let clamp = match &experts.clamp {
            Some(clamp) => self.within("clamp", |to| {
                let limit = to.number("limit", &clamp.limit)?;
                Some(Some((limit, to.number("alpha", &clamp.alpha)?)))
            })?,
            None => None,
        };
        Some(Experts {
            entry: entry?,
            entry_bias: entry_bias?,
            gate_bias: gate_bias?,
            up_bias: up_bias?,
            down: down?,
            down_bias: down_bias?,
            function,
            clamp,
        })
    }

    /// The layout of a stacked tensor that the model has: its name, and whether it is transposed.
    fn layout(&self, tensor: &ExpertTensor) -> Option<(String, bool)> {
        match tensor {
            ExpertTensor::Name(name) => self.find(name).map(|name| (name, false)),
            ExpertTensor::Many(layouts) => layouts
                .iter()
                .find_map(|layout| Some((self.find(&layout.tensor)?, layout.transposed))),
        }
    }

    /// A stacked matrix of `inputs` elements, one for each expert of the router.
    fn stacked(
        &mut self,
        key: &str,
        tensor: &ExpertTensor,
        routed: Option<i64>,
        inputs: i64,
    ) -> Option<Matrix> {
        let Some((name, transposed)) = self.layout(tensor) else {
            let first = match tensor {
                ExpertTensor::Name(name) => name,
                ExpertTensor::Many(layouts) => &layouts.first()?.tensor,
            };
            self.weight_name(key, first)?;
            return None;
        };
        let matrix = self.matrix(key, &name, transposed, 3)?;
        if let Some(routed) = routed {
            self.expect(key, &name, "experts", matrix.shape[0] as i64, routed)?;
        }
        if inputs > 0 {
            self.expect(key, &name, "columns", matrix.inputs(), inputs)?;
        }
        Some(matrix)
    }

    /// A bias of all experts, by the first of several names that exists; `None` is a fault.
    fn expert_bias(
        &mut self,
        key: &str,
        names: &Option<Names>,
        there: bool,
        elements: Option<i64>,
    ) -> Option<Option<String>> {
        match names.as_ref().map(Names::list) {
            Some(names @ [first, ..]) if there => {
                let name = names.iter().find(|name| self.find(name).is_some()).unwrap_or(first);
                let name = self.weight_name(key, name)?;
                self.vector(key, &name, elements).map(Some)
            }
            _ => Some(None),
        }
    }
}
