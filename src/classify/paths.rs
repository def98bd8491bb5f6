//! Paths into a model's config, as layout files write them.

use serde_json::{Map, Value};

/// A path such as `quantization_config.config_groups.*.weights.{num_bits,group_size}`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigPath {
    root: Root,
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Root {
    Config,
    QuantConfig,
    Scheme,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Key(String),
    Any,
    Pick(Vec<String>),
    Base,
}

/// What paths start from.
#[derive(Clone, Copy)]
pub struct Roots<'a> {
    /// config.json.
    pub config: &'a Value,
    /// The producer's file beside it.
    pub quant_config: Option<&'a Value>,
    /// The config group that targets the weight.
    pub scheme: Option<&'a Value>,
    /// The weight's name without its suffix.
    pub base: &'a str,
}

impl ConfigPath {
    /// Reads a path; any text is one.
    pub fn parse(text: &str) -> ConfigPath {
        let mut steps: Vec<Step> = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let end = match rest.find('}') {
                Some(brace) if rest.starts_with('{') => brace + 1,
                _ => rest.find('.').unwrap_or(rest.len()),
            };
            let part = &rest[..end];
            steps.push(match part {
                "*" => Step::Any,
                "<b>" => Step::Base,
                _ => match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                    Some(keys) => Step::Pick(keys.split(',').map(|k| k.trim().into()).collect()),
                    None => Step::Key(part.into()),
                },
            });
            rest = rest[end..].strip_prefix('.').unwrap_or(&rest[end..]);
        }
        let root = match steps.first() {
            Some(Step::Key(key)) if key == "quant_config" => Root::QuantConfig,
            Some(Step::Key(key)) if key == "scheme" => Root::Scheme,
            _ => Root::Config,
        };
        if root != Root::Config {
            steps.remove(0);
        }
        ConfigPath { root, steps }
    }

    /// Whether its value differs from weight to weight.
    pub fn is_per_weight(&self) -> bool {
        self.steps.contains(&Step::Base)
    }

    /// Every value at the path.
    pub fn values(&self, roots: &Roots) -> Vec<Value> {
        let start = match self.root {
            Root::Config => Some(roots.config),
            Root::QuantConfig => roots.quant_config,
            Root::Scheme => roots.scheme,
        };
        let mut found = Vec::new();
        if let Some(start) = start {
            walk(start, &self.steps, roots.base, None, &mut found);
        }
        found
    }
}

/// `around` is the map that holds the weight's own one: what that leaves open is told there.
fn walk(
    value: &Value,
    steps: &[Step],
    base: &str,
    around: Option<&Map<String, Value>>,
    found: &mut Vec<Value>,
) {
    let Some((step, rest)) = steps.split_first() else {
        if !value.is_null() {
            found.push(value.clone());
        }
        return;
    };
    match (step, value) {
        (Step::Key(key), Value::Object(map)) => {
            if let Some(next) = map.get(key) {
                walk(next, rest, base, around, found);
            }
        }
        (Step::Base, Value::Object(map)) => {
            if let Some(next) = map.get(base) {
                walk(next, rest, base, Some(map), found);
            }
        }
        (Step::Any, Value::Object(map)) => {
            map.values().for_each(|next| walk(next, rest, base, around, found));
        }
        (Step::Any, Value::Array(list)) => {
            list.iter().for_each(|next| walk(next, rest, base, around, found));
        }
        (Step::Pick(keys), Value::Object(map)) => {
            let told = |map: &Map<String, Value>, key: &String| {
                map.get(key).filter(|value| !value.is_null()).cloned()
            };
            let pick = |key| told(map, key).or_else(|| told(around?, key));
            let picked: Option<Vec<Value>> = keys.iter().map(pick).collect();
            if let Some(picked) = picked {
                walk(&Value::Array(picked), rest, base, None, found);
            }
        }
        _ => {}
    }
}

/// A value as `count` whole numbers: a number for one, a list for more. 128.0 is 128.
pub fn numbers(value: &Value, count: usize) -> Option<Vec<u64>> {
    let whole = |value: &Value| -> Option<u64> {
        value.as_u64().or_else(|| {
            let float = value.as_f64()?;
            (float.fract() == 0.0 && (0.0..9e15).contains(&float)).then_some(float as u64)
        })
    };
    match value {
        Value::Array(list) if list.len() == count => list.iter().map(whole).collect(),
        _ if count == 1 => whole(value).map(|number| vec![number]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_find_what_producers_write() {
        let config = json!({
            "q": {"weight_block_size": [128.0, 64], "a.b": {"bits": 8, "group_size": 32}},
            "mixed": {"bits": 4, "group_size": 64, "a.b": {"bits": 6, "group_size": null}},
            "groups": {"g0": {"w": {"num_bits": 4}}, "g1": {"w": {"num_bits": null}}},
        });
        let roots = Roots { config: &config, quant_config: None, scheme: None, base: "a.b" };
        let values = |path: &str| ConfigPath::parse(path).values(&roots);
        assert_eq!(numbers(&values("q.weight_block_size")[0], 2), Some(vec![128, 64]));
        assert_eq!(numbers(&values("q.<b>.{bits,group_size}")[0], 2), Some(vec![8, 32]));
        // mlx-lm writes null for what is as everywhere in the folder.
        assert_eq!(numbers(&values("mixed.<b>.{bits,group_size}")[0], 2), Some(vec![6, 64]));
        assert_eq!(values("groups.*.w.num_bits"), [json!(4)]);
        assert!(values("q.<b>.{bits,mode}").is_empty());
        assert!(values("scheme.weights").is_empty());
        assert_eq!(numbers(&json!(0.5), 1), None);
        assert_eq!(numbers(&json!([1]), 2), None);
    }
}
