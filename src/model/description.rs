//! The form of a policy's `decoder:` section: what may stand in it, key by key.
//!
//! A description is data. It names the tensors of an architecture and says which module kinds
//! work on them in which order; `docs/decoder.md` explains every kind with its shapes and source.
//! Nothing here computes: [`crate::model`] builds modules from it, and other readers (the schema,
//! the linter) need no MLX.
//!
//! Two sorts of text stand in a description. A *name* is part of a tensor's dotted name. An
//! [`Expr`] is a value worked out from `config.json`: see [`super::values`].

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;

/// The network of an architecture.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decoder {
    /// Objects of config.json whose keys hide those of the top level, such as `text_config`;
    /// those that a config lacks are passed over.
    #[serde(default)]
    pub config: Names,
    /// Named values, in order: a later one may use the earlier.
    #[serde(default, rename = "let")]
    pub values: IndexMap<String, Expr>,
    /// What the names below hang on; the first under which the embedding exists is taken. The
    /// empty text is the top.
    #[serde(default)]
    pub root: Names,
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
    #[serde(default)]
    pub norm: Vec<Step>,
    /// Hidden states to logits.
    pub head: Head,
    /// Globs over whole tensor names that the decoder does not use, such as a vision tower's.
    #[serde(default)]
    pub unused: Vec<String>,
}

/// One name or several; of several, the first that exists.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
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
}

/// A value: a literal, or a text worked out from the config.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Expr {
    /// true or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A CEL expression over the config's keys and the `let` values. `a ?? b` is the first that
    /// is there and not null.
    Text(String),
}

/// What norms are unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NormDefaults {
    /// Added to the variance.
    pub eps: Option<Expr>,
    /// Added to every weight: 1 where weights are stored as differences from 1.
    pub offset: Option<Expr>,
}

/// Tokens to hidden states: a row of a table for each token.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Layers {
    /// What the names of a layer hang on, `{i}` being its index.
    pub tensor: String,
    /// How many there are.
    pub count: Expr,
    /// The kind of layer `layer`, a text for conditions (`type`).
    #[serde(rename = "type")]
    pub kind: Option<Expr>,
    /// Values worked out for each layer; they may use `layer` and `type`.
    #[serde(default, rename = "let")]
    pub values: IndexMap<String, Expr>,
    /// What a layer does, in order.
    pub steps: Vec<Step>,
}

/// One module, with a condition. Exactly one of the kinds stands in it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PerLayerInput {}

/// A norm by the name of its weight alone, or in full.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum NormOrName {
    /// The weight's name.
    Name(String),
    /// All of it.
    Full(Norm),
}

/// A norm over the last axis.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LinearOrName {
    /// The tensor's name.
    Name(String),
    /// All of it.
    Full(Linear),
}

/// A linear projection, `[out, in]`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// The tensor's name.
    pub tensor: String,
    /// Whether it has a bias.
    pub bias: Option<Expr>,
}

/// Multiplies by a number or by a tensor.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// A number.
    pub by: Option<Expr>,
    /// A tensor, `[1]` or `[hidden]`.
    pub tensor: Option<String>,
}

/// A function of each element.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Activation(pub String);

/// Rotary position embedding.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Only where this holds.
    pub when: Option<Expr>,
    /// The config's object with `rope_type` and what belongs to it, in the old form or the new.
    pub parameters: Option<Expr>,
    /// The base, where `parameters` does not give it.
    pub theta: Option<Expr>,
    /// Which part of a head is rotated, where `parameters` does not say.
    pub partial: Option<Expr>,
    /// Whether neighbours are paired rather than halves.
    pub interleaved: Option<Expr>,
}

/// Attention.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// What its names hang on.
    #[serde(default)]
    pub path: String,
    /// Queries, `[heads × head_dim, hidden]` (twice that with a gate in it).
    pub q: Option<String>,
    /// Keys, `[kv_heads × head_dim, hidden]`.
    pub k: Option<String>,
    /// Values, `[kv_heads × head_dim, hidden]`.
    pub v: Option<String>,
    /// Queries, keys and values in one tensor, instead of the three.
    pub qkv: Option<String>,
    /// The way out, `[hidden, heads × head_dim]`.
    pub o: String,
    /// Number of query heads.
    pub heads: Expr,
    /// Number of key and value heads; as many as query heads when not said.
    pub kv_heads: Option<Expr>,
    /// Elements of a head.
    pub head_dim: Expr,
    /// Whether q, k and v have biases.
    pub bias: Option<Expr>,
    /// Whether o has a bias.
    pub out_bias: Option<Expr>,
    /// Norm of the queries, per head.
    pub q_norm: Option<Norm>,
    /// Norm of the keys, per head.
    pub k_norm: Option<Norm>,
    /// Norm of the values, per head.
    pub v_norm: Option<Norm>,
    /// Whether q_norm and k_norm work on all heads at once rather than on each.
    pub norm_all_heads: Option<Expr>,
    /// Rotary positions; none without it.
    pub rope: Option<Rope>,
    /// A token sees so many tokens, itself included; all of them when null or 0.
    pub window: Option<Expr>,
    /// Multiplies the scores; head_dim^-0.5 when not said.
    pub scale: Option<Expr>,
    /// Scores that grow with the position.
    pub long_scale: Option<LongScale>,
    /// Scores s become cap × tanh(s / cap).
    pub soft_cap: Option<Expr>,
    /// A learned score per head that takes part in the softmax and gives no value, `[heads]`.
    pub sinks: Option<String>,
    /// Multiplies what comes out, before o.
    pub gate: Option<AttentionGate>,
    /// Whether the projected keys, before norm and rotation, are the values too.
    pub values_are_keys: Option<Expr>,
    /// The layer whose keys and values this one reads instead of its own; negative for its own.
    pub keys_of: Option<Expr>,
}

/// Queries at position p are multiplied by 1 + beta × ln(1 + ⌊p / trained⌋).
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LongScale {
    /// How fast; none when null or 0.
    pub beta: Expr,
    /// The length trained first.
    pub trained: Expr,
}

/// A gate on the output of attention.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttentionGate {
    /// Only where this holds.
    pub when: Option<Expr>,
    /// Its projection, `[heads, hidden]` or `[heads × head_dim, hidden]`; without it the gate is
    /// the second half of each head of q.
    pub tensor: Option<String>,
    /// Applied to the gate.
    pub activation: Activation,
}

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatentAttention {
    /// What its names hang on.
    #[serde(default)]
    pub path: String,
    /// Queries in one step, `[heads × (nope_dim + rope_dim), hidden]`.
    pub q: Option<String>,
    /// Queries in two steps: down, `[q_rank, hidden]`.
    pub q_down: Option<String>,
    /// Norm between them.
    pub q_norm: Option<Norm>,
    /// Queries in two steps: up, `[heads × (nope_dim + rope_dim), q_rank]`.
    pub q_up: Option<String>,
    /// Whether the queries go in two steps; when not said, they do if `q_down` stands here.
    pub q_in_two: Option<Expr>,
    /// Latent and rotated key, `[rank + rope_dim, hidden]`.
    pub kv_down: String,
    /// Norm of the latent.
    pub kv_norm: Norm,
    /// Latent to keys and values, `[heads × (nope_dim + value_dim), rank]`.
    pub kv_up: String,
    /// The way out, `[hidden, heads × value_dim]`.
    pub o: String,
    /// Whether q_down, kv_down and o have biases.
    pub bias: Option<Expr>,
    /// Number of heads.
    pub heads: Expr,
    /// Elements of the latent.
    pub rank: Expr,
    /// Elements of a head that are not rotated.
    pub nope_dim: Expr,
    /// Elements of a head that are.
    pub rope_dim: Expr,
    /// Elements of a value head.
    pub value_dim: Expr,
    /// Rotary positions.
    pub rope: Rope,
    /// Multiplies the scores; (nope_dim + rope_dim)^-0.5 when not said.
    pub scale: Option<Expr>,
}

/// Gated delta net.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatedDelta {
    /// What its names hang on.
    #[serde(default)]
    pub path: String,
    /// Queries, keys and values, `[2 × key_heads × key_dim + value_heads × value_dim, hidden]`.
    pub qkv: Option<String>,
    /// The output gate, `[value_heads × value_dim, hidden]`.
    pub z: Option<String>,
    /// Queries, keys, values and output gate in one tensor, grouped by key head.
    pub qkvz: Option<String>,
    /// How much is written, `[value_heads, hidden]`.
    pub b: Option<String>,
    /// How much is forgotten, `[value_heads, hidden]`.
    pub a: Option<String>,
    /// Both in one tensor, grouped by key head.
    pub ba: Option<String>,
    /// Convolution over queries, keys and values, `[channels, 1, kernel]`.
    pub conv: String,
    /// Bias of the forgetting, `[value_heads]`.
    pub dt_bias: String,
    /// Logarithm of the rate of forgetting, `[value_heads]`.
    pub a_log: String,
    /// Norm of each value head, before the output gate.
    pub norm: Norm,
    /// The way out, `[hidden, value_heads × value_dim]`.
    pub out: String,
    /// Number of query and key heads.
    pub key_heads: Expr,
    /// Number of value heads.
    pub value_heads: Expr,
    /// Elements of a query or key head.
    pub key_dim: Expr,
    /// Elements of a value head.
    pub value_dim: Expr,
    /// Width of the convolution.
    pub kernel: Expr,
    /// Of the convolution and of the output gate.
    pub activation: Activation,
}

/// Mamba-2.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mamba2 {
    /// What its names hang on.
    #[serde(default)]
    pub path: String,
    /// Gate, convolved part and time steps, `[2 × heads × head_dim + 2 × groups × state + heads,
    /// hidden]`.
    pub in_proj: String,
    /// Convolution, `[heads × head_dim + 2 × groups × state, 1, kernel]`.
    pub conv: String,
    /// Whether the convolution has a bias.
    pub conv_bias: Option<Expr>,
    /// Bias of the time steps, `[heads]`.
    pub dt_bias: String,
    /// Logarithm of the rate of decay, `[heads]`.
    pub a_log: String,
    /// What of the input passes by, `[heads]`.
    pub d: String,
    /// Gated norm, per group.
    pub norm: Norm,
    /// The way out, `[hidden, heads × head_dim]`.
    pub out: String,
    /// Whether in_proj and out have biases.
    pub bias: Option<Expr>,
    /// Number of heads.
    pub heads: Expr,
    /// Elements of a head.
    pub head_dim: Expr,
    /// Number of groups that share B and C.
    pub groups: Expr,
    /// Elements of the state per element of a head.
    pub state: Expr,
    /// Width of the convolution.
    pub kernel: Expr,
    /// Least time step.
    pub dt_min: Option<Expr>,
    /// Of the convolution.
    pub activation: Activation,
}

/// A gated short convolution.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShortConv {
    /// What its names hang on.
    #[serde(default)]
    pub path: String,
    /// Gate before, gate after and input, `[3 × hidden, hidden]`.
    pub in_proj: String,
    /// Convolution, `[hidden, 1, kernel]`.
    pub conv: String,
    /// The way out, `[hidden, hidden]`.
    pub out: String,
    /// Width of the convolution.
    pub kernel: Expr,
    /// Whether all three have biases.
    pub bias: Option<Expr>,
}

/// A gated MLP (SwiGLU and its like).
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatedMlp {
    /// What its names hang on.
    #[serde(default)]
    pub path: String,
    /// `[inner, hidden]`.
    pub gate: Option<String>,
    /// `[inner, hidden]`.
    pub up: Option<String>,
    /// Gate above up in one tensor, `[2 × inner, hidden]`.
    pub gate_up: Option<String>,
    /// `[hidden, inner]`.
    pub down: String,
    /// Applied to the gate.
    pub activation: Activation,
    /// Whether all have biases.
    pub bias: Option<Expr>,
}

/// A plain MLP.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mlp {
    /// What its names hang on.
    #[serde(default)]
    pub path: String,
    /// `[inner, hidden]`.
    pub up: String,
    /// `[hidden, inner]`.
    pub down: String,
    /// Between them.
    pub activation: Activation,
    /// Whether both have biases.
    pub bias: Option<Expr>,
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Moe {
    /// What its names hang on.
    #[serde(default)]
    pub path: String,
    /// Who takes which token.
    pub router: Router,
    /// Those who do the work.
    pub experts: Experts,
    /// Norm of what the experts get; the router gets x as it is.
    pub input_norm: Option<Norm>,
    /// The experts work in a smaller space: the way in, `[latent, hidden]`.
    pub latent_in: Option<String>,
    /// The way back, `[hidden, latent]`.
    pub latent_out: Option<String>,
    /// Whether they have biases.
    pub latent_bias: Option<Expr>,
    /// Whether they are there.
    pub latent: Option<Expr>,
    /// An expert that gets every token.
    pub shared: Option<Shared>,
}

/// How experts are chosen and weighted.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// Its projection, `[experts, hidden]`.
    pub tensor: String,
    /// Whether it has a bias, `[experts]`.
    pub bias: Option<Expr>,
    /// Norm of its input.
    pub norm: Option<Norm>,
    /// Number of experts that a token goes to.
    pub top_k: Expr,
    /// What logits become.
    pub scores: Scores,
    /// Logits l become cap × tanh(l / cap); none when null or 0.
    pub soft_cap: Option<Expr>,
    /// Added to the scores for the choice only, `[experts]`.
    pub correction: Option<Correction>,
    /// Number of groups of experts; one when not said.
    pub groups: Option<Expr>,
    /// Number of groups from which experts are chosen, by the sum of each group's best two.
    pub top_groups: Option<Expr>,
    /// Whether the weights of the chosen are divided by their sum.
    pub normalize: Option<Expr>,
    /// Multiplies the weights.
    pub scale: Option<Expr>,
    /// Multiplies each expert's weight, `[experts]`.
    pub expert_scale: Option<String>,
}

/// The correction of a router's choice.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Correction {
    /// By name, or by several of which one exists.
    Names(Names),
    /// With a condition.
    When {
        /// Only where this holds.
        when: Expr,
        /// Its name.
        tensor: String,
    },
}

/// What a router's logits become.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Scores(pub String);

/// The stacked experts. Where both are named, the fused tensor is taken if the model has it.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// `[experts, inner, hidden]`; an expert without a gate has none.
    pub gate: Option<String>,
    /// `[experts, inner, hidden]`.
    pub up: Option<String>,
    /// Gate and up in one tensor, `[experts, 2 × inner, hidden]`.
    pub gate_up: Option<ExpertTensor>,
    /// `[experts, hidden, inner]`.
    pub down: ExpertTensor,
    /// Whether the rows of gate_up alternate rather than stand in two blocks.
    pub interleaved: Option<Expr>,
    /// Names of the biases of gate_up and down, `[experts, …]`.
    pub gate_up_bias: Option<String>,
    /// As above.
    pub down_bias: Option<String>,
    /// Applied to the gate (or to up, without a gate).
    pub activation: Activation,
    /// Gate is capped above and up on both sides by this, up gets 1 added, and the gate is
    /// gate × sigmoid(alpha × gate).
    pub clamp: Option<Clamp>,
}

/// The name of a stacked tensor; several where it goes by several.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ExpertTensor {
    /// `[experts, out, in]`.
    Name(String),
    /// Several ways to store it; the first that exists is taken.
    Many(Vec<ExpertLayout>),
}

/// One way to store a stacked tensor.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpertLayout {
    /// Its name.
    pub tensor: String,
    /// Whether it is `[experts, in, out]`.
    #[serde(default)]
    pub transposed: bool,
}

/// The clamped gate.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Clamp {
    /// The cap.
    pub limit: Expr,
    /// Steepness of the sigmoid.
    pub alpha: Expr,
}

/// An expert that gets every token.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shared {
    /// Only where this holds.
    pub when: Option<Expr>,
    /// What it does; its names hang on the mixture's path.
    pub steps: Vec<Step>,
    /// A gate on it: sigmoid of this projection, `[1, hidden]`.
    pub gate: Option<String>,
    /// Whether the mean of both is taken rather than the sum.
    pub average: Option<Expr>,
}

/// Hidden states to logits.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
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
