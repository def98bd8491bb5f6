//! Checking a plan that was printed, and perhaps edited, against the folder that it is for.
//!
//! What goes in is a plan from a file; what comes out is the same plan with every number worked
//! out anew, or all the reasons why it does not fit.

use std::collections::{HashMap, HashSet};

use super::{Op, Plan, Source, SourceTensor, Tensor, Totals, VERSION};
use crate::dtype::Dtype;
use crate::fault::{Code, Fault, Faults};
use crate::format::{Formats, SOURCE};
use crate::read::{Inventory, TensorInfo};

/// Checks `plan` against its folders and works out its bytes and sums anew.
///
/// # Errors
/// All of: another version, other headers than the plan was made from, sources that are not
/// there, operations that do not compose, formats that do not fit, two outputs with one name.
pub fn check(
    mut plan: Plan,
    target: &Inventory,
    draft: Option<&Inventory>,
) -> Result<Plan, Faults> {
    let mut faults = Faults::default();
    if plan.version != VERSION {
        faults.push(stale(format!(
            "the plan has version {}, and this lathe reads {VERSION}",
            plan.version
        )));
        return Err(faults);
    }
    same_headers(&plan.source, target, &mut faults);
    match (&plan.draft, draft) {
        (Some(source), Some(inventory)) => same_headers(source, inventory, &mut faults),
        (None, None) => {}
        (Some(_), None) => faults.push(stale("the plan has a draft, and no draft was named")),
        (None, Some(_)) => faults.push(stale("a draft was named, and the plan has none")),
    }
    if !faults.0.is_empty() {
        return Err(faults);
    }

    let index = |inventory: &Inventory| -> HashMap<String, TensorInfo> {
        inventory.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.clone())).collect()
    };
    let tables = (index(target), draft.map(index).unwrap_or_default());
    let mut names = HashSet::new();
    for blob in &mut plan.blobs {
        for tensor in &mut blob.tensors {
            for source in &tensor.sources {
                let table = if source.draft { &tables.1 } else { &tables.0 };
                check_source(tensor, source, table.get(&source.name), &mut faults);
            }
            match result(tensor) {
                Ok(made) => {
                    tensor.bytes = made;
                }
                Err(message) => faults.push(stale(message).on_tensor(&tensor.name)),
            }
            if !names.insert(tensor.name.clone()) {
                let message = format!("two outputs are named {}", tensor.name);
                faults.push(Fault::new(Code::NameCollision, message).on_tensor(&tensor.name));
            }
        }
        blob.metadata = match blob.tensors.first().and_then(|tensor| tensor.format.as_ref()) {
            Some(format) if blob.tensors.iter().all(|t| t.format.as_ref() == Some(format)) => {
                let known = Formats::built_in().get(format);
                known.map(crate::format::Format::metadata).unwrap_or_default()
            }
            Some(_) => {
                let message = "the tensors of one blob have one format";
                faults.push(stale(message).on_tensor(&blob.name));
                continue;
            }
            None => Default::default(),
        };
    }
    plan.totals = Totals::of(plan.tensors());
    faults.or(plan)
}

fn stale(message: impl Into<String>) -> Fault {
    Fault::new(Code::StalePlan, message)
        .help("print the plan again with `lathe create --dry-run --output json`, and edit that")
}

fn same_headers(source: &Source, inventory: &Inventory, faults: &mut Faults) {
    if source.digest != inventory.digest {
        faults.push(
            stale(format!(
                "the plan was made from other tensors than {} has now",
                inventory.dir.display()
            ))
            .in_file(&inventory.dir),
        );
    }
}

fn check_source(
    tensor: &Tensor,
    source: &SourceTensor,
    found: Option<&TensorInfo>,
    faults: &mut Faults,
) {
    let Some(found) = found else {
        let message = format!("its source {} is not in the folder", source.name);
        return faults.push(stale(message).on_tensor(&tensor.name));
    };
    if (found.dtype, &found.shape) != (source.dtype, &source.shape) {
        faults.push(
            stale(format!(
                "its source {} is {} {:?}, not {} {:?}",
                source.name, found.dtype, found.shape, source.dtype, source.shape
            ))
            .on_tensor(&tensor.name),
        );
    }
}

/// Bytes of what the operations make of the sources, when they compose to what the plan says.
fn result(tensor: &Tensor) -> Result<u64, String> {
    let Some(first) = tensor.sources.first() else { return Err("it has no sources".into()) };
    let elements: u64 = tensor.elements();
    let mut quantized = None;
    for (at, op) in tensor.ops.iter().enumerate() {
        match op {
            Op::Copy if tensor.ops.len() > 1 => {
                return Err("`copy` stands alone".into());
            }
            Op::Copy if (first.dtype, &first.shape) != (tensor.dtype, &tensor.shape) => {
                return Err(format!(
                    "a copy of {} {:?} is not {} {:?}",
                    first.dtype, first.shape, tensor.dtype, tensor.shape
                ));
            }
            Op::Stack { count }
                if !(tensor.sources.len() as u64).is_multiple_of((*count).max(1)) =>
            {
                return Err(format!(
                    "{} sources do not make {count} equal runs",
                    tensor.sources.len()
                ));
            }
            Op::Quantize { format } => {
                if at + 1 != tensor.ops.len() {
                    return Err("`quantize` is the last operation".into());
                }
                let known =
                    Formats::built_in().resolve(format).map_err(|fault| fault.to_string())?;
                if known.name != *format {
                    return Err(format!(
                        "formats are named in full: {} and not {format}",
                        known.name
                    ));
                }
                quantized = Some(known);
            }
            _ => {}
        }
    }
    match (quantized, &tensor.format) {
        (Some(format), Some(named)) if format.name == *named => {
            if !format.fits(&tensor.shape) {
                return Err(format!(
                    "{}'s group of {} does not divide the last axis of {:?}",
                    format.name, format.group, tensor.shape
                ));
            }
            let values = if tensor.dtype == Dtype::F64 { Dtype::F32 } else { tensor.dtype };
            if !values.is_float() {
                return Err(format!("{} cannot be quantized", tensor.dtype));
            }
            Ok(format.bytes(&tensor.shape, values))
        }
        (Some(format), named) => Err(format!(
            "its operations quantize to {}, and its format says {}",
            format.name,
            named.as_deref().unwrap_or(SOURCE)
        )),
        (None, _) => Ok(elements * tensor.dtype.bytes()),
    }
}
