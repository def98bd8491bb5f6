//! The header of a safetensors file: bytes in, tensors or every fault out.
//!
//! Format: eight bytes (little-endian) with the header's length, the header (JSON, perhaps padded
//! with spaces), the tensors' bytes without holes. See the safetensors README, "Format". The one
//! parser of folders and of the store's blobs; the crate `safetensors` stops at the first fault,
//! and does not say which tensor has it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::dtype::Dtype;
use crate::fault::{Code, Fault, Faults};

/// The longest header that the format allows.
const LONGEST: u64 = 100_000_000;
/// MLX counts an axis in 32 bits; the largest such number is what an overflow leaves behind.
const LONGEST_AXIS: u64 = i32::MAX as u64;

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// dtype of its bytes.
    pub dtype: Dtype,
    /// Shape of its bytes; empty for a scalar.
    pub shape: Vec<u64>,
    /// Its bytes in the file, from the file's start (the header included).
    pub range: Range<u64>,
}

/// What a file's header says.
#[derive(Debug)]
pub struct Header {
    /// The file's tensors, in the header's order.
    pub tensors: Vec<Tensor>,
    /// Its `__metadata__`.
    pub metadata: IndexMap<String, String>,
    /// Bytes before the tensors'.
    start: u64,
    /// Size of the file in bytes.
    pub size: u64,
}

impl Header {
    /// Reads the header of the file at `path`; `name` is what faults call the file.
    ///
    /// # Errors
    /// Outside, when the file cannot be read; inside, every fault of the header: see the module
    /// `faults` of the tests of `read` for the list.
    pub fn read(path: &Path, name: &str) -> io::Result<Result<Header, Faults>> {
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        let mut length = [0; 8];
        if size < 8 {
            return Ok(Err(too_short(name, size).into()));
        }
        file.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if let Err(fault) = check_length(length, size, name) {
            return Ok(Err(fault.into()));
        }
        let mut text = vec![0; length as usize];
        file.read_exact(&mut text)?;
        Ok(Header::parse(&text, size, name))
    }

    /// The header of a whole file in memory, or mapped.
    ///
    /// # Errors
    /// Every fault of the header.
    pub fn of(file: &[u8], name: &str) -> Result<Header, Faults> {
        let size = file.len() as u64;
        let Some((length, rest)) = file.split_first_chunk::<8>() else {
            return Err(too_short(name, size).into());
        };
        let length = u64::from_le_bytes(*length);
        check_length(length, size, name)?;
        Header::parse(&rest[..length as usize], size, name)
    }

    /// Checks a header's JSON against the size of its file.
    fn parse(text: &[u8], size: u64, name: &str) -> Result<Header, Faults> {
        let start = 8 + text.len() as u64;
        let raw = match parse_json(text) {
            Ok(raw) => raw,
            Err(message) => return Err(bad(name, message).help("download the file again").into()),
        };
        let mut faults = Faults::default();
        let mut tensors = Vec::with_capacity(raw.tensors.len());
        let mut seen = HashSet::with_capacity(raw.tensors.len());
        for (tensor, entry) in raw.tensors {
            if !seen.insert(tensor.clone()) {
                let fault = Fault::new(Code::DuplicateTensor, "the header names the tensor twice");
                faults.push(fault.in_file(name).on_tensor(tensor));
                continue;
            }
            match entry.check(start) {
                Ok(checked) => tensors.push(Tensor { name: tensor.into(), ..checked }),
                Err((code, message)) => {
                    let fault = Fault::new(code, message).in_file(name).on_tensor(tensor);
                    faults.push(match code {
                        Code::UnknownDtype => fault.help(
                            "lathe reads the integers and floats of whole bytes that safetensors \
                             has: take the model in BF16",
                        ),
                        _ => fault,
                    });
                }
            }
        }
        let header = Header { tensors, metadata: raw.metadata, start, size };
        // Ranges can be compared only when all of them are known.
        if faults.0.is_empty() {
            header.check_cover(name, &mut faults);
        }
        faults.or(header)
    }

    /// Every byte after the header belongs to exactly one tensor.
    fn check_cover(&self, name: &str, faults: &mut Faults) {
        let Header { tensors, start, size, .. } = self;
        let (start, size) = (*start, *size);
        let mut order: Vec<&Tensor> = tensors.iter().collect();
        order.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));
        let mut at = start;
        let mut before: Option<&Tensor> = None;
        let fault = |code, tensor: &Tensor, message: String| {
            Fault::new(code, message).in_file(name).on_tensor(tensor.name.clone())
        };
        for tensor in order {
            let range = &tensor.range;
            if range.start < at {
                let other = before.map_or("the header", |tensor| &tensor.name);
                faults.push(fault(Code::BadTensor, tensor, format!("its bytes overlap {other}'s")));
            } else if range.start > at {
                let hole = range.start - at;
                let message = format!("{hole} bytes before its own belong to no tensor");
                faults.push(fault(Code::BadTensor, tensor, message));
            }
            if range.end > size {
                // The rest would all say the same.
                let last = tensors.iter().map(|tensor| tensor.range.end).max().unwrap_or(at);
                let message = format!(
                    "its header declares {last} bytes, but the file has {size}: {} are missing, from \
                 tensor {} on",
                    last - size,
                    tensor.name
                );
                faults.push(truncated(name, message).on_tensor(tensor.name.clone()));
                return;
            }
            at = at.max(range.end);
            before = Some(tensor);
        }
        if at < size {
            let message = format!("{} bytes at its end belong to no tensor", size - at);
            faults.push(bad(name, message).help("download the file again"));
        }
    }
}

fn check_length(length: u64, size: u64, name: &str) -> Result<(), Fault> {
    if length == 0 {
        return Err(bad(name, "header length is 0").help("download the file again"));
    }
    if length > LONGEST {
        let message = format!("header length is {length}, over the format's limit of 100 MB");
        return Err(bad(name, message).help("this is not a safetensors file, or it is damaged"));
    }
    if length > size - 8 {
        let message = format!("header length is {length}, but only {} bytes follow", size - 8);
        return Err(truncated(name, message));
    }
    Ok(())
}

fn bad(name: &str, message: impl Into<String>) -> Fault {
    Fault::new(Code::BadHeader, message).in_file(name)
}

fn too_short(name: &str, size: u64) -> Fault {
    truncated(name, format!("{size} bytes long, shorter than any header"))
}

fn truncated(name: &str, message: impl Into<String>) -> Fault {
    bad(name, message).help("the download is not complete: download the file again")
}

/// A header as it stands, before its numbers are checked.
struct RawHeader<'a> {
    tensors: Vec<(Cow<'a, str>, RawTensor<'a>)>,
    metadata: IndexMap<String, String>,
}

#[derive(Deserialize)]
struct RawTensor<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Dims,
    data_offsets: Dims,
}

/// Numbers of which some may be negative, fractional or too large: those are kept as text.
struct Dims(Vec<Result<u64, String>>);

/// A shape of whole numbers that MLX can hold.
pub fn shape(axes: impl Iterator<Item = Result<u64, String>>) -> Result<Vec<u64>, String> {
    let shape = axes
        .map(|axis| axis.map_err(|text| format!("its shape has {text}, not a whole number")))
        .collect::<Result<Vec<u64>, _>>()?;
    match shape.iter().find(|&&axis| axis >= LONGEST_AXIS) {
        Some(axis) => Err(format!("its shape has {axis}, which overflows an axis of 32 bits")),
        None => Ok(shape),
    }
}

impl RawTensor<'_> {
    /// The tensor (its name left open), its range counted from the start of the file.
    fn check(&self, start: u64) -> Result<Tensor, (Code, String)> {
        let bad = |message: String| (Code::BadTensor, message);
        let dtype: Dtype = self.dtype.parse().map_err(|()| {
            (Code::UnknownDtype, format!("dtype {:?} is unknown", shorten(&self.dtype)))
        })?;
        let shape = shape(self.shape.0.iter().cloned()).map_err(bad)?;
        let bytes = byte_size(&shape, dtype).ok_or_else(|| {
            bad(format!("shape {shape:?} overflows: no file holds so many bytes"))
        })?;
        let offsets = (self.data_offsets.0.iter().cloned())
            .map(|at| at.map_err(|text| format!("data_offsets has {text}, not a whole number")))
            .collect::<Result<Vec<u64>, _>>()
            .map_err(bad)?;
        let &[from, to] = offsets.as_slice() else {
            return Err(bad(format!("data_offsets has {} numbers, not 2", offsets.len())));
        };
        if to < from {
            return Err(bad(format!("data_offsets ends at {to}, before its start {from}")));
        }
        if to - from != bytes {
            return Err(bad(format!(
                "data_offsets span {} bytes, but {dtype} {shape:?} takes {bytes}",
                to - from
            )));
        }
        let end = start.checked_add(to).ok_or_else(|| bad("data_offsets overflow".into()))?;
        Ok(Tensor { name: String::new(), dtype, shape, range: end - bytes..end })
    }
}

/// Bytes of a tensor, when 64 bits can say.
pub fn byte_size(shape: &[u64], dtype: Dtype) -> Option<u64> {
    shape.iter().try_fold(dtype.bytes(), |product, &axis| product.checked_mul(axis))
}

/// Hostile text, cut to what fits a message.
pub fn shorten(text: &str) -> String {
    if text.chars().count() <= 40 {
        text.into()
    } else {
        text.chars().take(40).chain(['…']).collect()
    }
}

fn parse_json(header: &[u8]) -> Result<RawHeader<'_>, String> {
    let text = std::str::from_utf8(header)
        .map_err(|error| format!("header is not UTF-8 at byte {}", 8 + error.valid_up_to()))?;
    let json = text.trim_end_matches([' ', '\n', '\t', '\r']);
    if json.ends_with('\0') {
        return Err("header is padded with NUL bytes; the format pads with spaces".into());
    }
    if !json.starts_with('{') {
        return Err("header is not a JSON object".into());
    }
    serde_json::from_str(json).map_err(|error| format!("header is not valid JSON: {error}"))
}

impl<'de> Deserialize<'de> for RawHeader<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Header;

        impl<'de> Visitor<'de> for Header {
            type Value = RawHeader<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut tensors, mut metadata) = (Vec::new(), IndexMap::new());
                while let Some(Name(name)) = map.next_key()? {
                    if name == "__metadata__" {
                        metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(RawHeader { tensors, metadata })
            }
        }

        deserializer.deserialize_map(Header)
    }
}

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of whole numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
                let mut dims = Vec::new();
                while let Some(Dim(dim)) = seq.next_element()? {
                    dims.push(dim);
                }
                Ok(Dims(dims))
            }
        }

        deserializer.deserialize_seq(List)
    }
}

struct Dim(Result<u64, String>);

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;

        impl<'de> Visitor<'de> for Number {
            type Value = Dim;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_u64<E>(self, number: u64) -> Result<Dim, E> {
                Ok(Dim(Ok(number)))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Dim, E> {
                Ok(Dim(u64::try_from(number).map_err(|_| number.to_string())))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Dim, E> {
                Ok(Dim(Err(number.to_string())))
            }

            fn visit_str<E>(self, text: &str) -> Result<Dim, E> {
                Ok(Dim(Err(format!("{:?}", shorten(text)))))
            }

            fn visit_unit<E>(self) -> Result<Dim, E> {
                Ok(Dim(Err("null".into())))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Dim, E> {
                Ok(Dim(Err(value.to_string())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dim, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Dim(Err("a list".into())))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Dim, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Dim(Err("an object".into())))
            }
        }

        deserializer.deserialize_any(Number)
    }
}
