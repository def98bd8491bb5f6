//! Biases of zeros that a model has no place for, as GPTQ's programs write them beside every
//! projection: weights and policy in, the same weights without them out.

use std::collections::BTreeMap;

use crate::classify::{Classified, Weight, WeightKind};
use crate::decoder::parts::{Table, TensorSpec, resolve};
use crate::fault::{Code, Fault, Warning};
use crate::policy::{Decider, Model, Policy, Role};
use crate::read::{Inventory, Values};

/// Leaves out the biases that the policy's decoder does not read and that are zeros, and warns of
/// them. Others stay: they keep the model from running. Nothing is left out where that cannot be
/// told, for want of weights or of a decoder that fits.
///
/// # Errors
/// A weight's file cannot be read.
pub(super) fn leave_out(
    inventory: &Inventory,
    classified: &mut Classified,
    policy: &Policy,
) -> Result<(), Fault> {
    let is_bias = |weight: &Weight| weight.name.ends_with(".bias");
    let Some(described) = policy.described() else { return Ok(()) };
    if !inventory.has_weights() || !classified.weights.iter().any(is_bias) {
        return Ok(());
    }
    let template = inventory.chat_template.as_deref();
    let model = Model { config: &inventory.config, template, role: Role::Target };
    // What is wrong with the policy's values is told by the plan.
    let Ok(mut decider) = Decider::new(policy, model, None) else { return Ok(()) };
    let imported = classified.weights.iter().filter(|weight| {
        let dropped = decider.dropped(&weight.name);
        dropped.is_ok_and(|rule| rule.is_none())
    });
    let held = imported.map(|weight| {
        let quantized = matches!(weight.kind, WeightKind::Keep { .. });
        (weight.name.clone(), TensorSpec { shape: weight.shape.clone(), quantized })
    });
    let table = Table::of_headers(policy.table(held));
    let Ok(parts) = resolve(described, &inventory.config, &table) else { return Ok(()) };

    // Of stacked ones all have to be zeros.
    let mut members = BTreeMap::<String, Vec<usize>>::new();
    for (index, weight) in classified.weights.iter().enumerate().filter(|(_, w)| is_bias(w)) {
        members.entry(policy.entry_of(&weight.name)).or_default().push(index);
    }
    let values = Values::new(inventory);
    let mut left_out = Vec::<usize>::new();
    for members in parts.idle_biases.iter().filter_map(|name| members.get(name)) {
        let mut zero = true;
        for &index in members {
            zero = zero && is_zero(&classified.weights[index], inventory, &values)?;
        }
        if zero {
            left_out.extend(members);
        }
    }
    left_out.sort_unstable();
    let Some(&first) = left_out.first() else { return Ok(()) };
    let first = classified.weights[first].name.clone();
    let others = match left_out.len() - 1 {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let message = format!(
        "{} biases that the model has no place for hold nothing but zeros, and are left out: \
         {first}{others}",
        left_out.len()
    );
    classified.warnings.push(Warning::new(Code::ZeroBias, message).on_tensor(first));
    let mut index = 0;
    classified.weights.retain(|_| {
        index += 1;
        left_out.binary_search(&(index - 1)).is_err()
    });
    Ok(())
}

fn is_zero(weight: &Weight, inventory: &Inventory, values: &Values) -> Result<bool, Fault> {
    let WeightKind::Plain(part) = &weight.kind else { return Ok(false) };
    for source in &part.sources {
        let tensor = &inventory.tensors[source.tensor as usize];
        if values.all_zero(tensor)? != Some(true) {
            return Ok(false);
        }
    }
    Ok(true)
}
