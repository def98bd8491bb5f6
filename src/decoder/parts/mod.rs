//! parts: a description, a config and the tensors that there are in; the modules of the network out.
//!
//! [`resolve`] works out every value, finds every tensor and checks every size, once, for whoever
//! builds modules or only wants to know whether a model can run. It reads no weights and needs no
//! MLX: what leaves is names of tensors, numbers and choices. All that is wrong is told at once,
//! each fault with the tensor and the place in the policy; what differs only in the layer is one.

mod ends;
mod feed_forward;
mod function;
mod mixers;
mod resolver;
mod table;

use serde_json::Value as Json;

use super::description::Decoder;
use super::rope::Rotation;
use crate::document::Document;
use crate::fault::Faults;

pub use function::Function;
use resolver::Resolver;
pub use table::{Content, Table, TensorSpec};

/// A description, and the text that it stands in.
#[derive(Clone, Copy)]
pub struct Described<'a> {
    /// What it says.
    pub decoder: &'a Decoder,
    /// The policy file, whose `decoder` it is.
    pub document: Option<&'a Document>,
}

impl<'a> From<&'a Decoder> for Described<'a> {
    fn from(decoder: &'a Decoder) -> Self {
        Described { decoder, document: None }
    }
}

/// Resolves and checks all modules.
///
/// # Errors
/// All faults at once, code `decoder`: values that the config does not give or that make no sense;
/// tensors that are needed and missing, of another size, or neither used nor declared unused.
pub fn resolve(described: Described, config: &Json, table: &Table) -> Result<Parts, Faults> {
    Resolver::new(described, config, table).resolve(described.decoder)
}

/// A network.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Tokens to hidden states.
    pub embed: Embed,
    /// What each layer does, in order.
    pub layers: Vec<Vec<Step>>,
    /// What comes after the last layer.
    pub norm: Vec<Step>,
    /// Hidden states to logits.
    pub head: Head,
    /// The context in tokens, trained or stretched to, where the config says.
    pub context: Option<usize>,
    /// Tokens up to which the description says that it is exact.
    pub exact_context: Option<usize>,
    /// Biases that no module reads and that are zeros, or may be.
    pub idle_biases: Vec<String>,
}

impl Parts {
    /// Gives each module's rotation.
    pub fn each_rope(&self, each: &mut dyn FnMut(&Rope)) {
        self.layers.iter().flatten().for_each(|step| step.each_rope(each));
    }
}

impl Step {
    fn each_rope(&self, each: &mut dyn FnMut(&Rope)) {
        match self {
            Step::Residual(steps) => steps.iter().for_each(|step| step.each_rope(each)),
            Step::Parallel(branches) => {
                branches.iter().flatten().for_each(|step| step.each_rope(each));
            }
            Step::Attention(attention) => attention.rope.iter().for_each(each),
            Step::LatentAttention(attention) => each(&attention.rope),
            _ => {}
        }
    }
}

/// A matrix `[out, in]`, or stacked ones `[experts, out, in]`.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The tensor's name.
    pub name: String,
    /// Its logical shape, `[…, out, in]`.
    pub shape: Vec<u64>,
    /// Whether it is stored as `[…, in, out]`.
    pub transposed: bool,
}

impl Matrix {
    /// Elements of what it gives.
    pub fn outputs(&self) -> i64 {
        self.axis(2)
    }

    /// Elements of what it takes.
    pub fn inputs(&self) -> i64 {
        self.axis(1)
    }

    fn axis(&self, from_end: usize) -> i64 {
        let at = self.shape.len().checked_sub(from_end);
        at.map_or(0, |at| self.shape[at] as i64)
    }
}

/// A linear projection.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Matrix,
    /// Its bias, `[out]`.
    pub bias: Option<String>,
}

/// A norm over the last axis.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Its weight; without it the norm only normalizes.
    pub weight: Option<NormWeight>,
    /// A layer norm's bias.
    pub bias: Option<String>,
    /// Added to the variance.
    pub eps: f64,
    /// Whether the mean is subtracted first.
    pub centred: bool,
}

/// A norm's weight w, used as (w + offset) × scale.
#[derive(Clone, Debug)]
pub struct NormWeight {
    /// The tensor's name.
    pub name: String,
    /// Added.
    pub offset: f64,
    /// Multiplies the sum.
    pub scale: f64,
}

/// A rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Its frequencies.
    pub rotation: Rotation,
    /// Whether neighbours are paired rather than halves.
    pub interleaved: bool,
    /// Whether a sequence is run again when its rotation changes.
    pub run_again: bool,
}

/// One step of a layer.
#[derive(Clone, Debug)]
pub enum Step {
    /// x + steps(x).
    Residual(Vec<Step>),
    /// The sum of branches.
    Parallel(Vec<Vec<Step>>),
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
    Mlp(Box<Mlp>),
    /// Mixture of experts.
    Moe(Box<Moe>),
    /// A projection.
    Linear(Linear),
    /// A function of each element.
    Activation(Function),
    /// Times a number.
    ScaleBy(f64),
    /// Times a tensor, by its name.
    ScaleByTensor(String),
    /// Times the per-layer embedding of this layer.
    PerLayerInput(usize),
}

/// Attention.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Queries; with keys and values in it where `fused`.
    pub q: Linear,
    /// Whether queries, keys and values are one projection.
    pub fused: bool,
    /// Where keys and values come from.
    pub keys: Keys,
    /// The way out.
    pub o: Linear,
    /// Norm of the queries.
    pub q_norm: Option<Norm>,
    /// Whether norms work on all heads at once.
    pub norm_all_heads: bool,
    /// Rotary positions.
    pub rope: Option<Rope>,
    /// `beta` and `trained` of scores that grow with the position.
    pub long_scale: Option<(f64, f64)>,
    /// The gate on the output.
    pub gate: Option<AttentionGate>,
    /// A token sees so many, itself included.
    pub window: Option<usize>,
    /// Multiplies the scores.
    pub scale: f64,
    /// Soft cap of the scores.
    pub soft_cap: Option<f64>,
    /// A learned score per head, `[heads]`.
    pub sinks: Option<String>,
    /// Number of query heads.
    pub heads: i32,
    /// Number of key and value heads.
    pub kv_heads: i32,
    /// Elements of a head.
    pub head_dim: i32,
}

/// Where keys and values come from.
#[allow(clippy::large_enum_variant, reason = "a model has one for each of its layers")]
#[derive(Clone, Debug)]
pub enum Keys {
    /// This layer's own.
    Own {
        /// Keys, unless they come with the queries.
        k: Option<Linear>,
        /// Values, unless they come with the queries or are the keys.
        v: Option<Linear>,
        /// Norm of the keys.
        k_norm: Option<Norm>,
        /// Norm of the values.
        v_norm: Option<Norm>,
        /// This layer.
        layer: usize,
        /// Whether later layers read them too.
        shared: bool,
    },
    /// Those of an earlier layer.
    Of(usize),
}

/// A gate on the output of attention.
#[derive(Clone, Debug)]
pub struct AttentionGate {
    /// Without it the gate comes with the queries.
    pub projection: Option<Linear>,
    /// Applied to the gate.
    pub function: Function,
    /// Whether there is one number for each head.
    pub per_head: bool,
}

/// Multi-head latent attention.
#[derive(Clone, Debug)]
pub struct LatentAttention {
    /// Queries.
    pub q: LatentQueries,
    /// Latent and rotated key.
    pub kv_down: Linear,
    /// Norm of the latent.
    pub kv_norm: Norm,
    /// Latent to keys and values.
    pub up: LatentUp,
    /// The way out.
    pub o: Linear,
    /// Rotary positions.
    pub rope: Rope,
    /// Multiplies the scores.
    pub scale: f64,
    /// Number of heads.
    pub heads: i32,
    /// Elements of the latent.
    pub rank: i32,
    /// Elements of a head that are not rotated.
    pub nope_dim: i32,
    /// Elements of a head that are.
    pub rope_dim: i32,
    /// Elements of a value head.
    pub value_dim: i32,
}

/// Queries of latent attention.
#[derive(Clone, Debug)]
pub enum LatentQueries {
    /// In one step.
    One(Linear),
    /// In two, with a norm between.
    Two(Linear, Norm, Linear),
}

/// The way from the latent to keys and values.
#[derive(Clone, Debug)]
pub enum LatentUp {
    /// `[heads × (nope_dim + value_dim), rank]`.
    Whole(Matrix),
    /// `[heads, rank, nope_dim]` and `[heads, value_dim, rank]`.
    Halves(Matrix, Matrix),
}

/// A causal convolution, one filter per channel.
#[derive(Clone, Debug)]
pub struct Conv {
    /// `[channels, 1, kernel]` or `[channels, kernel, 1]`.
    pub name: String,
    /// Its bias, `[channels]`.
    pub bias: Option<String>,
    /// Number of channels.
    pub channels: i32,
    /// Width.
    pub kernel: i32,
    /// Applied to what comes out.
    pub function: Option<Function>,
}

/// A gated delta net.
#[derive(Clone, Debug)]
pub struct GatedDelta {
    /// The way in.
    pub entry: DeltaEntry,
    /// Over queries, keys and values.
    pub conv: Conv,
    /// `[value_heads]`.
    pub dt_bias: String,
    /// `[value_heads]`.
    pub a_log: String,
    /// Of each value head.
    pub norm: Norm,
    /// The way out.
    pub out: Linear,
    /// Of the output gate.
    pub gate: Function,
    /// Number of query and key heads.
    pub key_heads: i32,
    /// Number of value heads.
    pub value_heads: i32,
    /// Elements of a query or key head.
    pub key_dim: i32,
    /// Elements of a value head.
    pub value_dim: i32,
}

/// The way into a gated delta net.
#[derive(Clone, Debug)]
pub enum DeltaEntry {
    /// Each by itself.
    Split {
        /// Queries, keys and values.
        qkv: Linear,
        /// The output gate.
        z: Linear,
        /// How much is written.
        b: Linear,
        /// How much is forgotten.
        a: Linear,
    },
    /// Grouped by key head.
    Grouped {
        /// Queries, keys, values and output gate.
        qkvz: Linear,
        /// b and a.
        ba: Linear,
    },
}

/// Mamba-2.
#[derive(Clone, Debug)]
pub struct Mamba2 {
    /// The way in.
    pub in_proj: Linear,
    /// Over the middle of it.
    pub conv: Conv,
    /// `[heads]`.
    pub dt_bias: String,
    /// `[heads]`.
    pub a_log: String,
    /// `[heads]`.
    pub d: String,
    /// Gated norm, per group; its weight is `[heads × head_dim]`.
    pub norm: Norm,
    /// The way out.
    pub out: Linear,
    /// Least time step.
    pub dt_min: f64,
    /// Number of heads.
    pub heads: i32,
    /// Elements of a head.
    pub head_dim: i32,
    /// Number of groups.
    pub groups: i32,
    /// Elements of the state per element of a head.
    pub state: i32,
}

/// A gated short convolution.
#[derive(Clone, Debug)]
pub struct ShortConv {
    /// Gate before, gate after and input.
    pub in_proj: Linear,
    /// The convolution.
    pub conv: Conv,
    /// The way out.
    pub out: Linear,
}

/// The way into a gated MLP, or into gated experts.
#[derive(Clone, Debug)]
pub enum Entry<T> {
    /// One projection, without a gate.
    Plain(T),
    /// Gate, and up.
    Split(T, T),
    /// Both in one.
    Fused {
        /// Gate above up, or rows of both in turn.
        both: T,
        /// Whether rows alternate.
        interleaved: bool,
    },
}

/// down(function(gate(x)) × up(x)).
#[derive(Clone, Debug)]
pub struct GatedMlp {
    /// Gate and up.
    pub entry: Entry<Linear>,
    /// The way out.
    pub down: Linear,
    /// Of the gate.
    pub function: Function,
}

/// down(function(up(x))).
#[derive(Clone, Debug)]
pub struct Mlp {
    /// The way in.
    pub up: Linear,
    /// The way out.
    pub down: Linear,
    /// Between them.
    pub function: Function,
}

/// A mixture of experts.
#[derive(Clone, Debug)]
pub struct Moe {
    /// Who takes which token.
    pub router: Router,
    /// Those who do the work.
    pub experts: Experts,
    /// Norm of what the experts get.
    pub input_norm: Option<Norm>,
    /// The way into a smaller space, and back.
    pub latent: Option<(Linear, Linear)>,
    /// An expert that gets every token.
    pub shared: Option<Shared>,
}

/// How experts are chosen and weighted.
#[derive(Clone, Debug)]
pub struct Router {
    /// `[experts, hidden]`.
    pub projection: Linear,
    /// Norm of its input.
    pub norm: Option<Norm>,
    /// Experts that a token goes to.
    pub top_k: i32,
    /// What logits become.
    pub scores: ScoreKind,
    /// Soft cap of the logits.
    pub soft_cap: Option<f64>,
    /// Added for the choice only, `[experts]`.
    pub correction: Option<String>,
    /// Groups of experts.
    pub groups: i32,
    /// Groups from which experts are chosen.
    pub top_groups: i32,
    /// Whether weights are divided by their sum.
    pub normalize: bool,
    /// Multiplies the weights.
    pub scale: f64,
    /// Multiplies each expert's weight, `[experts]`.
    pub expert_scale: Option<String>,
}

/// What a router's logits become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreKind {
    /// Softmax over all experts.
    Softmax,
    /// Softmax over the chosen ones.
    SoftmaxOfChosen,
    /// Each by itself.
    Sigmoid,
}

impl ScoreKind {
    /// All of them, by name.
    pub const NAMES: [(&'static str, ScoreKind); 3] = [
        ("softmax", ScoreKind::Softmax),
        ("softmax_of_chosen", ScoreKind::SoftmaxOfChosen),
        ("sigmoid", ScoreKind::Sigmoid),
    ];

    fn named(name: &str) -> Option<ScoreKind> {
        ScoreKind::NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }
}

/// The stacked experts.
#[derive(Clone, Debug)]
pub struct Experts {
    /// The way in.
    pub entry: Entry<Matrix>,
    /// Bias of an entry that is one tensor.
    pub entry_bias: Option<String>,
    /// Bias of a gate by itself.
    pub gate_bias: Option<String>,
    /// Bias of an up by itself.
    pub up_bias: Option<String>,
    /// The way out.
    pub down: Matrix,
    /// Its bias.
    pub down_bias: Option<String>,
    /// Of the gate, or of up without one.
    pub function: Function,
    /// `limit` and `alpha` of a clamped gate.
    pub clamp: Option<(f64, f64)>,
}

/// An expert that gets every token.
#[derive(Clone, Debug)]
pub struct Shared {
    /// What it does.
    pub steps: Vec<Step>,
    /// A gate on it.
    pub gate: Option<Linear>,
    /// Whether the mean of both is taken.
    pub average: bool,
}

/// The embedding.
#[derive(Clone, Debug)]
pub struct Embed {
    /// `[vocabulary, hidden]`.
    pub table: Matrix,
    /// Multiplies the rows.
    pub scale: Option<f64>,
    /// A second, small embedding for every layer.
    pub per_layer: Option<PerLayer>,
}

/// Per-layer embeddings.
#[derive(Clone, Debug)]
pub struct PerLayer {
    /// `[vocabulary, layers × width]`.
    pub table: Matrix,
    /// Multiplies the rows.
    pub scale: f64,
    /// `[layers × width, hidden]`.
    pub projection: Linear,
    /// Multiplies what it gives.
    pub projection_scale: f64,
    /// Of each layer's part.
    pub norm: Norm,
    /// Multiplies the sum.
    pub sum_scale: f64,
    /// Elements of one layer's vector.
    pub width: i32,
}

/// The head.
#[derive(Clone, Debug)]
pub struct Head {
    /// Its projection; the embedding is the head without it.
    pub linear: Option<Linear>,
    /// Multiplies the logits.
    pub scale: Option<f64>,
    /// Soft cap of the logits.
    pub soft_cap: Option<f64>,
}
