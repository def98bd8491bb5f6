//! What the folders give: weights in, blobs and files out, with what is to be said of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use indexmap::IndexMap;

use super::outputs::{Own, output_name};
use super::{FILE_MEDIA, JSON_MEDIA, Stock, TENSOR_MEDIA};
use crate::classify::WeightKind;
use crate::companion::{BIAS, SCALE};
use crate::fault::{Code, Fault, Faults, Warning};
use crate::format::{Format, Formats, SOURCE};
use crate::plan::converted;
use crate::plan::reach::Reach;
use crate::plan::route::{Ask, Deciders, Route, quantized, reason};
use crate::plan::stack::pieces;
use crate::plan::{Blob, File, LEAST_RUNTIME, Manifest, Op, Request, RuleRef, Tensor};
use crate::policy::compile::{CompiledRule, Section};
use crate::policy::{Decider, Decision, Model, Policy, Role};
use crate::read::Inventory;

/// Collects what the folders give.
#[derive(Default)]
pub(super) struct Builder {
    pub request: Request,
    pub blobs: Vec<Blob>,
    pub files: Vec<File>,
    pub warnings: Vec<Warning>,
    pub notes: Vec<Warning>,
    /// Output name → where it came from.
    names: HashMap<String, String>,
    collisions: Vec<(String, String, String)>,
    /// Blob metadata of kept weights, as their layouts tell it.
    metadata: HashMap<String, Arc<IndexMap<String, String>>>,
}

/// A stacked tensor of an expert group (with companions, where its bytes are kept) and its format.
type Member = (Option<&'static Format>, Vec<Tensor>);

impl Builder {
    /// With nothing in it yet.
    pub fn new(request: Request) -> Builder {
        Builder { request, ..Builder::default() }
    }

    /// Adds a folder's tensors and files. Gives what its manifest says of it.
    pub fn add(
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
            faults.absorb(converted::check(inventory, policy).map_err(Faults::from));
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

    /// A fault for each name that two outputs would have.
    pub fn check_names(&mut self, faults: &mut Faults) {
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

/// Whether a rule is the one that takes what no other did.
fn is_catch_all(rule: &CompiledRule, policy: &Policy) -> bool {
    rule.place.0 == Section::Tensors
        && rule.when.is_none()
        && rule.matches.iter().all(|&id| matches!(policy.patterns.source(id), "**" | "**.weight"))
}

fn at_source(rule: Arc<RuleRef>) -> Decision {
    Decision { rule, index: None, format: None, misfits: Vec::new() }
}
