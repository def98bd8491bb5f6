//! What mlx-lm calls a tensor and how it is laid out there: a table, `policies/exports/mlx-lm.toml`.

use std::sync::OnceLock;

use regex::Regex;
use serde::Deserialize;

const TABLE: &str = include_str!("../../policies/exports/mlx-lm.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rule: Vec<Row>,
    unread: Vec<Unread>,
}

/// A key of configs that mlx-lm does not read, though it changes what a model computes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unread {
    /// The key, in the object of rotary positions.
    pub key: String,
    /// The values for which mlx-lm computes otherwise.
    pub values: Vec<serde_json::Value>,
    /// What it does then.
    pub because: String,
}

/// The keys that mlx-lm does not read.
pub fn unread() -> &'static [Unread] {
    &file().unread
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(rename = "match")]
    pattern: String,
    into: Into,
    #[serde(default)]
    models: Vec<String>,
    split: Option<Split>,
    axis: Option<usize>,
    #[serde(default)]
    module: bool,
    #[serde(default)]
    transposed: bool,
    #[serde(default)]
    decoded: bool,
    #[serde(default)]
    apart: bool,
    #[serde(default)]
    last: bool,
    add: Option<f32>,
    if_quantized: Option<String>,
    unless_quantized: Option<String>,
    #[expect(dead_code, reason = "for whoever reads the table")]
    because: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Into {
    One(String),
    Two([String; 2]),
}

impl Into {
    fn list(&self) -> &[String] {
        match self {
            Into::One(one) => std::slice::from_ref(one),
            Into::Two(two) => two,
        }
    }
}

/// How a tensor becomes two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// The first half of the axis, and the second.
    Halves,
    /// Every second index, and those between.
    Pairs,
}

/// What becomes of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Its names, without `.weight`: one, or two where it is split. `{e}` is an expert's number.
    pub names: Vec<String>,
    /// Whether it is the weight of a module although its name has no `.weight`.
    pub module: bool,
    /// How it is split, and along which axis, counted from the end.
    pub split: Option<(Split, usize)>,
    /// Whether it is `[.., in, out]` and must be `[.., out, in]`.
    pub transposed: bool,
    /// Whether it is written unquantized.
    pub decoded: bool,
    /// Whether its experts are written one by one.
    pub apart: bool,
    /// Whether `[channels, 1, kernel]` becomes `[channels, kernel, 1]`.
    pub last: bool,
    /// What is added to its numbers.
    pub add: Option<f32>,
}

/// The table's rules for one model.
pub struct Names {
    rules: Vec<&'static (Regex, &'static Row)>,
}

fn file() -> &'static File {
    static FILE: OnceLock<File> = OnceLock::new();
    FILE.get_or_init(|| toml::from_str(TABLE).expect("tested: the built-in table"))
}

fn table() -> &'static [(Regex, &'static Row)] {
    static COMPILED: OnceLock<Vec<(Regex, &'static Row)>> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let compiled =
            |row: &'static Row| (Regex::new(&row.pattern).expect("tested: the table"), row);
        file().rule.iter().map(compiled).collect()
    })
}

impl Names {
    /// The rules for a model of these types, of which the weights named are quantized.
    pub fn of_model(models: &[&str], quantized: &[&str]) -> Names {
        let holds = |row: &Row| {
            let named = |name: &&String| models.contains(&name.as_str());
            let not = |name: &String| name.strip_prefix('!').is_some_and(|m| models.contains(&m));
            let wanted = row.models.iter().any(|name| !name.starts_with('!'));
            let is_for = !row.models.iter().any(not)
                && (!wanted || row.models.iter().any(|name| named(&name)));
            let some = |pattern: &Option<String>| {
                pattern.as_ref().map(|pattern| {
                    let pattern = Regex::new(pattern).expect("tested: the built-in table");
                    quantized.iter().any(|name| pattern.is_match(name))
                })
            };
            is_for
                && some(&row.if_quantized).unwrap_or(true)
                && !some(&row.unless_quantized).unwrap_or(false)
        };
        Names { rules: table().iter().filter(|(_, row)| holds(row)).collect() }
    }

    /// What becomes of a weight, by its name with or without `.weight`.
    pub fn of(&self, name: &str) -> Target {
        let bare = !name.ends_with(".weight");
        let base = name.strip_suffix(".weight").unwrap_or(name);
        let mut target = Target {
            names: vec![base.to_string()],
            module: false,
            split: None,
            transposed: false,
            decoded: false,
            apart: false,
            last: false,
            add: None,
        };
        for (pattern, row) in &self.rules {
            if !pattern.is_match(&target.names[0]) {
                continue;
            }
            let split = row.split.is_some();
            target.names = match target.names.as_slice() {
                [one] => {
                    let into = row.into.list().iter();
                    into.map(|into| pattern.replace(one, into).into_owned()).collect()
                }
                both => {
                    let into = &row.into.list()[0];
                    both.iter().map(|name| pattern.replace(name, into).into_owned()).collect()
                }
            };
            if split {
                target.split = row.split.map(|split| (split, row.axis.unwrap_or(2)));
            }
            target.module |= row.module && bare;
            target.transposed |= row.transposed && bare;
            target.decoded |= row.decoded;
            target.apart |= row.apart;
            target.last |= row.last;
            target.add = row.add.or(target.add);
        }
        target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(model: &str, quantized: &[&str], name: &str) -> Vec<String> {
        Names::of_model(&[model], quantized).of(name).names
    }

    #[test]
    fn experts_are_renamed_and_the_rest_is_not() {
        for (model, name, mlx) in [
            (
                "qwen3_moe",
                "model.layers.3.mlp.experts.up_proj.weight",
                "model.layers.3.mlp.switch_mlp.up_proj",
            ),
            (
                "glm4_moe",
                "model.layers.3.mlp.experts.down_proj",
                "model.layers.3.mlp.switch_mlp.down_proj",
            ),
            (
                "mixtral",
                "model.layers.0.block_sparse_moe.experts.w2.weight",
                "model.layers.0.block_sparse_moe.switch_mlp.down_proj",
            ),
            (
                "nemotron_h",
                "backbone.layers.1.mixer.experts.up_proj.weight",
                "backbone.layers.1.mixer.switch_mlp.fc1",
            ),
            (
                "lfm2_moe",
                "model.layers.1.feed_forward.experts.w3.weight",
                "model.layers.1.feed_forward.switch_mlp.up_proj",
            ),
            (
                "gpt_oss",
                "model.layers.0.mlp.experts.down_proj_bias",
                "model.layers.0.mlp.experts.down_proj.bias",
            ),
            (
                "qwen3_5_moe",
                "model.language_model.layers.0.mlp.experts.down_proj",
                "language_model.model.layers.0.mlp.switch_mlp.down_proj",
            ),
            (
                "llama",
                "model.layers.3.self_attn.q_proj.bias",
                "model.layers.3.self_attn.q_proj.bias",
            ),
            ("llama", "model.embed_tokens.weight", "model.embed_tokens"),
            (
                "qwen3_next",
                "model.layers.3.mlp.shared_expert.up_proj.weight",
                "model.layers.3.mlp.shared_expert.up_proj",
            ),
        ] {
            assert_eq!(names(model, &[], name), [mlx], "{model}");
        }
    }

    #[test]
    fn gate_and_up_are_taken_apart() {
        let target =
            Names::of_model(&["gpt_oss"], &[]).of("model.layers.0.mlp.experts.gate_up_proj");
        assert_eq!(target.split, Some((Split::Pairs, 2)));
        assert!(target.transposed && target.module);
        let names = ["model.layers.0.mlp.experts.gate_proj", "model.layers.0.mlp.experts.up_proj"];
        assert_eq!(target.names, names);
        let target =
            Names::of_model(&["gpt_oss"], &[]).of("model.layers.0.mlp.experts.gate_up_proj.weight");
        assert!(!target.transposed && !target.module);
    }

    #[test]
    fn what_mlx_lm_converts_by_itself_is_left_to_it() {
        let experts = "model.layers.0.mlp.experts.up_proj.weight";
        let norm = "model.layers.0.input_layernorm.weight";
        let plain = Names::of_model(&["qwen3_next"], &[]);
        assert_eq!(plain.of(experts).names, ["model.layers.0.mlp.experts.{e}.up_proj"]);
        assert!(plain.of(experts).apart && plain.of(norm).add.is_none());
        let quantized = Names::of_model(&["qwen3_next"], &[experts]);
        assert_eq!(quantized.of(experts).names, ["model.layers.0.mlp.switch_mlp.up_proj"]);
        assert_eq!(quantized.of(norm).add, Some(1.0));
        assert!(quantized.of("model.layers.0.linear_attn.conv1d.weight").last);
    }
}
