//! The tree of modules, and walking it.

use super::attention::Attention;
use super::delta::GatedDelta;
use super::latent::LatentAttention;
use super::loader::Loader;
use super::mamba::Mamba2;
use super::matrix::{Floats, Linear};
use super::mlp::{GatedMlp, Mlp};
use super::moe::Moe;
use super::norm::Norm;
use super::short_conv::ShortConv;
use super::walk::Walk;
use crate::decoder::parts::{Function, Step};
use lathe_kernels::Gate;

/// One step of a layer: rows in, rows out.
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
    GatedMlp(Box<GatedMlp>),
    /// Plain MLP.
    Mlp(Mlp),
    /// Mixture of experts.
    Moe(Box<Moe>),
    /// A projection.
    Linear(Linear),
    /// A function of each element.
    Activation(Gate),
    /// Times a number.
    ScaleBy(f32),
    /// Times a tensor of one element or of a row's.
    ScaleByTensor(Floats),
    /// Times this layer's part of the per-layer embedding.
    PerLayerInput(usize),
}

/// Runs modules one after the other, on rows of so many elements.
pub fn run<'m>(
    modules: impl IntoIterator<Item = &'m Module>,
    x: Vec<f32>,
    walk: &mut Walk,
) -> Vec<f32> {
    modules.into_iter().fold(x, |x, module| module.forward(x, walk))
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
            Step::GatedMlp(part) => Module::GatedMlp(Box::new(GatedMlp::load(from, part)?)),
            Step::Mlp(part) => Module::Mlp(Mlp::load(from, part)?),
            Step::Moe(part) => Module::Moe(Box::new(Moe::load(from, part)?)),
            Step::Linear(part) => Module::Linear(from.linear(part)?),
            Step::Activation(function) => Module::Activation(function.gate()),
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
    fn forward(&self, mut x: Vec<f32>, walk: &mut Walk) -> Vec<f32> {
        match self {
            Module::Residual(steps) => {
                let mut made = match &steps[..] {
                    // What begins with a norm, as most do, needs no copy.
                    [Module::Norm(norm), rest @ ..] => {
                        let normalized = norm.forward(&x, walk.width(&x));
                        run(rest, normalized, walk)
                    }
                    _ => run(steps, x.clone(), walk),
                };
                lathe_kernels::add_all(&mut made, &[&x], 1.0);
                made
            }
            Module::Parallel(branches) => {
                let made = branches.iter().map(|steps| run(steps, x.clone(), walk));
                let mut made: Vec<Vec<f32>> = made.collect();
                let Some(mut sum) = made.pop() else { return x };
                let others: Vec<&[f32]> = made.iter().map(|made| &made[..]).collect();
                lathe_kernels::add_all(&mut sum, &others, 1.0);
                sum
            }
            Module::Norm(norm) => norm.forward(&x, walk.width(&x)),
            Module::Attention(attention) => attention.forward(&x, walk),
            Module::LatentAttention(attention) => attention.forward(&x, walk),
            Module::GatedDelta(delta) => delta.forward(&x, walk),
            Module::Mamba2(mamba) => mamba.forward(&x, walk),
            Module::ShortConv(conv) => conv.forward(&x, walk),
            Module::GatedMlp(mlp) => mlp.forward(&x),
            Module::Mlp(mlp) => mlp.forward(&x),
            Module::Moe(moe) => moe.forward(&x, walk),
            Module::Linear(linear) => linear.forward(&x),
            Module::Activation(function) => {
                function.of(&mut x);
                x
            }
            Module::ScaleBy(by) => {
                lathe_kernels::scale(&mut x, *by);
                x
            }
            Module::ScaleByTensor(by) => {
                lathe_kernels::multiply_rows(&mut x, by);
                x
            }
            Module::PerLayerInput(layer) => {
                walk.times_per_layer(*layer, &mut x);
                x
            }
        }
    }
}

impl Function {
    /// The same among the kernels.
    pub fn gate(self) -> Gate {
        match self {
            Function::Silu => Gate::Silu,
            Function::Gelu => Gate::Gelu,
            Function::GeluTanh => Gate::GeluTanh,
            Function::Relu => Gate::Relu,
            Function::Relu2 => Gate::Relu2,
            Function::Sigmoid => Gate::Sigmoid,
            Function::Softplus => Gate::Softplus,
        }
    }
}
