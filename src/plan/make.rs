//! Making a plan: each weight's decision becomes output tensors, grouped into blobs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use indexmap::IndexMap;

use super::reach::Reach;
use super::route::{Ask, Deciders, Route, quantized, reason};
use super::stack::{Piece, pieces};
use super::{
    Blob, Draft, File, LEAST_RUNTIME, Manifest, Op, Plan, Request, RuleRef, Source, SourceTensor,
    Tensor, Totals, VERSION,
};
use crate::checkpoint::architecture;
use crate::classify::{Classified, Input, Part, Weight, WeightKind};
use crate::companion::{BIAS, SCALE};
use crate::decoder::parts::Content;
use crate::fault::{Code, Fault, Faults, Warning};
use crate::format::{Format, Formats, SOURCE};
use crate::policy::compile::{CompiledRule, Section};
use crate::policy::{Decider, Decision, Model, Policy, Role};
use crate::read::Inventory;

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
    let mut builder = Builder { request: request.clone(), ..Builder::default() };
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
    let mut builder = Builder { request: request.clone(), ..Builder::default() };
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

/// Collects what the folders give.
#[derive(Default)]
struct Builder {
    request: Request,
    blobs: Vec<Blob>,
    files: Vec<File>,
    warnings: Vec<Warning>,
    notes: Vec<Warning>,
    /// Output name → where it came from.
    names: HashMap<String, String>,
    collisions: Vec<(String, String, String)>,
    /// Blob metadata of kept weights, as their layouts tell it.
    metadata: HashMap<String, Arc<IndexMap<String, String>>>,
}

/// A stacked tensor of an expert group (with companions, where its bytes are kept) and its format.
type Member = (Option<&'static Format>, Vec<Tensor>);

impl Builder {
    /// Adds a folder's tensors and files. Gives what its manifest says of it.
    fn add(
        &mut self,
        stock: Stock,
        role: Role,
        format: Option<&'static Format>,
        faults: &mut Faults,
    ) -> Option<Manifest> {
        let Stock { inventory, classified, policy } = stock;
        let model =
            Model { config: &inventory.config, template: inventory.chat_template.as_deref(), role };
        if role == Role::Target {
            faults.absorb(super::converted::check(inventory, policy).map_err(Faults::from));
        }
        self.warnings.extend(inventory.warnings.iter().cloned());
        self.warnings.extend(classified.warnings.iter().cloned());
        let ask = Ask {
            format,
            source: self.request_of(role).map(String::as_str) == Some(SOURCE),
            requantize: self.request.requantize,
            quantized: quantized(classified),
        };
        let mut deciders = Deciders::new(policy, model);
        let mut plain = faults.absorb(Decider::new(policy, model, format))?;
        let pieces = pieces(policy, &mut plain, &classified.weights, faults);
        let mut reached: Vec<u64> = vec![0; policy.rules.len()];
        let mut caught: Vec<String> = Vec::new();
        let mut refused: BTreeMap<Arc<str>, (usize, String, Arc<str>)> = BTreeMap::new();
        let mut requantized: BTreeMap<Arc<str>, (usize, String)> = BTreeMap::new();
        let mut reaches: IndexMap<&str, Reach> = IndexMap::new();
        let mut groups: IndexMap<String, Vec<Member>> = IndexMap::new();
        let own = Own { inventory, role };

        for piece in &pieces {
            let first = piece.members[0];
            let shape = piece.shape();
            let output = output_name(&piece.name, role);
            let route = ask.route(&first.kind);
            match route {
                Route::Refused(kept) => {
                    let entry = refused.entry(first.layout.clone());
                    entry.or_insert_with(|| (0, output.clone(), kept.into())).0 += 1;
                    continue;
                }
                Route::Requantize(_) => {
                    let entry = requantized.entry(first.layout.clone());
                    entry.or_insert_with(|| (0, output.clone())).0 += 1;
                }
                _ => {}
            }

            if let (WeightKind::Keep { metadata, .. }, Route::Keep(_)) = (&first.kind, route) {
                self.metadata.insert(output.clone(), metadata.clone());
            }
            let (chosen, tensors) = if let WeightKind::Keep { format: kept, parts, .. } =
                &first.kind
                && matches!(route, Route::Keep(_))
            {
                let rule = reason(
                    "kept",
                    &format!("already {kept} ({}); its bytes are kept", first.layout),
                );
                let tensors =
                    parts.iter().enumerate().map(|(n, _)| own.kept(piece, n, &output, &rule));
                (Formats::built_in().get(kept), tensors.collect::<Vec<_>>())
            } else {
                let decision = match route.wanted() {
                    // Integers of the source are tables, masks or packed by a program not known.
                    Some(_) if !first.dtype.is_float() => Ok(at_source(reason(
                        "no-float",
                        &format!("{} is no float and is not quantized", first.dtype),
                    ))),
                    None => Ok(at_source(route.reason())),
                    Some(wanted) => match deciders.get(wanted, faults) {
                        Some(decider) => decider.decide(&piece.name, &shape, first.dtype),
                        None => break,
                    },
                };
                let mut decision = match decision {
                    Ok(decision) => decision,
                    Err(fault) => {
                        // A condition that fails does so for many tensors.
                        if !faults.0.iter().any(|known| known.message == fault.message) {
                            faults.push(fault);
                        }
                        continue;
                    }
                };
                if let Some(index) = decision.index {
                    reached[index] += 1;
                    if is_catch_all(&policy.rules[index], policy) && decision.format.is_some() {
                        caught.push(output.clone());
                    }
                }
                if decision.format.is_none()
                    && let Some(stack) = &piece.stack
                    && decision.index.is_none()
                {
                    decision.rule = stack.clone();
                }
                if let Some(wanted) = route.wanted() {
                    let reach = reaches.entry(&wanted.name).or_default();
                    reach.add(&output, &shape, &decision);
                }
                (decision.format, vec![own.made(piece, &output, &shape, &decision)])
            };

            match &piece.group {
                Some(group) => {
                    groups.entry(output_name(group, role)).or_default().push((chosen, tensors))
                }
                None => self.push_blob(output.clone(), chosen, tensors),
            }
        }

        for (group, members) in groups {
            self.push_group(group, members);
        }
        for (layout, (count, tensor, kept)) in refused {
            faults.push(
                Fault::new(
                    Code::AlreadyQuantized,
                    format!("{count} weights are already {kept} (layout {layout}), first {tensor}"),
                )
                .on_tensor(tensor)
                .help("leave --quantize away to keep them, or add --requantize to quantize them again, with loss"),
            );
        }
        for (layout, (count, tensor)) in requantized {
            let to = format.map_or(SOURCE, |format| &format.name);
            self.warnings.push(
                Warning::new(
                    Code::Requantized,
                    format!(
                        "re-quantized: {count} weights of layout {layout} are decoded and \
                         quantized again to {to}, so the error of both quantizations adds up"
                    ),
                )
                .on_tensor(tensor),
            );
        }
        self.warnings.extend(reaches.iter().filter_map(|(format, reach)| reach.warning(format)));
        self.note(policy, &reached, &caught, format.is_some());
        self.add_files(inventory, role);

        if role == Role::Draft {
            return None;
        }
        self.manifest(&mut plain, &ask, faults)
    }

    fn request_of(&self, role: Role) -> Option<&String> {
        match role {
            Role::Target => self.request.format.as_ref(),
            Role::Draft => self.request.draft_format.as_ref(),
        }
    }

    fn manifest(&self, decider: &mut Decider, ask: &Ask, faults: &mut Faults) -> Option<Manifest> {
        let tensors = self.blobs.iter().flat_map(|blob| &blob.tensors);
        let made: BTreeSet<&str> = tensors.filter_map(|tensor| tensor.format.as_deref()).collect();
        let asked = ask.format.map(|format| format.name.as_str());
        let file_type = match asked.filter(|asked| made.contains(asked)) {
            Some(asked) => asked,
            None if made.len() > 1 => "mixed",
            None => made.first().copied().unwrap_or_default(),
        };
        let parser = faults.absorb(decider.parser().map_err(Faults::from))?;
        let renderer = faults.absorb(decider.renderer().map_err(Faults::from))?;
        let capabilities = decider.capabilities(parser.as_deref()).map_err(Faults::from);
        let capabilities = faults.absorb(capabilities)?;
        let requires = Some(decider.requires().unwrap_or_else(|| LEAST_RUNTIME.into()));
        let file_type = file_type.into();
        Some(Manifest { capabilities, parser, renderer, requires, file_type, draft: None })
    }

    /// One blob for a group whose tensors share a format, one for each tensor otherwise.
    fn push_group(&mut self, name: String, members: Vec<Member>) {
        let first = members[0].0.map(|format| &format.name);
        if members.iter().all(|(format, _)| format.map(|format| &format.name) == first) {
            let format = members[0].0;
            let tensors = members.into_iter().flat_map(|(_, tensors)| tensors).collect();
            self.push_blob(name, format, tensors);
        } else {
            for (format, tensors) in members {
                self.push_blob(tensors[0].name.clone(), format, tensors);
            }
        }
    }

    fn push_blob(&mut self, name: String, format: Option<&Format>, tensors: Vec<Tensor>) {
        for tensor in &tensors {
            self.claim(&tensor.name, &tensor.sources[0].name);
            if let Some(format) = tensor.ops.iter().find_map(Op::quantizes) {
                self.claim(&format!("{}{SCALE}", tensor.name), &tensor.sources[0].name);
                if Formats::built_in().get(format).is_some_and(Format::has_bias) {
                    self.claim(&format!("{}{BIAS}", tensor.name), &tensor.sources[0].name);
                }
            }
        }
        if tensors[0].name != name {
            self.claim(&name, &tensors[0].sources[0].name);
        }
        let metadata = match self.metadata.get(&tensors[0].name) {
            Some(told) => IndexMap::clone(told),
            None => format.map(Format::metadata).unwrap_or_default(),
        };
        self.blobs.push(Blob { name, media_type: TENSOR_MEDIA.into(), metadata, tensors });
    }

    /// Notes that `source` becomes (part of) the output `name`.
    fn claim(&mut self, name: &str, source: &str) {
        if let Some(other) = self.names.insert(name.to_string(), source.to_string()) {
            self.collisions.push((name.to_string(), other, source.to_string()));
        }
    }

    fn check_names(&mut self, faults: &mut Faults) {
        for (name, one, other) in std::mem::take(&mut self.collisions) {
            faults.push(
                Fault::new(
                    Code::NameCollision,
                    format!("two outputs would be named {name}: from {one} and from {other}"),
                )
                .on_tensor(name)
                .help("remove one of the two source tensors, or drop it with a rule"),
            );
        }
    }

    /// Rules of the policy's own file that decided nothing, and what only a catch-all reached.
    fn note(&mut self, policy: &Policy, reached: &[u64], caught: &[String], asked: bool) {
        if !asked {
            return;
        }
        for (rule, &count) in policy.rules.iter().zip(reached) {
            if count == 0 && rule.file == 0 && rule.place.0 == Section::Tensors {
                let RuleRef { id, file, line, .. } = &*rule.info;
                self.notes.push(Warning::new(
                    Code::DeadRule,
                    format!("rule {id} ({file}:{line}) decided about no tensor of this model"),
                ));
            }
        }
        for tensor in caught {
            self.notes.push(
                Warning::new(Code::CatchAll, format!("only the catch-all rule reached {tensor}"))
                    .on_tensor(tensor),
            );
        }
    }

    fn add_files(&mut self, inventory: &Inventory, role: Role) {
        for file in &inventory.files {
            let json = file.name.ends_with(".json");
            self.files.push(File {
                name: match role {
                    Role::Target => file.name.clone(),
                    Role::Draft => format!("draft/{}", file.name),
                },
                source: file.name.clone(),
                media_type: if json { JSON_MEDIA } else { FILE_MEDIA }.into(),
                bytes: file.size,
                draft: role == Role::Draft,
            });
        }
    }
}

/// Makes output tensors from the sources of one folder.
struct Own<'a> {
    inventory: &'a Inventory,
    role: Role,
}

impl Own<'_> {
    /// A tensor that is copied or decoded, and perhaps quantized.
    fn made(&self, piece: &Piece, name: &str, shape: &[u64], decision: &Decision) -> Tensor {
        let first = piece.members[0];
        let part = |weight: &Weight| match &weight.kind {
            WeightKind::Plain(part) => part.clone(),
            WeightKind::Decode { decode, .. } | WeightKind::Keep { decode, .. } => decode.clone(),
        };
        let parts: Vec<Part> = piece.members.iter().map(|weight| part(weight)).collect();
        // What is decoded need not have the dtype of what was kept.
        let dtype = parts[0].dtype;
        let mut ops = self.ops(piece, &parts);
        if let Some(format) = decision.format {
            if dtype.quantized_from() != dtype {
                ops.push(Op::Cast { dtype: dtype.quantized_from() });
            }
            ops.push(Op::Quantize { format: format.name.clone() });
            ops.retain(|op| *op != Op::Copy);
        }
        Tensor {
            name: name.to_string(),
            sources: self.sources(&parts),
            ops,
            format: decision.format.map(|format| format.name.clone()),
            dtype,
            shape: shape.to_vec(),
            bytes: match decision.format {
                Some(format) => format.bytes(shape, dtype.quantized_from()),
                None => shape.iter().product::<u64>() * dtype.bytes(),
            },
            layout: first.layout.clone(),
            producer: first.producer.clone(),
            rule: decision.rule.clone(),
        }
    }

    /// Part `n` of a weight whose bytes are kept.
    fn kept(&self, piece: &Piece, n: usize, name: &str, rule: &Arc<RuleRef>) -> Tensor {
        let parts: Vec<Part> = piece
            .members
            .iter()
            .filter_map(|weight| match &weight.kind {
                WeightKind::Keep { parts, .. } => parts.get(n).cloned(),
                _ => None,
            })
            .collect();
        let first = &parts[0];
        let WeightKind::Keep { format, .. } = &piece.members[0].kind else {
            unreachable!("only kept weights come here")
        };
        let count = piece.members.len() as u64;
        let shape = match &piece.group {
            None => first.shape.clone(),
            // One number for each expert is a vector, whatever the shape of one number was.
            Some(_) if first.shape.iter().product::<u64>() == 1 => vec![count],
            Some(_) => [&[count], first.shape.as_slice()].concat(),
        };
        Tensor {
            name: format!("{name}{}", first.suffix),
            sources: self.sources(&parts),
            ops: self.ops(piece, &parts),
            format: Some(format.to_string()),
            dtype: first.dtype,
            bytes: shape.iter().product::<u64>() * first.dtype.bytes(),
            shape,
            layout: piece.members[0].layout.clone(),
            producer: piece.members[0].producer.clone(),
            rule: rule.clone(),
        }
    }

    fn ops(&self, piece: &Piece, parts: &[Part]) -> Vec<Op> {
        match piece.group {
            None => parts[0].ops.clone(),
            Some(_) => Part::stacked(&parts.iter().collect::<Vec<_>>()).ops,
        }
    }

    fn sources(&self, parts: &[Part]) -> Vec<SourceTensor> {
        let of = |input: &Input| {
            let tensor = &self.inventory.tensors[input.tensor as usize];
            SourceTensor {
                name: tensor.name.clone(),
                file: self.inventory.shards[tensor.shard as usize].name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                view: input.view.clone(),
                draft: self.role == Role::Draft,
            }
        };
        parts.iter().flat_map(|part| part.sources.iter().map(of)).collect()
    }
}

fn output_name(name: &str, role: Role) -> String {
    match role {
        Role::Target => name.to_string(),
        Role::Draft => format!("{DRAFT_PREFIX}{name}"),
    }
}

/// Whether a rule is the one that takes what no other did.
fn is_catch_all(rule: &CompiledRule, policy: &Policy) -> bool {
    rule.place.0 == Section::Tensors
        && rule.when.is_none()
        && rule.matches.iter().all(|&id| matches!(policy.patterns.source(id), "**" | "**.weight"))
}

fn at_source(rule: Arc<RuleRef>) -> Decision {
    Decision { rule, index: None, format: None, misfits: Vec::new() }
}
