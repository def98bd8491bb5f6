//! model: a decoder's description and weights in, logits out.
//!
//! [`load`] has the parts of a network resolved and checked once ([`crate::decoder::parts`]) and gives
//! them to the backend that computes it: [`cpu`] with lathe's own kernels, in plain memory; [`graph`]
//! with MLX alone, as on a GPU. Nothing here knows an architecture: names of tensors and what is
//! done with them stand in the description. Both backends have one file for each kind of module.
//!
//! [`Model::forward`] takes a [`Pass`], the tokens of any number of sequences, with a [`Cache`] for
//! each.

mod cpu;
mod graph;
mod pass;
pub mod source;

use std::collections::BTreeMap;

use mlx_rs::Dtype;
use serde_json::Value as Json;

pub use pass::{Logits, Output, Pass, Place, Rows, Sees, Span, Tap};
pub use source::{Blobs, Folder, Known, QuantizedTensor, Tensor, TensorSource, Weight};

use crate::cache;
use crate::decoder::parts::{self, Content, Described, Parts, Table};
use crate::decoder::rope::Rotation;
use crate::fault::{Code, Fault, Faults};
use crate::mlx::device::{Device, device};

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

impl Backend {
    /// `auto`, `cpu` or `graph`.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Auto => "auto",
            Backend::Cpu => "cpu",
            Backend::Graph => "graph",
        }
    }
}

/// How a backend computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// With lathe's own kernels, in f32; weights stay as they are stored.
    Cpu,
    /// With MLX's operations.
    Graph {
        /// Of weights that are not quantized, and of activations.
        dtype: Dtype,
    },
}

impl Compute {
    /// What a backend is on this machine: f32 on a CPU, whose operations are faster in it and lose
    /// nothing to short accumulators; bf16 on a GPU.
    pub fn of(backend: Backend) -> Compute {
        let on_cpu = matches!(device(), Ok(Device::Cpu));
        match (backend, on_cpu) {
            (Backend::Cpu, _) | (Backend::Auto, true) => Compute::Cpu,
            (_, true) => Compute::Graph { dtype: Dtype::Float32 },
            (_, false) => Compute::Graph { dtype: Dtype::Bfloat16 },
        }
    }

    /// `cpu` or `graph`.
    pub fn name(self) -> &'static str {
        match self {
            Compute::Cpu => "cpu",
            Compute::Graph { .. } => "graph",
        }
    }
}

/// A model that runs.
///
/// It can be sent to another thread but not shared: one thread works with it.
pub struct Model {
    network: Network,
    /// The different rotations, and whether a sequence is run again when one changes.
    rotations: Vec<(Rotation, bool)>,
    context: Option<usize>,
    exact_context: Option<usize>,
}

#[allow(clippy::large_enum_variant, reason = "there is one")]
enum Network {
    Cpu(cpu::Network),
    Graph(graph::Network),
}

/// What a sequence leaves in memory; see [`cache::Cache`].
#[derive(Debug)]
pub struct Cache(Memory<cache::Cache<cpu::Layer>, cache::Cache<graph::Layer>>);

/// A place that a cache can come back to; see [`cache::Mark`].
#[derive(Clone, Debug)]
pub struct Mark(Memory<cache::Mark<cpu::Layer>, cache::Mark<graph::Layer>>);

#[derive(Clone, Debug)]
enum Memory<C, G> {
    Cpu(C),
    Graph(G),
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
    let content = Elements(source);
    let table = table(source, &content)?;
    let parts = parts::resolve(described.into(), config, &table)?;
    let network = match compute {
        Compute::Cpu => Network::Cpu(cpu::Network::load(source, &parts)?),
        Compute::Graph { dtype } => Network::Graph(graph::Network::load(source, &parts, dtype)?),
    };
    let mut rotations = Vec::new();
    parts.each_rope(&mut |rope| {
        let known = (rope.rotation.clone(), rope.run_again);
        if !rotations.contains(&known) {
            rotations.push(known);
        }
    });
    let Parts { context, exact_context, .. } = parts;
    Ok(Model { network, rotations, context, exact_context })
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

/// The same of whichever backend it is.
macro_rules! either {
    ($of:ident, $memory:expr, $inner:ident => $body:expr) => {
        match $memory {
            $of::Cpu($inner) => $body,
            $of::Graph($inner) => $body,
        }
    };
}

impl Model {
    /// An empty cache for a sequence.
    pub fn new_cache(&self) -> Cache {
        Cache(match &self.network {
            Network::Cpu(network) => Memory::Cpu(cache::Cache::new(network.layers())),
            Network::Graph(network) => Memory::Graph(cache::Cache::new(network.layers())),
        })
    }

    /// Whether tokens of sequences of `one` and `other` tokens are turned alike: if not, what one
    /// has in its cache is no use for the other.
    pub fn turns_alike(&self, one: usize, other: usize) -> bool {
        self.rotations.iter().all(|(rotation, _)| rotation.is_same_of(one, other))
    }

    /// Whether a sequence that was turned as one of `from` tokens is run again when it has `to`.
    pub fn runs_again(&self, from: usize, to: usize) -> bool {
        let changes =
            |(rotation, again): &(Rotation, bool)| *again && !rotation.is_same_of(from, to);
        self.rotations.iter().any(changes)
    }

    /// The context in tokens, trained or stretched to, where the config says.
    pub fn context(&self) -> Option<usize> {
        self.context
    }

    /// The tokens up to which the decoder computes what the model does, where it says so.
    pub fn exact_context(&self) -> Option<usize> {
        self.exact_context
    }

    /// Which backend computes it.
    pub fn backend(&self) -> Backend {
        match self.network {
            Network::Cpu(_) => Backend::Cpu,
            Network::Graph(_) => Backend::Graph,
        }
    }

    /// Bytes of its weights that are not MLX's arrays.
    pub fn native_bytes(&self) -> usize {
        match &self.network {
            Network::Cpu(network) => network.bytes(),
            Network::Graph(_) => 0,
        }
    }

    /// Tokens that the embedding has.
    pub fn vocabulary(&self) -> usize {
        either!(Network, &self.network, network => network.vocabulary())
    }

    /// One pass. The caches, one for each span, have its tokens staged then; whoever asked for the
    /// pass settles them.
    ///
    /// # Errors
    ///
    /// When a span is empty or has a token that the embedding lacks, caches and spans do not fit each
    /// other, or MLX fails. The caches are then as they were.
    pub fn forward(&self, pass: &Pass, caches: &mut [&mut Cache]) -> Result<Output, Fault> {
        self.check(pass, caches)?;
        let computed = match &self.network {
            Network::Cpu(network) => {
                let inner: Option<Vec<_>> = caches.iter_mut().map(|cache| cache.cpu()).collect();
                network.forward(pass, &mut inner.ok_or_else(another)?)
            }
            Network::Graph(network) => {
                let inner: Option<Vec<_>> = caches.iter_mut().map(|cache| cache.graph()).collect();
                network.forward(pass, &mut inner.ok_or_else(another)?)
            }
        };
        for (span, cache) in pass.spans.iter().zip(caches.iter_mut()) {
            either!(Memory, &mut cache.0, cache => match &computed {
                Ok(_) => cache.stage(span.tokens.len()),
                Err(_) => cache.discard(),
            });
        }
        computed
    }

    fn check(&self, pass: &Pass, caches: &[&mut Cache]) -> Result<(), Fault> {
        let internal = |message| Err(Fault::new(Code::Internal, message));
        if pass.spans.is_empty() || pass.spans.len() != caches.len() {
            return internal(format!("{} spans, {} caches", pass.spans.len(), caches.len()));
        }
        for (span, cache) in pass.spans.iter().zip(caches) {
            let (tokens, offset) = (span.tokens.len(), cache.offset());
            if tokens == 0 || span.position != offset || cache.staged() > 0 {
                return internal(format!(
                    "a span of {tokens} tokens at position {} does not fit a cache of {offset} \
                     tokens, with {} staged",
                    span.position,
                    cache.staged()
                ));
            }
            let known = self.vocabulary();
            if let Some(token) = span.tokens.iter().find(|&&token| token as usize >= known) {
                let message = format!("there is no token {token}: the embedding has {known}");
                return Err(Fault::new(Code::Compute, message)
                    .help("the tokenizer is another model's, or lacks a file that belongs to it"));
            }
        }
        Ok(())
    }
}

fn another() -> Fault {
    Fault::new(Code::Internal, "this cache is another backend's")
}

impl Cache {
    fn cpu(&mut self) -> Option<&mut cache::Cache<cpu::Layer>> {
        match &mut self.0 {
            Memory::Cpu(cache) => Some(cache),
            Memory::Graph(_) => None,
        }
    }

    fn graph(&mut self) -> Option<&mut cache::Cache<graph::Layer>> {
        match &mut self.0 {
            Memory::Graph(cache) => Some(cache),
            Memory::Cpu(_) => None,
        }
    }

    /// Tokens settled.
    pub fn offset(&self) -> usize {
        either!(Memory, &self.0, cache => cache.offset())
    }

    /// Tokens that the last pass has written and that are not settled.
    pub fn staged(&self) -> usize {
        either!(Memory, &self.0, cache => cache.staged())
    }

    /// Bytes held, what is shared too.
    pub fn bytes(&self) -> usize {
        either!(Memory, &self.0, cache => cache.bytes())
    }

    /// Tells each allocation: where it is, and its bytes.
    pub fn allocations(&self, each: &mut dyn FnMut(usize, usize)) {
        either!(Memory, &self.0, cache => cache.allocations(each));
    }

    /// Whether writing on puts the present offset out of reach.
    pub fn forgets(&self) -> bool {
        either!(Memory, &self.0, cache => cache.forgets())
    }

    /// Whether it can go to `offset`.
    pub fn reaches(&self, offset: usize) -> bool {
        either!(Memory, &self.0, cache => cache.reaches(offset))
    }

    /// Keeps the first `offset` tokens, settled and staged ones, and drops the others.
    ///
    /// # Errors
    /// When it cannot go there; nothing is changed then.
    pub fn settle(&mut self, offset: usize) -> Result<(), Fault> {
        either!(Memory, &mut self.0, cache => cache.settle(offset))
    }

    /// Settles all that is staged.
    pub fn commit(&mut self) {
        either!(Memory, &mut self.0, cache => cache.commit());
    }

    /// Drops all that is staged.
    pub fn discard(&mut self) {
        either!(Memory, &mut self.0, cache => cache.discard());
    }

    /// The cache as it is, for another sequence of the same model: what is sealed is shared.
    pub fn share(&mut self) -> Cache {
        Cache(match &mut self.0 {
            Memory::Cpu(cache) => Memory::Cpu(cache.share()),
            Memory::Graph(cache) => Memory::Graph(cache.share()),
        })
    }

    /// What [`Cache::return_to`] needs to come back here however much is written meanwhile.
    pub fn mark(&mut self) -> Mark {
        Mark(match &mut self.0 {
            Memory::Cpu(cache) => Memory::Cpu(cache.mark()),
            Memory::Graph(cache) => Memory::Graph(cache.mark()),
        })
    }

    /// Comes back to a mark of this cache that is not beyond what is settled now; the tokens up to
    /// it must not have been replaced by others.
    ///
    /// # Errors
    /// When the mark is beyond, or another model's.
    pub fn return_to(&mut self, mark: &Mark) -> Result<(), Fault> {
        match (&mut self.0, &mark.0) {
            (Memory::Cpu(cache), Memory::Cpu(mark)) => cache.return_to(mark),
            (Memory::Graph(cache), Memory::Graph(mark)) => cache.return_to(mark),
            _ => Err(another()),
        }
    }
}

impl Mark {
    /// Tokens settled when it was taken.
    pub fn offset(&self) -> usize {
        either!(Memory, &self.0, mark => mark.offset())
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        either!(Memory, &self.0, mark => mark.bytes())
    }
}
