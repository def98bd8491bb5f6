//! What is said of a decoder before anything is written: where it is not exact, and what of the
//! config it does not read.

use serde_json::Value;

use crate::decoder::{Decoder, exact_context, unread};
use crate::fault::{Code, Warning};

/// What to know of a decoder for a model with this config.
pub fn warnings(decoder: &Decoder, config: &Value) -> Vec<Warning> {
    let mut warnings = Vec::new();
    // An expression that fails is told where the model is built.
    if let Ok(Some(tokens)) = exact_context(decoder, config) {
        let message = format!(
            "the decoder of its policy is exact up to {tokens} tokens (`exact_context`): longer \
             prompts will be refused, and answers end there"
        );
        warnings.push(Warning::new(Code::ExactContext, message));
    }
    warnings.extend(unread(decoder, config).into_iter().map(|unread| {
        let message = format!(
            "the decoder of its policy does not read `{}` ({}) of the config: {}; answers may be wrong",
            unread.path, unread.value, unread.because
        );
        Warning::new(Code::UnreadConfig, message)
    }));
    warnings
}
