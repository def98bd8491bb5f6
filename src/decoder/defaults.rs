//! What a config leaves out: the values that the library's config class takes for absent keys.
//!
//! A class goes by the `model_type` that an object of the config names. In: a config and the
//! description's `config` and `defaults`. Out: the config with every key that its classes have.

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

/// For each `model_type`, what an absent key is. A key that is there keeps its value, null too.
pub type Defaults = IndexMap<String, IndexMap<String, Json>>;

/// A config with its defaults.
pub struct Filled {
    /// The whole of it.
    pub config: Json,
    /// The name of the object in it that describes the decoder; `None` when it is all one.
    pub inner: Option<String>,
}

impl Filled {
    /// Lays `defaults` under `config`; the first of `inner` that it has is the decoder's object.
    pub fn new(config: &Json, inner: &[String], defaults: &Defaults) -> Filled {
        let mut config = config.clone();
        let inner = inner.iter().find(|name| config.get(name).is_some_and(Json::is_object));
        let class = class_of(&config, defaults);
        if let Some(top) = config.as_object_mut() {
            // The outer class may say which class the inner object is of.
            if let (Some(name), Some(class)) = (inner, class)
                && let Some(Json::Object(under)) = class.get(name)
                && let Some(Json::Object(object)) = top.get_mut(name)
            {
                lay(object, under);
            }
            lay(top, class.into_iter().flatten());
        }
        if let Some(object) = inner.and_then(|name| config.get_mut(name)) {
            let class = class_of(object, defaults);
            if let Some(object) = object.as_object_mut() {
                lay(object, class.into_iter().flatten());
            }
        }
        Filled { inner: inner.cloned(), config }
    }

    /// The object that describes the decoder.
    pub fn object(&self) -> &Json {
        self.inner.as_ref().and_then(|name| self.config.get(name)).unwrap_or(&self.config)
    }
}

/// The defaults of the class that an object names, or of the first.
fn class_of<'a>(object: &Json, defaults: &'a Defaults) -> Option<&'a IndexMap<String, Json>> {
    let named = object.get("model_type").and_then(Json::as_str);
    named.and_then(|name| defaults.get(name)).or_else(|| defaults.values().next())
}

fn lay<'a>(
    object: &mut Map<String, Json>,
    under: impl IntoIterator<Item = (&'a String, &'a Json)>,
) {
    for (key, value) in under {
        object.entry(key).or_insert_with(|| value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn filled(config: &Json) -> Filled {
        let defaults: Defaults = serde_json::from_value(json!({
            "outer_text": {"eps": 1e-6, "tied": true, "window": 4096},
            "outer": {"tied": false, "text_config": {"model_type": "other"}},
            "other": {"eps": 1e-5, "tied": true},
        }))
        .unwrap();
        Filled::new(config, &["text_config".into()], &defaults)
    }

    #[test]
    fn an_absent_key_is_what_the_class_says_and_null_stays_null() {
        let all = filled(&json!({"model_type": "outer_text", "window": null}));
        assert_eq!(all.inner, None);
        assert_eq!(
            *all.object(),
            json!({"model_type": "outer_text", "window": null, "eps": 1e-6, "tied": true})
        );
        // A class that is not known is taken for the first.
        assert_eq!(filled(&json!({})).object()["window"], 4096);
    }

    #[test]
    fn each_level_has_the_defaults_of_its_own_class() {
        let all = filled(
            &json!({"model_type": "outer", "eps": 1, "text_config": {"model_type": "outer_text"}}),
        );
        assert_eq!((&all.object()["eps"], &all.object()["tied"]), (&json!(1e-6), &json!(true)));
        assert_eq!(all.config["tied"], false);
        let all = filled(&json!({"model_type": "outer", "text_config": {}}));
        assert_eq!((&all.object()["eps"], &all.object()["tied"]), (&json!(1e-5), &json!(true)));
    }
}
