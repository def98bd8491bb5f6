//! `lathe export`

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::args::{OutputArg, StoreArg};
use super::ui;
use crate::export::{self, Exported};
use crate::fault::Faults;
use crate::store::{Name, media};

/// Write a model as a folder for another program
///
/// The bytes of the weights stay as they are; names and config become what the other program
/// expects. With mlx-lm, each tensor's own format is told in config.json.
#[derive(Args)]
#[command(after_help = "\
Example:
  lathe export smollm2:int4 ./smollm2-mlx --as mlx-lm
  mlx_lm.generate --model ./smollm2-mlx --prompt 'Why is the sky blue?'")]
pub struct Export {
    /// The model
    name: String,
    /// The folder to make; it must not exist yet, or be empty
    dir: PathBuf,
    /// For which program
    #[arg(long = "as", value_enum, default_value_t = Target::MlxLm, value_name = "PROGRAM")]
    target: Target,
    /// A folder of policies, in place of the policy that the model carries
    #[arg(long, value_name = "DIR")]
    policy_dir: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    store: StoreArg,
}

/// Programs whose folders can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// The Python package mlx-lm
    MlxLm,
}

pub fn run(args: &Export) -> Result<(), ui::Failure> {
    let json = args.output.json();
    let exported = ui::failing(json, export(args))?;
    if json {
        ui::print_json(&exported);
        return Ok(());
    }
    for warning in &exported.warnings {
        ui::warn(&warning.message);
    }
    let (files, size) = (exported.files, ui::bytes(exported.bytes));
    ui::print(format_args!("wrote {files} files, {size}, to {}", args.dir.display()));
    Ok(())
}

fn export(args: &Export) -> Result<Exported, Faults> {
    let name = Name::parse(&args.name)?;
    let store = args.store.open()?;
    let manifest = store.manifest(&name)?;
    let total = manifest.of_type(media::TENSOR).map(|layer| layer.size).sum();
    let bar = ui::byte_bar("exporting", total, args.output.json());
    let Target::MlxLm = args.target;
    let policy_dir = args.policy_dir.as_deref();
    let progress = |bytes| bar.inc(bytes);
    let exported = export::export(&store, &manifest, &args.dir, policy_dir, &progress);
    bar.finish_and_clear();
    exported
}
