//! `lathe policy new`

use std::path::PathBuf;

use clap::Args;

use super::PolicyDir;
use crate::cli::ui;
use crate::fault::{Code, Fault};
use crate::propose;
use crate::read;

/// Draft a policy from a model folder, and print what a person must decide
///
/// The YAML goes to standard output (or --file), the questions to standard error.
#[derive(Args)]
#[command(after_help = "\
Example:
  lathe policy new my_model --from ~/models/My-Model --file my-policies/my_model.yaml")]
pub struct New {
    /// Name of the policy
    name: String,
    /// A model folder, or an inventory file
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Write the policy to this file, which must not exist
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    policies: PolicyDir,
}

pub fn run(args: &New) -> Result<(), ui::Failure> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if args.name.is_empty() || !args.name.chars().all(plain) {
        let message = format!("{:?} is not a name for a policy", args.name);
        return Err(Fault::new(Code::Usage, message)
            .help("use letters, digits, `_`, `-` and `.`, such as my_model")
            .into());
    }
    let proposal =
        propose::propose(&args.name, read::source(&args.from)?, &args.policies.library()?)?;
    match &args.file {
        None => ui::print(proposal.text.trim_end()),
        Some(path) => {
            if path.exists() {
                let message = format!("{} exists already", path.display());
                return Err(Fault::new(Code::Usage, message)
                    .help("name another file, or remove that one first")
                    .into());
            }
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)
                    .map_err(|error| Fault::io("make the folder", folder, &error))?;
            }
            std::fs::write(path, &proposal.text)
                .map_err(|error| Fault::io("write the policy", path, &error))?;
            ui::note(format!("wrote {}", path.display()));
        }
    }
    ui::note("to decide:");
    for (n, question) in proposal.questions.iter().enumerate() {
        ui::note(format!("  {}. {question}", n + 1));
    }
    ui::note("then: lathe policy lint FILE, lathe policy explain MODEL, lathe policy test");
    Ok(())
}
