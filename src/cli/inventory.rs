//! `lathe inventory`

use std::path::PathBuf;

use clap::Args;

use super::ui;
use crate::fault::{Fault, Faults};
use crate::read::{self, Described};

/// Write all that planning needs of a model, without its weights
///
/// An inventory is a JSON file with the config, the files, and the name, dtype and shape of each
/// tensor, one in a line. `create --dry-run`, `policy explain`, `policy test` and `plan diff` take
/// it in place of the folder, so that a plan can be discussed without the weights.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe inventory ./SmolLM2-135M-Instruct > smollm2.inventory.json
  lathe create smollm2 smollm2.inventory.json -q int4 --dry-run")]
pub struct Inventory {
    /// The model's folder
    dir: PathBuf,
    /// The file to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

pub fn run(args: &Inventory) -> Result<(), ui::Failure> {
    let inventory = read::source(&args.dir)?;
    let text = Described::from(&inventory).to_text();
    match &args.to {
        None => ui::print(text.trim_end()),
        Some(file) => std::fs::write(file, text)
            .map_err(|error| Faults::from(Fault::io("write", file, &error)))?,
    }
    for warning in &inventory.warnings {
        ui::warn(&warning.message);
    }
    Ok(())
}
