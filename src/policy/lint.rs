//! Linting: a policy in, what is probably not meant by it out.
//!
//! A fault stops a policy from loading; a finding does not. Each has a stable code, points at its
//! place and says how to mend it.

mod decoder;
mod globs;
mod sarif;

pub use sarif::sarif;

use std::collections::HashSet;
use std::sync::Arc;

use serde::Serialize;

use super::compile::{CompiledRule, Policy, Rung, Section};
use super::expr::{Expr, Scope, TensorView};
use super::file::{Choice, FitValue, LetValue, PolicyFile, Rule};
use super::library::{Entry, Library};
use super::parsers::Answers;
use super::schedule::picker;
use crate::document::Step;
use crate::dtype::Dtype;
use crate::fault::{Faults, Place};
use crate::format::Formats;
use crate::path;

macro_rules! lints {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $severity:ident;)+) => {
        /// What a finding is about; the codes are stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Lint { $($(#[doc = $doc])+ $name,)+ }

        impl Lint {
            /// All of them.
            pub const ALL: &'static [Lint] = &[$(Lint::$name,)+];

            /// The code as printed.
            pub const fn code(self) -> &'static str {
                match self { $(Lint::$name => $text,)+ }
            }

            /// How bad it is.
            pub const fn severity(self) -> Severity {
                match self { $(Lint::$name => Severity::$severity,)+ }
            }

            /// What it means, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Lint::$name => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

lints! {
    /// Every tensor that the rule could match is taken by a rule before it.
    ShadowedRule = "shadowed-rule", Error;
    /// The glob can match no tensor name.
    ImpossibleGlob = "impossible-glob", Error;
    /// The set is used by no rule.
    UnusedSet = "unused-set", Warning;
    /// The value is used by no expression.
    UnusedValue = "unused-value", Warning;
    /// The schedule is used by no expression.
    UnusedSchedule = "unused-schedule", Warning;
    /// The expression of the decoder cannot be understood.
    BadExpression = "bad-expression", Error;
    /// No activation, no score of a router or no kind of rotation has this name.
    UnknownWord = "unknown-word", Error;
    /// No tensor can have this name.
    ImpossibleName = "impossible-name", Error;
    /// The expression does not give true or false where it must.
    ExpressionType = "expression-type", Error;
    /// The step of the ladder can never be reached.
    UnreachableRung = "unreachable-rung", Error;
    /// No config that is known has this path.
    UnknownConfigPath = "unknown-config-path", Warning;
    /// Another policy claims the same architecture.
    AmbiguousMatch = "ambiguous-match", Warning;
    /// No parser of answers has this name.
    UnknownParser = "unknown-parser", Warning;
    /// No such capability is known.
    UnknownCapability = "unknown-capability", Warning;
    /// The policy extends nothing, so nothing guards its tensors.
    NoParent = "no-parent", Warning;
    /// The rule does not say why.
    NoReason = "no-reason", Warning;
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The policy does something that nobody can mean.
    Error,
    /// The policy may do what is meant, but reads as if not.
    Warning,
}

/// A finding.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What it is about.
    pub lint: Lint,
    /// What is wrong, in one sentence.
    pub message: String,
    /// How to mend it.
    pub help: String,
    /// Where.
    pub place: Place,
}

/// Lints one policy of a library.
///
/// # Errors
/// What keeps the policy from compiling.
pub fn lint(library: &Library, entry: &Arc<Entry>) -> Result<Vec<Finding>, Faults> {
    let policy = library.compile(entry)?;
    let mut linter = Linter { library, entry, policy: &policy, findings: Vec::new() };
    linter.rules();
    linter.names();
    linter.expressions();
    linter.config_paths();
    linter.decoder();
    linter.matches();
    linter.facts();
    linter.findings.sort_by_key(|finding| finding.place.span.start);
    Ok(linter.findings)
}

struct Linter<'a> {
    library: &'a Library,
    entry: &'a Arc<Entry>,
    policy: &'a Policy,
    findings: Vec<Finding>,
}

impl Linter<'_> {
    fn find(&mut self, lint: Lint, at: &[Step], message: String, help: impl Into<String>) {
        let document = &self.entry.document;
        let place = Place { text: document.text.clone(), span: document.root.span_at(at) };
        self.findings.push(Finding { lint, message, help: help.into(), place });
    }

    fn rules(&mut self) {
        let policy = self.policy;
        for (index, rule) in policy.rules.iter().enumerate() {
            if rule.file != 0 {
                continue;
            }
            let (section, at) = rule.place;
            let place = path![section.key(), at];
            for &id in &rule.matches {
                let glob = policy.patterns.source(id);
                if let Some(why) = globs::impossible(glob) {
                    let message = format!("`{glob}` can match no tensor: {why}");
                    self.find(Lint::ImpossibleGlob, place, message, "mend or remove the glob");
                }
            }
            if let Some(by) = self.shadow(index, rule) {
                let message = format!("rule `{}` is shadowed by `{}`", rule.info.id, by.info.id);
                let help = format!(
                    "`{}` ({}:{}) takes every tensor that this rule names: move this rule before \
                     it, or narrow it",
                    by.info.id, by.info.file, by.info.line
                );
                self.find(Lint::ShadowedRule, place, message, help);
            }
            if rule.info.because.is_empty() {
                let message = format!("rule `{}` does not say why", rule.info.id);
                self.find(Lint::NoReason, place, message, "add `because:` for who reads the plan");
            }
            for (rung, why) in unreachable(&rule.ladder) {
                let place = path![section.key(), at, "format", rung];
                self.find(Lint::UnreachableRung, place, why, "remove it, or put it first");
            }
        }
    }

    /// The earlier rule that takes all that `rule` names, when one does. Names are made from the
    /// rule's globs; a rule is shadowed when an earlier one without a condition takes each.
    fn shadow(&self, index: usize, rule: &CompiledRule) -> Option<&CompiledRule> {
        let policy = self.policy;
        let mut hits = Vec::new();
        let mut names = Vec::new();
        for &id in &rule.matches {
            for name in globs::witnesses(policy.patterns.source(id)) {
                policy.patterns.matches(&name, &mut hits);
                if !rule.except.iter().any(|&id| hits[id]) {
                    names.push(name);
                }
            }
        }
        if names.is_empty() {
            return None;
        }
        policy.rules[..index].iter().find(|earlier| {
            let same_condition = match (&earlier.when, &rule.when) {
                (None, _) => true,
                (Some(earlier), Some(later)) => earlier.source() == later.source(),
                (Some(_), None) => false,
            };
            same_condition
                && (earlier.place.0 != Section::Drafts || rule.place.0 == Section::Drafts)
                && names.iter().all(|name| {
                    policy.patterns.matches(name, &mut hits);
                    earlier.matches.iter().any(|&id| hits[id])
                        && !earlier.except.iter().any(|&id| hits[id])
                })
        })
    }

    /// Sets, values and schedules that nothing uses: neither this file, nor one that extends it, nor
    /// one that it extends, whose own of that name it takes the place of.
    fn names(&mut self) {
        let entry = self.entry.clone();
        let chains = self.library.iter().filter_map(|other| self.library.chain(other).ok());
        let chains =
            chains.filter(|chain| chain.iter().any(|link| link.file.name == entry.file.name));
        let users: Vec<Arc<Entry>> = chains.flatten().chain([entry.clone()]).collect();
        for name in entry.file.sets.keys() {
            let used = |rule: &Rule| {
                rule.matches.list().contains(name) || rule.except.list().contains(name)
            };
            if !users.iter().any(|user| all_rules(&user.file).any(used)) {
                let message = format!("no rule uses the set `{name}`");
                self.find(Lint::UnusedSet, path!["sets", name.as_str()], message, "remove it");
            }
        }
        let expressions: Vec<String> =
            users.iter().flat_map(|user| expressions(&user.file).map(|(_, text)| text)).collect();
        for name in entry.file.values.keys() {
            let used = |text: &String| {
                let inherited = self.policy.values.keys().map(String::as_str);
                Expr::compile(text, inherited.chain(all_values(&users)))
                    .is_ok_and(|expr| expr.uses(name))
            };
            let in_decoder = users.iter().any(|user| {
                let mut exprs = user.file.decoder.iter().flat_map(decoder::expressions);
                exprs.any(|expr| expr.uses(name))
            });
            if !expressions.iter().any(used) && !in_decoder {
                let message = format!("no expression uses the value `{name}`");
                self.find(Lint::UnusedValue, path!["let", name.as_str()], message, "remove it");
            }
        }
        for name in entry.file.schedules.keys() {
            if !expressions.iter().any(|text| {
                text.contains(&format!("schedule(\"{name}\""))
                    || text.contains(&format!("schedule('{name}'"))
            }) {
                let message = format!("no expression uses the schedule `{name}`");
                let place = path!["schedules", name.as_str()];
                self.find(Lint::UnusedSchedule, place, message, "remove it");
            }
        }
    }

    /// Conditions give true or false: they are tried with plausible values.
    fn expressions(&mut self) {
        let mut scope = Scope::new(
            [
                ("config".into(), serde_json::json!({})),
                ("template".into(), "".into()),
                ("role".into(), "target".into()),
                (
                    "requested".into(),
                    serde_json::json!({"name": "int4", "bits": 4, "group": 64, "family": "affine"}),
                ),
                (
                    "parser".into(),
                    serde_json::json!({"name": "", "thinking": false, "tools": false}),
                ),
            ],
            picker(&self.policy.schedules),
        );
        for name in self.policy.values.keys() {
            scope.set(name, &1.into());
        }
        let shape = [4096, 4096];
        let tensor = TensorView { layer: 1, shape: &shape, dtype: Dtype::BF16 };
        let names: Vec<String> = self.policy.values.keys().cloned().collect();
        let conditions: Vec<(Vec<Step>, String)> = expressions(&self.entry.file)
            .filter(|(at, _)| at.last() != Some(&"default".into()))
            .collect();
        for (at, text) in conditions {
            let Ok(expr) = Expr::compile(&text, names.iter().map(String::as_str)) else { continue };
            // What fails on an empty config is not a matter of types.
            let wrong = match expr.value(&scope, &tensor) {
                Ok(Some(cel::Value::Bool(_)) | None) => None,
                Ok(Some(other)) => Some(format!("gives {}", crate::expr::kind(&other))),
                Err(error) if error.contains("does not take") => Some(format!("fails: {error}")),
                Err(_) => None,
            };
            if let Some(wrong) = wrong {
                let message = format!("a condition gives true or false, and this {wrong}");
                self.find(Lint::ExpressionType, &at, message, "compare it with something");
            }
        }
    }

    /// Paths into the config that no known config has.
    fn config_paths(&mut self) {
        let known = known_config_paths();
        let entry = self.entry.clone();
        for (name, value) in &entry.file.values {
            let (paths, long) = match value {
                LetValue::Path(path) => (std::slice::from_ref(path), false),
                LetValue::Paths(paths) => (paths.as_slice(), false),
                LetValue::Full(full) => (full.from.as_slice(), true),
            };
            for (index, path) in paths.iter().enumerate() {
                let place = match long {
                    true => path!["let", name.as_str(), "from", index].to_vec(),
                    false => path!["let", name.as_str(), index].to_vec(),
                };
                self.config_path(&place, path, &known);
            }
        }
        for (index, rule) in entry.file.fit.iter().enumerate() {
            for (key, value) in [("draft", &rule.draft), ("target", &rule.target)] {
                let paths = match value {
                    FitValue::One(path) => std::slice::from_ref(path),
                    FitValue::Many(paths) => paths,
                    FitValue::Axis { .. } => &[],
                };
                for path in paths {
                    self.config_path(path!["fit", index, key], path, &known);
                }
            }
        }
        for (at, text) in expressions(&entry.file).collect::<Vec<_>>() {
            for path in mentioned_paths(&text) {
                self.config_path(&at, &path, &known);
            }
        }
    }

    fn config_path(&mut self, at: &[Step], path: &str, known: &HashSet<&'static str>) {
        if known.contains(path) {
            return;
        }
        let near = crate::format::nearest(path, known.iter().copied());
        let help = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => "if a model has it, add it to policies/known/config-keys.txt".into(),
        };
        self.find(Lint::UnknownConfigPath, at, format!("no known config has `{path}`"), help);
    }

    /// Names of parsers and capabilities, and whether there are guards at all.
    fn facts(&mut self) {
        let file = self.entry.file.clone();
        let carried = Answers::built_in().unwrap_or_default();
        let parsers: Vec<&str> = carried.iter().flat_map(Answers::names).collect();
        let named: Vec<(Vec<Step>, &str)> = match &file.parser {
            None => Vec::new(),
            Some(Choice::Always(name)) => vec![(path!["parser"].to_vec(), name)],
            Some(Choice::Cases(cases)) => (cases.iter().enumerate())
                .map(|(index, case)| (path!["parser", index, "use"].to_vec(), case.name.as_str()))
                .collect(),
        };
        for (at, name) in named {
            if !parsers.contains(&name) {
                let message = format!("no parser is named `{name}`");
                let help = near(name, &parsers);
                self.find(Lint::UnknownParser, &at, message, help);
            }
        }
        // Capabilities that are known are those of the built-in policies.
        let library = self.library;
        let built_in = || library.iter().filter(|entry| entry.built_in);
        let known = || built_in().flat_map(|entry| entry.file.capabilities.keys());
        for name in file.capabilities.keys() {
            if !self.entry.built_in && !known().any(|other| other == name) {
                let message = format!("no capability is named `{name}`");
                let help = near(name, &known().map(String::as_str).collect::<Vec<_>>());
                let at = path!["capabilities", name.as_str()];
                self.find(Lint::UnknownCapability, at, message, help);
            }
        }
        if file.extends.is_none() && file.guards.is_empty() {
            let message =
                "the policy extends nothing, so biases, norms and routers are not guarded";
            self.find(Lint::NoParent, path!["name"], message.into(), "add `extends: base`");
        }
    }

    fn matches(&mut self) {
        let Some(matches) = self.entry.file.matches.clone() else { return };
        let lists =
            [("architectures", &matches.architectures), ("model_types", &matches.model_types)];
        for (key, names) in lists {
            for (index, name) in names.iter().enumerate() {
                let other = self.library.iter().find(|other| {
                    other.file.name != self.entry.file.name
                        && other.file.role == self.entry.file.role
                        && other.file.matches.as_ref().is_some_and(|m| {
                            let mut all = m.architectures.iter().chain(&m.model_types);
                            all.any(|known| known.eq_ignore_ascii_case(name))
                        })
                });
                if let Some(other) = other {
                    let message = format!("policy `{}` claims {name} too", other.file.name);
                    let help = "leave it to one of them: the one read last wins";
                    self.find(Lint::AmbiguousMatch, path!["match", key, index], message, help);
                }
            }
        }
    }
}

/// Steps of a ladder that cannot be reached for any format that can be asked for, and why.
fn unreachable(ladder: &[Rung]) -> Vec<(usize, String)> {
    let formats = Formats::built_in();
    let group = |rung: &Rung, requested: &crate::format::Format| match rung {
        Rung::Requested => Some(requested.group),
        Rung::EightBit => formats.get(&requested.eight_bit).map(|format| format.group),
        Rung::Named(format) => Some(format.group),
        Rung::Source => None,
    };
    let mut out = Vec::new();
    for later in 1..ladder.len() {
        let blocks = |earlier: &Rung| match earlier {
            Rung::Source => true,
            earlier => formats.iter().all(|requested| {
                match (group(earlier, requested), group(&ladder[later], requested)) {
                    // What the later group divides, the earlier one divides too.
                    (Some(earlier), Some(later)) => later % earlier == 0,
                    _ => false,
                }
            }),
        };
        if ladder[..later].iter().any(blocks) {
            let why = "whenever this step fits, one before it fits already".to_string();
            out.push((later, why));
        }
    }
    out
}

fn near(name: &str, known: &[&str]) -> String {
    match crate::format::nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known are {}", known.join(", ")),
    }
}

fn all_rules(file: &PolicyFile) -> impl Iterator<Item = &Rule> {
    file.guards.iter().chain(&file.drafts).chain(&file.tensors)
}

fn all_values(users: &[Arc<Entry>]) -> impl Iterator<Item = &str> + Clone {
    users.iter().flat_map(|user| user.file.values.keys().map(String::as_str))
}

/// Every expression of a file and where it stands.
fn expressions(file: &PolicyFile) -> impl Iterator<Item = (Vec<Step>, String)> {
    let mut out: Vec<(Vec<Step>, String)> = Vec::new();
    let sections = [("guards", &file.guards), ("drafts", &file.drafts), ("tensors", &file.tensors)];
    for (section, rules) in sections {
        for (index, rule) in rules.iter().enumerate() {
            if let Some(when) = &rule.when {
                out.push((path![section, index, "when"].to_vec(), when.clone()));
            }
        }
    }
    for (index, rule) in file.drop.iter().enumerate() {
        if let Some(when) = &rule.when {
            out.push((path!["drop", index, "when"].to_vec(), when.clone()));
        }
    }
    for (name, text) in &file.capabilities {
        out.push((path!["capabilities", name.as_str()].to_vec(), text.clone()));
    }
    for (key, choice) in [("parser", &file.parser), ("renderer", &file.renderer)] {
        if let Some(Choice::Cases(cases)) = choice {
            for (index, case) in cases.iter().enumerate() {
                if let Some(when) = &case.when {
                    out.push((path![key, index, "when"].to_vec(), when.clone()));
                }
            }
        }
    }
    for (name, value) in &file.values {
        if let LetValue::Full(full) = value
            && let Some(super::file::Scalar::Text(text)) = &full.default
        {
            out.push((path!["let", name.as_str(), "default"].to_vec(), text.clone()));
        }
    }
    out.into_iter()
}

/// The paths that an expression reads from `config`: `config.a.b` gives `a.b`.
fn mentioned_paths(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    for (start, _) in text.match_indices("config.") {
        let inside = text[..start]
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '.');
        let rest = &text[start + "config.".len()..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '.');
        let path = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
        if !inside && !path.is_empty() {
            out.push(path.to_string());
        }
    }
    out
}

/// The paths that configs of published models have.
fn known_config_paths() -> HashSet<&'static str> {
    include_str!("../../policies/known/config-keys.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .collect()
}

/// Findings as JSON.
#[derive(Serialize)]
pub struct FindingJson<'a> {
    code: &'static str,
    severity: Severity,
    message: &'a str,
    help: &'a str,
    file: &'a str,
    line: usize,
    column: usize,
}

impl Finding {
    /// Line and column, from 1.
    pub fn position(&self) -> (usize, usize) {
        self.place.text.line_column(self.place.span.start)
    }

    /// The form that scripts read.
    pub fn json(&self) -> FindingJson<'_> {
        let (line, column) = self.position();
        FindingJson {
            code: self.lint.code(),
            severity: self.lint.severity(),
            message: &self.message,
            help: &self.help,
            file: &self.place.text.name,
            line,
            column,
        }
    }
}

#[cfg(test)]
mod tests;
