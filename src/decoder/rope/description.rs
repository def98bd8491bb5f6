//! What a policy says of a rotation: where its config tells the kind and the numbers.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Kind;
use crate::decoder::values::Expr;

/// Rotary position embedding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Only where this holds.
    pub when: Option<Expr>,
    /// The config's object with `rope_type` and what belongs to it, in the old form or the new;
    /// when not said, `rope_scaling`, or `rope_parameters` where that is null or empty.
    #[schemars(transform = with_kinds)]
    pub parameters: Option<Expr>,
    /// What the class takes a `rope_type` for, where that is another kind: `{yarn: longrope}` (Phi-3).
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub kinds: IndexMap<String, String>,
    /// The base, where `parameters` does not give it.
    pub theta: Option<Expr>,
    /// Which part of a head is rotated, where `parameters` does not say. Without this key the plain rotation turns whole heads.
    pub partial: Option<Expr>,
    /// Whether neighbours are paired rather than halves.
    pub interleaved: Option<Expr>,
    /// The length that the config gives the model; `max_position_embeddings` when not said.
    pub context: Option<Expr>,
    /// The length trained first, which wins over that of `parameters`;
    /// `original_max_position_embeddings` when not said.
    pub original: Option<Expr>,
    /// Whether a sequence that outgrows the trained length is run again, all of it turned as the
    /// longer one is (Phi-3); without it, what stands in the cache stays as it was turned.
    pub run_again: Option<Expr>,
}

/// Adds the kinds to what is said of the object that names one.
fn with_kinds(schema: &mut schemars::Schema) {
    let said = schema.get("description").and_then(|text| text.as_str()).unwrap_or_default();
    let said = format!("{said} Kinds are {}.", Kind::all_names());
    schema.insert("description".into(), said.into());
}
