//! The quantization formats: what `policies/formats.toml` says, and what follows from it.

use std::sync::OnceLock;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::dtype::Dtype;
use crate::fault::{Code, Fault};

/// The request that decodes what cannot be stored and quantizes nothing.
pub const SOURCE: &str = "source";

/// MLX's quantization modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Integers with a scale and a bias per group: w ≈ scale * q + bias.
    Affine,
    /// E2M1 elements with an E8M0 scale per group (OCP MX specification 1.0).
    Mxfp4,
    /// E4M3 elements with an E8M0 scale per group (OCP MX specification 1.0).
    Mxfp8,
    /// E2M1 elements with an E4M3 scale per group, and perhaps an F32 scale per tensor (NVIDIA).
    Nvfp4,
}

impl Mode {
    /// MLX's word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::Mxfp4 => "mxfp4",
            Mode::Mxfp8 => "mxfp8",
            Mode::Nvfp4 => "nvfp4",
        }
    }

    /// `affine` or `fp`: what a policy's conditions call the family.
    pub const fn family(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::Mxfp4 | Mode::Mxfp8 | Mode::Nvfp4 => "fp",
        }
    }
}

/// A row of the table of formats.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Format {
    /// Canonical name: the key of the row.
    #[serde(skip)]
    pub name: String,
    /// Other names, in lower case.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// MLX's mode.
    pub mode: Mode,
    /// Bits of one element: 2, 3, 4, 5, 6 or 8.
    pub bits: u32,
    /// Elements of the last axis that share a scale.
    pub group: u64,
    /// The 8-bit format of its family.
    pub eight_bit: String,
    /// Whether Ollama can read blobs of this format.
    #[serde(default = "yes")]
    pub ollama: bool,
    /// When to take it, in one line.
    pub because: String,
}

fn yes() -> bool {
    true
}

impl Format {
    /// Whether the group divides the last axis (and there is one).
    pub fn fits(&self, shape: &[u64]) -> bool {
        shape.len() >= 2 && shape.last().is_some_and(|&last| last > 0 && last % self.group == 0)
    }

    /// dtype of the scales for values of `values` dtype.
    pub fn scale_dtype(&self, values: Dtype) -> Dtype {
        if self.has_bias() { values } else { Dtype::U8 }
    }

    /// Whether each group has a bias beside its scale.
    pub fn has_bias(&self) -> bool {
        self.mode == Mode::Affine
    }

    /// Shape of the packed U32 weight for a logical `shape` that fits.
    pub fn packed_shape(&self, shape: &[u64]) -> Vec<u64> {
        self.last_axis(shape, |last| last * u64::from(self.bits) / 32)
    }

    /// Shape of the scales (and biases) for a logical `shape` that fits.
    pub fn scale_shape(&self, shape: &[u64]) -> Vec<u64> {
        self.last_axis(shape, |last| last / self.group)
    }

    fn last_axis(&self, shape: &[u64], change: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut shape = shape.to_vec();
        if let Some(last) = shape.last_mut() {
            *last = change(*last);
        }
        shape
    }

    /// Bytes of weight, scales and biases for a logical `shape` of `values` dtype.
    pub fn bytes(&self, shape: &[u64], values: Dtype) -> u64 {
        let elements: u64 = shape.iter().product();
        let scales = elements / self.group * self.scale_dtype(values).bytes();
        elements * u64::from(self.bits) / 8 + scales * if self.has_bias() { 2 } else { 1 }
    }

    /// The blob metadata that tells a reader how to decode it, in the order of the keys. `int4` and
    /// `int8` with their groups are Ollama's words; `affine` with `bits` is for what it cannot read.
    pub fn metadata(&self) -> IndexMap<String, String> {
        let mut out = IndexMap::new();
        if !self.ollama {
            out.insert("bits".into(), self.bits.to_string());
        }
        out.insert("group_size".into(), self.group.to_string());
        let kind = match self.mode {
            Mode::Affine if self.ollama => format!("int{}", self.bits),
            mode => mode.as_str().to_string(),
        };
        out.insert("quant_type".into(), kind);
        out
    }
}

/// The table of formats.
#[derive(Clone, Debug, PartialEq)]
pub struct Formats {
    rows: IndexMap<String, Format>,
}

/// How the file reads: one table a format.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct FormatsFile(pub IndexMap<String, Format>);

/// The text of the table of formats that is compiled in.
pub const BUILT_IN: &str = include_str!("../policies/formats.toml");

impl Formats {
    /// The table that is compiled in.
    pub fn built_in() -> &'static Formats {
        static TABLE: OnceLock<Formats> = OnceLock::new();
        TABLE.get_or_init(|| {
            Formats::parse(BUILT_IN, "built-in:formats.toml").expect("tested: the built-in table")
        })
    }

    /// Reads a table.
    pub fn parse(text: &str, name: &str) -> Result<Formats, Fault> {
        let fault = |message: String| Fault::new(Code::PolicySyntax, message).in_file(name);
        let FormatsFile(mut rows) =
            toml::from_str(text).map_err(|error| fault(error.to_string()))?;
        for (key, row) in &mut rows {
            row.name = key.clone();
        }
        let formats = Formats { rows };
        for row in formats.rows.values() {
            if !formats.rows.contains_key(&row.eight_bit) {
                return Err(fault(format!(
                    "{}: eight_bit names no format: {}",
                    row.name, row.eight_bit
                )));
            }
            if !matches!(row.bits, 2..=6 | 8) || row.group * u64::from(row.bits) % 32 != 0 {
                return Err(fault(format!("{}: MLX has no such bits and group", row.name)));
            }
        }
        Ok(formats)
    }

    /// A format by its canonical name.
    pub fn get(&self, name: &str) -> Option<&Format> {
        self.rows.get(name)
    }

    /// All formats, in the table's order.
    pub fn iter(&self) -> impl Iterator<Item = &Format> {
        self.rows.values()
    }

    /// The format that blob metadata names: its `quant_type`, and `bits` and `group_size` where
    /// they are told. `affine` without bits is nobody's.
    pub fn labelled(&self, kind: &str, bits: Option<u64>, group: Option<u64>) -> Option<&Format> {
        let kind = kind.to_lowercase();
        let named = self.get(&kind);
        let affine = kind == Mode::Affine.as_str() || named.is_some_and(Format::has_bias);
        if !affine {
            return named.filter(|format| group.is_none_or(|group| group == format.group));
        }
        let bits = bits.or_else(|| named.map(|format| format.bits.into()))?;
        let group = group.or_else(|| named.map(|format| format.group)).unwrap_or(64);
        u32::try_from(bits).ok().and_then(|bits| self.affine(bits, group))
    }

    /// A format by the name or alias that a person gives, in any case.
    pub fn resolve(&self, given: &str) -> Result<&Format, Fault> {
        let lower = given.trim().to_lowercase();
        if let Some(format) = self.get(&lower) {
            return Ok(format);
        }
        self.iter().find(|format| format.aliases.contains(&lower)).ok_or_else(|| {
            let names = self.iter().flat_map(|f| std::iter::once(&f.name).chain(&f.aliases));
            let nearest = nearest(&lower, names.map(String::as_str).chain([SOURCE]));
            let known: Vec<_> = self.iter().map(|f| f.name.as_str()).collect();
            Fault::new(Code::UnknownFormat, format!("unknown format \"{given}\"")).help(format!(
                "{}known formats: {}, {SOURCE}",
                nearest.map(|name| format!("did you mean {name}? ")).unwrap_or_default(),
                known.join(", ")
            ))
        })
    }

    /// The affine format of these bits and group, when the table has it.
    pub fn affine(&self, bits: u32, group: u64) -> Option<&Format> {
        self.iter().find(|f| f.mode == Mode::Affine && f.bits == bits && f.group == group)
    }
}

/// The candidate most like `given`, when one is near enough to be meant.
pub fn nearest<'a>(given: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|name| (strsim::damerau_levenshtein(given, name), name))
        .filter(|(distance, name)| *distance <= 1 + name.chars().count() / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_reads_and_names_are_unique() {
        let formats = Formats::built_in();
        let mut names: Vec<_> =
            formats.iter().flat_map(|f| std::iter::once(&f.name).chain(&f.aliases)).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        for row in formats.iter() {
            let eight = formats.get(&row.eight_bit).unwrap();
            assert_eq!((eight.bits, eight.mode.family()), (8, row.mode.family()), "{}", row.name);
        }
    }

    #[test]
    fn aliases_and_case_resolve_and_misspellings_are_told() {
        let formats = Formats::built_in();
        assert_eq!(formats.resolve("FP8").unwrap().name, "int8");
        assert_eq!(formats.resolve("Q4").unwrap().name, "int4");
        let fault = formats.resolve("nvpf4").unwrap_err();
        assert!(fault.help.unwrap().contains("did you mean nvfp4?"));
    }

    #[test]
    fn every_format_is_found_again_by_the_metadata_that_it_writes() {
        let formats = Formats::built_in();
        for format in formats.iter() {
            let metadata = format.metadata();
            let number = |key: &str| metadata.get(key).and_then(|text| text.parse().ok());
            let kind = &metadata["quant_type"];
            let found = formats.labelled(kind, number("bits"), number("group_size")).unwrap();
            assert_eq!(found.name, format.name, "{metadata:?}");
            assert!(metadata.keys().is_sorted(), "{metadata:?}");
            // Ollama takes `affine` for 8 bits and knows no other width than 4 and 8.
            let foreign = format.has_bias() && !matches!(format.bits, 4 | 8);
            assert_eq!((kind == "affine", !format.ollama), (foreign, foreign), "{metadata:?}");
        }
        // As labelled before, and by others.
        let name = |kind, bits, group| formats.labelled(kind, bits, group).map(|f| f.name.as_str());
        assert_eq!(name("affine", Some(4), Some(32)), Some("int4-g32"));
        assert_eq!(name("affine", Some(8), Some(128)), Some("int8-g128"));
        assert_eq!(name("INT4", None, None), Some("int4"));
        assert_eq!(name("affine", None, Some(64)), None);
        assert_eq!(name("mxfp4", None, Some(64)), None);
    }

    #[test]
    fn bytes_count_scales_and_biases() {
        let formats = Formats::built_in();
        let shape = [576, 1536];
        let n = 576 * 1536;
        let bytes = |name: &str| formats.get(name).unwrap().bytes(&shape, Dtype::BF16);
        assert_eq!(bytes("int4"), n / 2 + n / 64 * 4);
        assert_eq!(bytes("mxfp8"), n + n / 32);
        assert_eq!(bytes("nvfp4"), n / 2 + n / 16);
        assert_eq!(bytes("int3"), n * 3 / 8 + n / 64 * 4);
    }
}
