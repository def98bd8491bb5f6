//! The form of an architecture's policy file: what may stand in it, key by key.
//!
//! These types are read from YAML or TOML, and `schemas/policy.schema.json` is generated from
//! them; `docs/policies.md` explains each key with an example.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parsers::Answers;
use crate::decoder::description::Decoder;

/// A policy file: how the tensors of an architecture are quantized, what the model can do, how
/// its decoder is put together.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyFile {
    /// Only in the policy that a stored model carries: which versions read it.
    pub stored: Option<Stored>,
    /// Name of the policy; a file of the same name in `--policy-dir` or the user's folder
    /// replaces it.
    pub name: String,
    /// Name of the policy whose rules come after this file's own, and whose sets, values and
    /// schedules it can use.
    pub extends: Option<String>,
    /// Whether it describes models or drafts.
    #[serde(default, skip_serializing_if = "Role::is_target")]
    pub role: Role,
    /// Which models it is for; a policy without it is only extended.
    #[serde(rename = "match")]
    pub matches: Option<Match>,
    /// Values from config.json, for conditions.
    #[serde(default, rename = "let", skip_serializing_if = "IndexMap::is_empty")]
    pub values: IndexMap<String, LetValue>,
    /// Named lists of globs, to be used where a glob can stand.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub sets: IndexMap<String, Vec<String>>,
    /// Named choices of layers.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub schedules: IndexMap<String, Schedule>,
    /// Rules before all others of every policy that extends this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<Rule>,
    /// Rules after the guards, for drafts only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drafts: Vec<Rule>,
    /// The rules: the first that matches a tensor decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<Rule>,
    /// How tensors of single experts become one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<StackRule>,
    /// Other names under which copies of a model store its tensors. Rules and the decoder see the
    /// name that is made of them, all that match being applied in turn; what is stored keeps the
    /// source's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<AliasRule>,
    /// Tensors that are not imported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drop: Vec<DropRule>,
    /// What must agree between a draft and the model that it drafts for; checked by `create`.
    /// A rule takes the place of its parents' rule of the same id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fit: Vec<FitRule>,
    /// Whether a tensor that no rule matches is an error. Without it such a tensor stays at
    /// source precision.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// What the model can do: a CEL condition for each capability.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub capabilities: IndexMap<String, String>,
    /// Parser of the model's answers.
    pub parser: Option<Choice>,
    /// Renderer of conversations.
    pub renderer: Option<Choice>,
    /// Least version of the runtime, as in a Modelfile's REQUIRES.
    pub requires: Option<String>,
    /// Parsers of answers that come with the policy: what `parsers/NAME.yaml` would say of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parsers: Vec<Answers>,
    /// The network: how its modules are put together. Inherited as a whole.
    pub decoder: Option<Decoder>,
}

/// The head of the policy that a stored model carries: which versions read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// Version of the form; a lathe that knows only earlier ones refuses it.
    pub version: u32,
    /// The lathe that wrote it.
    pub lathe: String,
}

/// What a policy describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Models that answer.
    #[default]
    Target,
    /// Models that draft for another.
    Draft,
}

impl Role {
    /// Whether it is that of models that answer.
    pub fn is_target(&self) -> bool {
        *self == Role::Target
    }
}

/// Names that the config's architecture may have, in any case.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// Compared with `architectures[0]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<String>,
    /// Compared with `model_type`, where the config has no architectures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub model_types: Vec<String>,
}

/// A value for conditions.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LetValue {
    /// One path into config.json.
    Path(String),
    /// Paths into config.json; the first that is neither null nor 0.
    Paths(Vec<String>),
    /// The same, with more to say.
    Full(LetFull),
}

/// The long form of a value.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LetFull {
    /// Paths into config.json; the first that is neither null nor 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
    /// What it is when no path has it: a number, or a CEL expression over `config`.
    pub default: Option<Scalar>,
}

/// A number, boolean, or text.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Scalar {
    /// true or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A CEL expression.
    Text(String),
}

/// Which layers a schedule picks: a fraction of the depth at each end, and between them a period.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Layers before ⌊n × head⌋, a fraction such as `1/8`.
    #[serde(default)]
    pub head: Option<String>,
    /// Layers from ⌊n × tail⌋.
    #[serde(default)]
    pub tail: Option<String>,
    /// Between the ends, one layer of so many.
    #[serde(default)]
    pub every: Option<u64>,
    /// Which of them: layers i with (i - ⌊n × head⌋) mod every = phase.
    #[serde(default)]
    pub phase: u64,
    /// The period stops before this layer: a CEL expression over `n`.
    #[serde(default)]
    pub until: Option<String>,
}

/// One text or several.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Several {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Several {
    /// All of them.
    pub fn list(&self) -> &[String] {
        match self {
            Several::One(one) => std::slice::from_ref(one),
            Several::Many(many) => many,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list().is_empty()
    }
}

impl Default for Several {
    fn default() -> Self {
        Several::Many(Vec::new())
    }
}

/// A rule for tensors.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of the rule, unique in the file.
    pub id: String,
    /// Several over dotted tensor names, or names of sets.
    #[serde(rename = "match")]
    pub matches: Several,
    /// Several or sets of tensors that it is not for.
    #[serde(default, skip_serializing_if = "Several::is_empty")]
    pub except: Several,
    /// A CEL condition; without it the rule always holds.
    pub when: Option<String>,
    /// The ladder: the first format whose group divides the last axis is taken; past the end the
    /// tensor stays at source precision. Names of formats, or `requested`, `eight_bit`, `source`.
    pub format: Several,
    /// Why, for whoever reads the plan.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub because: String,
}

/// How tensors of single experts become one stacked tensor.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StackRule {
    /// Name of the rule, unique in the file.
    pub id: String,
    /// A regular expression over whole names with the groups `group` (what the experts hang on),
    /// `index` (which expert) and `name` (the rest).
    #[serde(rename = "match")]
    pub pattern: String,
    /// Name of the stacked tensor, from the groups in braces.
    pub into: String,
    /// Name of the blob that holds all stacked tensors of one group.
    pub blob: String,
    /// Why, for whoever reads the plan.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub because: String,
}

/// Another name of a tensor.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AliasRule {
    /// Name of the rule, unique in the file.
    pub id: String,
    /// A regular expression over whole names.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The name that the policy knows, with `${1}` and so on for the groups.
    pub into: String,
    /// Who calls it so, for whoever reads the policy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub because: String,
}

/// Tensors that are not imported.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DropRule {
    /// Name of the rule, unique in the file.
    pub id: String,
    /// Several over dotted tensor names, or names of sets.
    #[serde(rename = "match")]
    pub matches: Several,
    /// Several or sets of tensors that it is not for.
    #[serde(default, skip_serializing_if = "Several::is_empty")]
    pub except: Several,
    /// A CEL condition over the config; without it the rule always holds.
    pub when: Option<String>,
    /// Why, for whoever reads the plan.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub because: String,
}

/// One thing that must agree between a draft and its target.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FitRule {
    /// Name of the rule, unique in the file.
    pub id: String,
    /// The draft's value.
    pub draft: FitValue,
    /// The target's value, in its config.
    pub target: FitValue,
    /// A CEL condition over `draft` and `target`; without it the two must be equal.
    #[serde(default)]
    pub holds: Option<String>,
    /// A glob: the rule is not for drafts that have such a tensor.
    #[serde(default)]
    pub unless: Option<String>,
    /// Why, for whoever is refused.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub because: String,
}

/// Where a value for `fit` is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum FitValue {
    /// A path into config.json.
    One(String),
    /// Paths into config.json; the first that is there.
    Many(Vec<String>),
    /// The length of an axis of the first tensor that a glob matches.
    Axis {
        /// The glob.
        tensor: String,
        /// The axis, from 0.
        axis: usize,
    },
}

/// A name, or one of several by condition.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Choice {
    /// Always this one.
    Always(String),
    /// The first whose condition holds.
    Cases(Vec<Case>),
}

/// One case of a choice.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// A CEL condition over `config`, `template` and the `let` values; without it always.
    pub when: Option<String>,
    /// The name taken.
    #[serde(rename = "use")]
    pub name: String,
}
