//! The tree of modules, and walking it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::TryIndexOp;

use super::attention::Attention;
use super::batch::Pass;
use super::build::Builder;
use super::delta::GatedDelta;
use super::description::Step;
use super::latent::LatentAttention;
use super::linear::Linear;
use super::mamba::Mamba2;
use super::mlp::{GatedMlp, Mlp};
use super::moe::Moe;
use super::native::RmsNorm;
use super::norm::Norm;
use super::ops::{Function, Result, times};
use super::short_conv::ShortConv;

/// One step of a layer: x in, x out.
#[derive(Clone, Debug)]
pub enum Module {
    /// x + steps(x).
    Residual(Vec<Module>),
    /// The sum of branches.
    Parallel(Vec<Vec<Module>>),
    /// A norm of either kind.
    Norm(Norm),
    /// Attention.
    Attention(Box<Attention>),
    /// Latent attention.
    LatentAttention(Box<LatentAttention>),
    /// Gated delta net.
    GatedDelta(Box<GatedDelta>),
    /// Mamba-2.
    Mamba2(Box<Mamba2>),
    /// Gated short convolution.
    ShortConv(Box<ShortConv>),
    /// Gated MLP.
    GatedMlp(GatedMlp),
    /// Plain MLP.
    Mlp(Mlp),
    /// Mixture of experts.
    Moe(Box<Moe>),
    /// A projection.
    Linear(Linear),
    /// A function of each element.
    Activation(Function),
    /// Times a number.
    ScaleBy(f32),
    /// Times a tensor.
    ScaleByTensor(Array),
    /// Times this layer's part of the per-layer embedding.
    PerLayerInput(usize),
}

/// What is done around a module's own work: modules that can, do it in one operation with that.
#[derive(Clone, Copy, Default)]
pub struct Around<'a> {
    /// Normalizes what enters.
    pub norm: Option<&'a Norm>,
    /// Is added to what leaves.
    pub onto: Option<&'a Array>,
}

impl Around<'_> {
    /// What enters a module that does not normalize it itself.
    pub fn before<'x>(&self, x: &'x Array) -> Result<Cow<'x, Array>> {
        match self.norm {
            Some(norm) => norm.forward(x).map(Cow::Owned),
            None => Ok(Cow::Borrowed(x)),
        }
    }

    /// What enters an operation of lathe's own kernels, and the norm that it is to do.
    pub fn entering<'x>(&self, x: &'x Array) -> Result<(Cow<'x, Array>, Option<RmsNorm>)> {
        match self.norm.map(Norm::native) {
            Some(Some(norm)) => Ok((Cow::Borrowed(x), Some(norm.clone()))),
            _ => Ok((self.before(x)?, None)),
        }
    }

    /// What leaves, of what a module that does not add to it gives.
    pub fn after(&self, out: Array) -> Result<Array> {
        match self.onto {
            Some(onto) => onto.add(out),
            None => Ok(out),
        }
    }
}

/// Runs modules one after the other.
pub fn run(modules: &[Module], x: &Array, pass: &mut Pass) -> Result<Array> {
    run_onto(modules, x, None, pass)
}

/// The same, added to `onto` if that is given.
fn run_onto(modules: &[Module], x: &Array, onto: Option<&Array>, pass: &mut Pass) -> Result<Array> {
    let mut modules = modules.iter().peekable();
    let (mut made, mut norm): (Option<Array>, Option<&Norm>) = (None, None);
    while let Some(module) = modules.next() {
        if let (Module::Norm(before), None, Some(_)) = (module, norm, modules.peek()) {
            norm = Some(before);
            continue;
        }
        let onto = onto.filter(|_| modules.peek().is_none());
        let around = Around { norm: norm.take(), onto };
        made = Some(module.forward(made.as_ref().unwrap_or(x), around, pass)?);
    }
    match (made, onto) {
        (Some(made), _) => Ok(made),
        (None, Some(onto)) => onto.add(x),
        (None, None) => Ok(x.clone()),
    }
}

impl Module {
    /// Reads the steps whose conditions hold in layer `layer`.
    pub fn build_all(to: &mut Builder, steps: &[Step], layer: usize) -> Vec<Module> {
        steps.iter().filter_map(|step| Module::build(to, step, layer)).collect()
    }

    /// Reads a step; `None` when its condition does not hold, or it is faulty.
    fn build(to: &mut Builder, step: &Step, layer: usize) -> Option<Module> {
        if !to.holds(&step.when, true) {
            return None;
        }
        let Step {
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
        let mut built = Vec::new();
        if let Some(steps) = residual {
            built.push(Some(Module::Residual(Module::build_all(to, steps, layer))));
        }
        if let Some(branches) = parallel {
            let branches = branches.iter().map(|steps| Module::build_all(to, steps, layer));
            let branches: Vec<_> = branches.filter(|branch| !branch.is_empty()).collect();
            built.push(Some(Module::Parallel(branches)));
        }
        if let Some(norm) = rms_norm {
            built.push(Norm::build_named(to, norm, false).map(Module::Norm));
        }
        if let Some(norm) = layer_norm {
            built.push(Norm::build_named(to, norm, true).map(Module::Norm));
        }
        if let Some(attention) = attention {
            let attention = Attention::build(to, attention, layer);
            built.push(attention.map(|attention| Module::Attention(Box::new(attention))));
        }
        if let Some(attention) = latent_attention {
            let attention = LatentAttention::build(to, attention);
            built.push(attention.map(|attention| Module::LatentAttention(Box::new(attention))));
        }
        if let Some(delta) = gated_delta {
            let delta = GatedDelta::build(to, delta);
            built.push(delta.map(|delta| Module::GatedDelta(Box::new(delta))));
        }
        if let Some(mamba) = mamba2 {
            let mamba = Mamba2::build(to, mamba);
            built.push(mamba.map(|mamba| Module::Mamba2(Box::new(mamba))));
        }
        if let Some(conv) = short_conv {
            let conv = ShortConv::build(to, conv);
            built.push(conv.map(|conv| Module::ShortConv(Box::new(conv))));
        }
        if let Some(mlp) = gated_mlp {
            built.push(GatedMlp::build(to, mlp).map(Module::GatedMlp));
        }
        if let Some(mlp) = mlp {
            built.push(Mlp::build(to, mlp).map(Module::Mlp));
        }
        if let Some(moe) = moe {
            built.push(Moe::build(to, moe, layer).map(|moe| Module::Moe(Box::new(moe))));
        }
        if let Some(linear) = linear {
            built.push(Linear::build_named(to, linear).map(Module::Linear));
        }
        if let Some(activation) = activation {
            built.push(to.function(activation).map(Module::Activation));
        }
        if let Some(scale) = scale {
            if let Some(by) = &scale.by {
                built.push(to.float(by, "scale").map(|by| Module::ScaleBy(by as f32)));
            }
            if let Some(name) = &scale.tensor {
                let name = to.full_name(name);
                built.push(to.vector(&name).map(Module::ScaleByTensor));
            }
        }
        if per_layer_input.is_some() {
            built.push(Some(Module::PerLayerInput(layer)));
        }
        if built.len() != 1 {
            to.fault(format!("a step names {} kinds of module; it needs one", built.len()));
            return None;
        }
        built.pop().flatten()
    }

    /// Tells the attention of the given layers that later layers read their keys.
    pub fn share(&mut self, layers: &BTreeSet<usize>) {
        match self {
            Module::Residual(steps) => steps.iter_mut().for_each(|step| step.share(layers)),
            Module::Parallel(branches) => {
                branches.iter_mut().flatten().for_each(|step| step.share(layers));
            }
            Module::Attention(attention) => attention.share(layers),
            _ => {}
        }
    }

    /// Whether it does the norm before it itself.
    fn normalizes(&self) -> bool {
        matches!(self, Module::Attention(_) | Module::GatedMlp(_))
    }

    /// `[rows, tokens, hidden]` to the same.
    fn forward(&self, x: &Array, around: Around, pass: &mut Pass) -> Result<Array> {
        if around.norm.is_some() && !self.normalizes() {
            return self.forward(&*around.before(x)?, Around { norm: None, ..around }, pass);
        }
        let out = match self {
            Module::Attention(attention) => return attention.forward(x, around, pass),
            Module::GatedMlp(mlp) => return mlp.forward(x, around),
            Module::Residual(steps) => run_onto(steps, x, Some(x), pass)?,
            Module::Parallel(branches) => {
                let mut sum: Option<Array> = None;
                for branch in branches {
                    sum = Some(run_onto(branch, x, sum.as_ref(), pass)?);
                }
                sum.unwrap_or_else(|| x.clone())
            }
            Module::Norm(norm) => match around.onto {
                Some(onto) => return norm.forward_onto(x, onto),
                None => norm.forward(x)?,
            },
            Module::LatentAttention(attention) => attention.forward(x, pass)?,
            Module::GatedDelta(delta) => delta.forward(x, pass)?,
            Module::Mamba2(mamba) => mamba.forward(x, pass)?,
            Module::ShortConv(conv) => conv.forward(x, pass)?,
            Module::Mlp(mlp) => mlp.forward(x)?,
            Module::Moe(moe) => moe.forward(x, pass)?,
            Module::Linear(linear) => return linear.forward_onto(x, around.onto),
            Module::Activation(function) => function.of(x)?,
            Module::ScaleBy(by) => times(x, *by)?,
            Module::ScaleByTensor(tensor) => x.multiply(tensor)?,
            Module::PerLayerInput(layer) => match &pass.per_layer {
                Some(inputs) => x.multiply(inputs.try_index((.., .., *layer as i32))?)?,
                None => return Err(Exception::custom("this model has no per-layer embedding")),
            },
        };
        around.after(out)
    }
}
