//! What the config says of the program that quantized the weights, held against what they are.
//!
//! Enters: what the walk over the tensors found. Leaves: the same; or one fault that names the
//! program, where its weights cannot be read as what they are; or a warning, where there is nothing
//! of it in the tensors.

use globset::Glob;
use serde_json::Value;

use super::claims::globs;
use super::file::{Quantizer, QuantizersFile};
use super::paths::{ConfigPath, Roots};
use super::{Classified, WeightKind};
use crate::dtype::DtypeClass;
use crate::fault::{Code, Fault, Faults, Warning};
use crate::read::{CONFIG, Inventory, TensorInfo};

/// Holds the claim against the result of the walk.
///
/// # Errors
/// The walk's own; or one fault in their place, when they come of a program that is not read.
pub fn judge(
    file: &QuantizersFile,
    inventory: &Inventory,
    sorted: Result<Classified, Faults>,
) -> Result<Classified, Faults> {
    let claim = claim(file, inventory);
    let called = |quantizer: &&Quantizer| {
        claim.as_deref().is_some_and(|claim| quantizer.methods.iter().any(|name| name == claim))
    };
    let claimed = file.refused.iter().find(called);
    let is_read = claim.as_deref().is_some_and(|claim| file.read.iter().any(|name| name == claim));
    let says = claim.as_deref().map(|claim| match claimed {
        Some(quantizer) => format!("{CONFIG} says that {} quantized the weights", quantizer.name),
        None => format!("{CONFIG} says that `{claim}` quantized the weights"),
    });
    let refused = |what: String, tensor: &TensorInfo| {
        let shard = &inventory.shards[tensor.shard as usize].name;
        let fault = Fault::new(Code::Unsupported, what).in_file(&**shard);
        Err(fault.on_tensor(tensor.name.clone()).help(file.instead.clone()).into())
    };
    if let Some((quantizer, tensor)) = marked(file, claimed, inventory) {
        let Quantizer { name, holds, .. } = quantizer;
        return refused(format!("{name} quantized it: {holds}, which lathe does not read"), tensor);
    }
    let Some(says) = says else { return sorted };
    let (cannot, holds) = match claimed {
        Some(quantizer) => ("lathe does not read", format!(" ({})", quantizer.holds)),
        None => ("lathe does not know", String::new()),
    };
    match sorted {
        Err(faults) if !is_read => {
            let first = faults.0.iter().find_map(|fault| Some((fault, fault.tensor.as_ref()?)));
            match first.and_then(|(fault, name)| Some((fault, find(inventory, name)?))) {
                Some((fault, tensor)) => {
                    refused(format!("{says}, which {cannot}{holds}: {}", fault.message), tensor)
                }
                None => Err(faults),
            }
        }
        Err(faults) => Err(faults),
        Ok(mut classified) => {
            let quantized = |kind: &WeightKind| !matches!(kind, WeightKind::Plain(_));
            if classified.weights.iter().any(|weight| quantized(&weight.kind)) {
                return Ok(classified);
            }
            let table = |tensor: &&TensorInfo| {
                tensor.dtype.class() == DtypeClass::Integer && tensor.shape.len() > 1
            };
            if let Some(tensor) = inventory.tensors.iter().find(table).filter(|_| !is_read) {
                let what = format!(
                    "{says}, which {cannot}{holds}: {} {:?} is not a weight of floats",
                    tensor.dtype, tensor.shape
                );
                return refused(what, tensor);
            }
            let told = |warning: &Warning| warning.code == Code::ConfigDisagrees.as_str();
            if !classified.warnings.iter().any(told) {
                let words =
                    format!("{says}, but all of them are plain floats: they are read as such");
                classified.warnings.push(Warning::new(Code::ConfigDisagrees, words));
            }
            Ok(classified)
        }
    }
}

/// What the config calls the program, in small letters.
fn claim(file: &QuantizersFile, inventory: &Inventory) -> Option<String> {
    let roots = Roots {
        config: &inventory.config,
        quant_config: inventory.quant_config.as_ref(),
        scheme: None,
        base: "",
    };
    let values = file.claims.iter().flat_map(|path| ConfigPath::parse(path).values(&roots));
    let mut names = values.filter_map(|value| match value {
        Value::String(name) if !name.is_empty() => Some(name.to_lowercase()),
        _ => None,
    });
    names.next()
}

/// The program that left its marks, and a tensor that bears one; the claimed one goes first.
fn marked<'a>(
    file: &'a QuantizersFile,
    claimed: Option<&'a Quantizer>,
    inventory: &'a Inventory,
) -> Option<(&'a Quantizer, &'a TensorInfo)> {
    let marks =
        globs(file.refused.iter().flat_map(|quantizer| quantizer.marks.iter().map(String::as_str)));
    let tensor = inventory.tensors.iter().find(|tensor| marks.is_match(&tensor.name))?;
    let bears = |quantizer: &&Quantizer| {
        let is = |mark: &String| {
            Glob::new(mark).is_ok_and(|glob| glob.compile_matcher().is_match(&tensor.name))
        };
        quantizer.marks.iter().any(is)
    };
    Some((claimed.or_else(|| file.refused.iter().find(bears))?, tensor))
}

fn find<'a>(inventory: &'a Inventory, name: &str) -> Option<&'a TensorInfo> {
    inventory.tensors.iter().find(|tensor| tensor.name == name)
}
