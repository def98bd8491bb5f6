//! Values of a description: literals, and expressions over `config.json`.
//!
//! An expression ([`crate::expr`]) sees every key of the config (of the object that the
//! description's `config` names, where there is one), the whole config as `config`, the
//! description's `let` values, and in a layer `layer` and `type`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use cel::{Context, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::Filled;
use crate::expr::{self, Reason, from_config, kind};

/// A value: a literal, or a text worked out from the config.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Expr {
    /// true or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A CEL expression over the config's keys and the `let` values. `a ?? b` is the first that
    /// is there and not null.
    Text(String),
}

/// What expressions see. A scope is made for the model, and one for each layer from it.
#[derive(Clone)]
pub struct Scope {
    names: HashMap<String, Value>,
    /// The object whose keys are seen, and what its path in config.json begins with.
    object: Rc<(String, Json)>,
    functions: Rc<Context<'static, 'static>>,
    compiled: Rc<RefCell<HashMap<String, Rc<expr::Expr>>>>,
}

impl Scope {
    /// What expressions see of a config whose class has no defaults.
    #[cfg(test)]
    pub(super) fn of_object(config: &Json, inner: &[&str]) -> Scope {
        let inner: Vec<String> = inner.iter().map(|name| (*name).into()).collect();
        Scope::of(&Filled::new(config, &inner, &super::Defaults::new()))
    }

    /// What expressions see of a config with the defaults of its classes.
    pub(super) fn of(filled: &Filled) -> Scope {
        let mut names = expr::entries(filled.object());
        names.insert("config".into(), from_config(&filled.config));
        let path = filled.inner.as_ref().map_or(String::new(), |name| format!("{name}."));
        let object = Rc::new((path, filled.object().clone()));
        Scope { names, object, functions: Rc::new(expr::context()), compiled: Rc::default() }
    }

    /// The first of `keys` that is neither null nor an empty object, and its path in config.json.
    pub fn first_given(&self, keys: &[&str]) -> Option<(String, Json)> {
        let is_empty = |value: &Json| match value {
            Json::Null => true,
            Json::Object(entries) => entries.is_empty(),
            _ => false,
        };
        let (path, object) = &*self.object;
        let mut values = keys.iter().filter_map(|key| Some((key, object.get(key)?)));
        let (key, value) = values.find(|(_, value)| !is_empty(value))?;
        Some((format!("{path}{key}"), value.clone()))
    }

    /// Adds a name, hiding an older one.
    pub fn set(&mut self, name: &str, value: Value) {
        self.names.insert(name.into(), value);
    }

    /// The value of an expression; `None` when it is null or worked out from what is not there.
    ///
    /// # Errors
    /// Why it cannot be had, in words that name the expression. So it is of all that follow.
    pub fn value(&self, expr: &Expr) -> Result<Option<Value>, Reason> {
        let text = match expr {
            Expr::Bool(value) => return Ok(Some(Value::Bool(*value))),
            Expr::Int(value) => return Ok(Some(Value::Int(*value))),
            Expr::Float(value) => return Ok(Some(Value::Float(*value))),
            Expr::Text(text) => text,
        };
        if let Some(value) = self.names.get(text) {
            return Ok(Some(value.clone()).filter(|value| *value != Value::Null));
        }
        Ok(self.found(text)?.map(|(_, value)| value))
    }

    /// The first alternative that has a value, and its value.
    fn found(&self, text: &str) -> Result<Option<(String, Value)>, Reason> {
        let compiled = self.compiled(text)?;
        let mut context = self.functions.new_inner_scope();
        for name in compiled.names() {
            if let Some(value) = self.names.get(name) {
                context.add_variable_from_value(name, value.clone());
            }
        }
        let found = compiled.found(&context);
        let found = found.map_err(|reason| format!("`{}`: {reason}", text.trim()))?;
        Ok(found.map(|(alternative, value)| (alternative.to_owned(), value)))
    }

    fn compiled(&self, text: &str) -> Result<Rc<expr::Expr>, Reason> {
        if let Some(known) = self.compiled.borrow().get(text) {
            return Ok(known.clone());
        }
        let compiled = Rc::new(
            expr::Expr::compile(text)
                .map_err(|bad| format!("`{}` is no expression: {}", text.trim(), bad.message))?,
        );
        self.compiled.borrow_mut().insert(text.into(), compiled.clone());
        Ok(compiled)
    }

    /// A whole number.
    pub fn int(&self, expr: &Expr) -> Result<Option<i64>, Reason> {
        match self.value(expr)? {
            None => Ok(None),
            Some(Value::Int(value)) => Ok(Some(value)),
            Some(Value::Float(value)) if value.fract() == 0.0 && value.abs() < 9e15 => {
                Ok(Some(value as i64))
            }
            Some(Value::Float(value)) => {
                Err(format!("{} should be a whole number and is {value}", shown(expr)))
            }
            Some(other) => Err(wrong("a whole number", expr, &other)),
        }
    }

    /// A number.
    pub fn float(&self, expr: &Expr) -> Result<Option<f64>, Reason> {
        match self.value(expr)? {
            None => Ok(None),
            Some(Value::Int(value)) => Ok(Some(value as f64)),
            Some(Value::Float(value)) => Ok(Some(value)),
            Some(other) => Err(wrong("a number", expr, &other)),
        }
    }

    /// A condition; numbers hold when they are not zero, and what is not there does not hold.
    pub fn holds(&self, expr: &Expr) -> Result<bool, Reason> {
        match self.value(expr)? {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(value),
            Some(Value::Int(value)) => Ok(value != 0),
            Some(other) => Err(wrong("true or false", expr, &other)),
        }
    }

    /// A text.
    pub fn text(&self, expr: &Expr) -> Result<Option<String>, Reason> {
        match self.value(expr)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.to_string())),
            Some(other) => Err(wrong("a text", expr, &other)),
        }
    }

    /// A JSON object, and which alternative of the expression gives it.
    pub fn object(&self, expr: &Expr) -> Result<Option<(String, Json)>, Reason> {
        let Expr::Text(text) = expr else {
            return Err(format!("{} should be an object", shown(expr)));
        };
        match self.found(text)? {
            None => Ok(None),
            Some((alternative, value @ Value::Map(_))) => {
                let object = value.json().map_err(|error| error.to_string())?;
                Ok(Some((alternative, object)))
            }
            Some((_, other)) => Err(wrong("an object", expr, &other)),
        }
    }
}

fn wrong(wanted: &str, expr: &Expr, found: &Value) -> Reason {
    format!("{} should be {wanted} and is {}", shown(expr), kind(found))
}

/// An expression as it is written.
pub fn shown(expr: &Expr) -> String {
    match expr {
        Expr::Bool(value) => value.to_string(),
        Expr::Int(value) => value.to_string(),
        Expr::Float(value) => value.to_string(),
        Expr::Text(text) => format!("`{}`", text.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scope() -> Scope {
        let config = json!({
            "hidden": 128,
            "inner": {
                "hidden": 64, "heads": 4, "none": null, "eps": 1e-6, "kinds": ["a", "b", "a"],
                "pattern": "M*", "deep": {"x": {"y": 3}},
            },
            "outer": 5,
        });
        Scope::of_object(&config, &["missing", "inner"])
    }

    fn float(text: &str) -> Result<Option<f64>, Reason> {
        scope().float(&Expr::Text(text.into()))
    }

    #[test]
    fn the_inner_object_stands_for_the_top_and_missing_things_fall_through() {
        assert_eq!(float("hidden"), Ok(Some(64.0)));
        assert_eq!(float("outer"), Ok(None));
        assert_eq!(float("config.outer"), Ok(Some(5.0)));
        assert_eq!(float("head_dim ?? hidden / heads"), Ok(Some(16.0)));
        assert_eq!(float("none ?? deep.z ?? none.x ?? kinds[7] ?? deep.x.y"), Ok(Some(3.0)));
        assert_eq!(float("none ?? missing"), Ok(None));
        assert_eq!(float("1.0 / sqrt(hidden)"), Ok(Some(0.125)));
        assert_eq!(float("pow(heads, -0.5)"), Ok(Some(0.5)));
    }

    #[test]
    fn objects_say_where_they_stand() {
        let config = json!({
            "rope_scaling": {"at": "top"},
            "inner": {
                "rope_parameters": {"at": "inner"}, "rope_scaling": {}, "by": {"full": {"at": "by"}},
            },
        });
        let scope = Scope::of_object(&config, &["inner"]);
        let keys = ["rope_scaling", "rope_parameters"];
        let (path, object) = scope.first_given(&keys).unwrap();
        assert_eq!((path.as_str(), &object["at"]), ("inner.rope_parameters", &json!("inner")));
        assert_eq!(Scope::of_object(&config, &[]).first_given(&keys).unwrap().0, "rope_scaling");
        assert_eq!(scope.first_given(&["rope"]), None);
        let of = |text: &str| scope.object(&Expr::Text(text.into()));
        let (path, object) = of("by.sliding ?? by[\"full\"] ?? inner").unwrap().unwrap();
        assert_eq!((path.as_str(), &object["at"]), ("by[\"full\"]", &json!("by")));
        assert_eq!(of("by.sliding ?? none"), Ok(None));
        assert!(of("1 + 1").unwrap_err().contains("should be an object"));
    }

    #[test]
    fn layers_can_be_asked_for() {
        let mut scope = scope();
        scope.set("layer", Value::Int(1));
        let text = |text: &str| scope.text(&Expr::Text(text.into()));
        assert_eq!(text("kinds[layer]"), Ok(Some("b".into())));
        assert_eq!(text("\"a ?? b\""), Ok(Some("a ?? b".into())));
        assert_eq!(text("at(pattern, layer)"), Ok(Some("*".into())));
        assert_eq!(
            text("{\"M\": \"mamba\", \"*\": \"full\"}[at(pattern, layer)]"),
            Ok(Some("full".into()))
        );
        let int = |text: &str| scope.int(&Expr::Text(text.into()));
        assert_eq!(int("last(kinds, \"a\", 2)"), Ok(Some(0)));
        assert_eq!(int("last(kinds, \"c\", 3)"), Ok(Some(-1)));
    }

    #[test]
    fn what_is_wrong_is_told() {
        assert!(float("hidden +").unwrap_err().contains("ends where"));
        assert_eq!(float("kinds").unwrap_err(), "`kinds` should be a number and is a list");
        assert!(float("hidden / (heads - 4)").unwrap_err().contains("zero"));
    }
}
