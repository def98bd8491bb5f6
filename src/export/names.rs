//! What mlx-lm calls a tensor: a table of renames.

use std::sync::OnceLock;

use regex::Regex;
use serde::Deserialize;

const TABLE: &str = include_str!("../../policies/exports/mlx-lm.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rename: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(rename = "match")]
    pattern: String,
    into: String,
    #[expect(dead_code, reason = "for whoever reads the table")]
    because: String,
}

fn table() -> &'static [(Regex, String)] {
    static COMPILED: OnceLock<Vec<(Regex, String)>> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let file: File = toml::from_str(TABLE).expect("tested: the built-in table");
        let compiled = file
            .rename
            .into_iter()
            .map(|row| (Regex::new(&row.pattern).expect("tested: the built-in table"), row.into));
        compiled.collect()
    })
}

/// The module that a weight belongs to, as mlx-lm names it: without `.weight`.
pub fn module(name: &str) -> String {
    let base = name.strip_suffix(".weight").unwrap_or(name);
    let rule = table().iter().find(|(pattern, _)| pattern.is_match(base));
    rule.map_or_else(
        || base.to_string(),
        |(pattern, into)| pattern.replace(base, into).into_owned(),
    )
}

/// What a tensor at source precision is called.
pub fn plain(name: &str) -> String {
    match name.strip_suffix(".weight") {
        Some(_) => format!("{}.weight", module(name)),
        // Experts that were stacked by their producer have no `.weight`; modules do.
        None => match module(name) {
            same if same == name => same,
            renamed => format!("{renamed}.weight"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_renamed_and_the_rest_is_not() {
        for (name, mlx) in [
            (
                "model.layers.3.mlp.experts.up_proj.weight",
                "model.layers.3.mlp.switch_mlp.up_proj.weight",
            ),
            (
                "model.layers.3.mlp.experts.down_proj",
                "model.layers.3.mlp.switch_mlp.down_proj.weight",
            ),
            (
                "model.layers.0.block_sparse_moe.experts.w2.weight",
                "model.layers.0.block_sparse_moe.switch_mlp.down_proj.weight",
            ),
            (
                "backbone.layers.1.mixer.experts.up_proj.weight",
                "backbone.layers.1.mixer.switch_mlp.fc1.weight",
            ),
            ("model.layers.3.self_attn.q_proj.bias", "model.layers.3.self_attn.q_proj.bias"),
            ("model.embed_tokens.weight", "model.embed_tokens.weight"),
            (
                "model.layers.3.mlp.shared_expert.up_proj.weight",
                "model.layers.3.mlp.shared_expert.up_proj.weight",
            ),
        ] {
            assert_eq!(plain(name), mlx);
        }
        assert_eq!(
            module("model.layers.0.mlp.experts.gate_proj.weight"),
            "model.layers.0.mlp.switch_mlp.gate_proj"
        );
    }
}
