//! The tree of modules, and walking it.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::TryIndexOp;

use super::attention::Attention;
use super::batch::Pass;
use super::delta::GatedDelta;
use super::latent::LatentAttention;
use super::linear::Linear;
use super::loader::Loader;
use super::mamba::Mamba2;
use super::mlp::{GatedMlp, Mlp};
use super::moe::Moe;
use super::native::steps::{self, Held};
use super::norm::Norm;
use super::ops::{Function, Result, times};
use super::short_conv::ShortConv;
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
    ScaleBy {
        /// The number.
        by: f32,
        /// Whether the device is a CPU.
        on_cpu: bool,
    },
    /// Times a tensor.
    ScaleByTensor(Array),
    /// Times this layer's part of the per-layer embedding.
    PerLayerInput(usize),
}

/// Runs modules one after the other; as one operation those next to each other that lathe's own
/// kernels have.
pub fn run<'m>(
    modules: impl IntoIterator<Item = &'m Module>,
    x: &Array,
    pass: &mut Pass,
) -> Result<Array> {
    let modules: Vec<&Module> = modules.into_iter().collect();
    let mut x = x.clone();
    // What is read of another layer must have been written by an operation before this one.
    let together = |a: &&Module, b: &&Module| a.is_native() && b.is_native() && !b.reads_another();
    for same in modules.chunk_by(together) {
        x = match same {
            [module] if !module.is_native() => module.forward(&x, pass)?,
            _ => run_natively(same, &x, pass)?,
        };
    }
    Ok(x)
}

/// Modules that lathe's own kernels have, as one operation.
fn run_natively(modules: &[&Module], x: &Array, pass: &mut Pass) -> Result<Array> {
    let (mut held, mut attentions) = (Held::default(), Vec::new());
    let steps = modules.iter().map(|module| module.step(&mut held, &mut attentions, pass));
    let steps = steps.collect::<Result<_>>()?;
    let (out, written) = steps::run(steps, held, x)?;
    let mut written = written.into_iter();
    attentions.iter().try_for_each(|attention| attention.take_back(&mut written, pass))?;
    Ok(out)
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
            Step::ScaleBy(by) => Module::ScaleBy { by: *by as f32, on_cpu: from.compute.on_cpu },
            Step::ScaleByTensor(name) => Module::ScaleByTensor(from.vector(name)?),
            Step::PerLayerInput(layer) => Module::PerLayerInput(*layer),
        })
    }

    /// Whether lathe's own kernels have all of it.
    fn is_native(&self) -> bool {
        match self {
            Module::Residual(steps) => steps.iter().all(Module::is_native),
            Module::Parallel(branches) => branches.iter().flatten().all(Module::is_native),
            Module::Norm(norm) => norm.native().is_some(),
            Module::Attention(attention) => attention.is_native(),
            Module::GatedMlp(mlp) => mlp.native().is_some(),
            Module::Linear(linear) => linear.native().is_some(),
            Module::ScaleBy { on_cpu, .. } => *on_cpu,
            _ => false,
        }
    }

    /// Whether it reads another layer's keys.
    fn reads_another(&self) -> bool {
        match self {
            Module::Residual(steps) => steps.iter().any(Module::reads_another),
            Module::Parallel(branches) => branches.iter().flatten().any(Module::reads_another),
            Module::Attention(attention) => attention.reads_another(),
            _ => false,
        }
    }

    /// The step that lathe's own kernels make of it. Its attentions are added to those that may
    /// have something written to take back.
    fn step<'m>(
        &'m self,
        held: &mut Held,
        attentions: &mut Vec<&'m Attention>,
        pass: &mut Pass,
    ) -> Result<steps::Step> {
        let mut all = |modules: &'m [Module]| -> Result<Vec<steps::Step>> {
            modules.iter().map(|module| module.step(held, attentions, pass)).collect()
        };
        let step = match self {
            Module::Residual(steps) => Some(steps::Step::Residual(all(steps)?)),
            Module::Parallel(branches) => {
                let branches = branches.iter().map(|branch| all(branch));
                Some(steps::Step::Parallel(branches.collect::<Result<_>>()?))
            }
            Module::Norm(norm) => norm.native().cloned().map(steps::Step::Norm),
            Module::Attention(attention) => {
                attentions.push(attention);
                attention.step(held, pass)?
            }
            Module::GatedMlp(mlp) => mlp.native().cloned().map(steps::Step::Gated),
            Module::Linear(linear) => linear.native().cloned().map(steps::Step::Linear),
            Module::ScaleBy { by, .. } => Some(steps::Step::Scale(*by)),
            _ => None,
        };
        step.ok_or_else(|| Exception::custom("the kernels lack a module"))
    }

    /// `[rows, tokens, hidden]` to the same.
    fn forward(&self, x: &Array, pass: &mut Pass) -> Result<Array> {
        match self {
            Module::Residual(steps) => x.add(run(steps, x, pass)?),
            Module::Parallel(branches) => {
                let mut sum: Option<Array> = None;
                for branch in branches {
                    let made = run(branch, x, pass)?;
                    sum = Some(match sum {
                        Some(sum) => sum.add(made)?,
                        None => made,
                    });
                }
                Ok(sum.unwrap_or_else(|| x.clone()))
            }
            Module::Norm(norm) => norm.forward(x),
            Module::Attention(attention) => attention.forward(x, pass),
            Module::LatentAttention(attention) => attention.forward(x, pass),
            Module::GatedDelta(delta) => delta.forward(x, pass),
            Module::Mamba2(mamba) => mamba.forward(x, pass),
            Module::ShortConv(conv) => conv.forward(x, pass),
            Module::GatedMlp(mlp) => mlp.forward(x),
            Module::Mlp(mlp) => mlp.forward(x),
            Module::Moe(moe) => moe.forward(x, pass),
            Module::Linear(linear) => linear.forward(x),
            Module::Activation(function) => function.of(x),
            Module::ScaleBy { by, .. } => times(x, *by),
            Module::ScaleByTensor(tensor) => x.multiply(tensor),
            Module::PerLayerInput(layer) => match &pass.per_layer {
                Some(inputs) => x.multiply(inputs.try_index((.., .., *layer as i32))?),
                None => Err(Exception::custom("this model has no per-layer embedding")),
            },
        }
    }
}
