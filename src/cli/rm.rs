//! `lathe rm`

use clap::Args;

use super::args::{self, OutputArg, StoreArg};
use super::ui;
use crate::fault::Faults;
use crate::store::{Name, Removed};

/// Remove models from the store
///
/// Blobs that another model needs stay. When one of the names does not exist, nothing is removed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe rm smollm2
  lathe rm smollm2:int4 smollm2:int8")]
pub struct Rm {
    /// Models to remove
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    store: StoreArg,
}

pub fn run(args: &Rm) -> Result<(), ui::Failure> {
    let json = args.output.json();
    let (names, removed) = ui::failing(json, remove(args))?;
    if json {
        ui::print_json(&serde_json::json!({ "names": names, "removed": removed }));
        return Ok(());
    }
    for name in &names {
        ui::print(format_args!("removed {name}"));
    }
    if removed.deferred {
        ui::note("its blobs stay for now, because the store is in use; `lathe gc` removes them");
    } else {
        ui::note(format!("{} freed in {} blobs", ui::bytes(removed.bytes), removed.blobs));
    }
    Ok(())
}

fn remove(args: &Rm) -> Result<(Vec<Name>, Removed), Faults> {
    let names = args::names(&args.names)?;
    let removed = args.store.open()?.remove(&names)?;
    Ok((names, removed))
}
