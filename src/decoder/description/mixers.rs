//! Modules that mix tokens with earlier ones: attention, recurrent states, convolutions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Activation, Expr, Norm, Rope};

/// Attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// What its names hang on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LongScale {
    /// How fast; none when null or 0.
    pub beta: Expr,
    /// The length trained first.
    pub trained: Expr,
}

/// A gate on the output of attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatentAttention {
    /// What its names hang on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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
    /// The same in two tensors, which are taken if the model has them: queries to latent,
    /// `[heads, rank, nope_dim]`, …
    pub q_to_latent: Option<String>,
    /// … and latent to values, `[heads, value_dim, rank]`.
    pub latent_to_v: Option<String>,
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatedDelta {
    /// What its names hang on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mamba2 {
    /// What its names hang on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShortConv {
    /// What its names hang on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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
