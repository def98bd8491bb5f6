//! Loading a model, and its forward pass.

use cel::Value as CelValue;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::stack;
use mlx_rs::{Array, Device, DeviceType, Dtype};
use serde_json::Value as Json;

use super::batch::{Batch, Logits, Output, Pass};
use super::build::Builder;
use super::embed::{Embed, Head};
use super::module::{Module, run};
use super::ops::Result as Computed;
use super::rope::Rope;
use super::source::TensorSource;
use crate::cache::{Cache, LayerCache};
use crate::decoder::description::{Decoder, Expr};
use crate::decoder::exact_context;
use crate::decoder::values::Scope;
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
/// All faults at once: values that the config does not give, tensors that are needed and missing,
/// of another shape, or neither used nor declared unused.
pub fn load(
    source: &dyn TensorSource,
    decoder: &Decoder,
    config: &Json,
    compute: Compute,
) -> Result<Model, Faults> {
    if compute.on_cpu {
        // The kernels' threads call BLAS, each for itself.
        crate::mlx::device::set_blas_threads(1);
    }
    let mut scope = Scope::new(decoder, config);
    let mut faults = Faults::default();
    set_values(&mut scope, decoder.values.iter(), &mut faults);
    let mut to = Builder::new(source, scope, compute);
    for fault in faults.0 {
        to.fault(fault.message);
    }
    to.norms = decoder.norms.clone();
    if let Some(converted) = &decoder.converted {
        to.tell_converted(converted);
    }

    let (root, embedding) = root_of(&to, decoder)?;
    let mut embed = to.under(&root, |to| Embed::build(to, &decoder.embed, &embedding));
    let layers = to.under(&root, |to| build_layers(to, decoder));
    let norm = to.under(&root, |to| Module::build_all(to, &decoder.norm, 0));
    let head = embed.as_mut().and_then(|embed| Head::build(&mut to, &decoder.head, embed));
    let context = match &decoder.context {
        Some(context) => to.int_or(&Some(context.clone()), 0),
        None => None,
    };
    let exact_context = exact_context(decoder, config).unwrap_or_else(|reason| {
        to.fault(reason);
        None
    });
    let beyond = names_beyond(&mut to, decoder, &root);
    to.check_all_used(&decoder.unused, &beyond);
    let mut layers = layers;
    let shared = to.read_by_others.clone();
    layers.iter_mut().flatten().for_each(|step| step.share(&shared));
    let native_bytes = to.native_bytes;
    let (slots, ropes) = to.finish()?;
    let (Some(embed), Some(head)) = (embed, head) else {
        return Err(Fault::new(Code::Internal, "a model without faults lacks an end").into());
    };
    let context = context.and_then(|context| usize::try_from(context).ok()).filter(|&c| c > 0);
    // A rotation may stretch it further than the config's own number says.
    let reach = ropes.iter().filter_map(|rope| rope.rotation.reach).max();
    let context = context.map(|context| context.max(reach.unwrap_or(0)));
    Ok(Model { embed, layers, norm, head, slots, ropes, context, exact_context, native_bytes })
}

fn set_values<'a>(
    scope: &mut Scope,
    values: impl Iterator<Item = (&'a String, &'a Expr)>,
    faults: &mut Faults,
) {
    for (name, expr) in values {
        match scope.value(expr) {
            Ok(value) => scope.set(name, value.unwrap_or(CelValue::Null)),
            Err(reason) => faults.push(Fault::new(Code::Decoder, format!("let {name}: {reason}"))),
        }
    }
}

/// The root under which the embedding is, and the embedding's whole name.
fn root_of(to: &Builder, decoder: &Decoder) -> Result<(String, String), Faults> {
    if let Some((root, name)) = decoder.embedding(|name| to.has(name)) {
        return Ok((root.into(), name));
    }
    let names = decoder.embed.tensor.list().join(" or ");
    let roots = decoder.root.list();
    let roots = roots.iter().map(|root| format!("\"{root}\"")).collect::<Vec<_>>().join(", ");
    let message = format!("the model has no embedding {names} under any of {roots}");
    Err(Fault::new(Code::Decoder, message).into())
}

fn build_layers(to: &mut Builder, decoder: &Decoder) -> Vec<Vec<Module>> {
    let layers = &decoder.layers;
    let Some(count) = to.int(&layers.count, "layers.count") else { return Vec::new() };
    let model_scope = to.scope.clone();
    let built = (0..usize::try_from(count).unwrap_or(0)).map(|layer| {
        let mut scope = model_scope.clone();
        scope.set("layer", CelValue::Int(layer as i64));
        let mut faults = Faults::default();
        if let Some(kind) = &layers.kind {
            match scope.value(kind) {
                Ok(value) => scope.set("type", value.unwrap_or(CelValue::Null)),
                Err(reason) => to.fault(format!("type of layer {layer}: {reason}")),
            }
        }
        set_values(&mut scope, layers.values.iter(), &mut faults);
        for fault in faults.0 {
            to.fault(format!("layer {layer}: {}", fault.message));
        }
        to.scope = scope;
        let path = layers.tensor.replace("{i}", &layer.to_string());
        to.under(&path, |to| Module::build_all(to, &layers.steps, layer))
    });
    let built = built.collect();
    to.scope = model_scope;
    built
}

/// What the names of layers begin with that stand after the decoder's and that it does not use.
fn names_beyond(to: &mut Builder, decoder: &Decoder, root: &str) -> Vec<String> {
    let layers = &decoder.layers;
    let count = to.int_or(&Some(layers.count.clone()), 0).unwrap_or(0);
    let more = to.int_or(&layers.beyond, 0).unwrap_or(0);
    let name = |layer: i64| format!("{}.", layers.tensor.replace("{i}", &layer.to_string()));
    to.under(root, |to| (count..count + more).map(|layer| to.full_name(&name(layer))).collect())
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

    /// The tokens up to which the decoder computes what the model does, where it says so.
    pub fn exact_context(&self) -> Option<usize> {
        self.exact_context
    }

    /// The context in tokens, trained or stretched to, where the config says.
    pub fn context(&self) -> Option<usize> {
        self.context
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
