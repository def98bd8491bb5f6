//! `lathe policy show`

use clap::Args;

use super::PolicyDir;
use crate::cli::args::StoreArg;
use crate::cli::ui;
use crate::fault::{Code, Fault, Faults};
use crate::policy::{Role, stored};
use crate::store::Name;

/// Print a policy, as it is in the binary or in the file that takes its place
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe policy show base            the rules that every policy extends
  lathe policy show --of smollm2    the policy that a stored model carries
  lathe policy show --formats       the table of formats
  lathe policy show base | less")]
pub struct Show {
    /// Name of the policy; `lathe policy list` has them all
    #[arg(required_unless_present_any = ["formats", "of"])]
    name: Option<String>,
    /// Print the policy that this model of the store carries, with all that it extends
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["name", "formats", "policy_dir"])]
    of: Option<String>,
    /// With --of: that of its draft
    #[arg(long, requires = "of")]
    draft: bool,
    /// Print the table of formats instead
    #[arg(long, conflicts_with = "name")]
    formats: bool,
    #[command(flatten)]
    policies: PolicyDir,
    #[command(flatten)]
    store: StoreArg,
}

pub fn run(args: &Show) -> Result<(), ui::Failure> {
    if let Some(of) = &args.of {
        ui::print(carried(args, of)?.trim_end());
        return Ok(());
    }
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

/// The text that a model carries; of one that carries none the policy that it is run by, as it would.
fn carried(args: &Show, of: &str) -> Result<String, Faults> {
    let store = args.store.open()?;
    let entry = store.entry(&Name::parse(of)?)?;
    let (name, manifest) = (entry.name, entry.manifest?);
    let role = if args.draft { Role::Draft } else { Role::Target };
    if args.draft && store.config(&manifest)?.draft.is_none() {
        return Err(Fault::new(Code::Usage, format!("{name} has no draft")).into());
    }
    if let Some(layer) = manifest.policy(role) {
        return Ok(String::from_utf8_lossy(&store.read_blob(layer)?).into_owned());
    }
    ui::note(format!(
        "{name} carries no policy yet (`lathe update` puts one in); it is run by this"
    ));
    let policy = store.policy(&name.to_string(), &manifest, role, None)?;
    Ok(stored::text(&stored::merged(&policy, None))?)
}
