//! Packed integers of every producer: the same numbers give the same weight.

use super::*;

/// Codes 0..15 of an `[out, in]` weight, scales `[out, groups]` and zero points likewise.
struct Grid {
    outputs: usize,
    inputs: usize,
    group: usize,
}

impl Grid {
    fn code(&self, o: usize, i: usize) -> u8 {
        ((o * 31 + i * 17 + o * i) % 16) as u8
    }
    fn scale(&self, o: usize, g: usize) -> f32 {
        0.25 + (o * 3 + g) as f32 / 64.0
    }
    fn zero(&self, o: usize, g: usize) -> u8 {
        ((o * 5 + g * 7) % 15) as u8
    }

    /// Packs nibbles of `count` items into I32 words by `order` (which item nibble n holds).
    fn words(items: &[u8], order: [usize; 8]) -> Vec<u8> {
        let word = |eight: &[u8]| {
            (0..8).map(|n| u32::from(eight[order[n]]) << (4 * n)).sum::<u32>().to_le_bytes()
        };
        items.chunks(8).flat_map(word).collect()
    }
}

/// The same weight in each producer's packing, as their formats are published.
#[test]
fn every_packing_of_the_same_integers_gives_the_same_weight() {
    let grid = Grid { outputs: 16, inputs: 64, group: 32 };
    let (outs, ins, groups) = (grid.outputs, grid.inputs, grid.inputs / grid.group);
    let straight = [0, 1, 2, 3, 4, 5, 6, 7];
    let awq = [0, 2, 4, 6, 1, 3, 5, 7];
    let half_bytes = |values: Vec<f32>| -> Vec<u8> {
        values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect()
    };
    let by_output = |f: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
        (0..outs).flat_map(|o| (0..groups).map(move |g| (o, g))).map(|(o, g)| f(o, g)).collect()
    };
    let by_group = |f: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
        (0..groups).flat_map(|g| (0..outs).map(move |o| (o, g))).map(|(o, g)| f(o, g)).collect()
    };
    let rows = |f: &dyn Fn(usize, usize) -> u8| -> Vec<u8> {
        (0..outs).flat_map(|o| (0..ins).map(move |i| (o, i))).map(|(o, i)| f(o, i)).collect()
    };
    let code = |o: usize, i: usize| grid.code(o, i);
    let zero = |o: usize, g: usize| grid.zero(o, g);

    // compressed-tensors: zero points packed down the outputs.
    let mut ct_zeros = Vec::new();
    for block in 0..outs / 8 {
        for g in 0..groups {
            let eight: Vec<u8> = (0..8).map(|n| zero(block * 8 + n, g)).collect();
            ct_zeros.extend(Grid::words(&eight, straight));
        }
    }
    let columns: Vec<u8> =
        (0..ins).flat_map(|i| (0..outs).map(move |o| (o, i))).map(|(o, i)| code(o, i)).collect();
    let mut gptq = Vec::new();
    for block in 0..ins / 8 {
        for o in 0..outs {
            let eight: Vec<u8> = (0..8).map(|n| code(o, block * 8 + n)).collect();
            gptq.extend(Grid::words(&eight, straight));
        }
    }
    let zeros_by_group: Vec<u8> =
        (0..groups).flat_map(|g| (0..outs).map(move |o| (o, g))).map(|(o, g)| zero(o, g)).collect();
    let less_one: Vec<u8> = zeros_by_group.iter().map(|z| z.wrapping_sub(1) & 15).collect();
    let mut modelopt = Vec::new();
    for o in (0..outs).step_by(2) {
        modelopt.extend((0..ins).map(|i| (code(o, i) ^ 8) | (code(o + 1, i) ^ 8) << 4));
    }
    let (o, i, g) = (outs as u64, ins as u64, groups as u64);
    let scales_out = half_bytes(by_output(&|o, g| grid.scale(o, g)));
    let scales_in = half_bytes(by_group(&|o, g| grid.scale(o, g)));
    let raws: Vec<Raw> = vec![
        ("ct", Dtype::I32, vec![o, i / 8], Grid::words(&rows(&code), straight)),
        ("ct.s", Dtype::F16, vec![o, g], scales_out.clone()),
        ("ct.z", Dtype::I32, vec![o / 8, g], ct_zeros),
        ("awq", Dtype::I32, vec![i, o / 8], Grid::words(&columns, awq)),
        ("awq.s", Dtype::F16, vec![g, o], scales_in.clone()),
        ("awq.z", Dtype::I32, vec![g, o / 8], Grid::words(&zeros_by_group, awq)),
        ("gptq", Dtype::I32, vec![i / 8, o], gptq),
        ("gptq.s", Dtype::F16, vec![g, o], scales_in),
        ("gptq.z", Dtype::I32, vec![g, o / 8], Grid::words(&less_one, straight)),
        ("mo", Dtype::U8, vec![o / 2, i], modelopt),
        ("mo.s", Dtype::F16, vec![o, g], scales_out),
    ];
    let by_name = |name: &str| raws.iter().find(|raw| raw.0 == name).unwrap();
    let packed =
        |word, rows, along| Packed { word, rows, along, fields: vec![], sign: Sign::Offset };
    let (rows_in, rows_out) = (packed(32, Side::In, Side::Out), packed(32, Side::Out, Side::Out));
    let awq = Packed { fields: awq.map(|item| item as u8).to_vec(), ..rows_in.clone() };
    let modelopt = Packed { sign: Sign::Twos, ..packed(8, Side::Out, Side::Out) };
    for (name, order, zeros) in [
        ("ct", packed(32, Side::Out, Side::In), Some(rows_out)),
        ("awq", awq.clone(), Some(awq)),
        ("gptq", packed(32, Side::In, Side::In), Some(rows_in)),
        ("mo", modelopt, None),
    ] {
        let zero_points = name != "mo";
        let zero_of = match name {
            "mo" => Zero::Middle,
            "gptq" => Zero::StoredLessOne,
            _ => Zero::Stored,
        };
        let packing =
            IntPacking { weight: order, zeros, bits: 4, group: grid.group as u64, zero: zero_of };
        let mut from = vec![by_name(name), by_name(&format!("{name}.s"))];
        if zero_points {
            from.push(by_name(&format!("{name}.z")));
        }
        let zero = |o: usize, g: usize| if zero_points { zero(o, g) } else { 8 };
        let exact = |o: usize, i: usize| {
            let g = i / grid.group;
            (f32::from(code(o, i)) - f32::from(zero(o, g))) * grid.scale(o, g)
        };

        let ops = vec![Op::UnpackInt { packing: packing.clone(), input_scale: false }];
        let decoded = made(&raws, planned(&from, "t", ops, Dtype::BF16, &[o, i]));
        for (at, value) in from_bf16(&decoded["t"].1).into_iter().enumerate() {
            let exact = exact(at / ins, at % ins);
            assert_eq!(value, half::bf16::from_f32(exact).to_f32(), "{name} {at}");
        }

        // As affine, with the scales of 64 inputs written for each 32.
        let affine = |part, dtype, shape: &[u64]| {
            let ops = vec![Op::AffineInt { packing: packing.clone(), part }];
            // The weight needs only its integers, scales and biases need all but them.
            let from = if part == AffinePart::Weight { &from[..1] } else { &from[1..] };
            made(&raws, planned(from, "t", ops, dtype, shape))["t"].1.clone()
        };
        let weight = affine(AffinePart::Weight, Dtype::U32, &[o, i / 8]);
        let scales = affine(AffinePart::Scale, Dtype::F32, &[o, g]);
        let biases = affine(AffinePart::Bias, Dtype::F32, &[o, g]);
        let from = kernels::Quantized {
            weight: &weight,
            scales: &scales,
            biases: &biases,
            scale_dtype: kernels::Float::F32,
            global: None,
        };
        let format = Formats::built_in().get("int4-g32").unwrap();
        let mut out = vec![0; outs * ins * 4];
        kernels::dequantize(format, &from, kernels::Float::F32, &mut out);
        for (at, bytes) in out.chunks(4).enumerate() {
            let value = f32::from_le_bytes(bytes.try_into().unwrap());
            assert_eq!(value, exact(at / ins, at % ins), "{name} {at}");
        }
    }
}

/// Factors of the inputs go into the columns before the only rounding.
#[test]
fn factors_of_the_inputs_fold_into_the_columns() {
    let (o, i) = (4u64, 32u64);
    let codes: Vec<u8> = (0..o * i).map(|n| (n * 7 % 256) as u8).collect();
    let factors: Vec<f32> = (0..i).map(|n| 0.5 + n as f32 / 24.0).collect();
    let scales: Vec<f32> = (0..o).map(|n| 0.3 + n as f32 / 7.0).collect();
    let f32s = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let raws: Vec<Raw> = vec![
        ("w", Dtype::I8, vec![o, i], codes.clone()),
        ("w.s", Dtype::F32, vec![o, 1], f32s(&scales)),
        ("w.f", Dtype::F32, vec![i], f32s(&factors)),
    ];
    let weight =
        Packed { word: 8, rows: Side::Out, along: Side::In, fields: vec![], sign: Sign::Twos };
    let packing = IntPacking { weight, zeros: None, bits: 8, group: 0, zero: Zero::Middle };
    let ops = vec![Op::UnpackInt { packing, input_scale: true }];
    let from: Vec<&Raw> = raws.iter().collect();
    let decoded = made(&raws, planned(&from, "t", ops, Dtype::BF16, &[o, i]));
    for (at, value) in from_bf16(&decoded["t"].1).into_iter().enumerate() {
        let (row, column) = (at / i as usize, at % i as usize);
        let exact = f32::from(codes[at] as i8) * scales[row] * factors[column];
        assert_eq!(value, half::bf16::from_f32(exact).to_f32(), "{at}");
    }
}
