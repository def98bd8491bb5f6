//! `lathe policy explain`

use std::path::PathBuf;

use clap::Args;
use indexmap::IndexMap;

use super::PolicyDir;
use crate::cli::args::OutputArg;
use crate::cli::ui;
use crate::fault::Faults;
use crate::format::{Format, Formats, SOURCE};
use crate::plan::{self, Explanation, render};
use crate::policy::Role;
use crate::prepare;

/// Show for each tensor the rules that were tried, and why the format is what it is
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe policy explain models/SmolLM2-135M-Instruct '**.layers.0.**'
  lathe policy explain model.inventory.json '**.layers.{0,1}.**' -q mxfp4 --all")]
pub struct Explain {
    /// A model folder, or an inventory file
    model: PathBuf,
    /// Only tensors whose name this glob matches, such as '**.layers.0.**'
    glob: Option<String>,
    /// The format that is asked for
    #[arg(short, long, value_name = "FORMAT", default_value = "int4")]
    quantize: String,
    /// Plan it as a draft
    #[arg(long)]
    draft: bool,
    /// Show also the rules whose globs do not match the name
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    policies: PolicyDir,
}

pub fn run(args: &Explain) -> Result<(), ui::Failure> {
    let json = args.output.json();
    let explanations = ui::failing(json, explain(args))?;
    if json {
        ui::print_json(&serde_json::json!({ "tensors": explanations }));
        return Ok(());
    }
    if explanations.is_empty() {
        ui::note("no tensor of the model matches the glob");
    }
    for (name, count, explanation) in alike(&explanations) {
        ui::print(text(name, count, explanation, args.all));
    }
    Ok(())
}

fn explain(args: &Explain) -> Result<Vec<Explanation>, Faults> {
    let format: Option<&'static Format> = match args.quantize.as_str() {
        SOURCE | "none" => None,
        name => Some(Formats::built_in().resolve(name)?),
    };
    let role = if args.draft { Role::Draft } else { Role::Target };
    let prepared = prepare::prepare(&args.model, role, &args.policies.library()?)?;
    plan::explain(prepared.stock(), role, format, args.glob.as_deref())
}

/// Explanations that differ in nothing but a number inside of a layer, an expert's, are one: its
/// name, of how many it tells, and the first.
fn alike(explanations: &[Explanation]) -> Vec<(String, usize, &Explanation)> {
    let mut found: IndexMap<(String, String), (usize, &Explanation)> = IndexMap::new();
    for explanation in explanations {
        let reasons = Explanation { tensor: String::new(), ..explanation.clone() };
        let key = (unnumbered(&explanation.tensor), format!("{reasons:?}"));
        found.entry(key).or_insert((0, explanation)).0 += 1;
    }
    let named = |((name, _), (count, first)): ((String, String), (usize, _))| {
        let first: &Explanation = first;
        (if count == 1 { first.tensor.clone() } else { name }, count, first)
    };
    found.into_iter().map(named).collect()
}

/// The name with `*` for all numbers but the first, which is the layer's.
fn unnumbered(tensor: &str) -> String {
    let mut numbers = 0;
    let part = |part: &str| {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        numbers += usize::from(is_number);
        if is_number && numbers > 1 { "*".to_string() } else { part.to_string() }
    };
    tensor.split('.').map(part).collect::<Vec<_>>().join(".")
}

fn text(tensor: String, count: usize, explanation: &Explanation, all: bool) -> String {
    let Explanation { shape, stacked, format, rule, layout, .. } = explanation;
    let of = if count == 1 { String::new() } else { format!(", {count} alike") };
    let from = match stacked {
        0 => String::new(),
        n => format!(", {n} experts stacked"),
    };
    let mut out = format!("{tensor}  {} ({layout}{from}{of})\n", render::shape(shape));
    for trial in &explanation.trials {
        let why = match (trial.outcome, &trial.by) {
            ("no-glob", _) if !all => continue,
            ("no-glob", _) => "no glob of it matches the name".to_string(),
            ("excepted", Some(glob)) => format!("excepts {glob}"),
            ("when-false", Some(when)) => {
                format!("does not hold: {}", when.split_whitespace().collect::<Vec<_>>().join(" "))
            }
            ("not-a-draft", _) => "is for drafts".into(),
            ("matched", Some(glob)) => format!("matches by {glob}"),
            (other, _) => other.into(),
        };
        let mark = if trial.outcome == "matched" { "→" } else { "✗" };
        out.push_str(&format!(
            "  {mark} {:<18} {why}  ({}:{})\n",
            trial.rule.id, trial.rule.file, trial.rule.line
        ));
    }
    for misfit in &explanation.misfits {
        out.push_str(&format!(
            "    {} does not fit: its group of {} does not divide the last axis, {} ({} × {} + {})\n",
            misfit.format,
            misfit.group,
            misfit.last_axis,
            misfit.last_axis / misfit.group.max(1),
            misfit.group,
            misfit.last_axis % misfit.group.max(1),
        ));
    }
    let because = if rule.because.is_empty() { "" } else { ": " };
    out.push_str(&format!("  = {format}, by {}{because}{}\n", rule.id, rule.because));
    out
}
