//! Copies whose values a converter changed are taken only from that converter: a layout alone could
//! be another program's, which left the values as they were.

use crate::decoder::converted::Told;
use crate::fault::{Code, Fault};
use crate::policy::Policy;
use crate::read::Inventory;

/// Refuses a folder that looks converted and has no mark of the converter.
///
/// # Errors
/// That, with what is missing.
pub(super) fn check(inventory: &Inventory, policy: &Policy) -> Result<(), Fault> {
    let Some(decoder) = &policy.decoder else { return Ok(()) };
    let Some(converted) = &decoder.converted else { return Ok(()) };
    // An inventory file of an earlier version does not tell.
    if inventory.formats.is_empty() && !inventory.has_weights() {
        return Ok(());
    }
    let marked = inventory.formats.contains(&converted.format)
        || inventory.config.get(&converted.key).is_some_and(|value| !value.is_null());
    let scope = decoder.scope(&inventory.config);
    let tensors = inventory.tensors.iter();
    let tensors = tensors.map(|tensor| (tensor.name.as_str(), tensor.shape.clone()));
    // What is wrong otherwise keeps the model from running, and is told there.
    let Ok(Told::Converted) = converted.told(&scope, tensors) else { return Ok(()) };
    if marked {
        return Ok(());
    }
    let message = format!(
        "tensors like {} are laid out as {} does it, which changes the values of norms too; but \
         the files do not say `format: {}` and config.json has no `{}`, so whether the norms are \
         changed cannot be known",
        converted.tensor, converted.by, converted.format, converted.key
    );
    Err(Fault::new(Code::Unsupported, message)
        .in_file("config.json")
        .help("take the publisher's own folder, or one that the converter wrote"))
}
