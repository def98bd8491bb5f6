//! `lathe create`

use std::cell::RefCell;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::args::{BackendArg, StoreArg};
use super::progress::{Audience, Reporter};
use super::{interrupt, ui};
use crate::create::{self, Created, Prepared, Recipe, Settings};
use crate::fault::{Code, Fault, Faults, Text, Warning};
use crate::plan::{self, Request};
use crate::store::{Manifest, Name, Store, Writer};
use crate::write;

/// Create a model from a Hugging Face folder or a Modelfile
///
/// Reads the headers of the weights, decides by the policy for the architecture what becomes of
/// each tensor, and writes the model into the store. The source is, in this order: FROM or -f when
/// given, ./Modelfile when there, the current folder when it is a model's.
///
/// Nothing is decided while writing: --dry-run prints the whole plan, with the rule that decided
/// about each tensor and why, and writes nothing. A printed plan can be edited and given back with
/// --plan.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  lathe create smollm2:int4 ./SmolLM2-135M-Instruct -q int4
  lathe create mymodel                              with ./Modelfile
  lathe create mymodel -f path/to/Modelfile -q mxfp8
  lathe create big ./big --draft ./small -q nvfp4 --quantize-draft int8
  lathe create terse smollm2:int4 -f -              FROM and more from standard input
  lathe create x ./model -q int4 --dry-run          what would be done, and why
  lathe create x ./model -q int4 --dry-run -o json > plan.json
  lathe create x ./model --plan plan.json           do what the (edited) plan says
  lathe create x ./model -q int4 -n -o html > plan.html   a picture of it")]
pub struct Create {
    /// Name of the model: [host/][namespace/]model[:tag]
    name: String,
    /// A model folder, or a model of the store [default: what the Modelfile says]
    #[arg(value_name = "FROM")]
    from: Option<String>,
    /// The Modelfile; - reads standard input [default: ./Modelfile when there]
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A folder with a draft model, for speculative decoding
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    draft: Option<PathBuf>,

    /// Quantize to this format: int4, int8, mxfp4, mxfp8, nvfp4, …; `source` decodes only
    #[arg(short, long, value_name = "FORMAT", help_heading = "Formats")]
    quantize: Option<String>,
    /// Quantize the draft to this format
    #[arg(long, visible_alias = "draft-quantize", value_name = "FORMAT", help_heading = "Formats")]
    quantize_draft: Option<String>,
    /// Quantize weights again that are quantized already, with loss
    #[arg(long, help_heading = "Formats")]
    requantize: bool,
    /// A folder of policies that add to the built-in ones, or replace those of the same name
    #[arg(long, value_name = "DIR", help_heading = "Formats")]
    policy_dir: Option<PathBuf>,
    /// Fail when a rule of the policy matches nothing, or only a catch-all reaches a tensor
    #[arg(long, help_heading = "Formats")]
    strict: bool,

    /// Print the plan, and write nothing
    #[arg(long, short = 'n', help_heading = "Plan")]
    dry_run: bool,
    /// Do what this plan says, instead of planning
    #[arg(long, value_name = "FILE", help_heading = "Plan", conflicts_with_all = ["quantize", "quantize_draft", "requantize", "strict"])]
    plan: Option<PathBuf>,
    /// How to print the plan or the result
    #[arg(short, long, value_enum, default_value_t = Form::Table, value_name = "FORM", help_heading = "Plan")]
    output: Form,

    /// Blobs that are made at once [default: one for each processor]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Work")]
    jobs: Option<u16>,
    /// Memory to work with, e.g. 800MB, 4GiB [default: a quarter of the machine's, at most 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = ui::parse_bytes, help_heading = "Work")]
    memory: Option<u64>,
    /// Leave out the check that the model still predicts a plain sentence
    #[arg(long, help_heading = "Work")]
    no_smoke: bool,
    #[command(flatten)]
    backend: BackendArg,
    /// Say nothing but faults and warnings; with --output json or yaml, the result alone
    #[arg(long, help_heading = "Work")]
    quiet: bool,
    #[command(flatten)]
    store: StoreArg,
}

/// The forms in which a plan can be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    Table,
    /// For scripts: the plan as schemas/plan.schema.json says, or events, one a line
    Json,
    /// For editing
    Yaml,
    /// A picture of the plan: one page that needs no network
    Html,
}

pub fn run(args: &Create) -> Result<(), ui::Failure> {
    if args.output == Form::Html && !args.dry_run {
        return Err(Fault::new(Code::Usage, "--output html is a picture of a plan")
            .help("add --dry-run")
            .into());
    }
    let for_scripts = matches!(args.output, Form::Json | Form::Yaml);
    let outcome = ui::failing(for_scripts, create(args))?;
    match outcome {
        Outcome::Planned(prepared) => ui::failing(for_scripts, print_plan(args.output, &prepared)),
        Outcome::Created(report) => ui::failing(for_scripts, print_created(args, &report)),
    }
}

enum Outcome {
    Planned(Box<Prepared>),
    Created(Box<Report>),
}

/// The result, and for scripts the last of the events.
#[derive(Serialize)]
struct Report {
    event: &'static str,
    #[serde(flatten)]
    created: Created,
    /// What the check after it found; `null` when it was left out.
    smoke: Option<Smoke>,
    /// Whether lathe can run it; `null` when it was not tried and nothing speaks against it.
    runs: Option<bool>,
    /// What it was made from.
    from: String,
    seconds: f64,
    warnings: Vec<Warning>,
}

fn create(args: &Create) -> Result<Outcome, Faults> {
    let begun = Instant::now();
    let name = Name::parse(&args.name)?;
    let store = args.store.open()?;
    let recipe = recipe(args, &store)?;
    let from = recipe.from.to_string();
    let settings = Settings {
        request: Request {
            format: args.quantize.clone(),
            draft_format: args.quantize_draft.clone(),
            requantize: args.requantize,
        },
        policy_dir: args.policy_dir.clone(),
        plan: args.plan.clone(),
        strict: args.strict,
    };
    // From here on, so that reading and planning can be interrupted too.
    let for_scripts = matches!(args.output, Form::Json | Form::Yaml);
    let cancel = interrupt::flag(move || ended_early(for_scripts))?;
    let prepared = create::prepare(recipe, &settings, &store)?;
    if args.dry_run {
        return Ok(Outcome::Planned(Box::new(prepared)));
    }
    let audience = match args.output {
        _ if args.quiet => Audience::Nobody,
        Form::Table => Audience::People,
        Form::Json => Audience::Scripts,
        Form::Yaml | Form::Html => Audience::Nobody,
    };
    let progress = Reporter::new(audience, prepared.bytes_in());
    let quantizer = write::best_quantizer()?;
    let options = write::Options {
        jobs: args.jobs.map_or_else(processors, usize::from),
        memory: args.memory.unwrap_or_else(write::default_memory),
        quantizer: &*quantizer,
        progress: &progress,
        cancel,
    };
    let smoke = RefCell::new(None);
    let created = prepared.write(&name, &store, &options, &|writer, manifest| {
        // Of a model that cannot run the plan's warnings say why.
        if !args.no_smoke && prepared.runs {
            write::Progress::phase(&progress, write::CHECKING);
            smoke.replace(check(writer, manifest, &args.backend)?);
        }
        Ok(())
    });
    progress.finish();
    let created = created?;
    let smoke = smoke.into_inner();
    if let (Some(smoke), Audience::People) = (&smoke, audience) {
        ui::note(&smoke.note);
    }
    let warnings = prepared.warnings().chain(&created.warnings).cloned().collect();
    let runs = match &smoke {
        _ if !prepared.runs => Some(false),
        Some(smoke) => smoke.runs,
        None => None,
    };
    Ok(Outcome::Created(Box::new(Report {
        event: "created",
        created,
        smoke,
        runs,
        from,
        seconds: begun.elapsed().as_secs_f64(),
        warnings,
    })))
}

/// Whether what was made still predicts text.
#[derive(Default, Serialize)]
pub(super) struct Smoke {
    /// Mean loss of a plain sentence, in nats a token; `null` when it could not be measured.
    loss: Option<f64>,
    /// That of a uniform guess over the vocabulary.
    uniform: Option<f64>,
    /// The same for people, or why it was not measured.
    pub(super) note: String,
    /// Whether it was found that it runs, or that it does not; `None` when it was not tried.
    #[serde(skip)]
    runs: Option<bool>,
}

/// Whether what was written still predicts text.
#[cfg(feature = "mlx")]
pub(super) fn check(
    writer: &Writer,
    manifest: &Manifest,
    backend: &BackendArg,
) -> Result<Option<Smoke>, Faults> {
    use crate::engine::smoke::{Checked, check};
    let checked = check(writer, manifest, backend.backend())?;
    let (runs, why) = match checked {
        Checked::Predicts { loss, uniform } => {
            let note = format!(
                "smoke check: {loss:.2} nats a token of a plain sentence (a uniform guess over the vocabulary: {uniform:.2})"
            );
            return Ok(Some(Smoke {
                loss: Some(loss),
                uniform: Some(uniform),
                note,
                runs: Some(true),
            }));
        }
        Checked::OnlyImports => {
            (Some(false), "this architecture can be imported and not run yet".into())
        }
        Checked::CannotRun(faults) => {
            let first = faults.0.first().map_or_else(String::new, |fault| fault.to_string());
            (Some(false), format!("this model can be imported and not run: {first}"))
        }
        Checked::TooLarge(bytes, memory) => {
            let (bytes, memory) = (ui::bytes(bytes), ui::bytes(memory));
            let what = format!(
                "whether the model runs was not tried: its {bytes} and what else runs need more \
                 than this machine's {memory}"
            );
            (None, what)
        }
        Checked::CannotSpell => (None, "the vocabulary does not spell a plain sentence".into()),
    };
    Ok(Some(Smoke { note: format!("no smoke check: {why}"), runs, ..Smoke::default() }))
}

/// Without MLX nothing can be run.
#[cfg(not(feature = "mlx"))]
pub(super) fn check(_: &Writer, _: &Manifest, _: &BackendArg) -> Result<Option<Smoke>, Faults> {
    Ok(None)
}

/// The last words of a work that Ctrl-C had to end because it waited for the disk or for a lock.
fn ended_early(for_scripts: bool) {
    let fault = Fault::new(Code::Interrupted, "interrupted before the work had ended by itself")
        .help("blobs that have their place in the store are kept, and the next create finds them");
    if let Err(failure) = ui::failing::<()>(for_scripts, Err(fault.into())) {
        ui::fail(&failure);
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What to make, from wherever the arguments say.
fn recipe(args: &Create, store: &Store) -> Result<Recipe, Faults> {
    let here = Path::new("Modelfile");
    match (&args.from, &args.file) {
        (Some(_), Some(_)) => Err(Fault::new(
            Code::Usage,
            "both a Modelfile and a source were given, and the Modelfile's FROM is the source",
        )
        .help("leave one of them away")
        .into()),
        (Some(from), None) => Ok(Recipe::from_source(from, args.draft.as_deref(), store)?),
        (None, Some(file)) => modelfile(file, store),
        (None, None) if here.is_file() && args.draft.is_none() => modelfile(here, store),
        (None, None) if Path::new("config.json").is_file() => {
            Ok(Recipe::from_source(".", args.draft.as_deref(), store)?)
        }
        (None, None) => Err(Fault::new(
            Code::Usage,
            "nothing to create the model from: no FROM, no -f, and no Modelfile or model here",
        )
        .help(format!("give a model's folder: lathe create {} FOLDER", args.name))
        .into()),
    }
}

fn modelfile(file: &Path, store: &Store) -> Result<Recipe, Faults> {
    let from_stdin = file == Path::new("-");
    let mut body = String::new();
    let read = if from_stdin {
        std::io::stdin().read_to_string(&mut body).map(drop)
    } else {
        std::fs::read_to_string(file).map(|text| body = text)
    };
    read.map_err(|error| Fault::io("read the Modelfile", file, &error))?;
    let name = if from_stdin { "standard input".into() } else { file.display().to_string() };
    let dir = if from_stdin { Path::new("") } else { file.parent().unwrap_or(Path::new("")) };
    Recipe::from_modelfile(&Arc::new(Text { name, body }), dir, store)
}

fn print_plan(form: Form, prepared: &Prepared) -> Result<(), Faults> {
    let Some(plan) = &prepared.plan else {
        ui::note("nothing to plan: the blobs of the stored model are used as they are");
        return Ok(());
    };
    match form {
        Form::Table => ui::print(plan::render::table(plan, ui::width()).trim_end()),
        Form::Json => ui::print(plan::render::json(plan)?),
        Form::Yaml => ui::print(plan::render::yaml(plan)?.trim_end()),
        Form::Html => ui::print(plan::picture::html(plan)?.trim_end()),
    }
    Ok(())
}

fn print_created(args: &Create, report: &Report) -> Result<(), Faults> {
    match args.output {
        // Events come one a line.
        Form::Json => ui::print_json_line(report),
        Form::Yaml => {
            let yaml = serde_yaml::to_string(report).map_err(|error| {
                Fault::new(Code::Internal, format!("the result has no YAML form: {error}"))
            })?;
            ui::print(yaml.trim_end());
        }
        Form::Table | Form::Html => {
            for warning in &report.warnings {
                ui::warn(&warning.message);
            }
            if !args.quiet {
                say_created(report);
            }
        }
    }
    Ok(())
}

/// What was made, from what, in how long, and what to do with it.
fn say_created(report: &Report) {
    let Report { from, seconds, .. } = report;
    let Created { name, size, new_blobs, new_bytes, unchanged, .. } = &report.created;
    let size = ui::bytes(*size);
    let made = format!("created {name} from {from} in {seconds:.1} s, {size}");
    if *unchanged && *new_blobs == 0 {
        ui::print(format_args!(
            "{name} is unchanged: the store has all of it, nothing was written"
        ));
    } else if *unchanged {
        let new = ui::bytes(*new_bytes);
        ui::print(format_args!(
            "{name} is unchanged, but the store lacked {new} in {new_blobs} blobs, which were \
             written again"
        ));
    } else if *new_blobs == 0 {
        ui::print(format_args!("{made}: every blob was in the store already"));
    } else {
        let new = ui::bytes(*new_bytes);
        ui::print(format_args!("{made}: {new} in {new_blobs} new blobs"));
    }
    // What was left out by --no-smoke is not spoken against; what was too large was not tried.
    let left_out = report.smoke.is_none() && report.runs.is_none();
    if report.runs == Some(true) || left_out {
        ui::print(format_args!("run it: lathe run {name}"));
    }
}
