//! Routing: what is to become of a weight before any rule is looked at, from its layout and from
//! what was asked for; and the deciders for the formats that rules are asked about.

use std::sync::Arc;

use super::RuleRef;
use crate::classify::{Classified, WeightKind};
use crate::fault::Faults;
use crate::format::{Format, Formats};
use crate::policy::{Decider, Model, Policy};

/// What is asked of a folder.
pub(super) struct Ask {
    /// The format asked for.
    pub format: Option<&'static Format>,
    /// Whether `source` was asked for.
    pub source: bool,
    /// Whether quantized weights may be quantized again.
    pub requantize: bool,
    /// Whether the folder has weights that its producer quantized.
    pub quantized: bool,
}

/// Whether a producer quantized any of the weights.
pub(super) fn quantized(classified: &Classified) -> bool {
    classified.weights.iter().any(|weight| !matches!(weight.kind, WeightKind::Plain(_)))
}

/// What is to become of a weight, before any rule is looked at.
#[derive(Clone, Copy)]
pub(super) enum Route<'w> {
    /// Nothing was asked for.
    NothingAsked,
    /// `source` was asked for.
    Source,
    /// Its producer kept it in higher precision than the rest.
    ProducerKept,
    /// It is in this format, and its bytes are kept.
    Keep(&'w str),
    /// It is in this format, and another was asked for without --requantize.
    Refused(&'w str),
    /// It is decoded, and the policy decides for the format asked for.
    Requantize(&'static Format),
    /// The policy decides for this format.
    Policy(&'static Format),
}

impl Ask {
    pub(super) fn route<'w>(&self, kind: &'w WeightKind) -> Route<'w> {
        match (kind, self.format) {
            (WeightKind::Keep { .. }, Some(format)) if self.requantize => Route::Requantize(format),
            (WeightKind::Keep { format, .. }, Some(_)) => Route::Refused(format),
            (WeightKind::Keep { format, .. }, None) => Route::Keep(format),
            (_, None) if self.source => Route::Source,
            (WeightKind::Plain(_), _) if self.quantized => Route::ProducerKept,
            (_, Some(format)) => Route::Policy(format),
            (WeightKind::Decode { default, .. }, None) => {
                Formats::built_in().get(default).map_or(Route::NothingAsked, Route::Policy)
            }
            (WeightKind::Plain(_), None) => Route::NothingAsked,
        }
    }
}

impl Route<'_> {
    /// The format that the policy decides for, when it does.
    pub(super) fn wanted(&self) -> Option<&'static Format> {
        match self {
            Route::Policy(format) | Route::Requantize(format) => Some(format),
            _ => None,
        }
    }

    /// Why, where no rule decides.
    pub(super) fn reason(&self) -> Arc<RuleRef> {
        match self {
            Route::Source => reason("source", "--quantize source: nothing is quantized"),
            Route::ProducerKept => {
                reason("producer-kept", "its producer kept it in higher precision")
            }
            Route::Keep(format) => reason("kept", &format!("already {format}; its bytes are kept")),
            Route::Refused(format) => {
                reason("refused", &format!("already {format}; only --requantize changes it"))
            }
            _ => reason("nothing-requested", "no format was asked for"),
        }
    }
}

/// Deciders by requested format: a model may ask for what its layouts default to.
pub(super) struct Deciders<'p, 'm> {
    policy: &'p Policy,
    model: Model<'m>,
    made: Vec<(String, Decider<'p>)>,
}

impl<'p, 'm> Deciders<'p, 'm> {
    pub(super) fn new(policy: &'p Policy, model: Model<'m>) -> Self {
        Deciders { policy, model, made: Vec::new() }
    }

    pub(super) fn get(
        &mut self,
        format: &'static Format,
        faults: &mut Faults,
    ) -> Option<&mut Decider<'p>> {
        let key = format.name.clone();
        let at = match self.made.iter().position(|(name, _)| *name == key) {
            Some(at) => at,
            None => {
                let decider = Decider::new(self.policy, self.model, Some(format));
                self.made.push((key, faults.absorb(decider)?));
                self.made.len() - 1
            }
        };
        Some(&mut self.made[at].1)
    }
}

/// A reason of lathe's own, that stands in no policy.
pub(super) fn reason(id: &str, because: &str) -> Arc<RuleRef> {
    Arc::new(RuleRef { id: id.into(), file: "lathe".into(), line: 0, because: because.into() })
}
