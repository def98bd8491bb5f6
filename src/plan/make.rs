//! Making a plan: each weight's decision becomes output tensors, grouped into blobs.

mod builder;
mod outputs;

use super::{Draft, Manifest, Plan, Request, Source, Totals, VERSION};
use crate::checkpoint::architecture;
use crate::classify::Classified;
use crate::decoder::parts::Content;
use crate::fault::{Code, Fault, Faults, Warning};
use crate::format::{Format, Formats, SOURCE};
use crate::policy::{Policy, Role};
use crate::read::Inventory;
use builder::Builder;

/// Media type of a blob of tensors.
pub const TENSOR_MEDIA: &str = "application/vnd.ollama.image.tensor";
/// Media type of a JSON file of the folder.
pub const JSON_MEDIA: &str = "application/vnd.ollama.image.json";
/// Media type of another file that the runtime needs.
pub const FILE_MEDIA: &str = "application/vnd.lathe.image.file";
/// What the names of a draft's tensors begin with.
pub const DRAFT_PREFIX: &str = "draft.";

/// A model folder that has been read and classified, and the policy for it.
#[derive(Clone, Copy)]
pub struct Stock<'a> {
    /// The folder.
    pub inventory: &'a Inventory,
    /// Its weights.
    pub classified: &'a Classified,
    /// The policy that decides.
    pub policy: &'a Policy,
}

/// What a Modelfile says that wins over the policy.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `PARSER`.
    pub parser: Option<String>,
    /// `RENDERER`.
    pub renderer: Option<String>,
    /// `REQUIRES`.
    pub requires: Option<String>,
    /// Whether a `TEMPLATE` stands in for a chat template in the folder.
    pub template: bool,
}

/// What a plan is made from besides the folders.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The formats asked for, as the user named them.
    pub request: Request,
    /// The Modelfile's words.
    pub overrides: Overrides,
    /// Whether notes (dead rules, catch-all) are faults.
    pub strict: bool,
}

/// Plans a model, and the draft that comes with it.
///
/// # Errors
/// All faults of all tensors at once: unknown formats, quantized weights that were asked to be
/// quantized again, experts that do not stack, names that collide, uncovered tensors.
pub fn plan(target: Stock, draft: Option<Stock>, options: &Options) -> Result<Plan, Faults> {
    let mut faults = Faults::default();
    let mut request = options.request.clone();
    let format = requested(&mut request.format, &mut faults);
    let draft_format = requested(&mut request.draft_format, &mut faults);
    if !faults.0.is_empty() {
        return Err(faults);
    }

    let architecture = architecture(&target.inventory.config)?;
    let mut builder = Builder::new(request.clone());
    let decided = builder.add(target, Role::Target, format, &mut faults);
    let mut draft_source = None;
    let mut draft_manifest = None;
    if let Some(draft) = draft {
        let architecture = self::architecture(&draft.inventory.config)?;
        builder.add(draft, Role::Draft, draft_format, &mut faults);
        draft_source = Some(source(&draft, &architecture));
        draft_manifest = Some(draft_of(architecture));
    }
    let Some(facts) = decided else { return Err(faults) };
    let mut manifest = facts;
    if let Some(parser) = &options.overrides.parser {
        manifest.parser = Some(parser.clone());
    }
    manifest.renderer = options.overrides.renderer.clone().or(manifest.renderer);
    manifest.requires = options.overrides.requires.clone().or(manifest.requires);
    manifest.draft = draft_manifest;
    builder.check_names(&mut faults);
    let Builder { blobs, files, warnings, notes, .. } = builder;
    let totals = Totals::of(blobs.iter().flat_map(|blob| &blob.tensors));
    if options.strict {
        for note in &notes {
            let code =
                if note.code == Code::DeadRule.as_str() { Code::DeadRule } else { Code::CatchAll };
            let fault = Fault::new(code, note.message.clone())
                .help("mend the policy, or leave --strict away");
            faults.push(match &note.tensor {
                Some(tensor) => fault.on_tensor(tensor),
                None => fault,
            });
        }
    }
    let mut plan = Plan {
        version: VERSION,
        source: source(&target, &architecture),
        draft: draft_source,
        request,
        blobs,
        files,
        manifest,
        totals,
        runs: true,
        warnings,
        notes,
    };
    if target.inventory.chat_template.is_none() && !options.overrides.template {
        plan.warnings.push(Warning::new(
            Code::NoChatTemplate,
            "no chat template found in the folder (chat_template.jinja, tokenizer_config.json); \
             conversations will be sent as plain text",
        ));
    }
    let in_the_way = in_the_way(&plan, &target);
    plan.runs = in_the_way.is_empty();
    for fault in in_the_way {
        let warning = not_run(&fault);
        // What has no single meaning is wrong for whoever runs the model.
        match options.strict || fault.code == Code::Ambiguous {
            true if fault.code == Code::Ambiguous => faults.push(fault),
            true => faults.push(Fault { message: warning.message, others: Vec::new(), ..fault }),
            false => plan.warnings.push(warning),
        }
    }
    if let Some(decoder) = &target.policy.decoder {
        plan.warnings.extend(super::decoder::warnings(decoder, &target.inventory.config));
    }
    if target.policy.chain[0].file.matches.is_none() {
        plan.warnings.push(Warning::new(
            Code::NoPolicy,
            format!(
                "no policy is for {}: the rules of {} decide (`lathe policy new` drafts one)",
                plan.source.architecture, target.policy.name
            ),
        ));
    }
    plan.warn_of_ollama();
    faults.or(plan)
}

/// What keeps lathe from running what a plan makes of its target.
fn in_the_way(plan: &Plan, target: &Stock) -> Vec<Fault> {
    let own = plan.tensors().filter(|tensor| {
        !tensor.is_companion() && !tensor.sources.iter().any(|source| source.draft)
    });
    let held = own.map(|tensor| (tensor.name.clone(), tensor.held()));
    let files = target.inventory.files.iter().map(|file| file.name.as_str());
    // Biases of zeros are left out before, so those that are there are none.
    let content = target.inventory.has_weights().then_some(&WithoutZeros as &dyn Content);
    target.policy.in_the_way(&target.inventory.config, held, files, content)
}

/// What is known of the tensors of a folder once biases of zeros have been left out.
struct WithoutZeros;

impl Content for WithoutZeros {
    fn is_zero(&self, _: &str) -> bool {
        false
    }

    fn same(&self, _: &str, _: &str) -> bool {
        true
    }
}

/// The warning that a model does not run.
pub fn not_run(fault: &Fault) -> Warning {
    let place = fault.place.as_ref().map_or(String::new(), |place| {
        let (line, column) = place.text.line_column(place.span.start);
        format!(" ({}:{line}:{column})", place.text.name)
    });
    let help = fault.help.as_ref().map_or(String::new(), |help| format!("; {help}"));
    let message = format!("this model can be imported and not run: {fault}{place}{help}");
    Warning { tensor: fault.tensor.clone(), ..Warning::new(fault.code, message) }
}

/// Plans a draft alone, to be added to a model that is in the store already.
///
/// # Errors
/// As [`plan`].
pub fn plan_draft(draft: Stock, options: &Options) -> Result<Plan, Faults> {
    let mut faults = Faults::default();
    let mut request = options.request.clone();
    let format = requested(&mut request.draft_format, &mut faults);
    if !faults.0.is_empty() {
        return Err(faults);
    }
    let architecture = architecture(&draft.inventory.config)?;
    let mut builder = Builder::new(request.clone());
    builder.add(draft, Role::Draft, format, &mut faults);
    builder.check_names(&mut faults);
    let Builder { blobs, files, warnings, notes, .. } = builder;
    let totals = Totals::of(blobs.iter().flat_map(|blob| &blob.tensors));
    let source = source(&draft, &architecture);
    let manifest = Manifest { draft: Some(draft_of(architecture)), ..Manifest::default() };
    let draft = Some(source.clone());
    let mut plan = Plan {
        version: VERSION,
        source,
        draft,
        request,
        blobs,
        files,
        manifest,
        totals,
        runs: true,
        warnings,
        notes,
    };
    plan.warn_of_ollama();
    faults.or(plan)
}

/// What the manifest says of a draft.
fn draft_of(architecture: String) -> Draft {
    Draft {
        model_format: "safetensors".into(),
        architecture,
        tensor_prefix: DRAFT_PREFIX.into(),
        config: "draft/config.json".into(),
    }
}

/// The format of a request; its name is made canonical. `source` and no request are `None`.
fn requested(name: &mut Option<String>, faults: &mut Faults) -> Option<&'static Format> {
    let given = name.as_ref()?;
    if given.eq_ignore_ascii_case(SOURCE) {
        *name = Some(SOURCE.into());
        return None;
    }
    match Formats::built_in().resolve(given) {
        Ok(format) => {
            *name = Some(format.name.clone());
            Some(format)
        }
        Err(fault) => {
            faults.push(fault);
            None
        }
    }
}

fn source(stock: &Stock, architecture: &str) -> Source {
    Source {
        dir: stock.inventory.dir.display().to_string(),
        architecture: architecture.to_string(),
        policy: stock.policy.name.clone(),
        digest: stock.inventory.digest.clone(),
    }
}
