//! `lathe update`

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::args::{BackendArg, OutputArg, StoreArg};
use super::{create, ui};
use crate::fault::{Code, Fault, Faults};
use crate::store::{Committed, Name};
use crate::update::{self, PolicyChange, Update as Planned};

/// Put a newer policy into a stored model
///
/// A model carries the policy that it was made by, and is run by it. This puts the one of
/// --policy-dir, of the user's folder or of the binary in its place, and shows the difference first.
/// Tensors stay as they are: those that the newer policy would quantize otherwise are listed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe update smollm2:int4 --dry-run            only show what would change
  lathe update smollm2:int4 --yes
  lathe update my-model --policy-dir mine/       a policy of your own")]
pub struct Update {
    /// The model
    name: String,
    /// A folder of policies that add to the built-in ones, or replace those of the same name
    #[arg(long, value_name = "DIR")]
    policy_dir: Option<PathBuf>,
    /// Show what would change, and change nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short = 'y', conflicts_with = "dry_run")]
    yes: bool,
    /// Leave out the check that the model still predicts a plain sentence
    #[arg(long)]
    no_smoke: bool,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    store: StoreArg,
}

pub fn run(args: &Update) -> Result<(), ui::Failure> {
    let json = args.output.json();
    let (planned, done) = ui::failing(json, update(args))?;
    if json {
        let digest = done.as_ref().map(|done| done.digest);
        ui::print_json(&json!({ "update": planned, "applied": done.is_some(), "digest": digest }));
    } else if done.is_some() {
        ui::print(format_args!("{} has the newer policy", planned.name));
    }
    Ok(())
}

fn update(args: &Update) -> Result<(Planned, Option<Committed>), Faults> {
    let name = Name::parse(&args.name)?;
    let store = args.store.open()?;
    let planned = update::prepare(&store, &name, args.policy_dir.as_deref())?;
    if !args.output.json() {
        show(&planned);
    }
    if planned.is_empty() || args.dry_run || !(args.yes || confirmed(args)?) {
        return Ok((planned, None));
    }
    let done = planned.write(&store, &|writer, manifest| {
        if !args.no_smoke
            && let Some(smoke) = create::check(writer, manifest, &BackendArg::default())?
            && !args.output.json()
        {
            ui::note(&smoke.note);
        }
        Ok(())
    })?;
    Ok((planned, Some(done)))
}

/// Whether the user wants it, who can only be asked on a terminal.
fn confirmed(args: &Update) -> Result<bool, Fault> {
    let stdin = std::io::stdin();
    if args.output.json() || !stdin.is_terminal() {
        return Err(Fault::new(Code::Usage, "nobody can be asked whether to put it in place")
            .help("add --yes to do it, or --dry-run to see it"));
    }
    let mut out = std::io::stderr();
    let mut answer = String::new();
    let asked = write!(out, "put it in place? [y/N] ").and_then(|()| out.flush());
    asked
        .and_then(|()| stdin.read_line(&mut answer))
        .map_err(|error| Fault::io("read", "the answer", &error))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

fn show(planned: &Planned) {
    for change in &planned.policies {
        show_policy(change);
    }
    for fact in &planned.facts {
        let told = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".into());
        let (from, to) = (told(&fact.from), told(&fact.to));
        ui::print(format_args!("{}: {from} → {to}", fact.what));
    }
    if planned.is_empty() {
        ui::print(format_args!("{} has this policy already", planned.name));
    }
    if planned.create_again.is_empty() {
        return;
    }
    ui::print(format_args!(
        "{} tensors would need create again: their formats stay as they are",
        planned.create_again.len()
    ));
    let mut table = ui::Table::new(&["TENSOR", "IS", "WOULD BE", "RULE"]);
    for one in &planned.create_again {
        table.row([&one.tensor, &one.is, &one.would_be, &one.rule]);
    }
    ui::print_table(&table);
}

fn show_policy(change: &PolicyChange) {
    let PolicyChange { role, from, to, running, other, diff, .. } = change;
    let who = match *role {
        "draft" => "the draft",
        _ => "the model",
    };
    match from {
        None if diff.contains("\n-") => {
            ui::print(diff.trim_end());
            ui::print(format_args!("{who} carries a policy that this lathe cannot read"));
        }
        None => ui::print(format_args!(
            "{who} carries no policy yet: {} of lathe {} is put in ({} lines)",
            to.name,
            to.lathe.as_deref().unwrap_or("?"),
            diff.lines().count()
        )),
        Some(_) => {
            ui::print(diff.trim_end());
            let listed = |parts: &[String]| match parts {
                [] => "nothing".to_string(),
                parts => parts.join(", "),
            };
            ui::print(format_args!("changes for running {who}: {}", listed(running)));
            ui::print(format_args!("other changes: {}", listed(other)));
        }
    }
}
