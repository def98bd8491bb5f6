//! The small steps that turn a source's tensors into those that are written: the words of plans.
//!
//! Layouts say which steps read what a producer wrote, plans put them in a row for each tensor, and
//! writing carries them out.

mod packing;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;

pub use packing::{IntPacking, Packed, Side, Sign, Zero};

/// One small step of arithmetic or relabelling; a tensor's steps compose left to right.
///
/// Steps work on a list of arrays: the sources to begin with. `stack` turns `count` runs of k
/// arrays into k stacked ones; the decoders turn a weight and its companions into one array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Op {
    /// The bytes as they are.
    Copy,
    /// The same bytes under another dtype and shape.
    Relabel {
        /// New dtype.
        dtype: Dtype,
        /// New shape.
        shape: Vec<u64>,
    },
    /// Stacks equal arrays on a new first axis; arrays of one element become a vector.
    Stack {
        /// How many arrays make one: the first axis of the result.
        count: u64,
    },
    /// Takes one of `parts` equal slices along `axis`.
    Split {
        /// Axis to slice.
        axis: u32,
        /// How many slices there are.
        parts: u32,
        /// Which one is taken, from 0.
        index: u32,
    },
    /// Permutes the axes.
    Transpose {
        /// New order of the axes.
        axes: Vec<u32>,
    },
    /// One number as F32, of shape `[]`.
    Scalar,
    /// 1/x, in F32.
    Reciprocal,
    /// Decodes F8_E4M3 `[.., out, in]` with its scales to BF16. Arrays: weight, scales.
    ///
    /// value = e4m3 * scale, one product in F32, rounded once to BF16. The scales are a row-major
    /// grid of `ceil(out / block[0])` by `ceil(in / block[1])` for each matrix, whatever their
    /// shape says (`[rows, 1, cols, 1]`, `[out, 1]` and `[]` occur); their dtype is F32, BF16, F16
    /// or F8_E8M0. Edge blocks may be partial.
    DecodeFp8 {
        /// Rows and columns that share a scale; 0 means all of them.
        block: [u64; 2],
    },
    /// Decodes packed integers to BF16 `[.., out, in]`: (q - zero) * scale, one product in F32,
    /// rounded once. Arrays: weight, scales, zero points if `packing` has them, and factors of
    /// the inputs (one for each column, multiplied in F32 before rounding) if `input_scale`.
    UnpackInt {
        /// How they are packed.
        packing: IntPacking,
        /// Whether the last array holds a factor for each input, folded into the columns.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        input_scale: bool,
    },
    /// Re-expresses packed integers as MLX affine (scale * q + bias), exactly. Arrays for
    /// `weight`: packed integers; for `scale` and `bias`: scales, and zero points if `packing` has
    /// them. Where the result's groups are smaller than the source's, scales are repeated.
    AffineInt {
        /// How they are packed.
        packing: IntPacking,
        /// Which of the three is made.
        part: AffinePart,
    },
    /// Decodes a kept format of `formats.toml` to BF16 (for `--requantize`). Arrays: weight,
    /// scales, then biases (affine) or a global scale (`global`). The bytes are taken as the
    /// format has them, whatever dtype they are labelled with.
    Dequantize {
        /// The format it is in.
        format: String,
        /// Whether there is a scale of the whole tensor (of each expert), and its direction.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        global: Option<GlobalScale>,
    },
    /// Converts to another dtype.
    Cast {
        /// New dtype.
        dtype: Dtype,
    },
    /// Quantizes the last axis.
    Quantize {
        /// A name of `formats.toml`.
        format: String,
    },
}

impl Op {
    /// The format that the operation quantizes to, when it does.
    pub fn quantizes(&self) -> Option<&str> {
        match self {
            Op::Quantize { format } => Some(format),
            _ => None,
        }
    }
}

/// Which way a scale of a whole tensor works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GlobalScale {
    /// Values are multiplied by it.
    Multiplies,
    /// Values are divided by it.
    Divides,
}

/// The three tensors of an affine weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AffinePart {
    /// Packed integers, U32.
    Weight,
    /// Scales.
    Scale,
    /// Biases: -scale * zero point.
    Bias,
}

/// Consecutive elements of a source tensor under a shape of their own, such as one expert's
/// scales in a tensor that holds the scales of all experts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct View {
    /// Elements before the first one that is taken.
    pub start: u64,
    /// Shape of what is taken.
    pub shape: Vec<u64>,
}
