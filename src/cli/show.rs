//! `lathe show`

use clap::Args;
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::{Value, json};

use super::args::{OutputArg, StoreArg};
use super::ui;
use crate::decoder;
use crate::fault::{Code, Fault, Faults};
use crate::modelfile::{Message, Modelfile, Parameters, Spanned};
use crate::plan::{self, render};
use crate::policy::Role;
use crate::policy::runnable::usable;
use crate::store::{
    Config, Entry, Layer, Manifest, Name, Origin, Store, TensorOrigin, Weight, bits_per_weight,
    media, told_format,
};
use crate::update::Head;

/// Show what a model is
///
/// Only headers are read.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe show smollm2:int4
  lathe show smollm2:int4 --tensors     every tensor with its format and size
  lathe show smollm2:int4 --quant       what each tensor was, what it is, and who made it
  lathe show smollm2:int4 --modelfile > Modelfile
  lathe show smollm2:int4 -o json | jq .capabilities")]
pub struct Show {
    /// The model
    name: String,
    /// List every tensor
    #[arg(long, group = "what")]
    tensors: bool,
    /// Tell of each tensor what it was, what it is, which producer quantized it and by which rule
    #[arg(long, group = "what")]
    quant: bool,
    /// Print a Modelfile that makes the same model
    #[arg(long, group = "what")]
    modelfile: bool,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    store: StoreArg,
}

pub fn run(args: &Show) -> Result<(), ui::Failure> {
    let json = args.output.json();
    let model = ui::failing(json, Model::read(args))?;
    match (json, args.modelfile, args.tensors, args.quant) {
        (false, true, ..) => ui::print(model.modelfile.to_string().trim_end()),
        (true, true, ..) => ui::print_json(&json!({ "modelfile": model.modelfile.to_string() })),
        (false, _, true, _) => print_tensors(&model),
        (true, _, true, _) => ui::print_json(&json!({ "tensors": model.tensors() })),
        (false, _, _, true) => print_formats(&model),
        (true, _, _, true) => {
            ui::print_json(&json!({ "formats": model.formats(), "tensors": model.traces() }))
        }
        (true, ..) => ui::print_json(&model.summary()),
        (false, ..) => print_summary(&model),
    }
    Ok(())
}

/// All that is shown of a model.
struct Model {
    entry: Entry,
    manifest: Manifest,
    config: Config,
    architecture: Option<String>,
    weights: Vec<Weight>,
    origin: Option<Origin>,
    modelfile: Modelfile,
    /// The policies that it carries: its own, and its draft's.
    policies: Vec<(Role, Result<Head, Fault>)>,
    /// Tokens up to which its decoder is exact, where that says so.
    exact_context: Option<usize>,
    /// What keeps lathe from running it.
    in_the_way: Vec<Fault>,
}

/// A row of `--tensors`.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    format: &'a str,
    dtype: &'a str,
    shape: &'a [u64],
    bytes: u64,
    blob: String,
}

impl Row<'_> {
    fn of(weight: &Weight) -> Row<'_> {
        Row {
            name: &weight.name,
            format: weight.format_name(),
            dtype: weight.dtype.as_str(),
            shape: &weight.shape,
            bytes: weight.bytes(),
            blob: weight.layer.digest.hex(),
        }
    }
}

/// A row of `--quant`: a tensor's way from the source.
#[derive(Serialize)]
struct Trace<'a> {
    name: &'a str,
    /// What it was; null for a model that another program made.
    was: Option<&'a TensorOrigin>,
    /// Its format now.
    is: &'a str,
}

/// A sum of `--quant`.
#[derive(Default, Serialize)]
struct Sum {
    tensors: u64,
    elements: u64,
    bytes: u64,
    bits_per_weight: f64,
}

impl Model {
    fn read(args: &Show) -> Result<Model, Faults> {
        let store = args.store.open()?;
        let entry = store.entry(&Name::parse(&args.name)?)?;
        let manifest = entry.manifest.clone()?;
        let config = store.config(&manifest)?;
        let weights = store.weights(&manifest)?;
        let origin = store.origin(&manifest)?;
        let architecture = architecture(&store, &manifest);
        let modelfile = modelfile(&store, &entry.name, &manifest, &config)?;
        let policies = policies(&store, &entry.name, &manifest);
        let exact_context = exact_context(&store, &entry.name, &manifest);
        let in_the_way = store.in_the_way(&entry.name, &manifest);
        let in_the_way = in_the_way.unwrap_or_else(|faults| faults.0);
        Ok(Model {
            entry,
            manifest,
            config,
            architecture,
            weights,
            origin,
            modelfile,
            policies,
            exact_context,
            in_the_way,
        })
    }

    /// The capabilities that whoever runs it with lathe has.
    fn capabilities(&self) -> Vec<&str> {
        usable(&self.config.capabilities, self.in_the_way.is_empty())
    }

    /// Those that the manifest names besides, for other programs.
    fn others(&self) -> Vec<&str> {
        let (all, ours) = (self.config.capabilities.iter(), self.capabilities());
        all.map(String::as_str).filter(|name| !ours.contains(name)).collect()
    }

    fn tensors(&self) -> Vec<Row<'_>> {
        self.weights.iter().map(Row::of).collect()
    }

    fn traces(&self) -> Vec<Trace<'_>> {
        let was = |name: &str| self.origin.as_ref()?.tensors.get(name);
        let trace = |w| {
            let weight: &Weight = w;
            Trace { name: &weight.name, was: was(&weight.name), is: weight.format_name() }
        };
        self.weights.iter().map(trace).collect()
    }

    fn formats(&self) -> IndexMap<&str, Sum> {
        let mut sums = IndexMap::<&str, Sum>::new();
        for weight in &self.weights {
            let sum = sums.entry(weight.format_name()).or_default();
            sum.tensors += 1;
            sum.elements += weight.elements();
            sum.bytes += weight.bytes();
        }
        for sum in sums.values_mut() {
            sum.bits_per_weight = sum.bytes as f64 * 8.0 / sum.elements.max(1) as f64;
        }
        sums.sort_by(|_, a, _, b| b.bytes.cmp(&a.bytes));
        sums
    }

    fn elements(&self) -> u64 {
        self.weights.iter().map(Weight::elements).sum()
    }

    fn files(&self) -> Vec<&str> {
        let layers = self.manifest.layers.iter();
        let is_file = |l: &&Layer| matches!(l.media_type.as_str(), media::JSON | media::FILE);
        layers.filter(is_file).filter_map(|layer| layer.name.as_deref()).collect()
    }

    fn policy(&self, role: Role) -> Option<&Result<Head, Fault>> {
        self.policies.iter().find(|(of, _)| *of == role).map(|(_, head)| head)
    }

    fn summary(&self) -> Value {
        let Modelfile { template, system, licenses, parameters, messages, .. } = &self.modelfile;
        json!({
            "name": self.entry.name,
            "digest": self.entry.digest.hex(),
            "size": self.manifest.size(),
            "modified": ui::timestamp(self.entry.modified),
            "architecture": self.architecture,
            "parameters": self.elements(),
            "format": told_format(&self.config, &self.weights),
            "bits_per_weight": bits_per_weight(&self.weights),
            "formats": self.formats(),
            "runs": self.in_the_way.is_empty(),
            "in_the_way": self.in_the_way,
            "capabilities": self.capabilities(),
            "manifest_capabilities": self.config.capabilities,
            "parser": self.config.parser,
            "renderer": self.config.renderer,
            "requires": self.config.requires,
            "draft": self.config.draft,
            "policy": self.policy(Role::Target).and_then(|head| head.as_ref().ok()),
            "draft_policy": self.policy(Role::Draft).and_then(|head| head.as_ref().ok()),
            "exact_context": self.exact_context,
            "files": self.files(),
            "template": template.as_ref().map(Spanned::text),
            "system": system,
            "licenses": licenses,
            "defaults": parameters,
            "messages": messages,
        })
    }
}

/// What the policies are called that a model carries, or why one cannot be read.
fn policies(store: &Store, name: &Name, manifest: &Manifest) -> Vec<(Role, Result<Head, Fault>)> {
    let read = |role| {
        manifest.read_policy(role, &name.to_string(), |layer| store.read_blob(layer)).transpose()
    };
    let roles = [Role::Target, Role::Draft].into_iter();
    roles.filter_map(|role| Some((role, read(role)?.map(|entry| Head::of(&entry.file))))).collect()
}

/// What the model's own config says it is.
fn architecture(store: &Store, manifest: &Manifest) -> Option<String> {
    crate::checkpoint::architecture(&store.model_config(manifest).ok()?).ok()
}

/// What the policy that it is run by says of its decoder; nothing when that cannot be read.
fn exact_context(store: &Store, name: &Name, manifest: &Manifest) -> Option<usize> {
    let policy = store.policy(&name.to_string(), manifest, Role::Target, None).ok()?;
    let config = store.model_config(manifest).ok()?;
    decoder::exact_context(policy.decoder.as_ref()?, &config).ok()?
}

/// A Modelfile that makes the same model from the stored one.
fn modelfile(
    store: &Store,
    name: &Name,
    manifest: &Manifest,
    config: &Config,
) -> Result<Modelfile, Fault> {
    let texts = |media_type| {
        let text = |layer| Ok(String::from_utf8_lossy(&store.read_blob(layer)?).into_owned());
        manifest.of_type(media_type).map(text).collect::<Result<Vec<String>, Fault>>()
    };
    let damaged = |error: serde_json::Error| {
        Fault::new(Code::CorruptBlob, format!("parameters or messages of {name}: {error}"))
    };
    let mut parameters = Parameters::new();
    for text in texts(media::PARAMS)? {
        parameters.extend(serde_json::from_str::<Parameters>(&text).map_err(damaged)?);
    }
    let mut messages = Vec::<Message>::new();
    for text in texts(media::MESSAGES)? {
        messages.extend(serde_json::from_str::<Vec<Message>>(&text).map_err(damaged)?);
    }
    Ok(Modelfile {
        from: name.to_string().as_str().into(),
        template: texts(media::TEMPLATE)?.pop().map(Spanned::from),
        system: texts(media::SYSTEM)?.pop(),
        licenses: texts(media::LICENSE)?,
        parser: config.parser.clone().map(Spanned::from),
        renderer: config.renderer.clone().map(Spanned::from),
        requires: config.requires.clone().filter(|least| least != plan::LEAST_RUNTIME),
        parameters,
        messages,
        ..Modelfile::default()
    })
}

fn print_tensors(model: &Model) {
    let mut table = ui::Table::new(&["TENSOR", "FORMAT", "DTYPE", "SHAPE", "SIZE"]);
    for row in model.tensors() {
        table.row([
            row.name.to_string(),
            row.format.to_string(),
            row.dtype.to_string(),
            render::shape(row.shape),
            ui::bytes(row.bytes),
        ]);
    }
    ui::print_table(&table);
}

fn print_formats(model: &Model) {
    let mut table = ui::Table::new(&["TENSOR", "WAS", "LAYOUT", "PRODUCER", "IS", "RULE"]);
    let traces = model.traces();
    for Trace { name, was, is } in &traces {
        let told = |what: &dyn Fn(&TensorOrigin) -> String| was.map_or("?".into(), what);
        table.row([
            name.to_string(),
            told(&|was| match was.sources {
                0 | 1 => format!("{} {}", was.dtype, render::shape(&was.shape)),
                n => format!("{} {} and {} more", was.dtype, render::shape(&was.shape), n - 1),
            }),
            told(&|was| was.layout.clone()),
            told(&|was| was.producer.clone().unwrap_or_else(|| "-".into())),
            is.to_string(),
            told(&|was| was.rule.clone()),
        ]);
    }
    ui::print_table(&table);
    ui::print("");
    let mut table = ui::Table::new(&["FORMAT", "TENSORS", "WEIGHTS", "SIZE", "BITS/WEIGHT"]);
    for (format, sum) in model.formats() {
        table.row([
            format.to_string(),
            sum.tensors.to_string(),
            render::count(sum.elements),
            ui::bytes(sum.bytes),
            format!("{:.2}", sum.bits_per_weight),
        ]);
    }
    ui::print_table(&table);
}

fn policy_row(head: &Result<Head, Fault>) -> String {
    match head {
        Ok(head) => format!("{} of lathe {}", head.name, head.lathe.as_deref().unwrap_or("?")),
        Err(fault) => fault.message.clone(),
    }
}

fn print_summary(model: &Model) {
    let Model { entry, manifest, config, modelfile, .. } = model;
    let formats = model.formats().keys().copied().collect::<Vec<_>>().join(", ");
    let first_line = |text: &String| text.trim().lines().next().unwrap_or_default().to_string();
    let format = told_format(config, &model.weights);
    let defaults = serde_json::to_string(&modelfile.parameters).unwrap_or_default();
    let rows = [
        ("name", Some(entry.name.to_string())),
        ("id", Some(entry.digest.hex()[..12].to_string())),
        ("architecture", model.architecture.clone()),
        ("parameters", Some(render::count(model.elements()))),
        ("size", Some(ui::bytes(manifest.size()))),
        ("format", Some(if format.is_empty() { "-" } else { format }.to_string())),
        ("bits per weight", bits_per_weight(&model.weights).map(|bits| format!("{bits:.2}"))),
        ("formats", Some(formats)),
        ("runs", model.in_the_way.first().map(|fault| format!("no: {fault}"))),
        ("capabilities", Some(model.capabilities().join(", ")).filter(|list| !list.is_empty())),
        ("not with lathe", Some(model.others().join(", ")).filter(|list| !list.is_empty())),
        ("parser", config.parser.clone()),
        ("renderer", config.renderer.clone()),
        ("requires", config.requires.clone()),
        ("draft", config.draft.as_ref().map(|draft| draft.architecture.clone())),
        ("policy", model.policy(Role::Target).map(policy_row)),
        ("draft policy", model.policy(Role::Draft).map(policy_row)),
        ("system", modelfile.system.as_ref().map(first_line)),
        ("defaults", Some(defaults).filter(|_| !modelfile.parameters.is_empty())),
        ("license", modelfile.licenses.first().map(first_line)),
        ("files", Some(model.files().join(", "))),
        ("modified", Some(ui::ago(entry.modified))),
    ];
    let mut table = ui::Table::new(&[]);
    for (label, value) in rows {
        if let Some(value) = value {
            table.row([label.to_string(), value]);
        }
    }
    ui::print_table(&table);
    if let Some(tokens) = model.exact_context {
        ui::note(format!("its decoder is exact up to {tokens} tokens, and refuses longer prompts"));
    }
    let foreign = model.weights.iter().any(|w| w.format.is_some_and(|format| !format.ollama));
    if foreign {
        ui::note("Ollama cannot read some of these formats; lathe and mlx-lm can");
    }
}
