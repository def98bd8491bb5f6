//! Rates of products with one row, of matrices that are not in any cache, as those of a model are
//! not, and of attention: `cargo run --release --example rates -- [--cached] [FORM | Attention]`. With `--cached`, of one matrix
//! over and over, which shows what the loops can do. All processors that the process may use take
//! part: `taskset -c 0` leaves one. Each number is the best of many short runs, as others' work
//! only ever makes one longer.
use std::alloc::{Layout, alloc, dealloc};
use std::time::{Duration, Instant};

use lathe_kernels::{Form, Gemm, Heads, Matrix, Scales, Sight, attend, product};

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

/// Bytes of the matrices of a short run, where none is in a cache, and else a quarter of them.
const RUN: usize = 4 << 20;

/// How long is measured.
const LONG: Duration = Duration::from_millis(400);

/// Bytes in huge pages where the system gives them, as a model's weights are held.
struct Huge(*mut u8, Layout);

impl Huge {
    /// Of what `fill` gives for each byte.
    fn new(length: usize, mut fill: impl FnMut(usize) -> u8) -> Huge {
        let layout = Layout::from_size_align(length.max(1), 2 << 20).expect("a small length");
        // SAFETY: not empty.
        let start = unsafe { alloc(layout) };
        assert!(!start.is_null(), "not enough memory");
        #[cfg(target_os = "linux")]
        {
            unsafe extern "C" {
                fn madvise(start: *mut u8, length: usize, advice: i32) -> i32;
            }
            const HUGE_PAGES: i32 = 14;
            // SAFETY: this memory is ours; the advice changes no contents.
            unsafe { madvise(start, layout.size(), HUGE_PAGES) };
        }
        for at in 0..layout.size() {
            // SAFETY: as long as the layout.
            unsafe { start.add(at).write(fill(at)) };
        }
        Huge(start, layout)
    }

    /// The n-th of `count` parts of the first `length` bytes.
    fn part(&self, length: usize, count: usize, n: usize) -> &[u8] {
        let part = length / count;
        assert!((n + 1) * part <= self.1.size());
        // SAFETY: inside, and written when it was made.
        unsafe { std::slice::from_raw_parts(self.0.add(n * part), part) }
    }
}

impl Drop for Huge {
    fn drop(&mut self) {
        // SAFETY: allocated so.
        unsafe { dealloc(self.0, self.1) }
    }
}

/// Bytes that look random.
fn random() -> impl FnMut() -> u8 {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    }
}

/// Elements of all sizes that matrices of a form have: what processors take longer for shows.
fn elements(form: Form) -> impl FnMut(usize) -> u8 {
    let mut random = random();
    move |at| match (form, at % (form.bits() / 8).max(1)) {
        // Numbers of about a hundredth.
        (Form::F32, 3) | (Form::Bf16, 1) => random() & 0x80 | 0x3c,
        (Form::F16, 1) => random() & 0x80 | 0x20,
        // E4M3's two patterns that are no numbers.
        (Form::Mxfp8, _) => Some(random()).filter(|byte| byte & 0x7f != 0x7f).unwrap_or(0),
        _ => random(),
    }
}

/// Scales as of weights of a few hundredths.
fn scales_of(form: Form) -> impl FnMut(usize) -> u8 {
    let mut random = random();
    move |at| match form {
        Form::Mxfp4 | Form::Mxfp8 => 115 + random() % 8,
        Form::Nvfp4 => random() % 16,
        Form::Affine { scales, .. } if at % scales.bytes() == scales.bytes() - 1 => 0x3b,
        _ => random(),
    }
}

fn forms() -> Vec<Form> {
    let mut forms = vec![Form::F32, Form::Bf16, Form::F16];
    let affine = |bits, scales| Form::Affine { bits, group: 64, scales };
    forms.push(affine(4, Scales::Bf16));
    forms.extend([4, 8, 6, 5, 3, 2].map(|bits| affine(bits, Scales::F32)));
    forms.extend([Form::Mxfp4, Form::Mxfp8, Form::Nvfp4]);
    forms
}

fn main() {
    let (options, only): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let cached = options.iter().any(|option| option == "--cached");
    let sizes = [(49152, 576), (1536, 576), (576, 1536), (4096, 4096), (4096, 14336), (192, 576)];
    for form in forms() {
        if !only.iter().all(|only| format!("{form:?}").contains(only)) {
            continue;
        }
        for (rows, columns) in sizes {
            if cached && rows * columns > 1 << 20 {
                continue;
            }
            measure(form, rows, columns, cached);
        }
    }
    if only.iter().all(|only| only == "Attention") {
        [500, 1000, 4000].into_iter().for_each(|keys| attention(keys, cached));
    }
}

/// One query with nine heads that share three of keys and values.
fn attention(rows: usize, cached: bool) {
    let (width, bytes) = (64, 2 * 3 * rows * 64 * 4);
    let count = if cached { 1 } else { ALL / bytes };
    let data = Huge::new(count * bytes, |_| 0);
    let query = vec![0.5f32; 9 * width];
    let q = Heads { data: &query, heads: 9, rows: 1, width, stride: width };
    let sight =
        Sight { scale: 0.125, first: rows - 1, causal: true, cap: None, window: None, sinks: None };
    let mut out = vec![0f32; 9 * width];
    let (mut best, mut next) = (f64::MAX, 0);
    let start = Instant::now();
    while start.elapsed() < LONG {
        let held = data.part(count * bytes, count, next);
        // SAFETY: every pattern of bits is a float, and all of them lie at multiples of 4.
        let (_, floats, _) = unsafe { held.align_to::<f32>() };
        let (keys, values) = floats.split_at(floats.len() / 2);
        let of = |data| Heads { data, heads: 3, rows, width, stride: rows * width };
        let begin = Instant::now();
        attend(q, &[of(keys)], &[of(values)], &sight, &mut out, Gemm(none));
        best = best.min(begin.elapsed().as_secs_f64());
        next = (next + 1) % count;
    }
    println!(
        "attention to {rows} keys: {:.0} us, {:.1} GB/s",
        best * 1e6,
        bytes as f64 / best / 1e9
    );
}

fn measure(form: Form, rows: usize, columns: usize, cached: bool) {
    let n = rows * columns;
    let bytes = n * form.bits() / 8;
    let count = if cached { 1 } else { (ALL / bytes).max(1) };
    let weight = Huge::new(bytes * count, elements(form));
    let (group, of_scale) = form.group().unwrap_or((1, 0));
    let companions = n / group * of_scale;
    let scales = Huge::new(companions * count, scales_of(form));
    let with_biases = if matches!(form, Form::Affine { .. }) { companions } else { 0 };
    let mut random = random();
    let x: Vec<f32> = (0..columns).map(|_| (f32::from(random()) - 127.5) / 100.0).collect();
    let mut out = vec![0f32; rows];
    let run = (RUN / if cached { 4 } else { 1 } / (n * form.bits() / 8)).max(1);
    let mut best = f64::MAX;
    let mut next = 0;
    let start = Instant::now();
    while start.elapsed() < LONG {
        let begin = Instant::now();
        for _ in 0..run {
            let matrix = Matrix {
                form,
                rows,
                columns,
                weight: weight.part(bytes * count, count, next),
                scales: scales.part(companions * count, count, next),
                biases: scales.part(with_biases * count, count, next),
                factor: 1.0,
            };
            product(&x, &matrix, &mut out, Gemm(none));
            next = (next + 1) % count;
        }
        best = best.min(begin.elapsed().as_secs_f64() / run as f64);
    }
    let bytes = (bytes + companions + with_biases) as f64;
    println!(
        "{rows}x{columns} {form:?}: {:.0} us, {:.1} G elements/s, {:.1} GB/s",
        best * 1e6,
        n as f64 / best / 1e9,
        bytes / best / 1e9
    );
}
