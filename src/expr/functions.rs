//! Functions that expressions can call besides CEL's own.

use std::sync::Arc;

use cel::{Context, Value};

use super::alternatives;
use crate::dtype::Dtype;

/// The functions that lathe adds to CEL's own. `schedule` is a policy's.
pub const FUNCTIONS: [&str; 8] =
    ["sqrt", "pow", "log", "at", "last", "is_object", "is_float", "schedule"];

/// CEL's own functions and macros (cel-spec, "Standard definitions").
const CEL_FUNCTIONS: [&str; 26] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "has",
    "all",
    "exists",
    "exists_one",
    "map",
    "filter",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "bool",
    "type",
    "dyn",
    "min",
    "max",
    "duration",
    "timestamp",
    "optional",
    "getHours",
    "getMinutes",
];

/// Every function that can be called by name.
pub fn known() -> impl Iterator<Item = &'static str> + Clone {
    CEL_FUNCTIONS.into_iter().chain(FUNCTIONS)
}

/// Whether a function can be called.
pub fn is_known(name: &str) -> bool {
    known().any(|known| known == name)
}

/// A context without variables, for expressions of any kind.
pub fn context() -> Context<'static, 'static> {
    let mut context = Context::default();
    // None of these is a name of CEL's own, so adding them cannot fail.
    let _ = context.add_function(alternatives::FUNCTION, alternatives::call);
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
    let _ = context.add_function("is_object", |value: Value| matches!(value, Value::Map(_)));
    let _ = context.add_function("is_float", |name: Arc<String>| {
        name.parse::<Dtype>().is_ok_and(Dtype::is_float)
    });
    context
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
