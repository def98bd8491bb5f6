//! What is wrong with an expression, in words that its author knows.

use cel::{ExecutionError, ParseErrors, Value};

use super::kind;

/// Of an expression that is not finished.
pub const ENDS: &str = "it ends where a value is expected";

/// Byte offset into `text` of the first fault that the parser found.
pub fn position(text: &str, errors: &ParseErrors) -> Option<usize> {
    // Both are counted from 1.
    let (line, column) = errors.errors.first()?.pos;
    let line = usize::try_from(line - 1).unwrap_or(0);
    let start: usize = text.split_inclusive('\n').take(line).map(str::len).sum();
    let rest = text.get(start..).unwrap_or_default();
    let column = usize::try_from(column - 1).unwrap_or(0);
    Some(start + rest.char_indices().nth(column).map_or(rest.len(), |(at, _)| at))
}

/// What is wrong at an offset into a source that cannot be parsed.
pub fn of_parser(source: &str, at: Option<usize>) -> String {
    let rest = at.and_then(|at| source.get(at..)).unwrap_or_default().trim_start();
    let word: String =
        rest.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '.')).collect();
    match (at, word.is_empty(), rest.chars().next()) {
        (None, ..) => "it cannot be understood".into(),
        (_, true, None) => ENDS.into(),
        (_, true, Some(sign)) => format!("`{sign}` does not fit here"),
        _ => format!("`{word}` does not fit here"),
    }
}

/// Why a value cannot be worked out.
pub fn of(error: &ExecutionError) -> String {
    use ExecutionError as E;
    match error {
        E::DivisionByZero(_) | E::RemainderByZero(_) => "it divides by zero".into(),
        E::Overflow(..) => "its result is too large".into(),
        E::NoSuchKey(name) | E::UndeclaredReference(name) => format!("there is no `{name}`"),
        E::IndexOutOfBounds(index) => format!("there is no element {}", shown(index)),
        E::NoSuchOverload(call) => {
            let types: Vec<&str> =
                call.argument_types().iter().map(|name| type_name(name)).collect();
            format!("`{}` does not take {}", operator(call.function()), types.join(" and "))
        }
        E::UnsupportedBinaryOperator(name, a, b) => {
            format!("`{}` does not take {} and {}", operator(name), kind(a), kind(b))
        }
        E::ValuesNotComparable(a, b) => {
            format!("{} cannot be compared with {}", kind(a), kind(b))
        }
        E::UnsupportedIndex(index, of) => format!("{} has no element by {}", kind(of), kind(index)),
        E::UnexpectedType { .. } | E::UnsupportedTargetType { .. } => {
            "a value is of another type than what is done with it takes".into()
        }
        E::InvalidArgumentCount { expected, actual } => {
            format!("a function takes {expected} values and is given {actual}")
        }
        E::FunctionError { function, .. } => {
            format!("`{}` cannot do that with what it is given", operator(function))
        }
        E::DuplicateKey(key) => format!("the key {} stands twice in an object", shown(key)),
        _ => "it cannot be worked out".into(),
    }
}

fn shown(value: &Value) -> String {
    value.json().map_or_else(|_| kind(value).into(), |json| json.to_string())
}

/// An operator as it is written.
fn operator(function: &str) -> &str {
    match function {
        "_[_]" => "[ ]",
        "_?_:_" => "? :",
        "@in" => "in",
        "add" => "+",
        "sub" => "-",
        "mul" => "*",
        "div" => "/",
        "rem" => "%",
        other => other.trim_matches('_'),
    }
}

/// A type of CEL, as a user would call it.
fn type_name(name: &str) -> &str {
    match name {
        "null_type" => "null",
        "bool" => "true or false",
        "int" | "uint" => "a whole number",
        "double" => "a number",
        "string" => "a text",
        "list" => "a list",
        "map" => "an object",
        other => other,
    }
}
