//! Values of a description: literals, and CEL expressions over `config.json`.
//!
//! An expression sees every key of the config (of the object that the description's `config` names,
//! where there is one), the whole config as `config`, the description's `let` values, and in a
//! layer `layer` and `type`. To CEL it
//! adds `a ?? b`, the first of the alternatives that names only what is there and is not null;
//! and the functions `sqrt`, `pow`, `log`, `at(text, index)` (a character), and
//! `last(list, value, before)` (the last index below `before` at which the list has the value,
//! or -1).

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use cel::{Context, Program, Value};
use serde_json::Value as Json;

use super::description::Expr;
use super::{Decoder, Filled};

/// What expressions see. A scope is made for the model, and one for each layer from it.
#[derive(Clone)]
pub struct Scope {
    names: HashMap<String, Value>,
    /// The object whose keys are seen, and what its path in config.json begins with.
    object: Rc<(String, Json)>,
    programs: Rc<RefCell<HashMap<String, Rc<Program>>>>,
}

/// Why a value cannot be had, in words that name the expression.
pub type Reason = String;

impl Scope {
    /// The keys of the object of `config` that describes the decoder, and `config` itself, both
    /// with the defaults of their classes.
    pub fn new(decoder: &Decoder, config: &Json) -> Scope {
        Scope::of(&Filled::new(config, decoder.config.list(), &decoder.defaults))
    }

    /// The same of a config whose class has no defaults.
    #[cfg(test)]
    pub(super) fn of_object(config: &Json, inner: &[&str]) -> Scope {
        let inner: Vec<String> = inner.iter().map(|name| (*name).into()).collect();
        Scope::of(&Filled::new(config, &inner, &super::Defaults::new()))
    }

    fn of(filled: &Filled) -> Scope {
        let entries = filled.object().as_object().into_iter().flatten();
        let mut names: HashMap<String, Value> =
            entries.map(|(key, value)| (key.clone(), from_json(value))).collect();
        names.insert("config".into(), from_json(&filled.config));
        let path = filled.inner.as_ref().map_or(String::new(), |name| format!("{name}."));
        let object = Rc::new((path, filled.object().clone()));
        Scope { names, object, programs: Rc::default() }
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

    /// The value of an expression; `None` when it is null or names what is not there.
    pub fn value(&self, expr: &Expr) -> Result<Option<Value>, Reason> {
        let text = match expr {
            Expr::Bool(value) => return Ok(Some(Value::Bool(*value))),
            Expr::Int(value) => return Ok(Some(Value::Int(*value))),
            Expr::Float(value) => return Ok(Some(Value::Float(*value))),
            Expr::Text(text) => text,
        };
        for alternative in alternatives(text) {
            match self.evaluate(alternative)? {
                None | Some(Value::Null) => {}
                found => return Ok(found),
            }
        }
        Ok(None)
    }

    /// One alternative; `None` when it names what is not there.
    fn evaluate(&self, text: &str) -> Result<Option<Value>, Reason> {
        if let Some(value) = self.names.get(text) {
            return Ok(Some(value.clone()));
        }
        let program = self.program(text)?;
        let mut context = Context::default();
        add_functions(&mut context);
        for name in program.references().variables() {
            if let Some(value) = self.names.get(name) {
                context.add_variable_from_value(name, value.clone());
            }
        }
        use cel::ExecutionError::{IndexOutOfBounds, NoSuchKey, UndeclaredReference};
        match program.execute(&context) {
            Ok(value) => Ok(Some(value)),
            Err(NoSuchKey(_) | UndeclaredReference(_) | IndexOutOfBounds(_)) => Ok(None),
            // Something null was looked into or counted with: as good as not there.
            Err(_) if self.looks_at_nothing(&program) => Ok(None),
            Err(error) => Err(format!("`{text}`: {error}")),
        }
    }

    fn looks_at_nothing(&self, program: &Program) -> bool {
        let references = program.references();
        references
            .variables()
            .into_iter()
            .any(|name| matches!(self.names.get(name), None | Some(Value::Null)))
    }

    fn program(&self, text: &str) -> Result<Rc<Program>, Reason> {
        if let Some(program) = self.programs.borrow().get(text) {
            return Ok(program.clone());
        }
        let program = Program::compile(text)
            .map_err(|error| format!("`{text}` is no expression: {error}"))?;
        let program = Rc::new(program);
        self.programs.borrow_mut().insert(text.into(), program.clone());
        Ok(program)
    }

    /// A whole number.
    pub fn int(&self, expr: &Expr) -> Result<Option<i64>, Reason> {
        match self.value(expr)? {
            None => Ok(None),
            Some(Value::Int(value)) => Ok(Some(value)),
            Some(Value::Float(value)) if value.fract() == 0.0 => Ok(Some(value as i64)),
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
            return Err(format!("{expr:?} should be an object"));
        };
        for alternative in alternatives(text) {
            match self.evaluate(alternative)? {
                None | Some(Value::Null) => {}
                Some(value @ Value::Map(_)) => {
                    let object = value.json().map_err(|error| error.to_string())?;
                    return Ok(Some((alternative.to_owned(), object)));
                }
                Some(other) => return Err(wrong("an object", expr, &other)),
            }
        }
        Ok(None)
    }
}

fn wrong(wanted: &str, expr: &Expr, found: &Value) -> Reason {
    let text = match expr {
        Expr::Text(text) => text.clone(),
        other => format!("{other:?}"),
    };
    format!("`{text}` should be {wanted} and is of type {}", found.type_of())
}

/// The alternatives of `a ?? b ?? c`, outside quotes and brackets.
fn alternatives(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut quote) = (Vec::new(), 0, 0_i32, None);
    let mut previous = ' ';
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth -= 1,
            (None, '?') if depth == 0 && previous == '?' => {
                parts.push(text[start..at - 1].trim());
                start = at + 1;
            }
            _ => {}
        }
        previous = c;
    }
    parts.push(text[start..].trim());
    parts
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Int(value) => Some(*value as f64),
        Value::UInt(value) => Some(*value as f64),
        Value::Float(value) => Some(*value),
        _ => None,
    }
}

/// Functions of numbers give null for what is no number, so that `??` can go on.
fn of_number(function: fn(f64) -> f64) -> impl Fn(Value) -> Value + Send + Sync + 'static {
    move |value| number(&value).map_or(Value::Null, |value| Value::Float(function(value)))
}

fn add_functions(context: &mut Context) {
    // None of these is a name of CEL's own, so adding them cannot fail.
    let _ = context.add_function("sqrt", of_number(f64::sqrt));
    let _ = context.add_function("log", of_number(f64::ln));
    let _ = context.add_function("pow", |base: Value, exponent: Value| {
        match (number(&base), number(&exponent)) {
            (Some(base), Some(exponent)) => Value::Float(base.powf(exponent)),
            _ => Value::Null,
        }
    });
    let _ = context.add_function("at", |text: Arc<String>, index: i64| {
        let found = usize::try_from(index).ok().and_then(|index| text.chars().nth(index));
        found.map_or(Value::Null, |c| Value::String(Arc::new(c.to_string())))
    });
    let _ = context.add_function("last", |list: Value, wanted: Value, before: i64| {
        let Value::List(list) = list else { return Value::Null };
        let before = usize::try_from(before).unwrap_or(0).min(list.len());
        let found = list[..before].iter().rposition(|value| *value == wanted);
        Value::Int(found.map_or(-1, |at| at as i64))
    });
}

/// JSON as CEL sees it: whole numbers are ints.
fn from_json(value: &Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(int), _) => Value::Int(int),
            (None, Some(float)) => Value::Float(float),
            (None, None) => Value::Null,
        },
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(from_json).collect())),
        Json::Object(entries) => Value::from(
            entries
                .iter()
                .map(|(key, value)| (key.clone(), from_json(value)))
                .collect::<HashMap<String, Value>>(),
        ),
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
        assert!(float("hidden +").unwrap_err().contains("no expression"));
        assert!(float("kinds").unwrap_err().contains("should be a number"));
        assert!(float("hidden / (heads - 4)").unwrap_err().contains("zero"));
    }
}
