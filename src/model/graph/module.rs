//! The tree of modules, and walking it.

use mlx_rs::Array;

use super::attention::Attention;
use super::delta::GatedDelta;
use super::latent::LatentAttention;
use super::loader::Loader;
use super::mamba::Mamba2;
use super::matrix::Linear;
use super::mlp::{GatedMlp, Mlp};
use super::moe::Moe;
use super::norm::Norm;
use super::ops::{Function, Result, times};
use super::short_conv::ShortConv;
use super::walk::Walk;
use crate::decoder::parts::Step;

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

/// Runs modules one after the other.
pub fn run<'m>(
    modules: impl IntoIterator<Item = &'m Module>,
    x: &Array,
    walk: &mut Walk,
) -> Result<Array> {
    modules.into_iter().try_fold(x.clone(), |x, module| module.forward(&x, walk))
}

impl Module {
    /// Loads steps.
    pub fn load_all(from: &mut Loader, steps: &[Step]) -> Vec<Module> {
        steps.iter().filter_map(|step| Module::load(from, step)).collect()
    }

    /// Loads a step; `None` when it is faulty.
    fn load(from: &mut Loader, step: &Step) -> Option<Module> {
        Some(match step {
            Step::Residual(steps) => Module::Residual(Module::load_all(from, steps)),
            Step::Parallel(branches) => {
                let branches = branches.iter().map(|steps| Module::load_all(from, steps));
                Module::Parallel(branches.collect())
            }
            Step::Norm(part) => Module::Norm(Norm::load(from, part)?),
            Step::Attention(part) => Module::Attention(Box::new(Attention::load(from, part)?)),
            Step::LatentAttention(part) => {
                Module::LatentAttention(Box::new(LatentAttention::load(from, part)?))
            }
            Step::GatedDelta(part) => Module::GatedDelta(Box::new(GatedDelta::load(from, part)?)),
            Step::Mamba2(part) => Module::Mamba2(Box::new(Mamba2::load(from, part)?)),
            Step::ShortConv(part) => Module::ShortConv(Box::new(ShortConv::load(from, part)?)),
            Step::GatedMlp(part) => Module::GatedMlp(GatedMlp::load(from, part)?),
            Step::Mlp(part) => Module::Mlp(Mlp::load(from, part)?),
            Step::Moe(part) => Module::Moe(Box::new(Moe::load(from, part)?)),
            Step::Linear(part) => Module::Linear(Linear::load(from, part)?),
            Step::Activation(function) => Module::Activation(*function),
            Step::ScaleBy(by) => Module::ScaleBy(*by as f32),
            Step::ScaleByTensor(name) => Module::ScaleByTensor(from.vector(name)?),
            Step::PerLayerInput(layer) => Module::PerLayerInput(*layer),
        })
    }

    /// Whether each row goes through it by itself, whatever else is in the pass.
    pub fn is_of_rows(&self) -> bool {
        match self {
            Module::Residual(steps) => steps.iter().all(Module::is_of_rows),
            Module::Parallel(branches) => branches.iter().flatten().all(Module::is_of_rows),
            Module::Norm(_)
            | Module::GatedMlp(_)
            | Module::Mlp(_)
            | Module::Linear(_)
            | Module::Activation(_)
            | Module::ScaleBy(_)
            | Module::ScaleByTensor(_) => true,
            _ => false,
        }
    }

    /// `[tokens, width]` to the same, or to rows of another width.
    fn forward(&self, x: &Array, walk: &mut Walk) -> Result<Array> {
        match self {
            Module::Residual(steps) => x.add(run(steps, x, walk)?),
            Module::Parallel(branches) => {
                let mut sum: Option<Array> = None;
                for branch in branches {
                    let made = run(branch, x, walk)?;
                    sum = Some(match sum {
                        Some(sum) => sum.add(made)?,
                        None => made,
                    });
                }
                Ok(sum.unwrap_or_else(|| x.clone()))
            }
            Module::Norm(norm) => norm.forward(x),
            Module::Attention(attention) => attention.forward(x, walk),
            Module::LatentAttention(attention) => attention.forward(x, walk),
            Module::GatedDelta(delta) => delta.forward(x, walk),
            Module::Mamba2(mamba) => mamba.forward(x, walk),
            Module::ShortConv(conv) => conv.forward(x, walk),
            Module::GatedMlp(mlp) => mlp.forward(x),
            Module::Mlp(mlp) => mlp.forward(x),
            Module::Moe(moe) => moe.forward(x, walk),
            Module::Linear(linear) => linear.forward(x),
            Module::Activation(function) => function.of(x),
            Module::ScaleBy(by) => times(x, *by),
            Module::ScaleByTensor(tensor) => x.multiply(tensor),
            Module::PerLayerInput(layer) => x.multiply(walk.per_layer(*layer)?),
        }
    }
}
