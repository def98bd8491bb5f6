//! expr: the expressions of policies and decoders. A text in, a value out.
//!
//! They are CEL, and one thing more: `a ?? b` is the first of several alternatives that has a value.
//! It binds loosest of all, and may stand wherever an expression may. What is not there (a key that
//! a config lacks, a name that nothing declares, an index past the end of a list) and what is null
//! has no value, nor has what is worked out from it.
//!
//! [`Expr::compile`] parses a text once; [`Expr::value`] works it out in a [`cel::Context`] made by
//! [`context`]. Which names an expression may use is known to whoever compiles it: [`Expr::names`]
//! and [`Expr::paths`] tell which it does.

mod alternatives;
mod functions;
mod names;
mod words;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cel::common::types::CelNull;
use cel::{Context, ExecutionError, Value};

use alternatives::{Alternative, Groups};
pub use functions::{FUNCTIONS, context};

/// A compiled expression.
pub struct Expr {
    source: String,
    alternatives: Vec<Alternative>,
    /// Alternatives inside the alternatives, which refer to them by their index.
    groups: Arc<Groups>,
}

impl std::fmt::Debug for Expr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Expr({})", self.source)
    }
}

/// Why an expression cannot be compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct BadExpr {
    /// What is wrong.
    pub message: String,
    /// Byte offset into the expression, where it is known.
    pub offset: Option<usize>,
}

/// Why a value cannot be had.
pub type Reason = String;

impl Expr {
    /// Parses `source`.
    ///
    /// # Errors
    /// What is no expression, and functions that are not known.
    pub fn compile(source: &str) -> Result<Expr, BadExpr> {
        let (alternatives, groups) = alternatives::compile(source)?;
        let expr = Expr { source: source.into(), alternatives, groups: Arc::new(groups) };
        for alternative in expr.parts() {
            for name in &alternative.used.functions {
                if !functions::is_known(name) {
                    let near = crate::format::nearest(name, functions::known());
                    let message = match near {
                        Some(near) => format!("unknown function `{name}`; did you mean `{near}`?"),
                        None => format!("unknown function `{name}`"),
                    };
                    return Err(BadExpr { message, offset: source.find(name.as_str()) });
                }
            }
        }
        Ok(expr)
    }

    /// The expression as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The names that it looks up, each once.
    pub fn names(&self) -> BTreeSet<&str> {
        self.parts().flat_map(|part| part.used.names.iter().map(String::as_str)).collect()
    }

    /// The dotted paths that it looks up, each from a name on: `config.a.b`.
    pub fn paths(&self) -> BTreeSet<&str> {
        self.parts().flat_map(|part| part.used.paths.iter().map(String::as_str)).collect()
    }

    /// Whether it looks up the name or calls the function.
    pub fn uses(&self, name: &str) -> bool {
        self.parts()
            .any(|part| part.used.names.contains(name) || part.used.functions.contains(name))
    }

    fn parts(&self) -> impl Iterator<Item = &Alternative> {
        self.alternatives.iter().chain(self.groups.iter().flatten())
    }

    /// Its value; `None` when it is null, or worked out from what is not there.
    ///
    /// # Errors
    /// What cannot be worked out, such as a division by zero.
    pub fn value(&self, context: &Context) -> Result<Option<Value>, Reason> {
        Ok(self.found(context)?.map(|(_, value)| value))
    }

    /// The alternative that has a value, as it is written, and its value.
    ///
    /// # Errors
    /// As [`Expr::value`].
    pub fn found(&self, context: &Context) -> Result<Option<(&str, Value)>, Reason> {
        let found = match self.groups.is_empty() {
            true => first_of(&self.alternatives, context),
            false => {
                let mut inner = context.new_inner_scope();
                alternatives::bind(&self.groups, &mut inner);
                first_of(&self.alternatives, &inner)
            }
        };
        found.map_err(|error| words::of(&error))
    }
}

/// The first alternative that has a value, and its value.
fn first_of<'a>(
    alternatives: &'a [Alternative],
    context: &Context,
) -> Result<Option<(&'a str, Value)>, ExecutionError> {
    for alternative in alternatives {
        match context.resolve(alternative.program.expression()) {
            Ok(Value::Null) => {}
            Ok(value) => return Ok(Some((&alternative.text, value))),
            Err(error) if is_absence(&error) || looks_at_nothing(alternative, context) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Whether an error says that something is not there, or that null was counted with.
fn is_absence(error: &ExecutionError) -> bool {
    use ExecutionError as E;
    match error {
        E::NoSuchKey(_) | E::UndeclaredReference(_) | E::IndexOutOfBounds(_) => true,
        E::UnsupportedBinaryOperator(_, a, b) | E::ValuesNotComparable(a, b) => {
            [a, b].contains(&&Value::Null)
        }
        E::NoSuchOverload(call) => call.argument_types().iter().any(|name| name == "null_type"),
        _ => false,
    }
}

/// Whether it looks up a name that is not there, or null.
fn looks_at_nothing(alternative: &Alternative, context: &Context) -> bool {
    alternative.used.names.iter().any(|name| match context.get_variable(name) {
        None => true,
        Some(value) => value.downcast_ref::<CelNull>().is_some(),
    })
}

/// JSON as expressions see it: whole numbers are ints.
pub fn from_json(value: &serde_json::Value) -> Value {
    json_value(value, false)
}

/// A config as expressions see it: a key that holds capital letters is found in lower case too,
/// unless that is another key.
pub fn from_config(config: &serde_json::Value) -> Value {
    json_value(config, true)
}

/// The entries of an object of a config, as [`from_config`] has them.
pub fn entries(object: &serde_json::Value) -> HashMap<String, Value> {
    let mut map = HashMap::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        let lower = key.to_ascii_lowercase();
        if lower != *key && object.get(&lower).is_none() {
            map.insert(lower, from_config(value));
        }
        map.insert(key.clone(), from_config(value));
    }
    map
}

fn json_value(value: &serde_json::Value, any_case: bool) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(int), _) => Value::Int(int),
            (None, Some(float)) => Value::Float(float),
            (None, None) => Value::Null,
        },
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => {
            Value::List(Arc::new(items.iter().map(|item| json_value(item, any_case)).collect()))
        }
        Json::Object(_) if any_case => Value::from(entries(value)),
        Json::Object(entries) => {
            let of = |(key, value): (&String, &Json)| (key.clone(), json_value(value, any_case));
            Value::from(entries.iter().map(of).collect::<HashMap<String, Value>>())
        }
    }
}

/// The type of a value, as a user would call it.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Int(_) | Value::UInt(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::String(_) => "a text",
        Value::List(_) => "a list",
        Value::Map(_) => "an object",
        _ => "a value of another kind",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scope() -> Context<'static, 'static> {
        let mut context = context();
        let config = json!({
            "heads": 4, "none": null, "Upper_Key": 7, "kinds": ["a", "b"],
            "deep": {"x": {"y": 3}, "none": null}, "zero": 0, "text": "a ?? b",
        });
        for (name, value) in config.as_object().unwrap() {
            context.add_variable_from_value(name.as_str(), from_config(value));
        }
        context.add_variable_from_value("config", from_config(&config));
        context
    }

    fn value(source: &str) -> Result<Option<Value>, Reason> {
        Expr::compile(source)
            .unwrap_or_else(|bad| panic!("{source}: {}", bad.message))
            .value(&scope())
    }

    fn int(source: &str) -> i64 {
        match value(source) {
            Ok(Some(Value::Int(value))) => value,
            other => panic!("{source}: {other:?}"),
        }
    }

    #[test]
    fn alternatives_stand_wherever_an_expression_does() {
        for source in [
            "missing ?? heads",
            "(missing ?? heads)",
            "(missing ?? 1) + 3",
            "size(missing ?? [1, 2, 3, 4])",
            "[missing ?? 4][0]",
            "{'a': missing ?? 4}['a']",
            "{(missing ?? 'a'): 4}.a",
            "[1, 2].map(x, missing ?? x + 2)[1]",
            "true ? missing ?? 4 : 1",
            "false ? 1 : missing ?? 4",
            "heads > 3 ? (missing ?? none ?? heads) : 0",
            "deep.x.z ?? deep.none.x ?? none.x ?? kinds[7] ?? config.none.x ?? heads",
            "((missing ?? (none ?? 4)))",
            "missing + 1 ?? 4",
            "(missing + 1 ?? 3) + 1",
            "missing == 'x' ? 1 : 2 ?? 4",
        ] {
            assert_eq!(int(source), 4, "{source}");
        }
        assert_eq!(value("'a ?? b' == text"), Ok(Some(Value::Bool(true))));
        assert_eq!(value(r#""\" ?? (" + "x""#).unwrap().unwrap(), Value::from("\" ?? (x"));
        assert_eq!(int("config.upper_key"), 7);
        assert_eq!(int("config.Upper_Key"), 7);
    }

    #[test]
    fn what_is_worked_out_from_nothing_has_no_value_and_what_is_wrong_is_told() {
        for source in
            ["missing", "missing + 1", "none", "none.x", "config.none.x > 3", "missing > 3"]
        {
            assert_eq!(value(source), Ok(None), "{source}");
        }
        let wrong = |source: &str| value(source).unwrap_err();
        assert_eq!(wrong("1 / zero"), "it divides by zero");
        assert_eq!(wrong("heads + text"), "`+` does not take a whole number and a text");
        assert_eq!(wrong("missing ?? 1 / zero"), "it divides by zero");
        assert_eq!(wrong("heads > text"), "`>` does not take a whole number and a text");
    }

    #[test]
    fn what_is_no_expression_is_told_in_our_words_and_at_its_place() {
        let bad = |source: &str| Expr::compile(source).unwrap_err();
        for (source, message, offset) in [
            ("heads +", "it ends where a value is expected", 7),
            ("heads ?? ", "it ends where a value is expected", 9),
            ("(heads ?? ) + 1", "a value is expected here", 10),
            ("heads heads", "`heads` does not fit here", 6),
            ("(a ?? b) c", "`c` does not fit here", 9),
            ("sqr(2)", "unknown function `sqr`; did you mean `sqrt`?", 0),
            ("(1 ?? sqr(2))", "unknown function `sqr`; did you mean `sqrt`?", 6),
        ] {
            let found = bad(source);
            assert_eq!((found.message.as_str(), found.offset), (message, Some(offset)), "{source}");
        }
    }

    #[test]
    fn names_and_paths_are_those_of_the_config_and_not_of_macros() {
        let expr = Expr::compile("config.a.b[layer] ?? (c.d ?? list.all(x, x > y))").unwrap();
        assert_eq!(Vec::from_iter(expr.names()), ["c", "config", "layer", "list", "y"]);
        assert_eq!(Vec::from_iter(expr.paths()), ["c.d", "config.a.b", "layer", "list", "y"]);
        assert!(expr.uses("layer") && !expr.uses("x"));
    }
}
