//! `lathe policy schema`

use clap::Args;

use crate::cli::ui;
use crate::fault::{Code, Fault};
use crate::schema;

/// Print the JSON Schema of a file that people write or scripts read
///
/// An editor completes keys when the first line of a policy names the schema:
/// # yaml-language-server: $schema=policy.schema.json
#[derive(Args)]
pub struct Schema {
    /// Which schema [default: policy]
    #[arg(default_value = "policy", hide_default_value = true)]
    name: String,
    /// List the schemas
    #[arg(long)]
    list: bool,
}

pub fn run(args: &Schema) -> Result<(), ui::Failure> {
    if args.list {
        for named in schema::ALL {
            ui::print(format!("{:<10} {}", named.name, named.about));
        }
        return Ok(());
    }
    let Some(named) = schema::get(&args.name) else {
        let names: Vec<&str> = schema::ALL.iter().map(|named| named.name).collect();
        return Err(Fault::new(Code::Usage, format!("there is no schema `{}`", args.name))
            .help(format!("there are: {}", names.join(", ")))
            .into());
    };
    ui::print(named.text().trim_end());
    Ok(())
}
