//! Every form against its definition, with all instructions.

use half::{bf16, f16};

use super::*;

pub mod environment;
mod layers;
mod mixture;
mod subnormal;

use environment::Environment;

/// Numbers that look random.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub fn float(&mut self) -> f32 {
        (self.next() % 2001) as f32 / 1000.0 - 1.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

struct Stored {
    form: Form,
    rows: usize,
    columns: usize,
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

impl Stored {
    fn new(form: Form, rows: usize, columns: usize) -> Stored {
        let mut random = Random(rows as u64 * 31 + columns as u64);
        let count = rows * columns;
        let floats = |count: usize, random: &mut Random| -> Vec<u8> {
            (0..count).flat_map(|_| random.float().to_le_bytes()).collect()
        };
        let stored = |count: usize, random: &mut Random| -> Vec<u8> {
            let all = floats(count, random);
            match form {
                // The upper halves.
                Form::Affine { scales: Scales::Bf16, .. } => {
                    all.chunks_exact(4).flat_map(|single| [single[2], single[3]]).collect()
                }
                _ => all,
            }
        };
        let weight = match form {
            Form::F32 => floats(count, &mut random),
            Form::F16 => {
                (0..count).flat_map(|_| f16::from_f32(random.float()).to_le_bytes()).collect()
            }
            Form::Bf16 => {
                (0..count).flat_map(|_| bf16::from_f32(random.float()).to_le_bytes()).collect()
            }
            _ => {
                let bytes = random.bytes(count * form.bits() / 8);
                // E4M3's two patterns that are no numbers.
                let number = |byte: u8| if byte & 0x7f == 0x7f { byte & 0x80 } else { byte };
                bytes.into_iter().map(|b| if form == Form::Mxfp8 { number(b) } else { b }).collect()
            }
        };
        let groups = form.group().map_or(0, |(group, _)| count / group);
        let affine = matches!(form, Form::Affine { .. });
        let scales = match form {
            _ if affine => stored(groups, &mut random),
            Form::Nvfp4 => (0..groups).map(|_| (random.next() % 0x7f) as u8).collect(),
            _ => (0..groups).map(|_| (120 + random.next() % 12) as u8).collect(),
        };
        let biases = if affine { stored(groups, &mut random) } else { Vec::new() };
        Stored { form, rows, columns, weight, scales, biases }
    }

    fn matrix(&self) -> Matrix<'_> {
        let Stored { form, rows, columns, .. } = *self;
        let (weight, scales, biases) = (&self.weight, &self.scales, &self.biases);
        Matrix { form, rows, columns, weight, scales, biases, factor: 0.5 }
    }

    /// One element by its definition.
    fn value(&self, at: usize) -> f64 {
        let single = |bytes: &[u8], at: usize| {
            f64::from(f32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap()))
        };
        let half = |at: usize| [self.weight[2 * at], self.weight[2 * at + 1]];
        let bits = |bits: usize| {
            (0..bits).map(|i| at * bits + i).enumerate().fold(0u32, |sum, (i, bit)| {
                sum | u32::from(self.weight[bit / 8] >> (bit % 8) & 1) << i
            })
        };
        let e2m1 = |bits: u32| {
            let (sign, exponent, fraction) = (bits >> 3, bits >> 1 & 3, f64::from(bits & 1) / 2.0);
            let size = match exponent {
                0 => fraction,
                _ => (1.0 + fraction) * f64::from(1 << (exponent - 1)),
            };
            if sign == 1 { -size } else { size }
        };
        let e4m3 = |byte: u8| {
            let (exponent, fraction) = (i32::from(byte >> 3 & 15), f64::from(byte & 7) / 8.0);
            let size = match exponent {
                0 => fraction * 2f64.powi(-6),
                _ => (1.0 + fraction) * 2f64.powi(exponent - 7),
            };
            if byte & 0x80 != 0 { -size } else { size }
        };
        let power = |at: usize| 2f64.powi(i32::from(self.scales[at]) - 127);
        let value = match self.form {
            Form::F32 => single(&self.weight, at),
            Form::F16 => f16::from_le_bytes(half(at)).to_f64(),
            Form::Bf16 => bf16::from_le_bytes(half(at)).to_f64(),
            Form::Affine { bits: width, group, scales } => {
                let stored = |bytes: &[u8], at: usize| match scales {
                    Scales::F32 => single(bytes, at),
                    Scales::Bf16 => {
                        bf16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f64()
                    }
                };
                f64::from(bits(width.into())) * stored(&self.scales, at / group)
                    + stored(&self.biases, at / group)
            }
            Form::Mxfp4 => e2m1(bits(4)) * power(at / 32),
            Form::Nvfp4 => e2m1(bits(4)) * e4m3(self.scales[at / 16]),
            Form::Mxfp8 => e4m3(self.weight[at]) * power(at / 32),
        };
        value * 0.5
    }
}

fn forms() -> Vec<(Form, usize)> {
    let mut forms = vec![
        (Form::F32, 75),
        (Form::F16, 75),
        (Form::Bf16, 75),
        (Form::F32, 256),
        (Form::Bf16, 7),
        (Form::Mxfp4, 96),
        (Form::Mxfp8, 96),
        (Form::Nvfp4, 80),
        (Form::Nvfp4, 16),
        (Form::Mxfp4, 192),
        (Form::Nvfp4, 128),
        (Form::Affine { bits: 4, group: 32, scales: Scales::F32 }, 128),
    ];
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            let form = |scales| Form::Affine { bits, group, scales };
            forms.push((form(Scales::F32), group * 3));
            // An even number of groups of 32, and enough for eight biases at once.
            forms.push((form(Scales::Bf16), group * 10));
        }
    }
    forms
}

/// A plain product, in the place of a BLAS's.
#[expect(clippy::too_many_arguments, reason = "BLAS's")]
pub unsafe fn plain(
    m: usize,
    n: usize,
    k: usize,
    a: *const f32,
    b: *const f32,
    transposed: bool,
    c: *mut f32,
    stride: usize,
) {
    for i in 0..m {
        for j in 0..n {
            let at = |l: usize| if transposed { j * k + l } else { l * n + j };
            // SAFETY: as the caller of `Gemm` says.
            unsafe {
                let sum = (0..k).map(|l| *a.add(i * k + l) * *b.add(at(l))).sum();
                *c.add(i * stride + j) = sum;
            }
        }
    }
}

#[test]
fn elements_are_what_their_form_defines() {
    for (form, columns) in forms() {
        let stored = Stored::new(form, 5, columns);
        let mut found = vec![f32::NAN; 5 * columns];
        expand(&stored.matrix(), &mut found);
        let check = |found: &[f32], how: &str| {
            for (i, found) in found.iter().enumerate() {
                let wanted = stored.value(i);
                let near = (f64::from(*found) - wanted).abs() <= 1e-6 * wanted.abs().max(1.0);
                assert!(near, "{form:?}, {how}: element {i}: {found}, not {wanted}");
            }
        };
        check(&found, "all");
        found.fill(f32::NAN);
        Environment::run(Instructions::Portable, false, || expand(&stored.matrix(), &mut found));
        check(&found, "portable");
    }
}

#[test]
fn products_are_sums_of_products_whatever_their_number() {
    for (form, columns) in forms() {
        // So many that several blocks and threads take part.
        let rows = 33 * 1024 / columns * 3 + 1;
        let stored = Stored::new(form, rows, columns);
        for count in [1, 2, 3, 4, 7, MANY, MANY + 3] {
            let mut random = Random(count as u64);
            let x: Vec<f32> = (0..count * columns).map(|_| random.float()).collect();
            let mut out = vec![f32::NAN; count * rows];
            product(&x, &stored.matrix(), &mut out, Gemm(plain));
            for (i, found) in out.iter().enumerate() {
                let (at, row) = (i / rows, i % rows);
                if row % 97 != 0 && row + 1 != rows {
                    assert!(found.is_finite(), "{form:?}, {count}: {found}");
                    continue;
                }
                let terms = (0..columns)
                    .map(|j| f64::from(x[at * columns + j]) * stored.value(row * columns + j));
                let (sum, size) =
                    terms.fold((0.0, 1.0), |(sum, size), t| (sum + t, size + t.abs()));
                let near = (f64::from(*found) - sum).abs() <= 1e-5 * size;
                assert!(near, "{form:?}, {count} rows: [{at}, {row}] is {found}, not {sum}");
            }
        }
    }
}

/// Odd numbers of rows too, which wider vectors take in parts, and the parts of a matrix alike.
#[test]
fn products_are_the_same_with_all_instructions() {
    const ROWS: usize = 7;
    for (form, columns) in forms() {
        let stored = Stored::new(form, ROWS, columns);
        for count in 1..=MANY {
            let mut random = Random(count as u64);
            let x: Vec<f32> = (0..count * columns).map(|_| random.float()).collect();
            let of = |instructions, from, rows| {
                let mut out = vec![f32::NAN; count * rows];
                let part = stored.matrix().part(from, rows);
                Environment::run(instructions, false, || {
                    product(&x, &part, &mut out, Gemm(plain));
                });
                out
            };
            let wanted = of(Instructions::Portable, 0, ROWS);
            for instructions in Instructions::ALL.into_iter().filter(|known| known.is_there()) {
                let found = of(instructions, 0, ROWS);
                for (a, b) in wanted.iter().zip(&found) {
                    let near = (a - b).abs() <= 1e-4 * a.abs().max(1.0);
                    assert!(near, "{form:?}, {instructions:?}, {count}: {wanted:?} {found:?}");
                }
                // Threads take parts: whichever, each row is the same to the last bit.
                for (from, rows) in [(0, 1), (1, 2), (3, 4)] {
                    for (i, part) in of(instructions, from, rows).chunks(rows).enumerate() {
                        assert_eq!(part, &found[i * ROWS + from..][..rows], "{form:?}, {count}");
                    }
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "scales")]
fn what_does_not_fit_is_refused() {
    let mut stored = Stored::new(Form::Mxfp4, 2, 64);
    stored.scales.pop();
    product(&[0.0; 64], &stored.matrix(), &mut [0.0; 2], Gemm(plain));
}
