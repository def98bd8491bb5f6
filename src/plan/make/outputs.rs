//! Output tensors: a piece and the decision about it in, a [`Tensor`] out.

use std::sync::Arc;

use super::DRAFT_PREFIX;
use crate::classify::{Input, Part, Weight, WeightKind};
use crate::plan::stack::Piece;
use crate::plan::{Op, RuleRef, SourceTensor, Tensor};
use crate::policy::{Decision, Role};
use crate::read::Inventory;

/// Makes output tensors from the sources of one folder.
pub(super) struct Own<'a> {
    /// The folder.
    pub inventory: &'a Inventory,
    /// What it is.
    pub role: Role,
}

impl Own<'_> {
    /// A tensor that is copied or decoded, and perhaps quantized.
    pub fn made(&self, piece: &Piece, name: &str, shape: &[u64], decision: &Decision) -> Tensor {
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
    pub fn kept(&self, piece: &Piece, n: usize, name: &str, rule: &Arc<RuleRef>) -> Tensor {
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

/// The name of an output; those of a draft begin with [`DRAFT_PREFIX`].
pub(super) fn output_name(name: &str, role: Role) -> String {
    match role {
        Role::Target => name.to_string(),
        Role::Draft => format!("{DRAFT_PREFIX}{name}"),
    }
}
