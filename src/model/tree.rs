//! Loading a model, and its forward pass.

use std::collections::BTreeMap;

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::stack;
use mlx_rs::{Array, Device, DeviceType, Dtype};
use serde_json::Value as Json;

use super::batch::{Batch, Logits, Output, Pass};
use super::embed::{Embed, Head};
use super::loader::Loader;
use super::module::{Module, run};
use super::ops::Result as Computed;
use super::rope::Rope;
use super::source::{Tensor, TensorSource, Weight};
use crate::cache::{Cache, LayerCache};
use crate::decoder::parts::{self, Content, Described, Table};
use crate::fault::{Code, Fault, Faults};

/// How numbers are held and worked with: a property of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compute {
    /// Of weights that are not quantized, and of activations.
    pub dtype: Dtype,
    /// Whether the device is a CPU.
    pub on_cpu: bool,
}

/// What computes a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// [`Backend::Cpu`] where MLX's default device is the CPU, else [`Backend::Graph`].
    #[default]
    Auto,
    /// lathe's own kernels.
    Cpu,
    /// MLX's operations alone, as on a GPU.
    Graph,
}

impl Compute {
    /// How a backend computes. Lathe's kernels need arrays that the CPU sees, so
    /// [`Backend::Cpu`] makes the CPU MLX's default device.
    pub fn of(backend: Backend) -> Compute {
        if backend == Backend::Cpu {
            Device::set_default(&Device::cpu());
        }
        let by_default = Compute::of_default_device();
        Compute { on_cpu: by_default.on_cpu && backend != Backend::Graph, ..by_default }
    }

    /// What suits the default device: f32 on a CPU, whose kernels are many times faster in it and
    /// lose nothing to short accumulators; bf16 elsewhere.
    pub fn of_default_device() -> Compute {
        let device = Device::default();
        let on_cpu = matches!(device.get_type(), Ok(DeviceType::Cpu));
        Compute { dtype: if on_cpu { Dtype::Float32 } else { Dtype::Bfloat16 }, on_cpu }
    }
}

/// Layers that are given to the device together, so that it works while the operations of those to
/// come are put together. It is given the first at once.
const TOGETHER: usize = 4;

/// A model that runs.
///
/// It can be sent to another thread but not shared: one thread works with it.
pub struct Model {
    embed: Embed,
    layers: Vec<Vec<Module>>,
    norm: Vec<Module>,
    head: Head,
    slots: Vec<LayerCache>,
    /// The different ones.
    ropes: Vec<Rope>,
    context: Option<usize>,
    /// Tokens up to which the description says that it is exact.
    exact_context: Option<usize>,
    native_bytes: usize,
}

/// Builds a model from its description, its config and its weights.
///
/// # Errors
///
/// All faults at once: those of [`parts::resolve`], or of tensors that cannot be loaded.
pub fn load<'a>(
    source: &dyn TensorSource,
    described: impl Into<Described<'a>>,
    config: &Json,
    compute: Compute,
) -> Result<Model, Faults> {
    if compute.on_cpu {
        // The kernels' threads call BLAS, each for itself.
        crate::mlx::device::set_blas_threads(1);
    }
    let content = Elements(source);
    let table = table(source, &content)?;
    let parts = parts::resolve(described.into(), config, &table)?;
    let mut from = Loader::new(source, compute);
    let mut embed = Embed::load(&mut from, &parts.embed);
    let layers = parts.layers.iter().map(|steps| Module::load_all(&mut from, steps)).collect();
    let norm = Module::load_all(&mut from, &parts.norm);
    let head = embed.as_mut().and_then(|embed| Head::load(&mut from, &parts.head, embed));
    let native_bytes = from.native_bytes;
    let (slots, ropes) = from.finish()?;
    let (Some(embed), Some(head)) = (embed, head) else {
        return Err(Fault::new(Code::Internal, "a model without faults lacks an end").into());
    };
    let parts::Parts { context, exact_context, .. } = parts;
    Ok(Model { embed, layers, norm, head, slots, ropes, context, exact_context, native_bytes })
}

/// What a source holds, as far as headers tell.
fn table<'a>(source: &dyn TensorSource, content: &'a dyn Content) -> Result<Table<'a>, Faults> {
    let mut faults = Faults::default();
    let mut tensors = BTreeMap::new();
    for name in source.names() {
        match source.held(&name) {
            Ok(Some(held)) => {
                tensors.insert(name, held);
            }
            Ok(None) => {}
            Err(fault) => faults.push(fault),
        }
    }
    faults.or(Table::with_content(tensors, content))
}

/// What takes elements to tell.
struct Elements<'a>(&'a dyn TensorSource);

impl Elements<'_> {
    fn plain(&self, name: &str) -> Option<Tensor> {
        match self.0.tensor(name) {
            Ok(Some(Weight::Float(tensor))) => Some(tensor),
            _ => None,
        }
    }
}

impl Content for Elements<'_> {
    fn is_zero(&self, name: &str) -> bool {
        self.plain(name).is_some_and(|tensor| tensor.is_zero())
    }

    fn same(&self, one: &str, other: &str) -> bool {
        let parts = |tensor: Tensor| (tensor.dtype, tensor.shape, tensor.bytes);
        let (one, other) = (self.plain(one).map(parts), self.plain(other).map(parts));
        one.is_some() && one == other
    }
}

impl Model {
    /// An empty cache for a sequence.
    pub fn new_cache(&self) -> Cache {
        Cache::new(self.slots.clone())
    }

    /// Whether tokens of sequences of `one` and `other` tokens are turned alike: if not, what one
    /// has in its cache is no use for the other.
    pub fn turns_alike(&self, one: usize, other: usize) -> bool {
        self.ropes.iter().all(|rope| rope.rotation.is_same_of(one, other))
    }

    /// Whether a sequence that was turned as one of `from` tokens is run again when it has `to`.
    pub fn runs_again(&self, from: usize, to: usize) -> bool {
        let changes = |rope: &Rope| rope.run_again && !rope.rotation.is_same_of(from, to);
        self.ropes.iter().any(changes)
    }

    /// The context in tokens, trained or stretched to, where the config says.
    pub fn context(&self) -> Option<usize> {
        self.context
    }

    /// The tokens up to which the decoder computes what the model does, where it says so.
    pub fn exact_context(&self) -> Option<usize> {
        self.exact_context
    }

    /// Bytes of its weights that are not MLX's arrays.
    pub fn native_bytes(&self) -> usize {
        self.native_bytes
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// One pass over a batch: writes the caches, one for each row, and gives logits. These may be
    /// under way and not evaluated; evaluate them together with the caches' arrays.
    ///
    /// # Errors
    ///
    /// When a row is empty or has a token that the embedding lacks, caches and rows do not fit each
    /// other, or MLX fails.
    pub fn forward(&self, batch: &Batch, caches: &mut [&mut Cache]) -> Result<Output, Fault> {
        if batch.rows.is_empty() || batch.rows.len() != caches.len() {
            let message = format!("{} rows do not fit {} caches", batch.rows.len(), caches.len());
            return Err(Fault::new(Code::Internal, message));
        }
        for (row, cache) in batch.rows.iter().zip(caches.iter()) {
            if row.tokens.is_empty() || row.position != cache.offset() {
                let message = format!(
                    "a row of {} tokens at position {} does not fit a cache of {} tokens",
                    row.tokens.len(),
                    row.position,
                    cache.offset()
                );
                return Err(Fault::new(Code::Internal, message));
            }
            let known = self.embed.tokens();
            if let Some(token) = row.tokens.iter().find(|&&token| token as usize >= known) {
                let message = format!("there is no token {token}: the embedding has {known}");
                return Err(Fault::new(Code::Compute, message)
                    .help("the tokenizer is another model's, or lacks a file that belongs to it"));
            }
        }
        let output = self.compute(batch, caches);
        let output = output.map_err(crate::mlx::Error::from)?;
        for (row, cache) in batch.rows.iter().zip(caches.iter_mut()) {
            cache.advance(row.tokens.len());
        }
        Ok(output)
    }

    fn compute(&self, batch: &Batch, caches: &mut [&mut Cache]) -> Computed<Output> {
        let mut pass = Pass::new(batch, caches);
        let tokens = batch.tokens();
        let mut x = self.embed.forward(&tokens)?;
        pass.per_layer = self.embed.per_layer(&tokens, &x)?;
        let (first, others) = self.layers.split_at(self.layers.len().min(1));
        for layers in std::iter::once(first).chain(others.chunks(TOGETHER)) {
            x = run(layers.iter().flatten(), &x, &mut pass)?;
            mlx_rs::transforms::async_eval([&x])?;
        }
        let hidden = run(&self.norm, &x, &mut pass)?;
        let logits = match batch.logits {
            Logits::None => None,
            Logits::All => Some(self.head.forward(&hidden)?),
            Logits::Last => Some(self.head.forward(&last_tokens(&hidden, batch)?)?),
        };
        Ok(Output { logits, hidden })
    }

    /// Logits of hidden states after the last norm, `[…, hidden]`: for drafts that use the
    /// target's head.
    pub fn head(&self, hidden: &Array) -> Result<Array, Exception> {
        self.head.forward(hidden)
    }

    /// Hidden states of tokens `[rows, tokens]` before the first layer: for drafts that use the
    /// target's embedding.
    pub fn embed(&self, tokens: &Array) -> Result<Array, Exception> {
        self.embed.forward(tokens)
    }
}

/// Each row's last true token, `[rows, 1, hidden]`.
fn last_tokens(hidden: &Array, batch: &Batch) -> Computed<Array> {
    if batch.longest() == 1 {
        return Ok(hidden.clone());
    }
    let rows: Computed<Vec<Array>> = batch
        .rows
        .iter()
        .enumerate()
        .map(|(index, row)| hidden.try_index((index as i32, row.tokens.len() as i32 - 1)))
        .collect();
    stack(&rows?, 0)?.expand_dims(1)
}
