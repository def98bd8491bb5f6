//! Deciding: a compiled policy, a model and a request in; for each tensor the first rule that
//! matches, and the step of its ladder that fits, out.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::compile::{CompiledRule, Policy, Rung, Section};
use super::expr::{Scope, TensorView};
use super::file::Role;
use super::parsers;
use super::pattern::GlobId;
use super::schedule::picker;
use crate::dtype::Dtype;
use crate::fault::{Code, Fault, Faults};
use crate::format::Format;
use crate::format::Formats;
use crate::rule::RuleRef;

/// What a policy may know of a model.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    /// config.json.
    pub config: &'a Value,
    /// The chat template, when there is one.
    pub template: Option<&'a str>,
    /// Whether it is planned as a draft.
    pub role: Role,
}

/// A policy bound to a model and a requested format.
pub struct Decider<'p> {
    policy: &'p Policy,
    scope: Scope,
    role: Role,
    requested: Option<&'static Format>,
    hits: Vec<bool>,
}

/// What was decided about a tensor.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The rule.
    pub rule: Arc<RuleRef>,
    /// Index into [`Policy::rules`]; `None` when no rule matched.
    pub index: Option<usize>,
    /// The format; `None` for source precision.
    pub format: Option<&'static Format>,
    /// Steps of the ladder that did not fit.
    pub misfits: Vec<Misfit>,
}

/// A step of a ladder that was not taken.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Misfit {
    /// The format.
    pub format: String,
    /// Its group.
    pub group: u64,
    /// The last axis, which the group does not divide.
    pub last_axis: u64,
}

/// How a rule fared against a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// None of its globs matches the name.
    NoGlob,
    /// This glob of `except` matches the name.
    Excepted(GlobId),
    /// The condition does not hold.
    WhenFalse,
    /// It is for drafts, and this is none.
    NotADraft,
    /// It decides.
    Matched(GlobId),
}

impl<'p> Decider<'p> {
    /// Binds a policy to a model and a requested format.
    pub fn new(
        policy: &'p Policy,
        model: Model,
        requested: Option<&'static Format>,
    ) -> Result<Decider<'p>, Faults> {
        let mut faults = Faults::default();
        let mut scope = Scope::new(
            [
                ("config".to_string(), model.config.clone()),
                ("template".to_string(), model.template.unwrap_or_default().into()),
                ("role".to_string(), role_name(model.role).into()),
                ("requested".to_string(), requested_value(requested)),
            ],
            picker(&policy.schedules),
        );
        let mut values: HashMap<&str, Value> = HashMap::new();
        for (name, value) in &policy.values {
            let found = value.paths.iter().find_map(|path| {
                let found = lookup(model.config, path)?;
                (!found.is_null() && found.as_f64() != Some(0.0)).then_some((path, found))
            });
            let result = match (found, &value.default) {
                (Some((path, found)), _) => whole(path, found),
                (None, Some(default)) => default
                    .value(&scope, &TensorView::NONE)
                    .map_err(|error| bad_value(name, &error))
                    .and_then(|v| match v {
                        None => Ok(0.into()),
                        Some(v) => v.json().map_err(|error| bad_value(name, &error.to_string())),
                    }),
                (None, None) => Ok(0.into()),
            };
            match result {
                Ok(value) => {
                    scope.set(name, &value);
                    values.insert(name, value);
                }
                Err(fault) => faults.push(fault),
            }
        }
        let hits = Vec::new();
        faults.or(Decider { policy, scope, role: model.role, requested, hits })
    }

    /// Decides about a tensor of the model. Without a requested format every quantizing rung is
    /// passed over.
    pub fn decide(&mut self, name: &str, shape: &[u64], dtype: Dtype) -> Result<Decision, Fault> {
        self.decide_watched(name, shape, dtype, |_, _| {})
    }

    /// As [`Decider::decide`], telling how each rule fared that was tried, in order.
    pub fn decide_watched(
        &mut self,
        name: &str,
        shape: &[u64],
        dtype: Dtype,
        mut watch: impl FnMut(usize, &Outcome),
    ) -> Result<Decision, Fault> {
        let mut hits = std::mem::take(&mut self.hits);
        let known = self.policy.known_as(name);
        self.policy.patterns.matches(&known, &mut hits);
        let tensor = TensorView { layer: layer_of(&known), shape, dtype };
        let mut decision = None;
        for (index, rule) in self.policy.rules.iter().enumerate() {
            let outcome = self.outcome(rule, &hits, &tensor, name)?;
            watch(index, &outcome);
            if let Outcome::Matched(_) = outcome {
                decision = Some(self.take(rule, index, shape));
                break;
            }
        }
        self.hits = hits;
        match decision {
            Some(decision) => Ok(decision),
            None if self.policy.strict => Err(Fault::new(
                Code::Uncovered,
                format!("no rule of the strict policy {} covers this tensor", self.policy.name),
            )
            .on_tensor(name)
            .help("add a rule for it, or remove `strict`")),
            None => Ok(Decision {
                rule: no_rule(&self.policy.name),
                index: None,
                format: None,
                misfits: Vec::new(),
            }),
        }
    }

    fn outcome(
        &self,
        rule: &CompiledRule,
        hits: &[bool],
        tensor: &TensorView,
        name: &str,
    ) -> Result<Outcome, Fault> {
        let Some(&glob) = rule.matches.iter().find(|&&id| hits[id]) else {
            return Ok(Outcome::NoGlob);
        };
        if rule.place.0 == Section::Drafts && self.role != Role::Draft {
            return Ok(Outcome::NotADraft);
        }
        if let Some(&id) = rule.except.iter().find(|&&id| hits[id]) {
            return Ok(Outcome::Excepted(id));
        }
        if let Some(when) = &rule.when {
            let holds = when.holds(&self.scope, tensor).map_err(|error| {
                let entry = &self.policy.chain[rule.file];
                let (section, index) = rule.place;
                let place = crate::path![section.key(), index, "when"];
                entry
                    .document
                    .fault(Code::PolicyExpression, place, format!("the condition fails: {error}"))
                    .on_tensor(name)
            })?;
            if !holds {
                return Ok(Outcome::WhenFalse);
            }
        }
        Ok(Outcome::Matched(glob))
    }

    /// Takes the first step of the rule's ladder that fits.
    fn take(&self, rule: &CompiledRule, index: usize, shape: &[u64]) -> Decision {
        let mut misfits = Vec::new();
        let mut format = None;
        for rung in &rule.ladder {
            let candidate = match rung {
                Rung::Source => break,
                Rung::Requested => self.requested,
                Rung::EightBit => self.requested.and_then(eight_bit),
                Rung::Named(named) => self.requested.and(Some(*named)),
            };
            let Some(candidate) = candidate else { continue };
            if candidate.fits(shape) {
                format = Some(candidate);
                break;
            }
            misfits.push(Misfit {
                format: candidate.name.clone(),
                group: candidate.group,
                last_axis: shape.last().copied().unwrap_or(0),
            });
        }
        Decision { rule: rule.info.clone(), index: Some(index), format, misfits }
    }

    /// What the model can do, in the policy's order.
    pub fn capabilities(&mut self, parser: Option<&str>) -> Result<Vec<String>, Fault> {
        self.scope.set("parser", &parsers::describe(parser, &self.policy.parsers));
        let mut out = Vec::new();
        for (name, expr) in &self.policy.capabilities {
            let holds = expr.holds(&self.scope, &TensorView::NONE).map_err(|error| {
                Fault::new(
                    Code::PolicyExpression,
                    format!(
                        "{}: the condition of capability {name} fails: {error}",
                        self.policy.name
                    ),
                )
            })?;
            if holds {
                out.push(name.clone());
            }
        }
        Ok(out)
    }

    /// The least version of the runtime.
    pub fn requires(&self) -> Option<String> {
        self.policy.requires.clone()
    }

    /// The parser's name.
    pub fn parser(&self) -> Result<Option<String>, Fault> {
        self.choose(&self.policy.parser)
    }

    /// The renderer's name.
    pub fn renderer(&self) -> Result<Option<String>, Fault> {
        self.choose(&self.policy.renderer)
    }

    fn choose(
        &self,
        cases: &[(Option<super::expr::Expr>, String)],
    ) -> Result<Option<String>, Fault> {
        for (when, name) in cases {
            let holds = match when {
                None => true,
                Some(when) => when.holds(&self.scope, &TensorView::NONE).map_err(|error| {
                    let message =
                        format!("{}: the condition of {name} fails: {error}", self.policy.name);
                    Fault::new(Code::PolicyExpression, message)
                })?,
            };
            if holds {
                return Ok(Some(name.clone()));
            }
        }
        Ok(None)
    }

    /// Which drop rule, if any, keeps the tensor out.
    pub fn dropped(&mut self, name: &str) -> Result<Option<Arc<RuleRef>>, Fault> {
        if self.policy.drops.is_empty() {
            return Ok(None);
        }
        let mut hits = std::mem::take(&mut self.hits);
        self.policy.patterns.matches(&self.policy.known_as(name), &mut hits);
        let mut found = None;
        for rule in &self.policy.drops {
            if !rule.matches.iter().any(|&id| hits[id]) || rule.except.iter().any(|&id| hits[id]) {
                continue;
            }
            let holds = match &rule.when {
                None => true,
                Some(when) => when.holds(&self.scope, &TensorView::NONE).map_err(|error| {
                    Fault::new(Code::PolicyExpression, format!("drop {}: {error}", rule.info.id))
                })?,
            };
            if holds {
                found = Some(rule.info.clone());
                break;
            }
        }
        self.hits = hits;
        Ok(found)
    }
}

fn eight_bit(format: &'static Format) -> Option<&'static Format> {
    Formats::built_in().get(&format.eight_bit)
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Target => "target",
        Role::Draft => "draft",
    }
}

fn requested_value(requested: Option<&Format>) -> Value {
    match requested {
        Some(format) => serde_json::json!({
            "name": format.name,
            "bits": format.bits,
            "group": format.group,
            "family": format.mode.family(),
        }),
        None => serde_json::json!({"name": "", "bits": 0, "group": 0, "family": ""}),
    }
}

/// The value at a dotted path of a config; keys in any case, exact ones first.
pub fn lookup<'v>(config: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(config, |value, key| {
        let object = value.as_object()?;
        object.get(key).or_else(|| {
            object.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value)
        })
    })
}

/// Numbers of a config that rules count with are whole: 128.0 is 128, and 8.5 layers are a fault.
fn whole(path: &str, value: &Value) -> Result<Value, Fault> {
    match value {
        Value::Number(number) if number.as_i64().is_none() => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < 9e15 => Ok((float as i64).into()),
            _ => Err(Fault::new(Code::BadValue, format!("{path} is {number}, not a whole number"))
                .in_file("config.json")),
        },
        other => Ok(other.clone()),
    }
}

fn bad_value(name: &str, error: &str) -> Fault {
    Fault::new(Code::BadValue, format!("the default of `{name}` cannot be worked out: {error}"))
}

fn no_rule(policy: &str) -> Arc<RuleRef> {
    Arc::new(RuleRef {
        id: "no-rule".into(),
        file: policy.into(),
        line: 0,
        because: "no rule of the policy matches it".into(),
    })
}

/// The number after the first `layers` segment that has a segment before it; −1 without one.
pub fn layer_of(name: &str) -> i64 {
    let mut segments = name.split('.').skip(1);
    while let Some(segment) = segments.next() {
        if segment == "layers" {
            return match segments.next().map(str::parse) {
                Some(Ok(layer)) => layer,
                _ => -1,
            };
        }
    }
    -1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_needs_a_segment_before_it() {
        assert_eq!(layer_of("model.layers.12.mlp.up_proj.weight"), 12);
        assert_eq!(layer_of("layers.3.mlp.up_proj.weight"), -1);
        assert_eq!(layer_of("model.layers.x.weight"), -1);
        assert_eq!(layer_of("model.norm.weight"), -1);
    }

    #[test]
    fn config_keys_are_found_in_any_case_and_numbers_are_whole() {
        let config = serde_json::json!({"Text_Config": {"n": 128.0, "bad": 8.5}});
        let n = lookup(&config, "text_config.n").unwrap();
        assert_eq!(whole("n", n).unwrap(), serde_json::json!(128));
        let bad = lookup(&config, "text_config.bad").unwrap();
        assert!(whole("text_config.bad", bad).unwrap_err().message.contains("8.5"));
    }
}
