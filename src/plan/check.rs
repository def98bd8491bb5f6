//! A plan that was printed, and perhaps edited, against the plan that the folder has now.
//!
//! What may be edited is which format a tensor gets, and what the manifest says. Everything else
//! is worked out anew from the folder and the policy, so that an edited plan is as whole as any.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Op, Plan, RuleRef, Tensor, Totals, VERSION};
use crate::dtype::Dtype;
use crate::fault::{Code, Fault, Faults, Warning};
use crate::format::{Format, Formats, SOURCE};

/// The plan `fresh` with the edits that `given`, read from `file`, has against it.
///
/// # Errors
/// All of: another version, other headers than the plan was made from, tensors that are missing or
/// not planned, edits of what is not to be edited, formats that are unknown or do not fit.
pub fn check(given: Plan, mut fresh: Plan, file: &str) -> Result<Plan, Faults> {
    let mut faults = Faults::default();
    if given.version != VERSION {
        let message =
            format!("the plan has version {}, and this lathe reads {VERSION}", given.version);
        return Err(stale(message).into());
    }
    let folders =
        [(Some(&given.source), Some(&fresh.source)), (given.draft.as_ref(), fresh.draft.as_ref())];
    for pair in folders {
        match pair {
            (Some(told), Some(now)) if told.digest != now.digest => faults.push(
                stale(format!("the plan was made from other tensors than {} has now", now.dir))
                    .in_file(&now.dir),
            ),
            (Some(_), None) => faults.push(stale("the plan has a draft, and no draft was named")),
            (None, Some(_)) => faults.push(stale("a draft was named, and the plan has none")),
            _ => {}
        }
    }
    if !faults.0.is_empty() {
        return Err(faults);
    }

    let mut edits = Edits { file, given: HashMap::new(), changed: Vec::new(), faults };
    for blob in &given.blobs {
        for tensor in &blob.tensors {
            if edits.given.insert(&tensor.name, (&blob.name, tensor)).is_some() {
                let message = format!("the plan has {} twice", tensor.name);
                edits.faults.push(stale(message).on_tensor(&tensor.name));
            }
        }
    }
    let known: HashSet<&str> = fresh.tensors().map(|tensor| tensor.name.as_str()).collect();
    for name in edits.given.keys().filter(|name| !known.contains(**name)) {
        let message = "no such tensor is made of this folder: outputs cannot be renamed or added";
        edits.faults.push(stale(message).on_tensor(*name));
    }
    for blob in &mut fresh.blobs {
        let mut touched = false;
        for tensor in &mut blob.tensors {
            touched |= edits.apply(&blob.name, tensor);
        }
        if !touched {
            continue;
        }
        let format = blob.tensors[0].format.clone();
        if blob.tensors.iter().any(|tensor| tensor.format != format) {
            let message = "the tensors of one blob have one format: edit all of them alike";
            edits.faults.push(stale(message).on_tensor(&blob.name));
            continue;
        }
        let known = format.and_then(|format| Formats::built_in().get(&format));
        blob.metadata = known.map(Format::metadata).unwrap_or_default();
    }
    let Edits { changed, faults, .. } = edits;
    if let Some(first) = changed.first() {
        let message = format!("{} tensors have the format that {file} gives them", changed.len());
        fresh.warnings.push(Warning::new(Code::Edited, message).on_tensor(first));
    }
    fresh.manifest = given.manifest;
    fresh.totals = Totals::of(fresh.tensors());
    faults.or(fresh)
}

fn stale(message: impl Into<String>) -> Fault {
    Fault::new(Code::StalePlan, message).help(
        "print the plan again with `lathe create --dry-run --output json`, and edit formats in it",
    )
}

/// What an edited plan says against a fresh one.
struct Edits<'g> {
    file: &'g str,
    given: HashMap<&'g str, (&'g str, &'g Tensor)>,
    changed: Vec<String>,
    faults: Faults,
}

impl Edits<'_> {
    /// Gives the tensor the format that the edited plan has; says whether that is another one.
    fn apply(&mut self, blob: &str, tensor: &mut Tensor) -> bool {
        let name = tensor.name.clone();
        let mut refuse = |message: String| {
            self.faults.push(stale(message).on_tensor(&name));
            false
        };
        let Some((given_blob, given)) = self.given.get(tensor.name.as_str()) else {
            return refuse(
                "the plan lacks this tensor; what is not imported is said by a `drop` rule of a \
                 policy"
                    .into(),
            );
        };
        let same = [
            ("blob", *given_blob == blob),
            ("sources", given.sources == tensor.sources),
            ("dtype", given.dtype == tensor.dtype),
            ("shape", given.shape == tensor.shape),
            ("ops", floats(&given.ops) == floats(&tensor.ops)),
        ];
        let other: Vec<&str> = same.iter().filter(|(_, same)| !same).map(|(key, _)| *key).collect();
        if !other.is_empty() {
            return refuse(format!(
                "its {} {} other than this folder gives; only formats can be edited",
                other.join(" and "),
                if other.len() == 1 { "is" } else { "are" }
            ));
        }
        let wanted = match wanted(given, tensor) {
            Ok(wanted) => wanted,
            Err(message) => return refuse(message),
        };
        if wanted.as_deref() == tensor.format.as_deref() {
            return false;
        }
        match reformatted(tensor, wanted.as_deref()) {
            Ok(()) => {}
            Err(message) => return refuse(message),
        }
        let before = &tensor.rule;
        tensor.rule = Arc::new(RuleRef {
            id: "edited".into(),
            file: self.file.to_string(),
            line: 0,
            because: format!("edited by hand; the policy's rule was {}", before.id),
        });
        self.changed.push(tensor.name.clone());
        true
    }
}

/// The operations before quantizing; none for a copy.
fn floats(ops: &[Op]) -> Vec<&Op> {
    let cast = Op::Cast { dtype: Dtype::F32 };
    let mut ops: Vec<&Op> = ops.iter().filter(|op| **op != Op::Copy).collect();
    if ops.last().is_some_and(|op| op.quantizes().is_some()) {
        ops.pop();
        if ops.last().is_some_and(|op| **op == cast) {
            ops.pop();
        }
    }
    ops
}

/// The format that is wanted: an edit of `format`, of the operation `quantize`, or of both alike.
fn wanted(given: &Tensor, fresh: &Tensor) -> Result<Option<String>, String> {
    let quantizes = |tensor: &Tensor| tensor.ops.last().and_then(Op::quantizes).map(str::to_string);
    let (format, op) = (given.format.clone(), quantizes(given));
    let (format_is_new, op_is_new) = (format != fresh.format, op != quantizes(fresh));
    match (format_is_new, op_is_new) {
        (true, true) if format != op => Err(format!(
            "its format says {}, and its operations quantize to {}: edit both alike, or one",
            format.as_deref().unwrap_or(SOURCE),
            op.as_deref().unwrap_or("nothing")
        )),
        (false, true) => Ok(op),
        _ => Ok(format),
    }
}

/// Makes `tensor` one of another format.
fn reformatted(tensor: &mut Tensor, wanted: Option<&str>) -> Result<(), String> {
    if tensor.format.is_some() && tensor.ops.iter().all(|op| op.quantizes().is_none()) {
        return Err(
            "its bytes are kept as they are quantized; plan with --requantize to change that"
                .into(),
        );
    }
    let mut ops: Vec<Op> = floats(&tensor.ops).into_iter().cloned().collect();
    match wanted {
        None | Some(SOURCE) => {
            tensor.format = None;
            tensor.bytes = tensor.elements() * tensor.dtype.bytes();
        }
        Some(name) => {
            let format = Formats::built_in().resolve(name).map_err(|fault| fault.to_string())?;
            if !format.fits(&tensor.shape) {
                return Err(format!(
                    "{}'s group of {} does not divide the last axis of {:?}",
                    format.name, format.group, tensor.shape
                ));
            }
            if !tensor.dtype.is_float() {
                return Err(format!("{} cannot be quantized", tensor.dtype));
            }
            let from = tensor.dtype.quantized_from();
            if from != tensor.dtype {
                ops.push(Op::Cast { dtype: from });
            }
            ops.push(Op::Quantize { format: format.name.clone() });
            tensor.bytes = format.bytes(&tensor.shape, from);
            tensor.format = Some(format.name.clone());
        }
    }
    tensor.ops = if ops.is_empty() { vec![Op::Copy] } else { ops };
    Ok(())
}

/// Works out bytes and sums of a plan from a file anew, from the formats that it names.
///
/// # Errors
/// Formats that are unknown or do not fit.
pub fn recount(plan: &mut Plan) -> Result<(), Faults> {
    let mut faults = Faults::default();
    for blob in &mut plan.blobs {
        for tensor in &mut blob.tensors {
            let op = tensor.ops.last().and_then(Op::quantizes).map(str::to_string);
            if op.is_none() && tensor.format.is_some() {
                continue;
            }
            // The blob's metadata tells which of the two was edited.
            let named = tensor.format.clone();
            let known = named.as_deref().and_then(|name| Formats::built_in().get(name));
            let untouched = known.is_some_and(|format| format.metadata() == blob.metadata);
            let wanted = if untouched { op } else { named };
            if let Err(message) = reformatted(tensor, wanted.as_deref()) {
                faults.push(stale(message).on_tensor(&tensor.name));
            }
        }
    }
    plan.totals = Totals::of(plan.tensors());
    faults.or(())
}
