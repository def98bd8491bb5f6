//! What an expression looks up.

use std::collections::BTreeSet;

use cel::common::ast::{EntryExpr, Expr, LiteralValue, operators};
use cel::parser::Expression;

/// Names, paths and functions of an expression. Variables that macros bind are not among them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Used {
    /// Names, each the beginning of a path.
    pub names: BTreeSet<String>,
    /// Dotted paths from a name on, as long as they go.
    pub paths: BTreeSet<String>,
    /// Functions that are called by name.
    pub functions: BTreeSet<String>,
}

impl Used {
    /// Of an expression that has been parsed.
    pub fn of(expression: &Expression) -> Used {
        let mut used = Used::default();
        used.visit(expression, &mut Vec::new());
        used
    }

    fn visit(&mut self, expression: &Expression, bound: &mut Vec<String>) {
        if let Some(path) = path(expression) {
            let name = path.split('.').next().unwrap_or_default();
            if !name.starts_with('@') && !bound.iter().any(|bound| bound == name) {
                self.names.insert(name.into());
                self.paths.insert(path);
            }
            return;
        }
        match &expression.expr {
            Expr::Call(call) => {
                let name = &call.func_name;
                if name.starts_with(|c: char| c.is_ascii_alphabetic()) {
                    self.functions.insert(name.clone());
                }
                let arguments = call.target.iter().map(|target| &**target).chain(&call.args);
                for argument in arguments {
                    self.visit(argument, bound);
                }
            }
            Expr::Comprehension(loop_) => {
                self.visit(&loop_.iter_range, bound);
                self.visit(&loop_.accu_init, bound);
                let depth = bound.len();
                bound.push(loop_.iter_var.clone());
                bound.extend(loop_.iter_var2.clone());
                bound.push(loop_.accu_var.clone());
                for part in [&loop_.loop_cond, &loop_.loop_step, &loop_.result] {
                    self.visit(part, bound);
                }
                bound.truncate(depth);
            }
            Expr::List(list) => list.elements.iter().for_each(|item| self.visit(item, bound)),
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.visit(&entry.key, bound);
                        self.visit(&entry.value, bound);
                    }
                }
            }
            Expr::Select(select) => self.visit(&select.operand, bound),
            Expr::Struct(_) | Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
        }
    }
}

/// The dotted path that an expression is, where it is one: a name, and keys under it.
fn path(expression: &Expression) -> Option<String> {
    match &expression.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) => Some(format!("{}.{}", path(&select.operand)?, select.field)),
        Expr::Call(call) if call.func_name == operators::INDEX => match call.args.as_slice() {
            [of, key] => match &key.expr {
                Expr::Literal(LiteralValue::String(key)) => {
                    Some(format!("{}.{}", path(of)?, key.inner()))
                }
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}
