//! Decoders against `transformers`: logits and greedy continuations of tiny random models.
//!
//! `models` holds them, made by `make.py`: `NAME/` with config.json and model.safetensors, and
//! `NAME.ref.safetensors` with input_ids, logits and greedy, and for some the same of a longer
//! prompt, `long_input_ids` and so on. `LATHE_TINY_MODELS` names a folder with more, laid out alike.
#![cfg(feature = "mlx")]

use std::path::{Path, PathBuf};

use lathe::cache::Cache;
use lathe::decoder::description::{Decoder, Expr};
use lathe::model::{Batch, Compute, Folder, Logits, Model, Output, Row, load};
use lathe::policy::{Library, Role};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};
use serde_json::Value;

/// Largest difference of a logit that counts as equal.
const TOLERANCE: f32 = 1e-3;

const CPU: Compute = Compute { dtype: Dtype::Float32, on_cpu: true };

/// As on a GPU, but in f32 and on the CPU.
const GRAPH: Compute = Compute { dtype: Dtype::Float32, on_cpu: false };

struct Case {
    name: String,
    model: Model,
    ids: Vec<u32>,
    logits: Array,
    greedy: Vec<u32>,
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder")
}

/// The description that the built-in policies, and the one beside this file, have for a config.
fn decoder(config: &Value) -> Decoder {
    let mut library = Library::built_in();
    library.add_file(&here().join("mixtral.yaml")).unwrap();
    let architecture = config["architectures"][0].as_str().unwrap();
    let entry = library.find(architecture, Role::Target).unwrap();
    let policy = library.compile(&entry.clone()).unwrap();
    policy.decoder.unwrap_or_else(|| panic!("{}: no decoder for {architecture}", policy.name))
}

fn config(folder: &Path) -> Value {
    // Leniently: some configs say Infinity.
    json5::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
}

/// The model with its prompt, or with its longer prompt (`long_`) if it has one.
fn case(folder: &Path, compute: Compute, prompt: &str) -> Option<Case> {
    let source = Folder::open(folder, "experts").unwrap();
    let config = config(folder);
    let model = match load(&source, &decoder(&config), &config, compute) {
        Ok(model) => model,
        Err(faults) => panic!("{}:\n{faults}", folder.display()),
    };
    let mut reference = folder.as_os_str().to_owned();
    reference.push(".ref.safetensors");
    let reference = Array::load_safetensors(PathBuf::from(reference)).unwrap();
    let ints = |name: &str| -> Option<Vec<u32>> {
        let array = reference.get(&format!("{prompt}{name}"))?.as_dtype(Dtype::Uint32).unwrap();
        array.eval().unwrap();
        Some(array.as_slice::<u32>().to_vec())
    };
    Some(Case {
        name: format!("{prompt}{}", folder.file_name().unwrap().to_string_lossy()),
        model,
        ids: ints("input_ids")?,
        logits: reference[&format!("{prompt}logits")].clone(),
        greedy: ints("greedy")?,
    })
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
    /// A part of the prompt.
    fn part(&self, from: usize, to: usize) -> Row {
        let (tokens, whole) = (self.ids[from..to].to_vec(), self.ids.len());
        Row { tokens, position: from, whole, ..Row::default() }
    }

    /// Logits of the whole prompt, fed in chunks that say so; and the cache after it.
    fn in_chunks(&self, size: usize) -> (Array, Cache) {
        self.in_chunks_of(self.ids.len(), size)
    }

    fn in_chunks_of(&self, whole: usize, size: usize) -> (Array, Cache) {
        let mut cache = self.model.new_cache();
        let parts: Vec<Array> = self
            .ids
            .chunks(size)
            .map(|chunk| {
                let mut batch = Batch::one(chunk, cache.offset(), Logits::All);
                batch.rows[0].whole = whole;
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

    /// Where the rotation depends on the length, chunks that do not tell it give something else.
    fn check_whole(&self) {
        if !self.model.turns_alike(7, self.ids.len()) {
            let (logits, _) = self.in_chunks_of(0, 7);
            assert!(difference(&logits, &self.logits) > TOLERANCE, "{}", self.name);
        }
    }

    fn check_greedy(&self) {
        let (logits, mut cache) = self.in_chunks(self.ids.len());
        let mut token = best(&logits.try_index((0, -1)).unwrap());
        let (mut found, mut whole) = (vec![token], self.ids.len());
        while found.len() < self.greedy.len() {
            let length = cache.offset() + 1;
            if self.model.runs_again(whole, length) {
                cache = self.model.new_cache();
                let before = self.ids.iter().chain(&found[..found.len() - 1]).copied().collect();
                let row = Row { tokens: before, whole: length, ..Row::default() };
                let batch = Batch { rows: vec![row], logits: Logits::None, hidden: None };
                forward(&self.model, &batch, &mut [&mut cache]);
                whole = length;
            }
            let batch = Batch::one(&[token], cache.offset(), Logits::Last);
            let logits = forward(&self.model, &batch, &mut [&mut cache]).logits.unwrap();
            token = best(&logits);
            found.push(token);
        }
        assert_eq!(found, self.greedy, "{}", self.name);
    }

    /// A token that the embedding lacks is an error, and not a row of zeros.
    fn check_tokens(&self) {
        let mut cache = self.model.new_cache();
        let batch = Batch::one(&[self.ids[0], u32::MAX], 0, Logits::Last);
        let fault = self.model.forward(&batch, &mut [&mut cache]).unwrap_err();
        assert!(fault.to_string().contains("4294967295"), "{fault}");
    }

    /// Three rows of different lengths, at different positions, give what each gives alone.
    fn check_batch(&self) {
        let all = self.ids.len();
        let starts = [0, 5, 11];
        let lengths = [all, 9, all - 13];
        let mut caches: Vec<Cache> = starts.iter().map(|_| self.model.new_cache()).collect();
        for (cache, &start) in caches.iter_mut().zip(&starts) {
            if start > 0 {
                let rows = vec![self.part(0, start)];
                let batch = Batch { rows, logits: Logits::None, hidden: None };
                forward(&self.model, &batch, &mut [cache]);
            }
        }
        let rows = starts.iter().zip(lengths);
        let rows = rows.map(|(&start, length)| self.part(start, start + length));
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
                let rows = vec![self.part(at, self.ids.len())];
                let batch = Batch { rows, logits: Logits::All, hidden: None };
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

fn check(folder: &Path, compute: Compute) {
    let cases = ["", "long_"].map(|prompt| case(folder, compute, prompt));
    assert!(cases[0].is_some(), "{}: no reference", folder.display());
    for case in cases.iter().flatten() {
        case.check_tokens();
        case.check_logits();
        case.check_whole();
        case.check_greedy();
        case.check_batch();
        case.check_rollback();
    }
}

/// The models of a folder: those with a reference beside them.
fn models(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut models: Vec<PathBuf> = entries
        .filter(|path| path.is_dir() && path.with_extension("ref.safetensors").exists())
        .collect();
    models.sort();
    models
}

/// A test for each model of `models` and each backend, so that a runner can spread them.
macro_rules! tiny_models {
    ($($name:ident)+) => {
        mod on_cpu {
            $(#[test] fn $name() { super::check(&super::here().join("models").join(stringify!($name)), super::CPU); })+
        }

        mod on_graph {
            $(#[test] fn $name() { super::check(&super::here().join("models").join(stringify!($name)), super::GRAPH); })+
        }

        const TINY_MODELS: &[&str] = &[$(stringify!($name)),+];
    };
}

tiny_models! {
    cohere2_moe deepseek_v3 gemma2 gemma3 gemma3_vision gemma4_moe gemma4_shared glm4_moe
    glm4_moe_lite gpt_oss laguna lfm2 lfm2_moe llama llama_dynamic llama_longrope llama_yarn
    minimax_m2 ministral3 mistral mistral3 mixtral nemotron_h phi3 phi3_partial qwen2 qwen3 qwen3_5
    qwen3_5_moe qwen3_head qwen3_moe qwen3_next
}

#[test]
fn no_tiny_model_is_left_out() {
    let models = models(&here().join("models"));
    let names: Vec<_> = models.iter().map(|model| model.file_name().unwrap()).collect();
    assert_eq!(names, TINY_MODELS);
}

/// By hand: `LATHE_TINY_MODELS=folder cargo test --test decoder -- --ignored of_a_folder`.
#[test]
#[ignore = "needs the folder that LATHE_TINY_MODELS names"]
fn tiny_models_of_a_folder_match_transformers() {
    let folder = std::env::var("LATHE_TINY_MODELS").expect("LATHE_TINY_MODELS names a folder");
    let only = std::env::var("LATHE_TINY_ONLY").ok();
    for model in models(Path::new(&folder)) {
        let name = model.file_name().unwrap().to_string_lossy().into_owned();
        // Assistants read another model's keys, and MXFP4 is only read from a store.
        let alone = !name.contains("assistant") && !name.contains("mxfp4");
        if alone && only.as_ref().is_none_or(|only| *only == name) {
            check(&model, CPU);
            check(&model, GRAPH);
        }
    }
}

/// Everything that is wrong is told at once: tensors that are missing, left over, or of another
/// size than the config makes.
#[test]
fn a_description_that_does_not_fit_is_refused_with_all_its_faults() {
    let folder = here().join("models/llama");
    let source = Folder::open(&folder, "experts").unwrap();
    let mut config = config(&folder);
    let mut decoder = decoder(&config);
    config["num_attention_heads"] = 8.into();
    let attention = decoder.layers.steps[0].residual.as_mut().unwrap()[1].attention.as_mut();
    let attention = attention.unwrap();
    attention.k = Some("key_projection".into());
    attention.scale = Some(Expr::Text("scale_of_another_config".into()));
    decoder.norm.clear();
    let faults = load(&source, &decoder, &config, CPU).err().unwrap();
    let text = faults.to_string();
    for wanted in [
        "layers.0.self_attn.q_proj.weight: has 32 rows where the config makes 64",
        "layers.0.self_attn.key_projection.weight: the decoder needs this tensor",
        "layers.0.self_attn.k_proj.weight: the decoder neither uses this tensor nor",
        "model.norm.weight: the decoder neither uses this tensor nor declares it unused",
    ] {
        assert!(text.contains(wanted), "{wanted}\n--\n{text}");
    }
}

/// By hand: `LATHE_BENCH_MODEL=folder cargo test --release --test decoder rates -- --ignored
/// --nocapture`.
#[test]
#[ignore = "measures, and needs the folder that LATHE_BENCH_MODEL names"]
fn rates_of_a_folder() {
    let folder = std::env::var("LATHE_BENCH_MODEL").expect("LATHE_BENCH_MODEL names a folder");
    let folder = Path::new(&folder);
    let config = config(folder);
    let start = std::time::Instant::now();
    let model =
        load(&Folder::open(folder, "experts").unwrap(), &decoder(&config), &config, CPU).unwrap();
    println!("load: {:.2} s", start.elapsed().as_secs_f64());
    let ids: Vec<u32> = (0..475).map(|i| 1000 + i * 37 % 20000).collect();
    let mut cache = model.new_cache();
    let start = std::time::Instant::now();
    let batch = Batch::one(&ids, 0, Logits::Last);
    let logits = forward(&model, &batch, &mut [&mut cache]).logits.unwrap();
    let seconds = start.elapsed().as_secs_f64();
    println!("prefill: {:.1} tokens/s ({seconds:.2} s)", ids.len() as f64 / seconds);
    let mut token = best(&logits);
    let start = std::time::Instant::now();
    for _ in 0..64 {
        let batch = Batch::one(&[token], cache.offset(), Logits::Last);
        let logits = forward(&model, &batch, &mut [&mut cache]).logits.unwrap();
        token = best(&logits);
    }
    println!("decode: {:.1} tokens/s", 64.0 / start.elapsed().as_secs_f64());
}
