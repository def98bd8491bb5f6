//! `lathe list`

use clap::Args;
use serde::Serialize;

use super::args::{OutputArg, StoreArg};
use super::ui;
use crate::fault::{Fault, Faults};
use crate::store::{Entry, Name, Store, bits_per_weight, told_format};

/// List the models of the store
#[derive(Args)]
#[command(
    visible_alias = "ls",
    after_help = "\
Examples:
  lathe list
  lathe list smollm2                    names that contain a text
  lathe list --output json | jq -r '.models[].name'"
)]
pub struct List {
    /// Only names that contain this text
    filter: Option<String>,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    store: StoreArg,
}

#[derive(Serialize)]
struct Row {
    name: Name,
    digest: String,
    size: Option<u64>,
    modified: String,
    format: Option<String>,
    bits_per_weight: Option<f64>,
    capabilities: Vec<String>,
    draft: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Fault>,
}

pub fn run(args: &List) -> Result<(), ui::Failure> {
    let json = args.output.json();
    let entries = ui::failing(json, list(args).map_err(Faults::from))?;
    if json {
        let models: Vec<Row> = entries.into_iter().map(|(row, _)| row).collect();
        ui::print_json(&serde_json::json!({ "models": models }));
        return Ok(());
    }
    if entries.is_empty() {
        ui::note("no models yet; `lathe create --help` tells how to make one");
        return Ok(());
    }
    let mut table = ui::Table::new(&["NAME", "ID", "SIZE", "FORMAT", "BITS", "MODIFIED"]);
    for (row, modified) in &entries {
        let format = match &row.error {
            Some(_) => "damaged".to_string(),
            None => row.format.clone().filter(|f| !f.is_empty()).unwrap_or_else(|| "-".into()),
        };
        table.row([
            row.name.to_string(),
            row.digest[..12].to_string(),
            row.size.map_or_else(|| "-".into(), ui::bytes),
            row.draft.as_ref().map_or(format.clone(), |_| format!("{format} + draft")),
            row.bits_per_weight.map_or_else(|| "-".into(), |bits| format!("{bits:.2}")),
            ui::ago(*modified),
        ]);
    }
    ui::print_table(&table);
    for (row, _) in &entries {
        if let Some(fault) = &row.error {
            ui::warn(fault.to_string());
        }
    }
    Ok(())
}

fn list(args: &List) -> Result<Vec<(Row, std::time::SystemTime)>, Fault> {
    let store = args.store.open()?;
    let filter = args.filter.as_deref().unwrap_or("").to_lowercase();
    let mut entries = store.list()?;
    entries.retain(|entry| entry.name.to_string().to_lowercase().contains(&filter));
    Ok(entries.into_iter().map(|entry| (row(&store, &entry), entry.modified)).collect())
}

fn row(store: &Store, entry: &Entry) -> Row {
    let mut row = Row {
        name: entry.name.clone(),
        digest: entry.digest.hex(),
        size: entry.manifest.as_ref().ok().map(crate::store::Manifest::size),
        modified: ui::timestamp(entry.modified),
        format: None,
        bits_per_weight: None,
        capabilities: Vec::new(),
        draft: None,
        error: None,
    };
    let config = entry.manifest.as_ref().map_err(Clone::clone).and_then(|m| store.config(m));
    match config {
        Ok(config) => {
            let weights = entry.manifest.as_ref().map(|manifest| store.weights(manifest));
            // What is wrong with a blob, `verify` tells.
            row.format = Some(match &weights {
                Ok(Ok(weights)) => told_format(&config, weights).to_string(),
                _ => config.file_type.clone(),
            });
            row.bits_per_weight =
                weights.ok().and_then(Result::ok).and_then(|weights| bits_per_weight(&weights));
            row.capabilities = config.capabilities;
            row.draft = config.draft.map(|draft| draft.architecture);
        }
        Err(fault) => row.error = Some(fault),
    }
    row
}
