//! Rates of products with one row, of matrices that are not in any cache, as those of a model are
//! not: `cargo run --release --example rates [FORM]`.
use std::time::Instant;

use lathe_kernels::{Form, Gemm, Matrix, product};

#[expect(clippy::too_many_arguments, reason = "BLAS's")]
unsafe fn none(
    _: usize,
    _: usize,
    _: usize,
    _: *const f32,
    _: *const f32,
    _: bool,
    _: *mut f32,
    _: usize,
) {
}

/// Bytes of all matrices of a measurement, more than a cache holds.
const ALL: usize = 256 << 20;

fn main() {
    let only = std::env::args().nth(1);
    for form in [
        Form::F32,
        Form::Bf16,
        Form::F16,
        Form::Affine { bits: 4, group: 64 },
        Form::Affine { bits: 8, group: 64 },
        Form::Affine { bits: 6, group: 64 },
        Form::Mxfp4,
        Form::Mxfp8,
        Form::Nvfp4,
    ] {
        if only.as_ref().is_some_and(|only| !format!("{form:?}").contains(only)) {
            continue;
        }
        for (rows, columns) in [(49152, 576), (1536, 576), (576, 1536), (4096, 4096), (192, 576)] {
            let n = rows * columns;
            let count = (ALL / (n * form.bits() / 8)).max(1);
            let weight = vec![0x35u8; n * form.bits() / 8 * count];
            let (group, bytes) = form.group().unwrap_or((1, 0));
            let fill = if form == Form::Nvfp4 { 0x38u8 } else { 0x3f };
            let scales = vec![fill; n / group * bytes * count];
            let biases = if matches!(form, Form::Affine { .. }) { scales.clone() } else { vec![] };
            let x = vec![0.5f32; columns];
            let mut out = vec![0f32; rows];
            let mut best = f64::MAX;
            for _ in 0..5 {
                let begin = Instant::now();
                for i in 0..count {
                    let part = |all: &[u8]| i * all.len() / count..(i + 1) * all.len() / count;
                    let matrix = Matrix {
                        form,
                        rows,
                        columns,
                        weight: &weight[part(&weight)],
                        scales: &scales[part(&scales)],
                        biases: &biases[part(&biases)],
                        factor: 1.0,
                    };
                    product(&x, &matrix, &mut out, Gemm(none));
                }
                best = best.min(begin.elapsed().as_secs_f64() / count as f64);
            }
            let bytes = (weight.len() + scales.len() + biases.len()) as f64 / count as f64;
            println!(
                "{rows}x{columns} {form:?}: {:.0} us, {:.1} G elements/s, {:.1} GB/s",
                best * 1e6,
                n as f64 / best / 1e9,
                bytes / best / 1e9
            );
        }
    }
}
