//! Which rule decided, as plans, findings and explanations name it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The rule that decided about a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleRef {
    /// The rule's id, unique in its file.
    pub id: String,
    /// The policy file.
    pub file: String,
    /// Line of the rule in it, from 1; 0 for lathe's own (built-in) decisions.
    pub line: usize,
    /// Why, in the words of the policy's author.
    pub because: String,
}
