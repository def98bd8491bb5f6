//! A plan's operations made into arrays that can be read.
//!
//! The operations work on a list of arrays, the tensor's sources to begin with:
//!
//! | operation | takes | gives |
//! |---|---|---|
//! | copy, relabel, split, transpose, scalar, reciprocal, cast | each array | one for each |
//! | stack (count n) | n runs of k arrays | k arrays |
//! | decode-fp8 | weight, scales | one |
//! | unpack-int | packed, scales, zero points where stored, factors of inputs | one |
//! | affine-int | the weight: packed; scale and bias: scales, zero points where stored | one |
//! | dequantize | weight, scales, and biases or a global scale where the format has them | one |
//! | quantize | one, and it is the last | weight, scales, biases |

use super::arith::{Dequantized, Fp8, Mapped};
use super::array::{Array, Slice, Stacked, Stored, Transposed};
use super::ints;
use super::kernels::Float;
use super::source::Sources;
use super::watch::Watch;
use crate::dtype::Dtype;
use crate::fault::{Code, Fault};
use crate::format::{Format, Formats};
use crate::plan::{Op, Tensor};

/// How an output tensor is made: an array, and the format to quantize it to.
pub struct Recipe {
    /// What is to be written, or quantized.
    pub array: Array,
    /// The format, when the plan quantizes.
    pub quantize: Option<&'static Format>,
}

/// Builds the recipe of a tensor, and checks that it gives what the plan says.
pub fn recipe(tensor: &Tensor, sources: &Sources<'_>) -> Result<Recipe, Fault> {
    build(tensor, sources).map_err(|fault| match fault.tensor {
        Some(_) => fault,
        None => fault.on_tensor(&tensor.name),
    })
}

fn build(tensor: &Tensor, sources: &Sources<'_>) -> Result<Recipe, Fault> {
    let mut arrays = Vec::with_capacity(tensor.sources.len());
    for (number, source) in tensor.sources.iter().enumerate() {
        let (file, start) = sources.find(source)?;
        let watch = Watch::of(tensor, number, sources.not_finite());
        arrays.push(Array {
            dtype: source.dtype,
            shape: source.taken().to_vec(),
            bytes: Box::new(Stored { file, start, watch }),
        });
    }
    let mut quantize = None;
    for op in &tensor.ops {
        if quantize.is_some() {
            return Err(wrong("quantize is not the last operation".into()));
        }
        match op {
            Op::Quantize { format } => quantize = Some(known_format(format)?),
            op => arrays = apply(op, arrays, tensor)?,
        }
    }
    let [array] = <[Array; 1]>::try_from(arrays)
        .map_err(|arrays| wrong(format!("{} arrays where one is wanted", arrays.len())))?;
    let dtype = quantize.map_or(tensor.dtype, |_| tensor.dtype.quantized_from());
    if (array.dtype, &array.shape) != (dtype, &tensor.shape) {
        return Err(wrong(format!(
            "the operations give {} {:?}, the plan says {dtype} {:?}",
            array.dtype, array.shape, tensor.shape
        )));
    }
    if let Some(format) = quantize
        && !(format.fits(&array.shape) && Float::try_from(array.dtype).is_ok())
    {
        let what = format!("{} does not fit {} {:?}", format.name, array.dtype, array.shape);
        return Err(wrong(what));
    }
    let bytes = match quantize {
        Some(format) => format.bytes(&array.shape, array.dtype),
        None => array.size(),
    };
    if bytes != tensor.bytes {
        return Err(wrong(format!("it comes to {bytes} bytes, the plan says {}", tensor.bytes)));
    }
    Ok(Recipe { array, quantize })
}

fn wrong(what: String) -> Fault {
    Fault::new(Code::StalePlan, format!("the plan cannot be executed: {what}"))
        .help("make the plan again instead of editing operations and shapes")
}

fn known_format(name: &str) -> Result<&'static Format, Fault> {
    Formats::built_in().get(name).ok_or_else(|| wrong(format!("unknown format {name}")))
}

fn apply(op: &Op, arrays: Vec<Array>, tensor: &Tensor) -> Result<Vec<Array>, Fault> {
    let each = |one: &dyn Fn(Array) -> Result<Array, Fault>, arrays: Vec<Array>| {
        arrays.into_iter().map(one).collect::<Result<Vec<_>, _>>()
    };
    match op {
        Op::Copy => Ok(arrays),
        Op::Relabel { dtype, shape } => each(&|array| relabel(array, *dtype, shape), arrays),
        Op::Stack { count } => stack(arrays, *count),
        Op::Split { axis, parts, index } => {
            each(&|array| split(array, *axis, *parts, *index), arrays)
        }
        Op::Transpose { axes } => each(&|array| transpose(array, axes), arrays),
        Op::Scalar => each(&scalar, arrays),
        Op::Reciprocal => {
            each(&|array| Mapped::each(array, Dtype::F32, |number| 1.0 / number), arrays)
        }
        Op::Cast { dtype } => each(&|array| Mapped::each(array, *dtype, |number| number), arrays),
        Op::DecodeFp8 { block } => {
            let [weight, scales] = pair(arrays)?;
            Ok(vec![Fp8::decoded(weight, scales, *block)?])
        }
        Op::UnpackInt { packing, input_scale } => {
            Ok(vec![ints::unpacked(packing, *input_scale, arrays)?])
        }
        Op::AffineInt { packing, part } => {
            Ok(vec![ints::affine(packing, *part, arrays, tensor.dtype, &tensor.shape)?])
        }
        Op::Dequantize { format, global } => {
            Ok(vec![Dequantized::decoded(known_format(format)?, arrays, *global)?])
        }
        Op::Quantize { .. } => Err(wrong("quantize is not the last operation".into())),
    }
}

fn pair(arrays: Vec<Array>) -> Result<[Array; 2], Fault> {
    <[Array; 2]>::try_from(arrays)
        .map_err(|arrays| wrong(format!("decode-fp8 of {} arrays", arrays.len())))
}

fn scalar(mut array: Array) -> Result<Array, Fault> {
    if array.elements() != 1 {
        return Err(wrong(format!("{:?} is not one number", array.shape)));
    }
    array.shape.clear();
    Mapped::each(array, Dtype::F32, |number| number)
}

fn relabel(mut array: Array, dtype: Dtype, shape: &[u64]) -> Result<Array, Fault> {
    let size = array.size();
    (array.dtype, array.shape) = (dtype, shape.to_vec());
    if array.size() != size {
        return Err(wrong(format!("{size} bytes are not {dtype} {shape:?}")));
    }
    Ok(array)
}

fn stack(arrays: Vec<Array>, count: u64) -> Result<Vec<Array>, Fault> {
    let total = arrays.len() as u64;
    if count == 0 || total == 0 || !total.is_multiple_of(count) {
        return Err(wrong(format!("{total} arrays do not make stacks of {count}")));
    }
    let width = (total / count) as usize;
    let mut stacks: Vec<Vec<Array>> = (0..width).map(|_| Vec::new()).collect();
    for (index, array) in arrays.into_iter().enumerate() {
        stacks[index % width].push(array);
    }
    stacks.into_iter().map(stacked).collect()
}

fn stacked(arrays: Vec<Array>) -> Result<Array, Fault> {
    let count = arrays.len() as u64;
    let Some((dtype, shape, size)) = arrays.first().map(|a| (a.dtype, a.shape.clone(), a.size()))
    else {
        return Err(wrong("a stack of nothing".into()));
    };
    if let Some(odd) = arrays.iter().find(|array| (array.dtype, &array.shape) != (dtype, &shape)) {
        return Err(wrong(format!(
            "{dtype} {shape:?} and {} {:?} do not stack",
            odd.dtype, odd.shape
        )));
    }
    let single = shape.iter().product::<u64>() == 1 && shape.len() < 2;
    let shape = if single { vec![count] } else { [vec![count], shape].concat() };
    let parts = arrays.into_iter().map(|array| array.bytes).collect();
    Ok(Array { dtype, shape, bytes: Box::new(Stacked { parts, size: size.max(1) }) })
}

fn split(array: Array, axis: u32, parts: u32, index: u32) -> Result<Array, Fault> {
    let Array { dtype, mut shape, bytes } = array;
    let (axis, parts, index) = (axis as usize, u64::from(parts), u64::from(index));
    let length = shape.get(axis).copied().unwrap_or(0);
    if parts == 0 || index >= parts || length == 0 || length % parts != 0 {
        return Err(wrong(format!("axis {axis} of {shape:?} has no slice {index} of {parts}")));
    }
    let inner = shape[axis + 1..].iter().product::<u64>() * dtype.bytes();
    let run = length / parts * inner;
    shape[axis] = length / parts;
    let slice = Slice { of: bytes, skip: index * run, run: run.max(1), stride: length * inner };
    Ok(Array { dtype, shape, bytes: Box::new(slice) })
}

fn transpose(array: Array, axes: &[u32]) -> Result<Array, Fault> {
    let Array { dtype, shape, bytes } = array;
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..shape.len() as u32) {
        return Err(wrong(format!("{axes:?} is no order of the axes of {shape:?}")));
    }
    let permuted = axes.iter().map(|&axis| shape[axis as usize]).collect();
    let bytes = Box::new(Transposed::new(bytes, dtype.bytes(), &shape, axes));
    Ok(Array { dtype, shape: permuted, bytes })
}
