//! `lathe policy show`

use clap::Args;

use super::PolicyDir;
use crate::cli::ui;
use crate::fault::{Code, Fault, Faults};

/// Print a policy, as it is in the binary or in the file that takes its place
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe policy show base            the rules that every policy extends
  lathe policy show --formats       the table of formats
  lathe policy show base | less")]
pub struct Show {
    /// Name of the policy; `lathe policy list` has them all
    #[arg(required_unless_present = "formats")]
    name: Option<String>,
    /// Print the table of formats instead
    #[arg(long, conflicts_with = "name")]
    formats: bool,
    #[command(flatten)]
    policies: PolicyDir,
}

pub fn run(args: &Show) -> Result<(), ui::Failure> {
    let Some(name) = &args.name else {
        ui::print(crate::format::BUILT_IN.trim_end());
        return Ok(());
    };
    let library = args.policies.library()?;
    let Some(entry) = library.get(name) else {
        let fault = Fault::new(Code::NoPolicy, format!("no policy is named `{name}`"));
        let near = crate::format::nearest(name, library.names());
        return Err(Faults::from(match near {
            Some(near) => fault.help(format!("did you mean `{near}`?")),
            None => fault.help("`lathe policy list` has them all"),
        })
        .into());
    };
    ui::print(entry.document.text.body.trim_end());
    Ok(())
}
