//! The form of a policy's `decoder:` section: what may stand in it, key by key.
//!
//! A description is data. It names the tensors of an architecture and says which module kinds
//! work on them in which order; `docs/decoder.md` explains every kind with its shapes and source.
//! Nothing here computes: [`crate::model`] builds modules from it, and other readers (the schema,
//! the linter) need no MLX.
//!
//! Two sorts of text stand in a description. A *name* is part of a tensor's dotted name. An
//! [`Expr`] is a value worked out from `config.json`: see [`super::values`].

mod feed_forward;
mod mixers;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::values::Scope;
use super::{Defaults, Filled};

pub use super::rope::description::Rope;
pub use super::values::Expr;
pub use feed_forward::{
    Clamp, Correction, ExpertLayout, ExpertTensor, Experts, GatedMlp, Mlp, Moe, Router, Scores,
    Shared,
};
pub use mixers::{
    Attention, AttentionGate, GatedDelta, LatentAttention, LongScale, Mamba2, ShortConv,
};

/// The network of an architecture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decoder {
    /// Objects of config.json that describe the decoder in its place, such as `text_config`: the
    /// first that a config has is taken, and keys of the top level are then under `config` only.
    #[serde(default, skip_serializing_if = "Names::is_empty")]
    pub config: Names,
    /// By `model_type`, what the config's class takes for a key that is absent.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub defaults: Defaults,
    /// Named values, in order: a later one may use the earlier.
    #[serde(default, rename = "let", skip_serializing_if = "IndexMap::is_empty")]
    pub values: IndexMap<String, Expr>,
    /// What the names below hang on; the first under which the embedding exists is taken. The
    /// empty text is the top.
    #[serde(default, skip_serializing_if = "Names::is_empty")]
    pub root: Names,
    /// How copies whose values a converter changed are told from the original; expressions then
    /// see `converted`, true or false.
    #[serde(default)]
    pub converted: Option<Converted>,
    /// Up to how many tokens the decoder computes what the model does, where it leaves something
    /// out that matters beyond (`index_topk` for a sparse indexer): longer prompts are refused, and
    /// answers end there. Null or 0 is no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_context: Option<Expr>,
    /// The trained context, in tokens.
    #[serde(default)]
    pub context: Option<Expr>,
    /// What norms are unless they say otherwise.
    #[serde(default)]
    pub norms: NormDefaults,
    /// Tokens to hidden states.
    pub embed: Embed,
    /// The layers between.
    pub layers: Layers,
    /// What comes after the last layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub norm: Vec<Step>,
    /// Hidden states to logits.
    pub head: Head,
    /// Globs over whole tensor names that the decoder does not use, such as a vision tower's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused: Vec<String>,
}

/// One name or several; of several, the first that exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Names {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Default for Names {
    fn default() -> Self {
        Names::Many(Vec::new())
    }
}

impl Names {
    /// The names as a list.
    pub fn list(&self) -> &[String] {
        match self {
            Names::One(one) => std::slice::from_ref(one),
            Names::Many(many) => many,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list().is_empty()
    }
}

impl Decoder {
    /// What its expressions see: the keys of the object of `config` that describes the decoder, and
    /// `config` itself, both with the defaults of their classes.
    pub fn scope(&self, config: &Json) -> Scope {
        Scope::of(&Filled::new(config, self.config.list(), &self.defaults))
    }
}

/// A converter that changes values changes the layout of other tensors too, and these tell which
/// of both a model is. A tensor that fits neither, or tensors that disagree, are a fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Converted {
    /// The converter, as faults name it.
    pub by: String,
    /// A glob over whole names of the tensors that tell.
    pub tensor: String,
    /// Their shape in the original: a value for each axis, null for any.
    pub original: Vec<Option<Expr>>,
    /// Their shape in a copy that was converted.
    pub shape: Vec<Option<Expr>>,
    /// What the converter writes as `format` into its files' metadata.
    pub format: String,
    /// A key of config.json that only the converter's copies have; one of the two marks is needed.
    pub key: String,
}

/// What norms are unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NormDefaults {
    /// Added to the variance.
    pub eps: Option<Expr>,
    /// Added to every weight: 1 where weights are stored as differences from 1.
    pub offset: Option<Expr>,
}

/// Tokens to hidden states: a row of a table for each token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Embed {
    /// The table, `[vocabulary, hidden]`.
    pub tensor: Names,
    /// Multiplies the rows.
    pub scale: Option<Expr>,
    /// A second, small embedding for every layer.
    pub per_layer: Option<PerLayer>,
}

/// Per-layer embeddings: each layer gets a small vector of its own for each token, made of a
/// table's row and of a projection of the main embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PerLayer {
    /// Only where this holds.
    pub when: Option<Expr>,
    /// The table, `[vocabulary, layers × width]`.
    pub tensor: Names,
    /// Multiplies the table's rows.
    pub scale: Option<Expr>,
    /// The projection of the main embedding, `[layers × width, hidden]`.
    pub projection: Names,
    /// Multiplies the projection.
    pub projection_scale: Option<Expr>,
    /// Norm of each layer's part of the projection.
    pub norm: Norm,
    /// Multiplies the sum of both.
    pub sum_scale: Option<Expr>,
    /// Elements of one layer's vector.
    pub width: Expr,
}

/// The layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Layers {
    /// What the names of a layer hang on, `{i}` being its index.
    pub tensor: String,
    /// How many there are.
    pub count: Expr,
    /// How many more may stand after them that the decoder does not use, such as those that
    /// predict further tokens (MTP).
    pub beyond: Option<Expr>,
    /// The kind of layer `layer`, a text for conditions (`type`).
    #[serde(rename = "type")]
    pub kind: Option<Expr>,
    /// Values worked out for each layer; they may use `layer` and `type`.
    #[serde(default, rename = "let", skip_serializing_if = "IndexMap::is_empty")]
    pub values: IndexMap<String, Expr>,
    /// What a layer does, in order.
    pub steps: Vec<Step>,
}

/// One module, with a condition. Exactly one of the kinds stands in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Only in layers where this holds.
    pub when: Option<Expr>,
    /// x + steps(x).
    pub residual: Option<Vec<Step>>,
    /// The sum of several branches, all from the same x.
    pub parallel: Option<Vec<Vec<Step>>>,
    /// Root mean square norm.
    pub rms_norm: Option<NormOrName>,
    /// Mean and variance norm.
    pub layer_norm: Option<NormOrName>,
    /// Attention with keys and values per head group.
    pub attention: Option<Box<Attention>>,
    /// Attention with keys and values compressed into one latent vector.
    pub latent_attention: Option<Box<LatentAttention>>,
    /// Gated delta net.
    pub gated_delta: Option<Box<GatedDelta>>,
    /// Mamba-2.
    pub mamba2: Option<Box<Mamba2>>,
    /// A gated short convolution.
    pub short_conv: Option<ShortConv>,
    /// down(activation(gate(x)) × up(x)).
    pub gated_mlp: Option<GatedMlp>,
    /// down(activation(up(x))).
    pub mlp: Option<Mlp>,
    /// Mixture of experts.
    pub moe: Option<Box<Moe>>,
    /// A projection.
    pub linear: Option<LinearOrName>,
    /// A function of each element.
    pub activation: Option<Activation>,
    /// Multiplies by a number or by a tensor.
    pub scale: Option<Scale>,
    /// Multiplies by this layer's part of the per-layer embedding.
    pub per_layer_input: Option<PerLayerInput>,
}

/// `per_layer_input` has nothing to say but that it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PerLayerInput {}

/// A norm by the name of its weight alone, or in full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum NormOrName {
    /// The weight's name.
    Name(String),
    /// All of it.
    Full(Norm),
}

/// A norm over the last axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Norm {
    /// Only where this holds.
    pub when: Option<Expr>,
    /// The weight; without it the norm only normalizes.
    pub tensor: Option<String>,
    /// Added to the variance.
    pub eps: Option<Expr>,
    /// Added to every weight.
    pub offset: Option<Expr>,
    /// Multiplies every weight.
    pub scale: Option<Expr>,
    /// Whether a layer norm has a bias.
    pub bias: Option<Expr>,
}

/// A linear projection by name alone, or in full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LinearOrName {
    /// The tensor's name.
    Name(String),
    /// All of it.
    Full(Linear),
}

/// A linear projection, `[out, in]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// The tensor's name.
    pub tensor: String,
    /// Whether it has a bias.
    pub bias: Option<Expr>,
}

/// Multiplies by a number or by a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// A number.
    pub by: Option<Expr>,
    /// A tensor, `[1]` or `[hidden]`.
    pub tensor: Option<String>,
}

/// A function of each element.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Activation(pub String);

/// Hidden states to logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The tensor, `[vocabulary, hidden]`, by its whole name (the root is not put before it).
    pub tensor: Names,
    /// Whether the embedding is the head.
    pub tied: Option<Expr>,
    /// Whether it has a bias.
    pub bias: Option<Expr>,
    /// Multiplies the logits.
    pub scale: Option<Expr>,
    /// Logits l become cap × tanh(l / cap).
    pub soft_cap: Option<Expr>,
}
