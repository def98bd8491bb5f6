//! `lathe policy list`

use clap::Args;
use serde::Serialize;

use super::PolicyDir;
use crate::cli::args::OutputArg;
use crate::cli::ui;
use crate::policy::Role;
use crate::policy::parsers::Answers;

/// List the policies and the architectures that each is for
#[derive(Args)]
pub struct List {
    /// List the names of answer parsers instead
    #[arg(long)]
    parsers: bool,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    policies: PolicyDir,
}

#[derive(Serialize)]
struct Row {
    name: String,
    extends: Option<String>,
    role: &'static str,
    architectures: Vec<String>,
    rules: usize,
    decoder: bool,
    file: String,
}

pub fn run(args: &List) -> Result<(), ui::Failure> {
    if args.parsers {
        return parsers(args);
    }
    let library = ui::failing(args.output.json(), args.policies.library())?;
    let rows: Vec<Row> = library
        .iter()
        .map(|entry| Row {
            name: entry.file.name.clone(),
            extends: entry.file.extends.clone(),
            role: match entry.file.role {
                Role::Target => "target",
                Role::Draft => "draft",
            },
            architectures: entry.file.matches.clone().map(|m| m.architectures).unwrap_or_default(),
            rules: entry.file.guards.len() + entry.file.drafts.len() + entry.file.tensors.len(),
            decoder: library
                .chain(entry)
                .is_ok_and(|chain| chain.iter().any(|link| link.file.decoder.is_some())),
            file: entry.document.text.name.clone(),
        })
        .collect();
    if args.output.json() {
        ui::print_json(&serde_json::json!({ "policies": rows }));
        return Ok(());
    }
    let mut table =
        ui::Table::new(&["NAME", "EXTENDS", "ROLE", "RULES", "RUNS", "ARCHITECTURES", "FILE"]);
    for row in rows {
        table.row([
            row.name,
            row.extends.unwrap_or_else(|| "-".into()),
            row.role.into(),
            row.rules.to_string(),
            if row.decoder { "yes" } else { "-" }.into(),
            row.architectures.join(", "),
            row.file,
        ]);
    }
    ui::print_table(&table);
    Ok(())
}

fn parsers(args: &List) -> Result<(), ui::Failure> {
    let parsers = Answers::built_in()?;
    if args.output.json() {
        let names: Vec<&String> = parsers.iter().map(|parser| &parser.name).collect();
        ui::print_json(&serde_json::json!({ "parsers": names }));
        return Ok(());
    }
    let mut table = ui::Table::new(&["PARSER", "THINKING", "TOOLS"]);
    for parser in &parsers {
        let yes = |does: bool| if does { "yes" } else { "-" };
        table.row([
            parser.name.as_str(),
            yes(parser.thinking.is_some()),
            yes(!parser.tools.is_empty()),
        ]);
    }
    ui::print_table(&table);
    Ok(())
}
