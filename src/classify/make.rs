//! From a layout and its solved shapes to a [`Weight`]: which parts are made, by which steps.

use std::sync::Arc;

use super::dims::Bindings;
use super::file::{Decode, Global, Integers, Keep, Size};
use super::layout::Layout;
use super::matching::Found;
use super::{Input, Part, WeightKind};
use crate::companion::{BIAS, GLOBAL_SCALE, SCALE};
use crate::dtype::Dtype;
use crate::format::{Format, Formats, Mode};
use crate::op::{AffinePart, GlobalScale, IntPacking, Op, Zero};
use crate::read::{Inventory, TensorInfo};

/// What is at hand for making a weight.
pub struct Material<'a> {
    /// The folder.
    pub inventory: &'a Inventory,
    /// The layout.
    pub layout: &'a Layout,
    /// Its solved shapes.
    pub bindings: &'a Bindings,
    /// Whether inputs stand before outputs.
    pub turned: bool,
    /// The weight's tensor.
    pub weight: u32,
    /// Its companions, by their place in the layout.
    pub found: &'a [Option<Found>],
}

/// What was made of it.
pub struct Made {
    /// dtype of the values.
    pub dtype: Dtype,
    /// Logical shape.
    pub shape: Vec<u64>,
    /// What becomes of it.
    pub kind: WeightKind,
    /// Whether it is stored `[.., in, out]` and goes by its bare name, as plain ones of this kind
    /// do: decoders tell the two by it.
    pub bare: bool,
    /// Why it could not be kept exactly, when it could not.
    pub inexact: Option<String>,
}

impl Material<'_> {
    /// Makes the weight.
    ///
    /// # Errors
    /// What about it MLX cannot hold.
    pub fn make(&self) -> Result<Made, String> {
        let file = &self.layout.file;
        if let Some(keep) = &file.keep {
            return self.keep(keep);
        }
        if let Some(decode) = &file.decode {
            return Ok(self.decode(decode));
        }
        match &file.integers {
            Some(integers) => Ok(self.integers(integers)),
            None => Err("the layout says nothing of what becomes of it".into()),
        }
    }

    /// The logical shape: leading axes, `out`, `in`.
    fn shape(&self) -> Vec<u64> {
        let named = ["out", "in"].map(|name| self.bindings.get(name).unwrap_or(1));
        self.bindings.leading().iter().copied().chain(named).collect()
    }

    fn tensor(&self, index: u32) -> &TensorInfo {
        &self.inventory.tensors[index as usize]
    }

    fn companion(&self, name: &str) -> Option<&Found> {
        self.found.get(self.layout.part(name))?.as_ref()
    }

    fn inputs(&self, names: &[Option<&str>]) -> Vec<Input> {
        let weight = Input { tensor: self.weight, view: None };
        let beside = names.iter().flatten().filter_map(|name| self.companion(name));
        let beside = beside.map(|(tensor, view)| Input { tensor: *tensor, view: view.clone() });
        std::iter::once(weight).chain(beside).collect()
    }

    fn size(&self, size: &Size) -> u64 {
        match size {
            Size::Number(number) => *number,
            Size::Name(name) => self.bindings.get(name).unwrap_or(0),
        }
    }

    fn keep(&self, keep: &Keep) -> Result<Made, String> {
        let format = self.format(keep)?;
        let shape = self.shape();
        if !format.fits(&shape) {
            return Err(format!("{} cannot hold {shape:?}", format.name));
        }
        let scale = self.companion(&keep.scale).map(|(tensor, _)| self.tensor(*tensor).dtype);
        let values = match format.mode {
            Mode::Affine => scale.unwrap_or(Dtype::BF16),
            _ => Dtype::BF16,
        };
        let label = |suffix, input: Input, dtype: Dtype, shape: Vec<u64>| {
            let source = self.tensor(input.tensor);
            let same = source.dtype == dtype && source.shape == shape;
            let op = if same { Op::Copy } else { Op::Relabel { dtype, shape: shape.clone() } };
            Part { suffix, sources: vec![input], ops: vec![op], dtype, shape }
        };
        let mut inputs = self.inputs(&[Some(&keep.scale), keep.bias.as_deref()]).into_iter();
        let scales = format.scale_shape(&shape);
        let mut parts = Vec::new();
        if let Some(weight) = inputs.next() {
            parts.push(label("", weight, Dtype::U32, format.packed_shape(&shape)));
        }
        for (suffix, input) in [SCALE, BIAS].into_iter().zip(inputs) {
            parts.push(label(suffix, input, format.scale_dtype(values), scales.clone()));
        }
        let mut global = None;
        if let Some(spec) = &keep.global_scale {
            let (name, direction, op) = match spec {
                Global::Multiplies(name) => (name, GlobalScale::Multiplies, Op::Scalar),
                Global::Divides(name) => (name, GlobalScale::Divides, Op::Reciprocal),
            };
            if let Some((tensor, _)) = self.companion(name) {
                parts.push(self.global(*tensor, op));
                global = Some((name.as_str(), direction));
            }
        }
        let name = format.name.clone();
        let decode = Part {
            suffix: "",
            sources: self.inputs(&[
                Some(&keep.scale),
                keep.bias.as_deref(),
                global.map(|(name, _)| name),
            ]),
            ops: vec![Op::Dequantize { format: name, global: global.map(|(_, way)| way) }],
            dtype: Dtype::BF16,
            shape: shape.clone(),
        };
        let metadata = keep.metadata.clone().unwrap_or_else(|| format.metadata());
        let kind = WeightKind::Keep {
            format: format.name.as_str().into(),
            metadata: Arc::new(metadata),
            parts,
            decode,
        };
        Ok(Made { dtype: values, shape, kind, bare: self.turned, inexact: None })
    }

    /// The scale of the whole tensor, or one for each of the leading axes.
    fn global(&self, tensor: u32, op: Op) -> Part {
        let shape = &self.tensor(tensor).shape;
        let count: u64 = shape.iter().product();
        let (ops, shape) = match (count, &op) {
            (1, Op::Scalar) => (vec![op], Vec::new()),
            (1, _) => (vec![op], shape.clone()),
            _ => {
                let vector = Op::Relabel { dtype: Dtype::F32, shape: vec![count] };
                let rest = (op != Op::Scalar).then_some(op);
                (std::iter::once(vector).chain(rest).collect(), vec![count])
            }
        };
        let sources = vec![Input { tensor, view: None }];
        Part { suffix: GLOBAL_SCALE, sources, ops, dtype: Dtype::F32, shape }
    }

    fn format(&self, keep: &Keep) -> Result<&'static Format, String> {
        let formats = Formats::built_in();
        if let Some(format) = formats.get(&keep.format) {
            return Ok(format);
        }
        let [bits, group] = ["bits", "group"].map(|name| self.bindings.get(name).unwrap_or(0));
        formats
            .affine(bits as u32, group)
            .ok_or_else(|| format!("MLX has no affine format of {bits} bits in groups of {group}"))
    }

    fn decode(&self, decode: &Decode) -> Made {
        let mut shape = self.shape();
        let block = [0, 1].map(|n| self.size(&decode.block[n]));
        let mut ops = vec![Op::DecodeFp8 { block }];
        if self.turned {
            let last = shape.len() - 1;
            shape.swap(last - 1, last);
            let leading = (0..last as u32 - 1).chain([last as u32, last as u32 - 1]);
            ops.push(Op::Transpose { axes: leading.collect() });
        }
        let part = Part {
            suffix: "",
            sources: self.inputs(&[Some(&decode.scale)]),
            ops,
            dtype: Dtype::BF16,
            shape: shape.clone(),
        };
        let kind = WeightKind::Decode { decode: part, default: decode.default.as_str().into() };
        Made { dtype: Dtype::BF16, shape, kind, bare: false, inexact: None }
    }

    fn integers(&self, integers: &Integers) -> Made {
        let shape = self.shape();
        let inputs = self.bindings.get("in").unwrap_or(0);
        let group = self.size(&integers.group);
        let stored = integers.zero.as_deref().filter(|name| self.companion(name).is_some());
        let factors = integers.input_scale.as_deref().filter(|n| self.companion(n).is_some());
        let packing = IntPacking {
            weight: integers.packed.clone(),
            zeros: stored
                .map(|_| integers.zero_packed.as_ref().unwrap_or(&integers.packed).clone()),
            bits: self.size(&integers.bits) as u32,
            group: if group == inputs { 0 } else { group },
            zero: match (stored, integers.zero_less_one) {
                (None, _) => Zero::Middle,
                (Some(_), false) => Zero::Stored,
                (Some(_), true) => Zero::StoredLessOne,
            },
        };
        let decode = Part {
            suffix: "",
            sources: self.inputs(&[Some(&integers.scale), stored, factors]),
            ops: vec![Op::UnpackInt { packing: packing.clone(), input_scale: factors.is_some() }],
            dtype: Dtype::BF16,
            shape: shape.clone(),
        };
        let target = match factors {
            Some(_) => Err("factors of the inputs are folded into the columns".to_string()),
            None => affine(packing.bits, group, inputs),
        };
        match target {
            Ok(format) => self.affine(format, packing, &integers.scale, stored, shape, decode),
            Err(why) => {
                let bits = packing.bits;
                let default = Formats::built_in().affine(bits, 64).map_or("int8", |f| &f.name);
                let kind = WeightKind::Decode { decode, default: default.into() };
                Made { dtype: Dtype::BF16, shape, kind, bare: false, inexact: Some(why) }
            }
        }
    }

    /// The same grid as MLX affine: scale * q + bias with bias = -scale * zero.
    fn affine(
        &self,
        format: &Format,
        packing: IntPacking,
        scale: &str,
        zero: Option<&str>,
        shape: Vec<u64>,
        decode: Part,
    ) -> Made {
        let own = self.companion(scale).map_or(Dtype::F32, |(t, _)| self.tensor(*t).dtype);
        // -scale * zero has more digits than 16-bit floats hold, unless zero is a power of two.
        let dtype = if packing.zero == Zero::Middle { own } else { Dtype::F32 };
        let scales = format.scale_shape(&shape);
        let inputs = self.inputs(&[Some(scale), zero]);
        let step = |part| vec![Op::AffineInt { packing: packing.clone(), part }];
        let part = |suffix, sources: &[Input], which, dtype, shape| Part {
            suffix,
            sources: sources.to_vec(),
            ops: step(which),
            dtype,
            shape,
        };
        let parts = vec![
            part("", &inputs[..1], AffinePart::Weight, Dtype::U32, format.packed_shape(&shape)),
            part(SCALE, &inputs[1..], AffinePart::Scale, dtype, scales.clone()),
            part(BIAS, &inputs[1..], AffinePart::Bias, dtype, scales),
        ];
        let kind = WeightKind::Keep {
            format: format.name.as_str().into(),
            metadata: Arc::new(format.metadata()),
            parts,
            decode,
        };
        Made { dtype, shape, kind, bare: false, inexact: None }
    }
}

/// The affine format whose groups divide the producer's.
fn affine(bits: u32, group: u64, inputs: u64) -> Result<&'static Format, String> {
    let formats = Formats::built_in();
    // A scale for each output is repeated; 64 is what every reader takes.
    let candidates = if group == inputs { [64, 32, 128] } else { [group, 64, 32] };
    let fits = |&candidate: &u64| {
        candidate > 0 && group.is_multiple_of(candidate) && inputs.is_multiple_of(candidate)
    };
    candidates
        .iter()
        .filter(|candidate| fits(candidate))
        .find_map(|&candidate| formats.affine(bits, candidate))
        .ok_or_else(|| format!("MLX affine has no groups of {group} at {bits} bits"))
}
