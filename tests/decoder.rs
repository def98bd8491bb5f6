//! Decoders against `transformers`: logits and greedy continuations of tiny random models.
//!
//! `tests/decoders/models` holds a few of them. `LATHE_TINY_MODELS` names a folder with more, laid
//! out alike: `NAME/` with config.json and model.safetensors, and `NAME.ref.safetensors` with
//! input_ids, logits and greedy.
#![cfg(feature = "mlx")]

use std::path::{Path, PathBuf};

use lathe::cache::Cache;
use lathe::model::description::Decoder;
use lathe::model::{Batch, Compute, Folder, Logits, Model, Output, Row, load};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};
use serde_json::Value;

/// Largest difference of a logit that counts as equal.
const TOLERANCE: f32 = 1e-3;

const CPU: Compute = Compute { dtype: Dtype::Float32, on_cpu: true };

struct Case {
    name: String,
    model: Model,
    ids: Vec<u32>,
    logits: Array,
    greedy: Vec<u32>,
}

fn decoder(name: &str) -> Decoder {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/decoders/{name}.yaml"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn config(folder: &Path) -> Value {
    // Leniently: some configs say Infinity.
    json5::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
}

fn case(folder: &Path, decoder_name: &str) -> Case {
    let source = Folder::open(folder).unwrap();
    let model = match load(&source, &decoder(decoder_name), &config(folder), CPU) {
        Ok(model) => model,
        Err(faults) => panic!("{}:\n{faults}", folder.display()),
    };
    let mut reference = folder.as_os_str().to_owned();
    reference.push(".ref.safetensors");
    let reference = Array::load_safetensors(PathBuf::from(reference)).unwrap();
    let ints = |name: &str| -> Vec<u32> {
        let array = reference[name].as_dtype(Dtype::Uint32).unwrap();
        array.eval().unwrap();
        array.as_slice::<u32>().to_vec()
    };
    Case {
        name: folder.file_name().unwrap().to_string_lossy().into_owned(),
        model,
        ids: ints("input_ids"),
        logits: reference["logits"].clone(),
        greedy: ints("greedy"),
    }
}

/// One pass, evaluated.
fn forward(model: &Model, batch: &Batch, caches: &mut [&mut Cache]) -> Output {
    let output = model.forward(batch, caches).unwrap_or_else(|fault| panic!("{fault}"));
    let arrays = caches.iter().flat_map(|cache| cache.arrays());
    mlx_rs::transforms::eval(arrays.chain(&output.logits)).unwrap();
    output
}

fn floats(array: &Array) -> Vec<f32> {
    // A copy in row order: what is asked for may be a view.
    let array = array.add(Array::from_f32(0.0)).unwrap();
    array.eval().unwrap();
    array.as_slice::<f32>().to_vec()
}

fn difference(a: &Array, b: &Array) -> f32 {
    assert_eq!(a.shape(), b.shape());
    floats(a).iter().zip(floats(b)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn best(logits: &Array) -> u32 {
    let logits = floats(logits);
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
    best as u32
}

impl Case {
    /// Logits of the whole prompt, fed in chunks; and the cache after it.
    fn in_chunks(&self, size: usize) -> (Array, Cache) {
        let mut cache = self.model.new_cache();
        let parts: Vec<Array> = self
            .ids
            .chunks(size)
            .map(|chunk| {
                let batch = Batch::one(chunk, cache.offset(), Logits::All);
                forward(&self.model, &batch, &mut [&mut cache]).logits.unwrap()
            })
            .collect();
        (mlx_rs::ops::concatenate(&parts, 1).unwrap(), cache)
    }

    fn check_logits(&self) {
        for size in [self.ids.len(), 1, 3, 7] {
            let (logits, cache) = self.in_chunks(size);
            assert_eq!(cache.offset(), self.ids.len());
            let difference = difference(&logits, &self.logits);
            println!("{}: chunks of {size}: largest difference {difference:.1e}", self.name);
            assert!(difference <= TOLERANCE, "{}: chunks of {size}: {difference}", self.name);
        }
    }

    fn check_greedy(&self) {
        let (logits, mut cache) = self.in_chunks(self.ids.len());
        let mut token = best(&logits.try_index((0, -1)).unwrap());
        let mut found = vec![token];
        while found.len() < self.greedy.len() {
            let batch = Batch::one(&[token], cache.offset(), Logits::Last);
            let logits = forward(&self.model, &batch, &mut [&mut cache]).logits.unwrap();
            token = best(&logits);
            found.push(token);
        }
        assert_eq!(found, self.greedy, "{}", self.name);
    }

    /// Three rows of different lengths, at different positions, give what each gives alone.
    fn check_batch(&self) {
        let starts = [0, 5, 11];
        let lengths = [24, 9, 13];
        let mut caches: Vec<Cache> = starts.iter().map(|_| self.model.new_cache()).collect();
        for (cache, &start) in caches.iter_mut().zip(&starts) {
            if start > 0 {
                let batch = Batch::one(&self.ids[..start], 0, Logits::None);
                forward(&self.model, &batch, &mut [cache]);
            }
        }
        let rows = starts.iter().zip(lengths).map(|(&start, length)| Row {
            tokens: self.ids[start..start + length].to_vec(),
            position: start,
            ..Row::default()
        });
        let batch = Batch { rows: rows.collect(), logits: Logits::All, hidden: None };
        let mut refs: Vec<&mut Cache> = caches.iter_mut().collect();
        let logits = forward(&self.model, &batch, &mut refs).logits.unwrap();
        for (row, (&start, length)) in starts.iter().zip(lengths).enumerate() {
            let (row, length) = (row as i32, length as i32);
            let found = logits.try_index((row..row + 1, 0..length)).unwrap();
            let from = start as i32;
            let wanted = self.logits.try_index((.., from..from + length)).unwrap();
            let difference = difference(&found, &wanted);
            assert!(difference <= TOLERANCE, "{}: row {row}: {difference}", self.name);
        }
        // And each goes on alone from there.
        for (cache, (&start, length)) in caches.iter_mut().zip(starts.iter().zip(lengths)) {
            let at = start + length;
            if at < self.ids.len() {
                let batch = Batch::one(&self.ids[at..], at, Logits::All);
                let found = forward(&self.model, &batch, &mut [cache]).logits.unwrap();
                let wanted = self.logits.try_index((.., at as i32..)).unwrap();
                assert!(difference(&found, &wanted) <= TOLERANCE, "{}", self.name);
            }
        }
    }

    /// Going back to a scheduled offset and on again gives the same.
    fn check_rollback(&self) {
        let mut cache = self.model.new_cache();
        let row = Row { tokens: self.ids.clone(), snapshots: vec![9, 17], ..Row::default() };
        let batch = Batch { rows: vec![row], logits: Logits::None, hidden: None };
        forward(&self.model, &batch, &mut [&mut cache]);
        let snapshot = cache.snapshot();
        for offset in [17, 9, 0] {
            cache.rollback(offset).unwrap();
            assert_eq!(cache.offset(), offset);
            let batch = Batch::one(&self.ids[offset..], offset, Logits::All);
            let found = forward(&self.model, &batch, &mut [&mut cache]).logits.unwrap();
            let wanted = self.logits.try_index((.., offset as i32..)).unwrap();
            let difference = difference(&found, &wanted);
            assert!(difference <= TOLERANCE, "{}: back to {offset}: {difference}", self.name);
            cache.restore(&snapshot);
        }
    }
}

fn check(folder: &Path, decoder: &str) {
    let case = case(folder, decoder);
    case.check_logits();
    case.check_greedy();
    case.check_batch();
    case.check_rollback();
}

/// The tiny models, and the description that each is run by.
const MODELS: &[(&str, &str)] = &[
    ("cohere2_moe", "cohere2_moe"),
    ("deepseek_v3", "deepseek_v3"),
    ("gemma2", "gemma2"),
    ("gemma3_text", "gemma3"),
    ("gemma4", "gemma4"),
    ("gemma4_text_dense", "gemma4"),
    ("gemma4_text_moe", "gemma4"),
    ("gemma4_text_ple", "gemma4"),
    ("glm4_moe", "glm4_moe"),
    ("glm4_moe_lite", "glm4_moe_lite"),
    ("gpt_oss", "gpt_oss"),
    ("laguna", "laguna"),
    ("lfm2", "lfm2"),
    ("lfm2_moe", "lfm2_moe"),
    ("llama", "llama"),
    ("minimax_m2", "minimax_m2"),
    ("ministral3", "ministral3"),
    ("mistral", "llama"),
    ("mixtral", "mixtral"),
    ("nemotron_h", "nemotron_h"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3_5", "qwen3_5"),
    ("qwen3_5_moe", "qwen3_5"),
    ("qwen3_5_moe_fused", "qwen3_5"),
    ("qwen3_5_moe_text", "qwen3_5"),
    ("qwen3_5_text", "qwen3_5"),
    ("qwen3_5_text_mtp", "qwen3_5"),
    ("qwen3_moe", "qwen3_moe"),
    ("qwen3_next", "qwen3_5"),
];

#[test]
fn tiny_models_of_a_folder_match_transformers() {
    let Ok(folder) = std::env::var("LATHE_TINY_MODELS") else { return };
    let only = std::env::var("LATHE_TINY_ONLY").ok();
    for (name, decoder) in MODELS {
        let model = Path::new(&folder).join(name);
        if model.exists() && only.as_ref().is_none_or(|only| only == name) {
            check(&model, decoder);
        }
    }
}
