//! `lathe cp`

use clap::Args;

use super::args::StoreArg;
use super::ui;
use crate::store::Name;

/// Give a model another name
///
/// Both names lead to the same blobs, so no space is needed. A model that has the new name
/// already is replaced.
#[derive(Args)]
#[command(after_help = "\
Example:
  lathe cp smollm2:int4 smollm2:best")]
pub struct Cp {
    /// The model
    from: String,
    /// Its other name
    to: String,
    #[command(flatten)]
    store: StoreArg,
}

pub fn run(args: &Cp) -> Result<(), ui::Failure> {
    let (from, to) = (Name::parse(&args.from)?, Name::parse(&args.to)?);
    args.store.open()?.copy(&from, &to)?;
    ui::note(format!("{to} is {from} now"));
    Ok(())
}
