//! The kernels against MLX: digests of what its Python package made (tests/golden/quantize.py).
//! The bytes themselves are compared in `on_mlx`, where this build has MLX.

use std::collections::BTreeMap;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::*;
use crate::format::Formats;
use crate::write::quantizer::{Native, made};

const GROUPS: usize = 64;
const KINDS: [&str; 7] = ["any", "near", "denormal", "special", "constant", "sparse", "ties"];
const DTYPES: [(&str, Float); 3] =
    [("F32", Float::F32), ("F16", Float::F16), ("BF16", Float::BF16)];

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The same numbers as `generate` in quantize.py.
fn generate(kind: &str, stream: &mut Stream, dtype: Float, group: usize) -> Vec<u8> {
    let (width, mantissa, infinity) = match dtype {
        Float::F32 => (32, 23, 0x7f80_0000u64),
        Float::F16 => (16, 10, 0x7c00),
        Float::BF16 => (16, 7, 0x7f80),
    };
    let sign = 1 << (width - 1);
    let bias = (infinity >> mantissa) / 2;
    let quiet = infinity | 1 << (mantissa - 1);
    let pool = [infinity, infinity | sign, quiet, quiet | sign, 0, sign];
    let signed = |stream: &mut Stream| if stream.next() & 1 == 1 { sign } else { 0 };
    let near = |stream: &mut Stream, base: u64, span: u64| {
        let magnitude = base.saturating_sub(stream.next() % (span << mantissa));
        magnitude | signed(stream)
    };
    let mut out = Vec::new();
    for _ in 0..GROUPS {
        let base = stream.next() % infinity;
        let span = 1 + stream.next() % 8;
        let place = stream.next() % group as u64;
        for i in 0..group as u64 {
            let bits = match kind {
                "any" => stream.next(),
                "near" => near(stream, base, span),
                "denormal" => (stream.next() % (2 << mantissa)) | signed(stream),
                "special" => match pool.get(stream.next() as usize % 24) {
                    Some(&bits) => bits,
                    None => near(stream, base, span),
                },
                "constant" => base,
                "sparse" if i == place => base,
                "sparse" => signed(stream),
                _ => {
                    let quarters = stream.next() % 25;
                    let value = match quarters.checked_ilog2() {
                        None => 0,
                        Some(top) => {
                            let exponent = bias + base % 8 + u64::from(top) - 6;
                            exponent << mantissa | (quarters - (1 << top)) << (mantissa - top)
                        }
                    };
                    value | signed(stream)
                }
            };
            out.extend_from_slice(&bits.to_le_bytes()[..width / 8]);
        }
    }
    out
}

/// Weight, scales and biases.
fn run(format: &Format, dtype: Float, input: &[u8]) -> [Vec<u8>; 3] {
    made(&Native, format, dtype, input).unwrap()
}

/// Every format, dtype and kind of numbers.
fn each_case(mut test: impl FnMut(&str, &Format, Float, &[u8])) {
    for format in Formats::built_in().iter() {
        for (name, dtype) in DTYPES {
            for (seed, kind) in KINDS.iter().enumerate() {
                let input = generate(kind, &mut Stream(seed as u64), dtype, format.group as usize);
                let case = format!(
                    "{} {} {} {name} {kind}",
                    format.mode.as_str(),
                    format.bits,
                    format.group
                );
                test(&case, format, dtype, &input);
            }
        }
    }
}

#[test]
fn every_format_has_the_bytes_of_mlx() {
    #[derive(Deserialize)]
    struct Golden {
        sha256: BTreeMap<String, String>,
    }
    let golden: Golden =
        serde_json::from_str(include_str!("../../../tests/golden/quantize.json")).unwrap();
    let mut wrong = Vec::new();
    let mut seen = 0;
    each_case(|case, format, dtype, input| {
        let mut sha = Sha256::new();
        run(format, dtype, input).iter().for_each(|part| sha.update(part));
        let found: String = sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if golden.sha256[case] != found {
            wrong.push(case.to_string());
        }
        seen += 1;
    });
    assert!(wrong.is_empty(), "{} of {seen} differ: {wrong:#?}", wrong.len());
    assert_eq!(seen, golden.sha256.len());
}

#[test]
fn quantizing_in_pieces_changes_nothing() {
    let format = Formats::built_in().get("int5").unwrap();
    let input = generate("near", &mut Stream(7), Float::BF16, 64);
    let whole = run(format, Float::BF16, &input);
    let mut pieces = [const { Vec::new() }; 3];
    for piece in input.chunks(64 * 2 * 5) {
        for (all, part) in pieces.iter_mut().zip(run(format, Float::BF16, piece)) {
            all.extend(part);
        }
    }
    assert_eq!(whole, pieces);
}

#[test]
fn e4m3_is_read_and_written_as_the_specification_says() {
    for code in 0..=255u8 {
        let value = e4m3_to_f32(code);
        if code & 0x7f == 0x7f {
            assert!(value.is_nan());
            continue;
        }
        let exponent = i32::from(code >> 3 & 15);
        let fraction = f32::from(code & 7) / 8.0;
        let magnitude = match exponent {
            0 => fraction * (-6f32).exp2(),
            _ => (1.0 + fraction) * ((exponent - 7) as f32).exp2(),
        };
        assert_eq!(value, if code & 0x80 == 0 { magnitude } else { -magnitude });
        assert_eq!(e4m3_from_f32(value), code);
    }
    // Halfway between 1 and 1.125 goes to the even one, saturation to 448.
    assert_eq!(e4m3_from_f32(1.0625), e4m3_from_f32(1.0));
    assert_eq!(e4m3_to_f32(e4m3_from_f32(-1e9)), -448.0);
}

#[test]
fn fp8_is_decoded_with_one_rounding() {
    let codes = [0x38u8, 0xb8, 0x7f, 0x01]; // 1, -1, NaN, 2^-9
    let mut out = [0; 8];
    decode_fp8(&codes, &[2.0 + 1.0 / 128.0, 3.0], 2, &mut out);
    let values: Vec<f32> =
        out.chunks(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
    // 2.0078125 lies halfway between two BF16 neighbours; the even one is 2.
    assert_eq!(values[..2], [2.0, -2.0]);
    assert!(values[2].is_nan());
    assert_eq!(values[3], 3.0 / 512.0);
}

#[test]
fn dequantizing_undoes_quantizing_within_a_step() {
    for format in Formats::built_in().iter() {
        let group = format.group as usize;
        let input: Vec<u8> = (0..group * 4)
            .flat_map(|i| (((i * 7919 % 1001) as f32 - 500.0) / 500.0).to_le_bytes())
            .collect();
        let [weight, scales, biases] = run(format, Float::F32, &input);
        let from = Quantized {
            weight: &weight,
            scales: &scales,
            biases: &biases,
            scale_dtype: Float::F32,
            global: None,
        };
        let mut out = vec![0; input.len()];
        dequantize(format, &from, Float::F32, &mut out);
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        // Affine: a whole step, because moving a step onto zero may clip the far end. Floats: half
        // of the widest gap between two values, under a scale that is at most doubled.
        let most = match (format.mode, format.bits) {
            (Mode::Affine, bits) => 2.0 / ((1 << bits) - 1) as f32,
            (_, 8) => 2.0 * 16.0 / 448.0,
            _ => 2.0 * 1.0 / 6.0,
        };
        for (a, b) in floats(&input).iter().zip(floats(&out)) {
            assert!((a - b).abs() <= most * 1.01, "{}: {a} became {b}", format.name);
        }
    }
}
