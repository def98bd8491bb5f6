//! Rates of products with one row: `cargo run --release --example rates`.
use lathe_kernels::*;
use std::time::Instant;
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
fn main() {
    for (rows, columns) in [(49152, 576), (1536, 576), (576, 1536), (4096, 4096), (192, 576)] {
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
            let n = rows * columns;
            let weight = vec![0x35u8; n * form.bits() / 8];
            let (g, b) = form.group().unwrap_or((1, 0));
            let scales = vec![if form == Form::Nvfp4 { 0x38u8 } else { 0x3f }; n / g * b];
            let biases = if matches!(form, Form::Affine { .. }) { scales.clone() } else { vec![] };
            let m = Matrix {
                form,
                rows,
                columns,
                weight: &weight,
                scales: &scales,
                biases: &biases,
                factor: 1.0,
            };
            let x = vec![0.5f32; columns];
            let mut out = vec![0f32; rows];
            let mut best = f64::MAX;
            for _ in 0..30 {
                let t = Instant::now();
                product(&x, &m, &mut out, Gemm(none));
                best = best.min(t.elapsed().as_secs_f64());
            }
            let bytes = (weight.len() + scales.len() + biases.len()) as f64;
            println!(
                "{rows}x{columns} {form:?}: {:.0} us, {:.1} G elements/s, {:.1} GB/s",
                best * 1e6,
                n as f64 / best / 1e9,
                bytes / best / 1e9
            );
        }
    }
}
