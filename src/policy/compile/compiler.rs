//! Compiling: a chain of policy files in, all faults or a [`Policy`] out.

use std::ops::Range;
use std::sync::Arc;

use indexmap::{IndexMap, IndexSet};
use regex::Regex;

use super::fit::{CompiledFit, CompiledFitValue};
use super::{
    CompiledAlias, CompiledDrop, CompiledRule, CompiledStack, CompiledValue, Policy, Rung, Section,
};
use crate::document::Step;
use crate::fault::{Code, Fault, Faults};
use crate::format::Formats;
use crate::path;
use crate::policy::entry::Entry;
use crate::policy::expr::{BadExpr, Expr};
use crate::policy::file::{
    AliasRule, Choice, DropRule, FitRule, LetValue, Rule, Scalar, Several, StackRule,
};
use crate::policy::pattern::{self, GlobId, Patterns, PatternsBuilder};
use crate::policy::schedule::CompiledSchedule;
use crate::rule::RuleRef;

/// What has been compiled so far.
pub(super) struct Compiler<'a> {
    chain: &'a [Arc<Entry>],
    faults: Faults,
    patterns: PatternsBuilder,
    rules: Vec<CompiledRule>,
    stack: Vec<CompiledStack>,
    aliases: Vec<CompiledAlias>,
    drops: Vec<CompiledDrop>,
    fit: Vec<CompiledFit>,
    values: IndexMap<String, CompiledValue>,
    schedules: IndexMap<String, Arc<CompiledSchedule>>,
    capabilities: IndexMap<String, Expr>,
    parser: Option<Vec<(Option<Expr>, String)>>,
    renderer: Option<Vec<(Option<Expr>, String)>>,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(chain: &'a [Arc<Entry>]) -> Self {
        let mut compiler = Compiler {
            chain,
            faults: Faults::default(),
            patterns: PatternsBuilder::default(),
            rules: Vec::new(),
            stack: Vec::new(),
            aliases: Vec::new(),
            drops: Vec::new(),
            fit: Vec::new(),
            values: IndexMap::new(),
            schedules: IndexMap::new(),
            capabilities: IndexMap::new(),
            parser: None,
            renderer: None,
        };
        for file in 0..chain.len() {
            compiler.names(file);
        }
        compiler
    }

    /// Values and schedules: the nearest file's own win over its parents'.
    fn names(&mut self, file: usize) {
        let entry = &self.chain[file];
        for (name, value) in &entry.file.values {
            if self.values.contains_key(name) {
                continue;
            }
            let (paths, default) = match value {
                LetValue::Path(path) => (vec![path.clone()], None),
                LetValue::Paths(paths) => (paths.clone(), None),
                LetValue::Full(full) => (full.from.clone(), full.default.as_ref()),
            };
            let place = path!["let", name.as_str(), "default"];
            let default = default.and_then(|default| {
                let source = match default {
                    Scalar::Bool(value) => value.to_string(),
                    Scalar::Int(value) => value.to_string(),
                    Scalar::Text(text) => text.clone(),
                };
                self.expr(file, place, &source)
            });
            self.values.insert(name.clone(), CompiledValue { paths, default });
        }
        for (name, schedule) in &entry.file.schedules {
            if self.schedules.contains_key(name) {
                continue;
            }
            match CompiledSchedule::compile(schedule) {
                Ok(compiled) => {
                    self.schedules.insert(name.clone(), Arc::new(compiled));
                }
                Err(bad) => {
                    let place = path!["schedules", name.as_str()];
                    self.faults.push(entry.document.fault(
                        Code::PolicyExpression,
                        place,
                        bad.message,
                    ));
                }
            }
        }
    }

    pub(super) fn rules(&mut self, file: usize, section: Section) {
        let entry = self.chain[file].clone();
        let rules: &[Rule] = match section {
            Section::Guards => &entry.file.guards,
            Section::Drafts => &entry.file.drafts,
            Section::Tensors => &entry.file.tensors,
        };
        for (index, rule) in rules.iter().enumerate() {
            let at = |key: &str| vec![section.key().into(), index.into(), key.into()];
            self.unique_id(file, section.key(), index, rules.iter().map(|rule| &rule.id));
            let compiled = CompiledRule {
                info: self.info(file, section.key(), index, &rule.id, &rule.because),
                place: (section, index),
                file,
                matches: self.globs(file, &at("match"), &rule.matches),
                except: self.globs(file, &at("except"), &rule.except),
                when: rule.when.as_ref().and_then(|when| self.expr(file, &at("when"), when)),
                ladder: self.ladder(file, &at("format"), rule.format.list()),
            };
            self.rules.push(compiled);
        }
    }

    pub(super) fn stacks_and_drops(&mut self, file: usize) {
        let entry = self.chain[file].clone();
        for (index, rule) in entry.file.stack.iter().enumerate() {
            self.unique_id(file, "stack", index, entry.file.stack.iter().map(|rule| &rule.id));
            self.stack_rule(file, index, rule);
        }
        for (index, rule) in entry.file.aliases.iter().enumerate() {
            self.unique_id(file, "aliases", index, entry.file.aliases.iter().map(|rule| &rule.id));
            self.alias(file, index, rule);
        }
        for (index, rule) in entry.file.drop.iter().enumerate() {
            self.unique_id(file, "drop", index, entry.file.drop.iter().map(|rule| &rule.id));
            self.drop_rule(file, index, rule);
        }
        for (index, rule) in entry.file.fit.iter().enumerate() {
            self.unique_id(file, "fit", index, entry.file.fit.iter().map(|rule| &rule.id));
            self.fit_rule(file, index, rule);
        }
    }

    fn fit_rule(&mut self, file: usize, index: usize, rule: &FitRule) {
        if self.fit.iter().any(|nearer| nearer.id == rule.id) {
            return;
        }
        let bad = |key: &str, message: String| {
            self.chain[file].document.fault(Code::PolicyPattern, path!["fit", index, key], message)
        };
        let value =
            |key: &str, value| CompiledFitValue::compile(value).map_err(|why| bad(key, why));
        let unless = rule.unless.as_ref().map(|glob| match pattern::compile(glob) {
            Ok(glob) => Ok(glob.compile_matcher()),
            Err(why) => Err(bad("unless", why)),
        });
        let parts =
            (value("draft", &rule.draft), value("target", &rule.target), unless.transpose());
        let source = rule.holds.as_deref().unwrap_or("draft == target");
        let holds = match Expr::compile(source, ["draft", "target"].into_iter()) {
            Ok(holds) => Some(holds),
            Err(why) => {
                let at = path!["fit", index, "holds"];
                self.faults.push(self.bad_expr(file, at, source, why));
                None
            }
        };
        match (parts, holds) {
            ((Ok(draft), Ok(target), Ok(unless)), Some(holds)) => self.fit.push(CompiledFit {
                id: rule.id.clone(),
                draft,
                target,
                holds,
                unless,
                because: rule.because.trim().to_string(),
            }),
            ((draft, target, unless), _) => self
                .faults
                .0
                .extend([draft.err(), target.err(), unless.err()].into_iter().flatten()),
        }
    }

    fn stack_rule(&mut self, file: usize, index: usize, rule: &StackRule) {
        let entry = self.chain[file].clone();
        let fault = |key: &str, message: String| {
            entry.document.fault(Code::PolicyPattern, path!["stack", index, key], message)
        };
        let pattern = match whole(&rule.pattern) {
            Ok(pattern) => pattern,
            Err(message) => return self.faults.push(fault("match", message)),
        };
        for group in ["group", "index", "name"] {
            if !pattern.capture_names().flatten().any(|name| name == group) {
                let message = format!("the pattern has no group (?<{group}>…)");
                self.faults.push(fault("match", message));
            }
        }
        for (key, template) in [("into", &rule.into), ("blob", &rule.blob)] {
            for hole in template.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
                if !["group", "name"].contains(&hole) {
                    let message = format!("`{{{hole}}}` is neither {{group}} nor {{name}}");
                    self.faults.push(fault(key, message));
                }
            }
        }
        let info = self.info(file, "stack", index, &rule.id, &rule.because);
        let (into, blob) = (rule.into.clone(), rule.blob.clone());
        self.stack.push(CompiledStack { info, pattern, into, blob });
    }

    fn alias(&mut self, file: usize, index: usize, rule: &AliasRule) {
        let entry = self.chain[file].clone();
        let fault = |key: &str, message: String| {
            entry.document.fault(Code::PolicyPattern, path!["aliases", index, key], message)
        };
        let pattern = match whole(&rule.pattern) {
            Ok(pattern) => pattern,
            Err(message) => return self.faults.push(fault("match", message)),
        };
        let groups: Vec<String> = pattern
            .capture_names()
            .enumerate()
            .flat_map(|(n, name)| [Some(n.to_string()), name.map(str::to_string)])
            .flatten()
            .collect();
        for hole in rule.into.split("${").skip(1).filter_map(|rest| rest.split('}').next()) {
            if !groups.iter().any(|group| group == hole) {
                let message = format!("the pattern has no group `{hole}`");
                self.faults.push(fault("into", message));
            }
        }
        self.aliases.push(CompiledAlias { pattern, into: rule.into.clone() });
    }

    fn drop_rule(&mut self, file: usize, index: usize, rule: &DropRule) {
        let at = |key: &str| vec!["drop".into(), index.into(), key.into()];
        let compiled = CompiledDrop {
            info: self.info(file, "drop", index, &rule.id, &rule.because),
            matches: self.globs(file, &at("match"), &rule.matches),
            except: self.globs(file, &at("except"), &rule.except),
            when: rule.when.as_ref().and_then(|when| self.expr(file, &at("when"), when)),
        };
        self.drops.push(compiled);
    }

    /// Capabilities, parser, renderer: the nearest file that says something wins.
    pub(super) fn facts(&mut self, file: usize) {
        let entry = self.chain[file].clone();
        for (name, source) in &entry.file.capabilities {
            if !self.capabilities.contains_key(name)
                && let Some(expr) = self.expr(file, path!["capabilities", name.as_str()], source)
            {
                self.capabilities.insert(name.clone(), expr);
            }
        }
        if self.parser.is_none()
            && let Some(choice) = &entry.file.parser
        {
            self.parser = Some(self.choice(file, "parser", choice));
        }
        if self.renderer.is_none()
            && let Some(choice) = &entry.file.renderer
        {
            self.renderer = Some(self.choice(file, "renderer", choice));
        }
        if let Some(requires) = &entry.file.requires
            && semver::Version::parse(requires).is_err()
        {
            let message = format!("`{requires}` is not a version such as 0.1.0");
            self.faults.push(entry.document.fault(Code::PolicyName, path!["requires"], message));
        }
    }

    fn choice(&mut self, file: usize, key: &str, choice: &Choice) -> Vec<(Option<Expr>, String)> {
        match choice {
            Choice::Always(name) => vec![(None, name.clone())],
            Choice::Cases(cases) => cases
                .iter()
                .enumerate()
                .map(|(index, case)| {
                    let at = path![key, index, "when"];
                    let when = case.when.as_ref().and_then(|when| self.expr(file, at, when));
                    (when, case.name.clone())
                })
                .collect(),
        }
    }

    fn info(
        &self,
        file: usize,
        section: &str,
        index: usize,
        id: &str,
        because: &str,
    ) -> Arc<RuleRef> {
        let document = &self.chain[file].document;
        Arc::new(RuleRef {
            id: id.to_string(),
            file: document.text.name.clone(),
            line: document.line(path![section, index]),
            because: because.trim().to_string(),
        })
    }

    fn unique_id<'r>(
        &mut self,
        file: usize,
        section: &str,
        index: usize,
        mut ids: impl Iterator<Item = &'r String> + Clone,
    ) {
        let id = ids.clone().nth(index).expect("index of a rule");
        if ids.position(|other| other == id) != Some(index) {
            let place = path![section, index, "id"];
            let message = format!("two rules are named `{id}`");
            self.faults.push(self.chain[file].document.fault(Code::PolicyName, place, message));
        }
    }

    /// Several and names of sets, as globs.
    fn globs(&mut self, file: usize, at: &[Step], globs: &Several) -> Vec<GlobId> {
        let mut ids = Vec::new();
        for (index, glob) in globs.list().iter().enumerate() {
            let place = [at, &[index.into()]].concat();
            match self.set(glob) {
                Some((owner, members)) => {
                    for (member, glob) in members.iter().enumerate() {
                        let place = path!["sets", globs.list()[index].as_str(), member];
                        ids.extend(self.glob(owner, place, glob));
                    }
                }
                None if is_bare(glob) && !glob.is_empty() && self.looks_like_a_set(glob) => {
                    let names = self.chain.iter().flat_map(|entry| entry.file.sets.keys());
                    let near = crate::format::nearest(glob, names.map(String::as_str));
                    let fault = self.chain[file].document.fault(
                        Code::PolicyName,
                        &place,
                        format!("no set is named `{glob}`"),
                    );
                    self.faults.push(match near {
                        Some(near) => fault.help(format!("did you mean `{near}`?")),
                        None => fault.help("a tensor of that exact name is written `{name}`"),
                    });
                }
                None => ids.extend(self.glob(file, &place, glob)),
            }
        }
        ids
    }

    /// A word without dots or wildcards can only be the name of a set: no tensor of a model is
    /// named like that without its parent.
    fn looks_like_a_set(&self, word: &str) -> bool {
        word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    }

    fn set(&self, name: &str) -> Option<(usize, Vec<String>)> {
        self.chain
            .iter()
            .enumerate()
            .find_map(|(file, entry)| Some((file, entry.file.sets.get(name)?.clone())))
    }

    fn glob(&mut self, file: usize, at: &[Step], glob: &str) -> Option<GlobId> {
        match self.patterns.add(glob) {
            Ok(id) => Some(id),
            Err(message) => {
                let fault = self.chain[file].document.fault(
                    Code::PolicyPattern,
                    at,
                    format!("`{glob}` is not a glob: {message}"),
                );
                self.faults.push(fault);
                None
            }
        }
    }

    fn expr(&mut self, file: usize, at: &[Step], source: &str) -> Option<Expr> {
        let names: Vec<String> =
            self.chain.iter().flat_map(|entry| entry.file.values.keys().cloned()).collect();
        match Expr::compile(source, names.iter().map(String::as_str)) {
            Ok(expr) => {
                self.schedule_names(file, at, source);
                Some(expr)
            }
            Err(bad) => {
                let fault = self.bad_expr(file, at, source, bad);
                self.faults.push(fault);
                None
            }
        }
    }

    /// Schedules are named by strings, which CEL cannot check.
    fn schedule_names(&mut self, file: usize, at: &[Step], source: &str) {
        for (start, _) in source.match_indices("schedule(") {
            let rest = source[start + "schedule(".len()..].trim_start();
            let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
            let Some(name) = quote.and_then(|q| rest[1..].split(q).next()) else { continue };
            let known = self.chain.iter().flat_map(|entry| entry.file.schedules.keys());
            let known: Vec<&str> = known.map(String::as_str).collect();
            if known.contains(&name) {
                continue;
            }
            let bad = BadExpr {
                message: match crate::format::nearest(name, known.into_iter()) {
                    Some(near) => format!("no schedule `{name}`; did you mean `{near}`?"),
                    None => format!("no schedule is named `{name}`"),
                },
                offset: source.find(name),
            };
            let fault = self.bad_expr(file, at, source, bad);
            self.faults.push(fault);
        }
    }

    fn bad_expr(&self, file: usize, at: &[Step], source: &str, bad: BadExpr) -> Fault {
        let document = &self.chain[file].document;
        let span = document.root.span_at(at);
        let span = inside(&document.text.body, span, source, bad.offset);
        Fault::new(Code::PolicyExpression, bad.message).at(&document.text, span)
    }

    fn ladder(&mut self, file: usize, at: &[Step], names: &[String]) -> Vec<Rung> {
        let mut rungs = Vec::new();
        if names.is_empty() {
            let document = &self.chain[file].document;
            let fault = document.fault(Code::PolicyName, at, "an empty ladder decides nothing");
            self.faults.push(fault.help("write [source] for source precision"));
        }
        for (index, name) in names.iter().enumerate() {
            let rung = match name.as_str() {
                "requested" => Some(Rung::Requested),
                "eight_bit" => Some(Rung::EightBit),
                "source" => Some(Rung::Source),
                name => Formats::built_in().get(name).map(Rung::Named),
            };
            match rung {
                Some(rung) => rungs.push(rung),
                None => {
                    let formats = Formats::built_in().iter().map(|format| format.name.as_str());
                    let known = ["requested", "eight_bit", "source"].into_iter().chain(formats);
                    let near = crate::format::nearest(name, known);
                    let place = [at, &[index.into()]].concat();
                    let fault = self.chain[file].document.fault(
                        Code::PolicyName,
                        &place,
                        format!("`{name}` is neither a format nor requested, eight_bit or source"),
                    );
                    self.faults.push(match near {
                        Some(near) => fault.help(format!("did you mean `{near}`?")),
                        None => fault,
                    });
                }
            }
        }
        rungs
    }

    pub(super) fn finish(mut self) -> Result<Policy, Faults> {
        let patterns = match std::mem::take(&mut self.patterns).build() {
            Ok(patterns) => patterns,
            Err(message) => {
                self.faults.push(Fault::new(Code::PolicyPattern, message));
                Patterns::default()
            }
        };
        let nearest = &self.chain[0].file;
        // An ancestor's order holds, whoever said the condition.
        let order: IndexSet<&String> =
            self.chain.iter().rev().flat_map(|entry| entry.file.capabilities.keys()).collect();
        self.capabilities.sort_by_cached_key(|name, _| order.get_index_of(name));
        let requires = self.chain.iter().find_map(|entry| entry.file.requires.clone());
        let decoder = self.chain.iter().find_map(|entry| entry.file.decoder.clone());
        let policy = Policy {
            name: nearest.name.clone(),
            chain: self.chain.to_vec(),
            rules: self.rules,
            patterns,
            stack: self.stack,
            aliases: self.aliases,
            drops: self.drops,
            fit: self.fit,
            values: self.values,
            schedules: self.schedules,
            capabilities: self.capabilities,
            parser: self.parser.unwrap_or_default(),
            renderer: self.renderer.unwrap_or_default(),
            parsers: self.chain.iter().flat_map(|entry| entry.file.parsers.clone()).collect(),
            requires,
            decoder,
            strict: nearest.strict,
        };
        self.faults.or(policy)
    }
}

/// A regular expression over a whole name.
fn whole(pattern: &str) -> Result<Regex, String> {
    Regex::new(&format!("^(?:{pattern})$")).map_err(|error| {
        let message = error.to_string();
        message.lines().last().unwrap_or_default().to_string()
    })
}

fn is_bare(glob: &str) -> bool {
    !glob.contains(['.', '*', '?', '[', '{'])
}

/// Where in a text a fault inside an expression stands. Block and quoted scalars do not map byte
/// by byte, so the place is exact when the expression stands in the text as it is, and else the
/// whole value.
fn inside(body: &str, span: Range<usize>, source: &str, offset: Option<usize>) -> Range<usize> {
    let Some(offset) = offset else { return span };
    let Some(value) = body.get(span.clone()) else { return span };
    match value.find(source) {
        Some(start) => {
            let at = span.start + start + offset;
            at..(at + 1).min(span.end.max(at))
        }
        None => span,
    }
}
