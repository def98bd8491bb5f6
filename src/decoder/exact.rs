//! Up to how many tokens a decoder computes what the model does.

use cel::Value;
use serde_json::Value as Json;

use super::Decoder;
use crate::expr::Reason;

/// The value of `exact_context`; `None` where the description has none, or the config makes it
/// null or 0.
///
/// # Errors
/// When its expression has no whole number.
pub fn exact_context(decoder: &Decoder, config: &Json) -> Result<Option<usize>, Reason> {
    let Some(expr) = &decoder.exact_context else { return Ok(None) };
    let mut scope = decoder.scope(config);
    for (name, expr) in &decoder.values {
        let value = scope.value(expr)?.unwrap_or(Value::Null);
        scope.set(name, value);
    }
    let tokens = scope.int(expr).map_err(|reason| format!("exact_context: {reason}"))?;
    Ok(tokens.and_then(|tokens| usize::try_from(tokens).ok()).filter(|&tokens| tokens > 0))
}
