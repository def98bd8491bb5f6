//! What a config calls its model.

use serde_json::Value;

use crate::fault::{Code, Fault};

/// The architecture: the first of `architectures` (or `architectures` itself where it is a text, as
/// `transformers` takes it), else `model_type`, else `text_config.model_type`.
///
/// # Errors
/// When the config is no object, or none of these is a text.
pub fn architecture(config: &Value) -> Result<String, Fault> {
    if !config.is_object() {
        let message = "config.json is not an object";
        return Err(Fault::new(Code::BadConfig, message).in_file("config.json"));
    }
    let listed = key(config, "architectures");
    let inner = key(key(config, "text_config"), "model_type");
    let named = [&listed[0], listed, key(config, "model_type"), inner];
    named
        .into_iter()
        .find_map(|value| value.as_str().filter(|name| !name.is_empty()))
        .map(str::to_string)
        .ok_or_else(|| {
            Fault::new(Code::BadConfig, "config.json names neither architectures nor a model_type")
                .in_file("config.json")
                .help("add `\"architectures\": [\"…\"]` as the model's card has it")
        })
}

/// The value of a key, in any case; null when there is none.
fn key<'c>(config: &'c Value, name: &str) -> &'c Value {
    let entries = || config.as_object().into_iter().flatten();
    let exact = entries().find(|(key, _)| *key == name);
    let found = exact.or_else(|| entries().find(|(key, _)| key.eq_ignore_ascii_case(name)));
    found.map_or(&Value::Null, |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::architecture;

    #[test]
    fn the_first_name_that_is_there() {
        for (config, expected) in [
            (json!({"architectures": ["A", "B"], "model_type": "m"}), "A"),
            (json!({"architectures": "A", "model_type": "m"}), "A"),
            (json!({"Architectures": ["A"], "Model_Type": "m"}), "A"),
            (json!({"architectures": [], "model_type": "m"}), "m"),
            (json!({"architectures": [null], "model_type": "m"}), "m"),
            (json!({"architectures": {"a": 1}, "model_type": "m"}), "m"),
            (json!({"architectures": "", "text_config": {"model_type": "t"}}), "t"),
        ] {
            assert_eq!(architecture(&config).unwrap(), expected, "{config}");
        }
        for nameless in [json!({}), json!({"architectures": [1]}), json!([])] {
            assert!(architecture(&nameless).is_err(), "{nameless}");
        }
    }
}
