//! `lathe policy`: everything about policies, without making a model.

#[cfg(feature = "mlx")]
mod check;
mod explain;
mod lint;
mod list;
mod new;
mod schema;
mod show;
mod test;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::ui;
use crate::fault::Faults;
use crate::policy::Library;

/// See, check, test and write policies
///
/// A policy is a YAML or TOML file that says how the tensors of an architecture are quantized.
/// Built-in ones are replaced by files of the same name in the user's folder and --policy-dir.
#[derive(Args)]
pub struct Policy {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::List),
    Show(show::Show),
    Explain(explain::Explain),
    Lint(lint::Lint),
    Test(test::Test),
    #[cfg(feature = "mlx")]
    Check(check::Check),
    New(new::New),
    Schema(schema::Schema),
}

pub fn run(args: &Policy) -> Result<(), ui::Failure> {
    match &args.command {
        Command::List(args) => list::run(args),
        Command::Show(args) => show::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Lint(args) => lint::run(args),
        Command::Test(args) => test::run(args),
        #[cfg(feature = "mlx")]
        Command::Check(args) => check::run(args),
        Command::New(args) => new::run(args),
        Command::Schema(args) => schema::run(args),
    }
}

/// Where policies come from besides the binary.
#[derive(Args)]
pub struct PolicyDir {
    /// A folder of policies that add to the built-in ones, or replace those of the same name
    #[arg(long, value_name = "DIR", help_heading = "Where")]
    pub policy_dir: Option<PathBuf>,
}

impl PolicyDir {
    /// All policies.
    pub fn library(&self) -> Result<Library, Faults> {
        Library::load(self.policy_dir.as_deref())
    }
}
