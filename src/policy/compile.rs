//! A policy file and all that it extends, compiled: names resolved, globs and expressions ready.
//!
//! All faults of a policy are found at once and point at their place in the text.

mod compiler;
mod fit;

use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use regex::Regex;

use super::entry::Entry;
use super::expr::Expr;
use super::file::Role;
use super::parsers::Answers;
use super::pattern::{GlobId, Patterns};
use super::schedule::CompiledSchedule;
use crate::decoder::description::Decoder;
use crate::decoder::parts::Described;
use crate::fault::{Fault, Faults};
use crate::format::Format;
use crate::rule::RuleRef;

use compiler::Compiler;
pub use fit::{CompiledFit, CompiledFitValue};

/// A compiled policy.
#[derive(Debug)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// The file and those it extends, nearest first.
    pub chain: Vec<Arc<Entry>>,
    /// All rules, in the order in which they are tried.
    pub rules: Vec<CompiledRule>,
    /// The globs that rules and drops refer to.
    pub patterns: Patterns,
    /// How experts are stacked; the first that matches is taken.
    pub stack: Vec<CompiledStack>,
    /// Other names of tensors; each that matches is applied, nearest file first.
    pub aliases: Vec<CompiledAlias>,
    /// What is not imported.
    pub drops: Vec<CompiledDrop>,
    /// What must agree between a draft and its target.
    pub fit: Vec<CompiledFit>,
    /// The values from the config.
    pub values: IndexMap<String, CompiledValue>,
    /// The schedules by name.
    pub schedules: IndexMap<String, Arc<CompiledSchedule>>,
    /// A condition for each capability.
    pub capabilities: IndexMap<String, Expr>,
    /// Parser by condition.
    pub parser: Vec<(Option<Expr>, String)>,
    /// Renderer by condition.
    pub renderer: Vec<(Option<Expr>, String)>,
    /// The parsers that come with it, those of the nearest file first.
    pub parsers: Vec<Answers>,
    /// Least version of the runtime.
    pub requires: Option<String>,
    /// The network, where it is described.
    pub decoder: Option<Decoder>,
    /// Whether an uncovered tensor is an error.
    pub strict: bool,
}

/// Which part of a policy a rule stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Before everything.
    Guards,
    /// For drafts only.
    Drafts,
    /// The rules proper.
    Tensors,
}

impl Section {
    /// The key it has in the file.
    pub const fn key(self) -> &'static str {
        match self {
            Section::Guards => "guards",
            Section::Drafts => "drafts",
            Section::Tensors => "tensors",
        }
    }
}

/// A rule, ready to be tried.
#[derive(Debug)]
pub struct CompiledRule {
    /// Id, file, line and reason, as the plan prints them.
    pub info: Arc<RuleRef>,
    /// Position in the file: section and index.
    pub place: (Section, usize),
    /// Index of the file in [`Policy::chain`].
    pub file: usize,
    /// Several, any of which must match.
    pub matches: Vec<GlobId>,
    /// Several, none of which may match, each with the set it came from.
    pub except: Vec<GlobId>,
    /// Condition.
    pub when: Option<Expr>,
    /// Formats, first that fits.
    pub ladder: Vec<Rung>,
}

/// A step of a ladder.
#[derive(Clone, Debug, PartialEq)]
pub enum Rung {
    /// The format asked for.
    Requested,
    /// The 8-bit format of the family asked for.
    EightBit,
    /// Source precision.
    Source,
    /// A format by name.
    Named(&'static Format),
}

/// A stack rule, ready to be tried.
#[derive(Debug)]
pub struct CompiledStack {
    /// Id, file, line and reason.
    pub info: Arc<RuleRef>,
    /// With the groups `group`, `index` and `name`.
    pub pattern: Regex,
    /// Template of the stacked tensor's name.
    pub into: String,
    /// Template of the blob's name.
    pub blob: String,
}

/// An alias, ready to be tried.
#[derive(Debug)]
pub struct CompiledAlias {
    /// Over whole names.
    pub pattern: Regex,
    /// Template of the name that it becomes.
    pub into: String,
}

/// A drop rule, ready to be tried.
#[derive(Debug)]
pub struct CompiledDrop {
    /// Id, file, line and reason.
    pub info: Arc<RuleRef>,
    /// Several, any of which must match.
    pub matches: Vec<GlobId>,
    /// Several, none of which may match.
    pub except: Vec<GlobId>,
    /// Condition.
    pub when: Option<Expr>,
}

/// A value to be looked up in a config.
#[derive(Debug)]
pub struct CompiledValue {
    /// Paths, in the order in which they are tried.
    pub paths: Vec<String>,
    /// What it is when no path has it.
    pub default: Option<Expr>,
}

impl Policy {
    /// Compiles a chain of files, nearest first.
    pub fn compile(chain: Vec<Arc<Entry>>) -> Result<Policy, Faults> {
        let mut compiler = Compiler::new(&chain);
        // Guards and draft rules of the oldest ancestor come first, so that a file can add to
        // what its parents guard but never loosen it.
        for (section, oldest_first) in
            [(Section::Guards, true), (Section::Drafts, true), (Section::Tensors, false)]
        {
            let mut files: Vec<usize> = (0..chain.len()).collect();
            if oldest_first {
                files.reverse();
            }
            for file in files {
                compiler.rules(file, section);
            }
        }
        for file in 0..chain.len() {
            compiler.stacks_and_drops(file);
            compiler.facts(file);
        }
        compiler.finish()
    }

    /// The parser of that name: the policy's own, else as [`Answers::named`].
    ///
    /// # Errors
    /// As [`Answers::named`].
    pub fn answers(&self, name: &str, policy_dirs: &[&Path]) -> Result<Answers, Fault> {
        match self.parsers.iter().find(|parser| parser.is_called(name)) {
            Some(own) => Ok(own.clone()),
            None => Answers::named(name, policy_dirs),
        }
    }

    /// The network and the text that it stands in, where it is described.
    pub fn described(&self) -> Option<Described<'_>> {
        let decoder = self.decoder.as_ref()?;
        let entry = self.chain.iter().find(|entry| entry.file.decoder.is_some());
        Some(Described { decoder, document: entry.map(|entry| &entry.document) })
    }

    /// Whether the policy describes drafts.
    pub fn role(&self) -> Role {
        self.chain[0].file.role
    }
}
