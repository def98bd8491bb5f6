//! The rules of a draft's fit, compiled.

use globset::GlobMatcher;

use crate::policy::expr::Expr;
use crate::policy::file::FitValue;
use crate::policy::pattern;

/// A fit rule, ready to be tried.
#[derive(Debug)]
pub struct CompiledFit {
    /// Id, unique in the policy.
    pub id: String,
    /// Where the draft's value is.
    pub draft: CompiledFitValue,
    /// Where the target's value is.
    pub target: CompiledFitValue,
    /// What must hold of `draft` and `target`.
    pub holds: Expr,
    /// The rule is not asked of drafts that have such a tensor.
    pub unless: Option<GlobMatcher>,
    /// Why, for whoever is refused.
    pub because: String,
}

/// Where a value is.
#[derive(Debug)]
pub enum CompiledFitValue {
    /// At the first of these paths of the config that is neither missing nor null.
    Paths(Vec<String>),
    /// The length of an axis of the first tensor that matches.
    Axis(GlobMatcher, usize),
}

impl CompiledFitValue {
    /// The value's place, compiled.
    ///
    /// # Errors
    /// The glob does not compile.
    pub fn compile(value: &FitValue) -> Result<CompiledFitValue, String> {
        Ok(match value {
            FitValue::One(path) => CompiledFitValue::Paths(vec![path.clone()]),
            FitValue::Many(paths) => CompiledFitValue::Paths(paths.clone()),
            FitValue::Axis { tensor, axis } => {
                let glob = pattern::compile(tensor)?;
                CompiledFitValue::Axis(glob.compile_matcher(), *axis)
            }
        })
    }
}
