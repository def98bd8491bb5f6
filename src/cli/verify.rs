//! `lathe verify`

use clap::Args;

use super::args::{self, OutputArg, StoreArg};
use super::ui;
use crate::fault::Faults;
use crate::store::{BadBlob, Verified};

/// Read blobs again and check their digests
///
/// With no name every blob of the store is checked, needed or not. Each bad one is reported, and
/// the exit code is 1.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe verify                          the whole store
  lathe verify smollm2:int4
  lathe verify --delete                 and remove what is damaged, so that the next
                                        `lathe create` writes it again")]
pub struct Verify {
    /// Models to check [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Delete damaged blobs
    #[arg(long)]
    delete: bool,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    store: StoreArg,
}

pub fn run(args: &Verify) -> Result<(), ui::Failure> {
    let json = args.output.json();
    let (verified, deleted) = ui::failing(json, verify(args))?;
    if verified.bad.is_empty() {
        if json {
            ui::print_json(&verified);
        } else {
            let size = ui::bytes(verified.bytes);
            ui::print(format_args!("{} blobs are whole ({size})", verified.blobs));
        }
        return Ok(());
    }
    if deleted > 0 {
        ui::note(format!("{deleted} damaged blobs deleted"));
    }
    ui::failing(json, Err(Faults(verified.bad.iter().map(BadBlob::fault).collect())))
}

fn verify(args: &Verify) -> Result<(Verified, u64), Faults> {
    let names = args::names(&args.names)?;
    let store = args.store.open()?;
    let total = store.size(&names)?;
    let bar = ui::byte_bar("verifying", total, args.output.json());
    let verified = store.verify(&names, &|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    let deleted = if args.delete { store.delete_bad(&verified)? } else { 0 };
    Ok((verified, deleted))
}
