//! `lathe plan`

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::args::OutputArg;
use super::policy::PolicyDir;
use super::ui;
use crate::fault::{Code, Fault, Faults};
use crate::plan::{self, Diff, Options, Plan as Planned, Request, render};
use crate::policy::Role;
use crate::prepare;

/// Compare plans
#[derive(Args)]
pub struct Plan {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Diff(DiffArgs),
}

/// Show what changes between two plans: formats, blobs, bytes and bits per weight
///
/// A plan is a file that `create --dry-run --output json` printed, or MODEL@FORMAT, which plans
/// MODEL (a folder or an inventory file) for FORMAT.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe plan diff models/SmolLM2-135M-Instruct@int4 models/SmolLM2-135M-Instruct@mxfp4
  lathe plan diff before.json after.json
  lathe plan diff M@int4 M@int4 --second-policy-dir mine/       what my policies change")]
struct DiffArgs {
    /// The first plan
    first: String,
    /// The second plan
    second: String,
    /// A folder of policies for the second plan [default: as for the first]
    #[arg(long, value_name = "DIR", help_heading = "Where")]
    second_policy_dir: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    policies: PolicyDir,
}

pub fn run(args: &Plan) -> Result<(), ui::Failure> {
    let Command::Diff(args) = &args.command;
    let diff = ui::failing(args.output.json(), compare(args))?;
    if args.output.json() {
        ui::print_json(&diff);
    } else {
        print(&diff);
    }
    Ok(())
}

fn compare(args: &DiffArgs) -> Result<Diff, Faults> {
    let first = args.policies.policy_dir.as_deref();
    let second = args.second_policy_dir.as_deref().or(first);
    Ok(plan::diff(&load(&args.first, first)?, &load(&args.second, second)?))
}

fn load(given: &str, policy_dir: Option<&Path>) -> Result<Planned, Faults> {
    if let Some((model, format)) = given.rsplit_once('@') {
        let library = crate::policy::Library::load(policy_dir)?;
        let prepared = prepare::prepare(Path::new(model), Role::Target, &library)?;
        let format = (format != "none").then(|| format.to_string());
        let request = Request { format, requantize: true, ..Request::default() };
        return plan::plan(prepared.stock(), None, &Options { request, ..Options::default() });
    }
    if Path::new(given).is_dir() {
        return Err(Fault::new(Code::Usage, format!("{given} is a folder, not a plan"))
            .help(format!("{given}@int4 plans it for int4"))
            .into());
    }
    let body = std::fs::read_to_string(given)
        .map_err(|error| Fault::io("read the plan", given, &error))?;
    let mut plan = render::parse(given, &body)?;
    plan::recount(&mut plan)?;
    Ok(plan)
}

fn print(diff: &Diff) {
    if !diff.changed.is_empty() {
        let mut table = ui::Table::new(&["TENSOR", "FORMAT", "", "RULE", "", "BYTES"]);
        for change in &diff.changed {
            table.row([
                change.tensor.clone(),
                change.format.0.clone(),
                format!("→ {}", change.format.1),
                change.rule.0.clone(),
                format!("→ {}", change.rule.1),
                signed(change.bytes.0, change.bytes.1),
            ]);
        }
        ui::print_table(&table);
    }
    for (names, which) in [(&diff.only_first, "first"), (&diff.only_second, "second")] {
        for name in names {
            ui::print(format!("only the {which} plan has {name}"));
        }
    }
    ui::print(format!(
        "{} tensors change: {} → {} ({}), {:.2} → {:.2} bits per weight",
        diff.changed.len(),
        render::bytes(diff.bytes.0),
        render::bytes(diff.bytes.1),
        signed(diff.bytes.0, diff.bytes.1),
        diff.bits_per_weight.0,
        diff.bits_per_weight.1
    ));
}

fn signed(before: u64, after: u64) -> String {
    match after.checked_sub(before) {
        Some(more) => format!("+{}", render::bytes(more)),
        None => format!("-{}", render::bytes(before - after)),
    }
}
