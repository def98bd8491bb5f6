//! `lathe bench`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rayon::prelude::*;
use serde::Serialize;

use super::args::OutputArg;
use super::ui;
use crate::draft::controller::scenario;
use crate::draft::controller::simulate::{self, LEAST_OF_BEST, MOST_TIME, Score};
use crate::fault::{Fault, Faults};

/// Measure parts of lathe
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Controller(ControllerArgs),
}

/// Simulate the controller of drafting depths on scenarios
///
/// A file of scenarios says what drafts would be accepted and what passes cost
/// (`lathe policy schema scenarios` prints its form). Each is decoded with three seeds by the
/// controller, by each fixed depth, and plainly. of best: tokens per second against the best fixed
/// depth, after the first 300 rounds of a segment, the worst segment. time vs plain: time against
/// plain decoding, the worst seed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe bench controller --scenarios tests/data/draft-scenarios.json
  lathe bench controller --scenarios mine.json -o json | jq '.scenarios[] | select(.met | not)'")]
struct ControllerArgs {
    /// The file, JSON or YAML
    #[arg(long, value_name = "FILE")]
    scenarios: PathBuf,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Serialize)]
struct Report {
    scenarios: Vec<Score>,
}

pub fn run(args: &Bench) -> Result<(), ui::Failure> {
    let Command::Controller(args) = &args.command;
    let report = ui::failing(args.output.json(), measure(args))?;
    if args.output.json() {
        ui::print_json(&report);
        return Ok(());
    }
    let mut table = ui::Table::new(&["scenario", "of best", "time vs plain", "depth", ""]);
    for score in &report.scenarios {
        let depths = score
            .segments
            .iter()
            .map(|segment| format!("{:.1} (best {})", segment.mean_depth, segment.best_depth));
        table.row([
            score.name.clone(),
            score.of_best.map_or("not judged".into(), |part| format!("{part:.3}")),
            format!("{:.3}", score.time_vs_plain),
            depths.collect::<Vec<_>>().join(", "),
            (if score.met { "" } else { "missed" }).into(),
        ]);
    }
    ui::print_table(&table);
    let met = report.scenarios.iter().filter(|score| score.met).count();
    ui::note(format!(
        "{met} of {} are at least {LEAST_OF_BEST} of the best and at most {MOST_TIME} of plain time",
        report.scenarios.len()
    ));
    Ok(())
}

fn measure(args: &ControllerArgs) -> Result<Report, Faults> {
    let path = &args.scenarios;
    let text = std::fs::read_to_string(path).map_err(|error| Fault::io("read", path, &error))?;
    let scenarios = scenario::parse(&path.display().to_string(), &text)?;
    Ok(Report { scenarios: scenarios.par_iter().map(simulate::score).collect() })
}
