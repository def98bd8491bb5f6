//! What the named parsers of models' answers can do: `policies/parsers.toml`.

use std::sync::OnceLock;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;

/// A row of the table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parser {
    /// Whether it separates thinking from the answer.
    #[serde(default)]
    pub thinking: bool,
    /// Whether it finds calls of tools.
    #[serde(default)]
    pub tools: bool,
}

/// The table of parsers.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Parsers(pub IndexMap<String, Parser>);

impl Parsers {
    /// The table that is compiled in.
    pub fn built_in() -> &'static Parsers {
        static TABLE: OnceLock<Parsers> = OnceLock::new();
        TABLE.get_or_init(|| {
            let text = include_str!("../../policies/parsers.toml");
            toml::from_str(text).expect("tested: the built-in table")
        })
    }

    /// What an expression sees as `parser`.
    pub fn describe(&self, name: Option<&str>) -> serde_json::Value {
        let row = name.and_then(|name| self.0.get(name)).cloned().unwrap_or_default();
        serde_json::json!({
            "name": name.unwrap_or_default(),
            "thinking": row.thinking,
            "tools": row.tools,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_reads() {
        assert!(Parsers::built_in().0["qwen3.5"].thinking);
    }
}
