//! No kernel meets a subnormal number: none does on a processor that tells, and results are the
//! same on one that flushes. And nothing else is lost: sums are as good as plain ones in f32.

use super::environment::Environment;
use super::*;

impl Random {
    /// 10^`from` to 10^`to`, of either sign; a few are zero.
    pub fn wide(&mut self, from: f32, to: f32) -> f32 {
        let size = 10_f32.powf(from + (to - from) * (self.next() % 100_003) as f32 / 100_002.0);
        match self.next() % 26 {
            0 => 0.0,
            odd if odd % 2 == 1 => -size,
            _ => size,
        }
    }

    /// What enters a module.
    pub fn activations(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.wide(-6.0, 4.0)).collect()
    }
}

impl Stored {
    /// Every pattern of bits that the form has a number for, subnormal ones too, with scales from
    /// 10^-6 to 10.
    pub fn wide(form: Form, rows: usize, columns: usize) -> Stored {
        let mut stored = Stored::new(form, rows, columns);
        let mut random = Random((rows + columns) as u64);
        let halves = |weight: &mut [u8], mut half: Box<dyn FnMut() -> u16>| {
            for bytes in weight.chunks_exact_mut(2) {
                bytes.copy_from_slice(&half().to_le_bytes());
            }
        };
        let mut single = move || match random.next() % 20 {
            0 => f32::from_bits((random.next() % (1 << 23)) as u32),
            _ => random.wide(-6.0, 1.0),
        };
        let mut random = Random((rows * columns) as u64);
        match form {
            Form::F32 => {
                for bytes in stored.weight.chunks_exact_mut(4) {
                    bytes.copy_from_slice(&single().to_le_bytes());
                }
            }
            Form::Bf16 => {
                halves(&mut stored.weight, Box::new(move || (single().to_bits() >> 16) as u16));
            }
            Form::F16 => {
                let number = |bits: u16| if bits & 0x7c00 == 0x7c00 { bits & 0x83ff } else { bits };
                halves(&mut stored.weight, Box::new(move || number(random.next() as u16)));
            }
            Form::Affine { scales, .. } => {
                let bytes = scales.bytes();
                for companions in [&mut stored.scales, &mut stored.biases] {
                    for to in companions.chunks_exact_mut(bytes) {
                        let single = random.wide(-6.0, 1.0).to_le_bytes();
                        to.copy_from_slice(&single[4 - bytes..]);
                    }
                }
            }
            // A group of zeros has the least scale.
            Form::Mxfp4 | Form::Mxfp8 => stored.scales.iter_mut().for_each(|scale| {
                let power = (random.next() % 24) as u8;
                *scale = if power == 0 { 0 } else { 106 + power };
            }),
            Form::Nvfp4 => {
                stored.scales.iter_mut().for_each(|scale| *scale = (random.next() % 0x7f) as u8);
            }
        }
        stored
    }

    /// What an element is the sum of: what is scaled, and the bias.
    fn parts(&self, element: usize) -> [f64; 2] {
        let whole = self.value(element);
        let Form::Affine { group, scales, .. } = self.form else { return [whole, 0.0] };
        let at = element / group * scales.bytes();
        let bias = match (scales, &self.biases[at..]) {
            (Scales::F32, &[a, b, c, d, ..]) => f32::from_le_bytes([a, b, c, d]),
            (_, bytes) => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        };
        let bias = 0.5 * f64::from(bias);
        [whole - bias, bias]
    }
}

fn there() -> impl Iterator<Item = Instructions> {
    Instructions::ALL.into_iter().filter(|known| known.is_there())
}

/// What a module makes is the same whether a processor flushes or not, and nothing that it
/// computes with is subnormal.
pub fn check(what: &str, module: impl Fn() -> Vec<f32>) {
    for instructions in there() {
        let (told, met) = Environment::run(instructions, false, &module);
        let (flushed, _) = Environment::run(instructions, true, &module);
        let differ = told.iter().zip(&flushed).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differ, None, "{what}, {instructions:?}: flushed it is another");
        assert!(!met, "{what}, {instructions:?}: something was subnormal");
        assert!(told.iter().all(|x| x.is_finite()), "{what}, {instructions:?}");
        assert!(told.iter().any(|&x| x != 0.0), "{what}, {instructions:?}: nothing but zeros");
    }
}

/// So many that threads share them.
const ROWS: usize = 700;

#[test]
fn products_meet_none() {
    for (form, columns) in forms() {
        let stored = Stored::wide(form, ROWS, columns);
        let all = || {
            let mut out = vec![f32::NAN; ROWS * columns];
            expand(&stored.matrix(), &mut out);
            out
        };
        check(&format!("all of {form:?}"), all);
        for count in [1, 2, 3, 4, 7, MANY] {
            let x = Random(count as u64).activations(count * columns);
            check(&format!("{count} rows times {form:?} of {columns}"), || {
                let mut out = vec![f32::NAN; count * ROWS];
                product(&x, &stored.matrix(), &mut out, Gemm(plain));
                out
            });
        }
    }
}

/// The error of each product, and of the same sum in f32, beside the sum of the terms' sizes.
#[test]
fn products_lose_no_more_than_plain_sums() {
    const UNIT: f64 = 1.0 / (1 << 24) as f64;
    for (form, columns) in forms() {
        let stored = Stored::wide(form, 9, columns);
        for count in [1, 2, 4, MANY] {
            let x = Random(count as u64 + 70).activations(count * columns);
            for instructions in there() {
                let mut found = vec![f32::NAN; count * 9];
                Environment::run(instructions, false, || {
                    product(&x, &stored.matrix(), &mut found, Gemm(plain));
                });
                for (i, &found) in found.iter().enumerate() {
                    let (x, row) = (&x[i / 9 * columns..][..columns], i % 9);
                    let (mut sum, mut plainly, mut size) = (0.0, 0_f32, 0.0);
                    for (j, &x) in x.iter().enumerate() {
                        let parts = stored.parts(row * columns + j);
                        sum += f64::from(x) * (parts[0] + parts[1]);
                        plainly += x * (parts[0] + parts[1]) as f32;
                        size += f64::from(x).abs() * (parts[0].abs() + parts[1].abs());
                    }
                    let [lost, plainly] =
                        [found, plainly].map(|made| (f64::from(made) - sum).abs() / size / UNIT);
                    assert!(
                        lost <= plainly + 4.0,
                        "{form:?}, {instructions:?}: {found}, not {sum}: {lost} and {plainly} units"
                    );
                }
            }
        }
    }
}

#[test]
fn attention_meets_none() {
    let mut random = Random(8);
    for (heads, kv_heads, rows, past, width) in
        [(9, 3, 1, 500, 64), (4, 2, 2, 60, 16), (6, 3, 70, 20, 16), (2, 1, 33, 0, 7)]
    {
        let keys = rows + past;
        // Softmaxes of one key among scores that differ by millions, and of a few among thousands.
        for scale in [1.0, 1e-4, 1e-8] {
            let data = [heads * rows, kv_heads * keys, kv_heads * keys]
                .map(|rows| random.activations(rows * width));
            let of = |data, heads, rows| Heads { data, heads, rows, width, stride: rows * width };
            let sinks = random.activations(heads);
            for (window, sinks, cap) in [
                (None, None, None),
                (Some(30), None, Some(50.0)),
                (None, Some(&sinks[..]), None),
                (Some(100), Some(&sinks[..]), Some(100.0)),
            ] {
                let sight = Sight { scale, cap, first: past, causal: true, window, sinks };
                let what = format!("attention of {rows} to {keys}, {scale}, {window:?}, {cap:?}");
                check(&what, || {
                    let mut out = vec![f32::NAN; heads * rows * width];
                    attend(
                        of(&data[0], heads, rows),
                        &[of(&data[1], kv_heads, keys)],
                        &[of(&data[2], kv_heads, keys)],
                        &sight,
                        &mut out,
                        Gemm(plain),
                    );
                    out
                });
            }
        }
    }
}

#[test]
fn gates_norms_and_rotations_meet_none() {
    let mut random = Random(9);
    let (rows, width) = (200, 576);
    let [x, by] = [0; 2].map(|_| random.activations(rows * width));
    for &gate in Gate::ALL {
        check(&format!("{gate:?}"), || {
            let (mut gated, mut plain) = (x.clone(), x.clone());
            gate.apply(&mut gated, &by);
            gate.of(&mut plain);
            gated.extend(plain);
            gated
        });
    }
    check("clamped gates and caps", || {
        let (mut gated, mut capped) = (x.clone(), x.clone());
        clamped_gate(&mut gated, &by, 7.0, 1.702);
        soft_cap(&mut capped, 30.0);
        gated.extend(capped);
        gated
    });
    let weight = random.activations(width);
    check("norms", || {
        let mut out = vec![f32::NAN; x.len()];
        rms_norm(&x, Some(&weight), 1e-6, width, &mut out);
        let mut centred = vec![f32::NAN; x.len()];
        layer_norm(&x, Some(&weight), Some(&weight), 1e-6, width, &mut centred);
        out.extend(centred);
        out
    });
    let pairs = width / 2;
    let frequency = |pair: usize| 1e-4_f32.powf(pair as f32 / pairs as f32);
    let angles = (0..rows * pairs).map(|i| (i / pairs) as f32 * frequency(i % pairs));
    let (sin, cos): (Vec<f32>, Vec<f32>) = angles.map(f32::sin_cos).unzip();
    for interleaved in [false, true] {
        check("rotations", || {
            let norm = RowNorm { weight: Some(&weight), eps: 1e-6 };
            let x = Strided { data: &x, shape: [1, rows, width], strides: [0, width, 1] };
            let turn = Angles { cos: &cos, sin: &sin, interleaved };
            let mut out = vec![f32::NAN; rows * width];
            heads(&x, Some(norm), Some(turn), &mut out);
            out
        });
    }
}

/// What is smaller than any activation enters a product as zero, where it would be made smaller.
#[test]
fn tails_of_gates_meet_none() {
    for (form, columns) in forms() {
        let stored = Stored::wide(form, ROWS, columns);
        let mut x = Random(3).activations(columns);
        x[0] = 1.0;
        let gate: Vec<f32> =
            (0..columns).map(|i| 1.0 - 120.0 * i as f32 / columns as f32).collect();
        for &function in Gate::ALL {
            check(&format!("{form:?} times {function:?}"), || {
                let mut gate = gate.clone();
                function.apply(&mut gate, &x);
                let mut out = vec![f32::NAN; ROWS];
                product(&gate, &stored.matrix(), &mut out, Gemm(plain));
                out
            });
        }
    }
}

/// Numbers whose size goes down from e^0 to e^`least`, and is zero now and then.
pub fn tails(count: usize, least: f32) -> Vec<f32> {
    let of = |i: usize| least * (i % 101) as f32 / 100.0;
    (0..count).map(|i| if i % 37 == 5 { 0.0 } else { of(i).exp() }).collect()
}

#[test]
fn norms_and_functions_of_tails_meet_none() {
    let x: Vec<f32> = tails(64 * 303, -70.0)
        .iter()
        .zip(0..)
        .map(|(x, i)| if i % 2 == 0 { *x } else { -x })
        .collect();
    check("tails", || {
        let mut all = Vec::new();
        for &function in Gate::ALL {
            let mut x = x.clone();
            function.of(&mut x);
            all.extend(x);
        }
        let mut out = vec![f32::NAN; x.len()];
        rms_norm(&x, None, 1e-6, 303, &mut out);
        all.extend(&out);
        layer_norm(&x, None, None, 1e-6, 303, &mut out);
        all.extend(out);
        all
    });
}
