//! `lathe gc`

use clap::Args;

use super::args::{OutputArg, StoreArg};
use super::ui;
use crate::fault::Faults;

/// Remove what no model needs
///
/// Removes blobs that no manifest mentions, and what a killed lathe left unfinished. Do not run it
/// on Ollama's store while Ollama pulls or creates a model: Ollama does not take lathe's lock.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe gc --dry-run                    what would be removed
  lathe gc")]
pub struct Gc {
    /// Only tell what would be removed
    #[arg(long, short = 'n')]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    store: StoreArg,
}

pub fn run(args: &Gc) -> Result<(), ui::Failure> {
    let json = args.output.json();
    let garbage = args.store.open().and_then(|store| store.gc(args.dry_run));
    let garbage = ui::failing(json, garbage.map_err(Faults::from))?;
    if json {
        ui::print_json(&garbage);
        return Ok(());
    }
    if args.dry_run {
        for digest in &garbage.blobs {
            ui::print(digest);
        }
        for path in &garbage.leftovers {
            ui::print(path.display());
        }
    }
    ui::note(format!(
        "{} {} in {} blobs and {} leftovers",
        ui::bytes(garbage.bytes),
        if args.dry_run { "would be freed" } else { "freed" },
        garbage.blobs.len(),
        garbage.leftovers.len()
    ));
    Ok(())
}
