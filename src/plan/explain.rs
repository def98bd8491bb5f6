//! Explaining a plan: for each tensor the rules that were tried, in order, and how each fared.

use std::sync::Arc;

use serde::Serialize;

use super::RuleRef;
use super::make::Stock;
use super::route::{Ask, Deciders, quantized};
use super::stack::pieces;
use crate::fault::Faults;
use crate::format::{Format, SOURCE};
use crate::policy::decide::{Misfit, Outcome};
use crate::policy::{Decider, Model, Role, pattern};

/// How it came that a tensor gets its format.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Output name, without a draft's prefix.
    pub tensor: String,
    /// Its layout.
    pub layout: Arc<str>,
    /// Logical shape.
    pub shape: Vec<u64>,
    /// How many experts were stacked into it; 0 for none.
    pub stacked: usize,
    /// The format, or `source`.
    pub format: String,
    /// The rule that decided.
    pub rule: Arc<RuleRef>,
    /// Steps of the rule's ladder that did not fit, before the one that was taken.
    pub misfits: Vec<Misfit>,
    /// The rules that were tried before it and on it, in order.
    pub trials: Vec<Trial>,
}

/// How one rule fared.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// The rule.
    pub rule: Arc<RuleRef>,
    /// `no-glob`, `excepted`, `when-false`, `not-a-draft` or `matched`.
    pub outcome: &'static str,
    /// The glob or the condition that was decisive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Explains every tensor of a folder whose output name a glob matches.
///
/// # Errors
/// A bad glob, and what planning finds.
pub fn explain(
    stock: Stock,
    role: Role,
    format: Option<&'static Format>,
    glob: Option<&str>,
) -> Result<Vec<Explanation>, Faults> {
    let wanted = match glob {
        None => None,
        Some(glob) => Some(pattern::compile(glob).map_err(|message| {
            crate::fault::Fault::new(
                crate::fault::Code::PolicyPattern,
                format!("`{glob}` is not a glob: {message}"),
            )
        })?),
    };
    let wanted = wanted.map(|glob| glob.compile_matcher());
    let Stock { inventory, classified, policy } = stock;
    let model =
        Model { config: &inventory.config, template: inventory.chat_template.as_deref(), role };
    let ask = Ask { format, source: false, requantize: true, quantized: quantized(classified) };
    let mut faults = Faults::default();
    let mut plain = Decider::new(policy, model, format)?;
    let mut deciders = Deciders::new(policy, model);
    let pieces = pieces(policy, &mut plain, &classified.weights, &mut faults);
    let mut out = Vec::new();
    for piece in &pieces {
        if wanted.as_ref().is_some_and(|glob| !glob.is_match(piece.name.replace('.', "/"))) {
            continue;
        }
        let first = piece.members[0];
        let shape = piece.shape();
        let route = ask.route(&first.kind);
        let mut explanation = Explanation {
            tensor: piece.name.clone(),
            layout: first.layout.clone(),
            shape: shape.clone(),
            stacked: if piece.group.is_some() { piece.members.len() } else { 0 },
            format: SOURCE.into(),
            rule: route.reason(),
            misfits: Vec::new(),
            trials: Vec::new(),
        };
        if let Some(format) = route.wanted() {
            let Some(decider) = deciders.get(format, &mut faults) else { break };
            let trials = &mut explanation.trials;
            let decision =
                decider.decide_watched(&piece.name, &shape, first.dtype, |index, outcome| {
                    let rule = &policy.rules[index];
                    let glob = |id: &usize| Some(policy.patterns.source(*id).to_string());
                    let (outcome, by) = match outcome {
                        Outcome::NoGlob => ("no-glob", None),
                        Outcome::Excepted(id) => ("excepted", glob(id)),
                        Outcome::WhenFalse => {
                            ("when-false", rule.when.as_ref().map(|when| when.source().to_string()))
                        }
                        Outcome::NotADraft => ("not-a-draft", None),
                        Outcome::Matched(id) => ("matched", glob(id)),
                    };
                    trials.push(Trial { rule: rule.info.clone(), outcome, by });
                });
            match decision {
                Ok(decision) => {
                    explanation.rule = decision.rule;
                    explanation.misfits = decision.misfits;
                    if let Some(format) = decision.format {
                        explanation.format = format.name.clone();
                    }
                }
                Err(fault) => faults.push(fault),
            }
        } else if let super::route::Route::Keep(format) = route {
            explanation.format = format.to_string();
        }
        out.push(explanation);
    }
    faults.or(out)
}
