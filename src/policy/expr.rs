//! Conditions and values of policies: expressions over a model, a request and a tensor.
//!
//! An expression is checked when the policy is read: it must parse, and it may only name what is
//! there. What it costs is paid once where it can be: an expression that looks at nothing of the
//! single tensor is worked out once for a model, another once for each combination of the values
//! that it looks at.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use cel::{Context, Value};

use crate::dtype::Dtype;
use crate::expr;
pub use crate::expr::BadExpr;

/// What an expression may look at of the single tensor, besides the model's own values.
pub const TENSOR_VARIABLES: [&str; 5] = ["layer", "shape", "dtype", "elements", "rank"];

/// What an expression may look at of the model and the request, besides `let` values.
pub const MODEL_VARIABLES: [&str; 5] = ["config", "template", "role", "requested", "parser"];

/// A compiled expression.
#[derive(Debug)]
pub struct Expr {
    expr: expr::Expr,
    /// The tensor variables it looks at, by position in [`TENSOR_VARIABLES`].
    looks_at: [bool; TENSOR_VARIABLES.len()],
}

/// An expression (by address) and the values that it looked at.
type MemoKey = (usize, Option<i64>, Option<Vec<u64>>, Option<Dtype>);

impl Expr {
    /// Compiles `source`; `names` are the variables it may use besides those of this module.
    pub fn compile<'a>(
        source: &str,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<Expr, BadExpr> {
        let expr = expr::Expr::compile(source)?;
        let known = || {
            let own = TENSOR_VARIABLES.into_iter().chain(MODEL_VARIABLES).chain(["n"]);
            own.chain(names.clone().map(|name| -> &str { name }))
        };
        for name in expr.names() {
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
        let looks_at = TENSOR_VARIABLES.map(|name| expr.names().contains(name));
        Ok(Expr { expr, looks_at })
    }

    /// The expression as written.
    pub fn source(&self) -> &str {
        self.expr.source()
    }

    /// The dotted paths that it looks up.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.expr.paths().into_iter()
    }

    /// Whether its value is the same for every tensor of a model.
    pub fn is_constant(&self) -> bool {
        self.looks_at.iter().all(|looks| !looks)
    }

    /// Whether it uses the variable or function.
    pub fn uses(&self, name: &str) -> bool {
        self.expr.uses(name)
    }

    /// Its value for a tensor of the scope's model; `None` when it is null or worked out from what
    /// is not there.
    pub fn value(&self, scope: &Scope, tensor: &TensorView) -> Result<Option<Value>, String> {
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
        let value = self.expr.value(&context);
        scope.memo.borrow_mut().insert(key, value.clone());
        value
    }

    /// Its value as a condition; one without a value does not hold.
    pub fn holds(&self, scope: &Scope, tensor: &TensorView) -> Result<bool, String> {
        match self.value(scope, tensor)? {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(value),
            Some(other) => Err(format!("it gives {} and not true or false", expr::kind(&other))),
        }
    }
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
    memo: RefCell<HashMap<MemoKey, Result<Option<Value>, String>>>,
}

impl Scope {
    /// A scope with lathe's functions (of which `schedule` says whether the schedule of that name
    /// picks layer `layer` of `n`) and the model's `config`, `template`, `role` and so on.
    pub fn new(
        variables: impl IntoIterator<Item = (String, serde_json::Value)>,
        schedule: impl Fn(&str, i64, i64) -> bool + Send + Sync + 'static,
    ) -> Scope {
        let mut context = expr::context();
        for (name, value) in variables {
            context.add_variable_from_value(name, expr::from_config(&value));
        }
        let schedule = move |name: Arc<String>, layer: i64, n: i64| schedule(&name, layer, n);
        // The name is not CEL's own, so adding it cannot fail.
        let _ = context.add_function("schedule", schedule);
        Scope { context, memo: RefCell::default() }
    }

    /// Adds a variable, or gives it another value.
    pub fn set(&mut self, name: &str, value: &serde_json::Value) {
        self.memo.borrow_mut().clear();
        self.context.add_variable_from_value(name, expr::from_config(value));
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
