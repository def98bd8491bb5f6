//! Scales, biases and weights that are no numbers are told of, whatever the layout, each as what
//! they are.

use super::*;
use crate::plan::GlobalScale;

/// What a plan of these tensors warns of, when it is one thing at most.
fn warned(raws: &[Raw], tensors: Vec<Tensor>) -> Option<Warning> {
    let warnings = all_warned(raws, tensors);
    assert!(warnings.len() < 2, "{warnings:?}");
    warnings.into_iter().next()
}

/// What a plan of these tensors warns of.
fn all_warned(raws: &[Raw], tensors: Vec<Tensor>) -> Vec<Warning> {
    let dir = tempfile::tempdir().unwrap();
    let inventory = folder(dir.path(), raws);
    let staging = InMemory::with_room(u64::MAX);
    run_with(&plan(tensors), &inventory, &staging, 2, 1 << 10).unwrap().warnings
}

/// `count` ones of a dtype, the first `bad` of them no numbers.
fn ones(dtype: Dtype, count: usize, bad: usize) -> Vec<u8> {
    let (one, not): (&[u8], [&[u8]; 2]) = match dtype {
        Dtype::F32 => (&[0, 0, 0x80, 0x3f], [&[0, 0, 0xc0, 0x7f], &[0, 0, 0x80, 0xff]]),
        Dtype::BF16 => (&[0x80, 0x3f], [&[0xc0, 0x7f], &[0x80, 0xff]]),
        Dtype::F16 => (&[0, 0x3c], [&[0, 0x7e], &[0, 0xfc]]),
        Dtype::F8E4M3 => (&[0x38], [&[0x7f], &[0xff]]),
        _ => (&[127], [&[255], &[255]]),
    };
    (0..count).flat_map(|at| if at < bad { not[at % 2] } else { one }).copied().collect()
}

fn kept(from: &Raw, name: &str, format: &str, ops: Vec<Op>, dtype: Dtype) -> Tensor {
    let shape = from.2.clone();
    Tensor { format: Some(format.into()), ..planned(&[from], name, ops, dtype, &shape) }
}

#[test]
fn scales_that_are_no_numbers_are_told_of_in_every_layout() {
    let raw = |dtype, shape: &[u64], bytes: Vec<u8>| -> Raw { ("w", dtype, shape.to_vec(), bytes) };
    let beside = |dtype, shape: &[u64], bad: usize| -> Raw {
        let count = shape.iter().product::<u64>() as usize;
        ("w.scale", dtype, shape.to_vec(), ones(dtype, count, bad))
    };
    let fp8 = || raw(Dtype::F8E4M3, &[4, 64], vec![0x38; 256]);
    let bytes = || raw(Dtype::I8, &[4, 64], vec![1; 256]);
    let words = || raw(Dtype::U32, &[4, 8], vec![0x11; 128]);
    let weight =
        Packed { word: 8, rows: Side::Out, along: Side::In, fields: vec![], sign: Sign::Twos };
    let packing = || IntPacking {
        weight: weight.clone(),
        zeros: None,
        bits: 8,
        group: 32,
        zero: Zero::Middle,
    };
    let quantize = |format: &str| Op::Quantize { format: format.into() };
    let relabel = |shape: &[u64]| Op::Relabel { dtype: Dtype::U8, shape: shape.to_vec() };
    type Make<'a> = &'a dyn Fn(&Raw, &Raw) -> Vec<Tensor>;
    let decoded = |ops: Vec<Op>| {
        move |w: &Raw, s: &Raw| vec![planned(&[w, s], "t", ops.clone(), Dtype::BF16, &[4, 64])]
    };
    let block = decoded(vec![Op::DecodeFp8 { block: [2, 32] }]);
    let mxfp8 = decoded(vec![Op::DecodeFp8 { block: [2, 32] }, quantize("mxfp8")]);
    let unpacked = decoded(vec![Op::UnpackInt { packing: packing(), input_scale: false }]);
    let opened = |format: &str| {
        decoded(vec![Op::Dequantize { format: format.into(), global: None }, quantize("int4")])
    };
    let (mx, nv) = (opened("mxfp4"), opened("nvfp4"));
    let copied = |format: &'static str, dtype| {
        move |_: &Raw, s: &Raw| vec![kept(s, "t.weight.scale", format, vec![Op::Copy], dtype)]
    };
    let (affine, keep_mx, keep_nv) =
        (copied("int4", Dtype::BF16), copied("mxfp4", Dtype::U8), copied("nvfp4", Dtype::U8));
    let relabelled = |_: &Raw, s: &Raw| {
        vec![kept(s, "t.weight.scale", "nvfp4", vec![relabel(&[4, 4])], Dtype::U8)]
    };
    // One tensor of scales makes both, and counts once.
    let ints = |_: &Raw, s: &Raw| {
        let part = |name: &str, part| {
            let op = Op::AffineInt { packing: packing(), part };
            kept(s, name, "int8-g32", vec![op], Dtype::F16)
        };
        vec![part("t.weight.scale", AffinePart::Scale), part("t.weight.bias", AffinePart::Bias)]
    };
    let table: [(&str, Raw, Dtype, &[u64], Make); 11] = [
        ("block FP8", fp8(), Dtype::F32, &[2, 2], &block),
        ("the same, E8M0", fp8(), Dtype::F8E8M0, &[2, 2], &block),
        ("the same, quantized", fp8(), Dtype::BF16, &[2, 2], &mxfp8),
        ("integers decoded", bytes(), Dtype::F32, &[4, 2], &unpacked),
        ("integers kept", bytes(), Dtype::F16, &[4, 2], &ints),
        ("MXFP4 again", words(), Dtype::U8, &[4, 2], &mx),
        ("NVFP4 again", words(), Dtype::F8E4M3, &[4, 4], &nv),
        ("affine kept", words(), Dtype::BF16, &[4, 1], &affine),
        ("MXFP4 kept", words(), Dtype::U8, &[4, 2], &keep_mx),
        ("NVFP4 kept", words(), Dtype::F8E4M3, &[4, 4], &relabelled),
        ("MLX's NVFP4 kept", words(), Dtype::U8, &[4, 4], &keep_nv),
    ];
    for (what, weight, dtype, shape, make) in table {
        for bad in [0, 1, 2] {
            let mut scale = beside(dtype, shape, bad);
            if what.starts_with("MLX's") {
                scale.3 = ones(Dtype::F8E4M3, 16, bad);
            }
            let raws = [weight.clone(), scale];
            let warning = warned(&raws, make(&raws[0], &raws[1]));
            let Some(warning) = warning else {
                assert_eq!(bad, 0, "{what}: {bad} are not told of");
                continue;
            };
            let all = shape.iter().product::<u64>();
            assert!(
                warning.message.ends_with(&format!("w.scale ({bad} of {all})")),
                "{what}: {warning:?}"
            );
            assert_eq!(
                (warning.code.as_str(), warning.tensor.as_deref()),
                ("not-finite", Some("w.scale"))
            );
        }
    }
}

#[test]
fn the_first_few_tensors_are_named_and_the_others_counted() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let raws: Vec<Raw> =
        names.iter().map(|&name| (name, Dtype::BF16, vec![8], ones(Dtype::BF16, 8, 3))).collect();
    let tensors = raws.iter().map(|raw| {
        kept(raw, &format!("{}.weight.bias", raw.0), "int4", vec![Op::Copy], Dtype::BF16)
    });
    let warning = warned(&raws, tensors.collect()).unwrap();
    let named = "a (3 of 8), b (3 of 8), c (3 of 8), d (3 of 8) and 2 more";
    assert!(warning.message.ends_with(named), "{warning:?}");
}

#[test]
fn stacks_and_runs_are_counted_where_they_are_in_the_source() {
    let scales: Raw = ("s", Dtype::BF16, vec![2, 1], ones(Dtype::BF16, 2, 1));
    let raws: Vec<Raw> = vec![
        ("w.0", Dtype::F8E4M3, vec![2, 32], vec![0x7f; 64]),
        ("w.1", Dtype::F8E4M3, vec![2, 32], vec![0x38; 64]),
        scales,
    ];
    let from = [&raws[0], &raws[2], &raws[1], &raws[2]];
    let ops = vec![Op::Stack { count: 2 }, Op::DecodeFp8 { block: [2, 32] }];
    let mut tensor = planned(&from, "t", ops, Dtype::BF16, &[2, 2, 32]);
    for (number, start) in [(1, 0), (3, 1)] {
        tensor.sources[number].view = Some(View { start, shape: vec![1, 1] });
    }
    // The weight's own codes that are no numbers are not a scale's.
    let warnings = all_warned(&raws, vec![tensor]);
    let ends: Vec<bool> = [": s (1 of 2)", ": w.0 (64 of 64)"]
        .iter()
        .zip(&warnings)
        .map(|(end, warning)| warning.message.ends_with(end))
        .collect();
    assert_eq!(ends, [true, true], "{warnings:?}");
}

#[test]
fn weights_are_told_of_with_what_becomes_of_them() {
    let raw: Raw = ("w", Dtype::BF16, vec![4, 64], ones(Dtype::BF16, 256, 9));
    let quantize = Op::Quantize { format: "int4".into() };
    let tensors = vec![
        planned(&[&raw], "t", vec![Op::Copy], Dtype::BF16, &[4, 64]),
        planned(&[&raw], "u", vec![quantize], Dtype::BF16, &[4, 64]),
    ];
    let warning = warned(&[raw], tensors).unwrap();
    assert!(warning.message.ends_with(": w (9 of 256)"), "{warning:?}");
    for fate in ["what is not quantized keeps them", "least number of its group"] {
        assert!(warning.message.contains(fate), "{warning:?}");
    }
}

/// More places than are kept are counted as far as they are kept.
#[test]
fn a_tensor_without_any_number_takes_little_memory() {
    let count = 1 << 19;
    let raw: Raw =
        ("w", Dtype::BF16, vec![count], ones(Dtype::BF16, count as usize, count as usize));
    let tensors = vec![planned(&[&raw], "t", vec![Op::Copy], Dtype::BF16, &[count])];
    let warning = warned(&[raw], tensors).unwrap();
    assert!(warning.message.ends_with(": w (at least 262144 of 524288)"), "{warning:?}");
}

#[test]
fn a_global_scale_is_looked_at() {
    let raws: Vec<Raw> = vec![
        ("w", Dtype::U8, vec![4, 32], vec![0x22; 128]),
        ("w.scale", Dtype::F8E4M3, vec![4, 4], ones(Dtype::F8E4M3, 16, 0)),
        ("w.global", Dtype::F32, vec![1], ones(Dtype::F32, 1, 1)),
    ];
    let global = Some(GlobalScale::Multiplies);
    let ops = vec![Op::Dequantize { format: "nvfp4".into(), global }];
    let from: Vec<&Raw> = raws.iter().collect();
    let tensor = planned(&from, "t", ops, Dtype::BF16, &[4, 64]);
    let warning = warned(&raws, vec![tensor]).unwrap();
    assert!(warning.message.ends_with("w.global (1 of 1)"), "{warning:?}");
}
