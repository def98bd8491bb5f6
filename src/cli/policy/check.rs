//! `lathe policy check`

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use clap::Args;
use serde::Serialize;

use super::PolicyDir;
use crate::cli::args::{BackendArg, OutputArg, StoreArg};
use crate::cli::ui;
use crate::create::{self, From, Recipe, Settings};
use crate::engine::reference::{Comparison, Reference};
use crate::engine::{self, Loading};
use crate::fault::Faults;
use crate::model::Model;
use crate::store::{Name, Store};
use crate::write;

/// Compare a model's numbers with those of another program
///
/// The file has what the other program computed of the same weights: input_ids [1, n], logits
/// [1, n, vocabulary] in F32 and, optionally, greedy [k]; scripts/reference.py makes one with
/// transformers. A folder is written unquantized into a temporary store first. Exits with 1 when a
/// logit differs by more than the tolerance, or the greedy continuation does.
#[derive(Args)]
#[command(after_help = "\
Examples:
  python scripts/reference.py ./My-Model my.ref.safetensors
  lathe policy check ./My-Model --against my.ref.safetensors --policy-dir mine
  lathe policy check my-model --against my.ref.safetensors --backend graph -o json")]
pub struct Check {
    /// A model folder, or a model of the store
    model: String,
    /// What the other program computed
    #[arg(long, value_name = "FILE")]
    against: PathBuf,
    /// Largest difference of a logit that counts as equal
    #[arg(long, value_name = "NUMBER", default_value_t = 1e-3)]
    tolerance: f32,
    #[command(flatten)]
    backend: BackendArg,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    policies: PolicyDir,
    #[command(flatten)]
    store: StoreArg,
}

/// For scripts.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    comparison: &'a Comparison,
    tolerance: f32,
    equal: bool,
}

pub fn run(args: &Check) -> Result<(), ui::Failure> {
    let json = args.output.json();
    let comparison = ui::failing(json, compare(args))?;
    let within = comparison.max_difference <= args.tolerance;
    let equal = within && comparison.greedy_equal != Some(false);
    if json {
        let report = Report { comparison: &comparison, tolerance: args.tolerance, equal };
        ui::print_json(&report);
    } else {
        ui::print(told(&comparison, args.tolerance));
    }
    if equal { Ok(()) } else { Err(ui::Failure::shown(1)) }
}

fn compare(args: &Check) -> Result<Comparison, Faults> {
    let reference = Reference::open(&args.against)?;
    Ok(reference.compare(&model(args)?)?)
}

fn model(args: &Check) -> Result<Model, Faults> {
    let policy_dir = args.policies.policy_dir.as_deref();
    let loading = Loading { policy_dir, backend: args.backend.backend() };
    let store = args.store.open()?;
    match Recipe::from_source(&args.model, None, &store)? {
        Recipe { from: From::Model(name), .. } => engine::model(&store, &name, loading),
        recipe => of_folder(recipe, policy_dir, loading),
    }
}

/// What a user would get of the folder without quantization, by way of a store of its own.
fn of_folder(recipe: Recipe, policy_dir: Option<&Path>, loading: Loading) -> Result<Model, Faults> {
    let dir = tempfile::tempdir().map_err(|error| {
        crate::fault::Fault::io("make a folder in", std::env::temp_dir(), &error)
    })?;
    let store = Store::open(Some(dir.path()))?;
    let policy_dir = policy_dir.map(Path::to_path_buf);
    let settings = Settings { policy_dir, ..Settings::default() };
    let prepared = create::prepare(recipe, &settings, &store)?;
    let quantizer = write::best_quantizer()?;
    let options = write::Options {
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        memory: write::default_memory(),
        quantizer: &*quantizer,
        progress: &write::Silent,
        cancel: &AtomicBool::new(false),
    };
    let name = Name::parse("checked")?;
    prepared.write(&name, &store, &options, &|_, _| Ok(()))?;
    // The mapped blobs stay readable when the folder goes.
    engine::model(&store, &name, loading)
}

fn told(comparison: &Comparison, tolerance: f32) -> String {
    let Comparison { max_difference, position, token, mean_difference, tokens, .. } = comparison;
    let verdict = if *max_difference <= tolerance { "within" } else { "beyond" };
    let mut text = format!(
        "logits: largest difference {max_difference:.2e} (token {token} at position {position} of \
         {tokens}), mean {mean_difference:.2e}: {verdict} {tolerance:.0e}"
    );
    match (comparison.greedy_equal, comparison.greedy_differs_at) {
        (Some(true), _) => text.push_str("\ngreedy continuation: equal"),
        (_, Some(step)) => {
            text.push_str(&format!("\ngreedy continuation: differs at step {step}"));
        }
        _ => text.push_str("\ngreedy continuation: the reference has none"),
    }
    text
}
