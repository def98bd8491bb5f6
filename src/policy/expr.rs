//! Conditions: CEL expressions, compiled once.
//!
//! An expression is checked when the policy is read: it must parse, and it may only name what is
//! there. What it costs is paid once where it can be: an expression that looks at nothing of the
//! single tensor is worked out once for a model, another once for each combination of the values
//! that it looks at.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::{Context, Program, Value};
use indexmap::IndexMap;
use regex::Regex;

use super::schedule::CompiledSchedule;
use crate::dtype::Dtype;

/// What an expression may look at of the single tensor, besides the model's own values.
pub const TENSOR_VARIABLES: [&str; 5] = ["layer", "shape", "dtype", "elements", "rank"];

/// What an expression may look at of the model and the request, besides `let` values.
pub const MODEL_VARIABLES: [&str; 5] = ["config", "template", "role", "requested", "parser"];

/// The functions that lathe adds to CEL's own.
pub const FUNCTIONS: [&str; 3] = ["schedule", "is_object", "is_float"];

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

/// Whether it is a name: operators are functions too.
fn is_name(function: &str) -> bool {
    function.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// The variable that a macro of CEL binds.
static MACROS: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,";
    Regex::new(pattern).expect("a valid pattern")
});

/// A compiled expression.
pub struct Expr {
    source: String,
    program: Program,
    /// The tensor variables it looks at, by position in [`TENSOR_VARIABLES`].
    looks_at: [bool; TENSOR_VARIABLES.len()],
}

/// An expression (by address) and the values that it looked at.
type MemoKey = (usize, Option<i64>, Option<Vec<u64>>, Option<Dtype>);

impl std::fmt::Debug for Expr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Expr({})", self.source)
    }
}

/// Why an expression cannot be compiled: what is wrong, and the line and column in it, from 1.
#[derive(Debug)]
pub struct BadExpr {
    /// What is wrong.
    pub message: String,
    /// Byte offset into the expression, when the parser told one.
    pub offset: Option<usize>,
}

impl Expr {
    /// Compiles `source`; `names` are the variables it may use besides those of this module.
    pub fn compile<'a>(
        source: &str,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<Expr, BadExpr> {
        let program = Program::compile(source).map_err(|errors| {
            let first = errors.errors.first();
            BadExpr {
                message: first.map_or_else(|| errors.to_string(), |error| error.msg.clone()),
                offset: first.map(|error| offset(source, error.pos)),
            }
        })?;
        let references = program.references();
        // CEL's macros bind a variable of their own: `list.all(x, x > 0)`.
        let bound: Vec<&str> =
            MACROS.captures_iter(source).filter_map(|m| Some(m.get(1)?.as_str())).collect();
        let known = || {
            bound
                .iter()
                .copied()
                .chain(TENSOR_VARIABLES)
                .chain(MODEL_VARIABLES)
                .chain(["n"])
                .chain(names.clone().map(|name| -> &str { name }))
        };
        for name in references.variables() {
            if !known().any(|known| known == name) {
                let near = crate::format::nearest(name, known());
                return Err(BadExpr {
                    message: match near {
                        Some(near) => format!("unknown variable `{name}`; did you mean `{near}`?"),
                        None => format!("unknown variable `{name}`"),
                    },
                    offset: source.find(name),
                });
            }
        }
        for name in references.functions() {
            if !CEL_FUNCTIONS.contains(&name) && !FUNCTIONS.contains(&name) && is_name(name) {
                let known = CEL_FUNCTIONS.into_iter().chain(FUNCTIONS);
                return Err(BadExpr {
                    message: match crate::format::nearest(name, known) {
                        Some(near) => {
                            format!("unknown function `{name}`; did you mean `{near}`?")
                        }
                        None => format!("unknown function `{name}`"),
                    },
                    offset: source.find(name),
                });
            }
        }
        let looks_at = TENSOR_VARIABLES.map(|name| references.has_variable(name));
        drop(references);
        Ok(Expr { source: source.into(), program, looks_at })
    }

    /// The expression as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether its value is the same for every tensor of a model.
    pub fn is_constant(&self) -> bool {
        self.looks_at.iter().all(|looks| !looks)
    }

    /// Whether it uses the variable or function.
    pub fn uses(&self, name: &str) -> bool {
        let references = self.program.references();
        references.has_variable(name) || references.has_function(name)
    }

    /// Its value for a tensor of the scope's model.
    pub fn value(&self, scope: &Scope, tensor: &TensorView) -> Result<Value, String> {
        let [layer, shape, dtype, elements, rank] = self.looks_at;
        let key = (
            std::ptr::from_ref(self) as usize,
            layer.then_some(tensor.layer),
            (shape || elements || rank).then(|| tensor.shape.to_vec()),
            dtype.then_some(tensor.dtype),
        );
        if let Some(known) = scope.memo.borrow().get(&key) {
            return known.clone();
        }
        let mut context = scope.context.new_inner_scope();
        if layer {
            context.add_variable_from_value("layer", tensor.layer);
        }
        if shape {
            let shape: Vec<Value> = tensor.shape.iter().map(|&d| Value::Int(d as i64)).collect();
            context.add_variable_from_value("shape", Value::List(Arc::new(shape)));
        }
        if dtype {
            context.add_variable_from_value("dtype", tensor.dtype.as_str().to_string());
        }
        if elements {
            let elements = tensor.shape.iter().product::<u64>();
            context.add_variable_from_value("elements", elements as i64);
        }
        if rank {
            context.add_variable_from_value("rank", tensor.shape.len() as i64);
        }
        let value = self.program.execute(&context).map_err(|error| error.to_string());
        scope.memo.borrow_mut().insert(key, value.clone());
        value
    }

    /// Its value as a condition.
    pub fn holds(&self, scope: &Scope, tensor: &TensorView) -> Result<bool, String> {
        match self.value(scope, tensor)? {
            Value::Bool(value) => Ok(value),
            other => Err(format!("it gives {} and not true or false", describe(&other))),
        }
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        other => format!("a value of type {}", other.type_of()),
    }
}

/// Byte offset of CEL's (line, column), both from 1 and 0 respectively.
fn offset(source: &str, (line, column): (isize, isize)) -> usize {
    let line = usize::try_from(line - 1).unwrap_or(0);
    let start: usize = source.split_inclusive('\n').take(line).map(str::len).sum();
    (start + usize::try_from(column).unwrap_or(0)).min(source.len())
}

/// What an expression can see of a tensor.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Layer index, or -1.
    pub layer: i64,
    /// Logical shape.
    pub shape: &'a [u64],
    /// dtype before quantization.
    pub dtype: Dtype,
}

impl TensorView<'static> {
    /// No tensor at all, for expressions about the model.
    pub const NONE: TensorView<'static> = TensorView { layer: -1, shape: &[], dtype: Dtype::BF16 };
}

/// What expressions can see of a model and a request.
pub struct Scope {
    context: Context<'static, 'static>,
    memo: RefCell<HashMap<MemoKey, Result<Value, String>>>,
}

impl Scope {
    /// A scope with lathe's functions and the model's `config`, `template`, `role` and so on.
    pub fn new(
        variables: impl IntoIterator<Item = (String, serde_json::Value)>,
        schedules: &IndexMap<String, Arc<CompiledSchedule>>,
    ) -> Scope {
        let mut context = Context::default();
        for (name, value) in variables {
            context.add_variable_from_value(name, from_json(&value));
        }
        let schedules = schedules.clone();
        let schedule = move |name: Arc<String>, layer: i64, n: i64| -> bool {
            schedules.get(name.as_str()).is_some_and(|schedule| schedule.picks(layer, n))
        };
        // These names are not CEL's own, so adding them cannot fail.
        let _ = context.add_function("schedule", schedule);
        let _ = context.add_function("is_object", |value: Value| matches!(value, Value::Map(_)));
        let _ = context.add_function("is_float", |name: Arc<String>| {
            name.parse::<Dtype>().is_ok_and(Dtype::is_float)
        });
        Scope { context, memo: RefCell::default() }
    }

    /// Adds a variable, or gives it another value.
    pub fn set(&mut self, name: &str, value: &serde_json::Value) {
        self.memo.borrow_mut().clear();
        self.context.add_variable_from_value(name, from_json(value));
    }
}

/// JSON as CEL sees it: whole numbers are ints.
pub fn from_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(int), _) => Value::Int(int),
            (None, Some(float)) => Value::Float(float),
            (None, None) => Value::Null,
        },
        serde_json::Value::String(text) => Value::String(Arc::new(text.clone())),
        serde_json::Value::Array(items) => {
            Value::List(Arc::new(items.iter().map(from_json).collect()))
        }
        serde_json::Value::Object(entries) => {
            let map: HashMap<String, Value> =
                entries.iter().map(|(key, value)| (key.clone(), from_json(value))).collect();
            Value::from(map)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_macros_are_known_and_others_are_not() {
        let compile = |source: &str| Expr::compile(source, std::iter::once("taps"));
        assert!(compile("taps.all(id, id >= 0 && id < 5)").is_ok());
        assert!(compile("taps.filter(x, x > 1).exists(y, y == 3)").is_ok());
        let bad = compile("taps.all(id, other > id)").unwrap_err();
        assert_eq!(bad.message, "unknown variable `other`");
    }
}
