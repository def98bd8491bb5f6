//! Modules that work on each token by itself: MLPs and mixtures of experts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Activation, Expr, Names, Norm, Step};

/// A gated MLP (SwiGLU and its like).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatedMlp {
    /// What its names hang on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mlp {
    /// What its names hang on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Moe {
    /// What its names hang on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Scores(pub String);

/// The stacked experts. Where both are named, the fused tensor is taken if the model has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// Names of the biases of gate_up and down, `[experts, …]`; of several the first that exists.
    pub gate_up_bias: Option<Names>,
    /// As above.
    pub down_bias: Option<Names>,
    /// Names of the biases of gate and up, where they are two tensors.
    pub gate_bias: Option<Names>,
    /// As above.
    pub up_bias: Option<Names>,
    /// Applied to the gate (or to up, without a gate).
    pub activation: Activation,
    /// Gate is capped above and up on both sides by this, up gets 1 added, and the gate is
    /// gate × sigmoid(alpha × gate).
    pub clamp: Option<Clamp>,
}

/// The name of a stacked tensor; several where it goes by several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ExpertTensor {
    /// `[experts, out, in]`.
    Name(String),
    /// Several ways to store it; the first that exists is taken.
    Many(Vec<ExpertLayout>),
}

/// One way to store a stacked tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpertLayout {
    /// Its name.
    pub tensor: String,
    /// Whether it is `[experts, in, out]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transposed: bool,
}

/// The clamped gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Clamp {
    /// The cap.
    pub limit: Expr,
    /// Steepness of the sigmoid.
    pub alpha: Expr,
}

/// An expert that gets every token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
