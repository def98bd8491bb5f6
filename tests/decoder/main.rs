//! Decoders against `transformers`: logits and greedy continuations of tiny random models.
//!
//! `models` holds them, made by `make.py`: `NAME/` with config.json and model.safetensors, and
//! `NAME.ref.safetensors` with input_ids, logits and greedy, and for some the same of a longer
//! prompt, `long_input_ids` and so on. `LATHE_TINY_MODELS` names a folder with more, laid out alike.
#![cfg(feature = "mlx")]

use std::path::{Path, PathBuf};

use lathe::decoder::description::{Decoder, Expr};
use lathe::model::{Cache, Compute, Folder, Logits, Model, Pass, Span, load};
use lathe::policy::{Library, Role};
use mlx_rs::{Array, Dtype};
use serde_json::Value;

/// Largest difference of a logit that counts as equal.
const TOLERANCE: f32 = 1e-3;

const CPU: Compute = Compute::Cpu;

/// As on a GPU, but in f32 and on the CPU.
const GRAPH: Compute = Compute::Graph { dtype: Dtype::Float32 };

struct Case {
    name: String,
    model: Model,
    ids: Vec<u32>,
    /// `[tokens, vocabulary]`.
    logits: Vec<f32>,
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
        logits: floats(&reference[&format!("{prompt}logits")]),
        greedy: ints("greedy")?,
    })
}

/// One pass, settled: the logits of each span.
fn forward(model: &Model, spans: Vec<Span>, caches: &mut [&mut Cache]) -> Vec<Vec<f32>> {
    let pass = Pass { spans, taps: Vec::new() };
    let output = model.forward(&pass, caches).unwrap_or_else(|fault| panic!("{fault}"));
    caches.iter_mut().for_each(|cache| cache.commit());
    let width = output.logits.width();
    let mut logits = output.logits.into_host().unwrap();
    let counts = pass.spans.iter().map(|span| span.wanted().len() * width);
    counts.map(|count| logits.drain(..count).collect()).collect()
}

fn forward_one(model: &Model, span: Span, cache: &mut Cache) -> Vec<f32> {
    forward(model, vec![span], &mut [cache]).remove(0)
}

fn floats(array: &Array) -> Vec<f32> {
    // A copy in row order: what is asked for may be a view.
    let array = array.add(Array::from_f32(0.0)).unwrap();
    array.eval().unwrap();
    array.as_slice::<f32>().to_vec()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn best(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
    best as u32
}

impl Case {
    /// A part of the prompt.
    fn part(&self, from: usize, to: usize, logits: Logits) -> Span {
        Span { whole: self.ids.len(), ..Span::new(&self.ids[from..to], from, logits) }
    }

    /// The logits of some tokens of the prompt.
    fn wanted(&self, from: usize, to: usize) -> &[f32] {
        let width = self.logits.len() / self.ids.len();
        &self.logits[from * width..to * width]
    }

    fn assert_near(&self, found: &[f32], wanted: &[f32], what: &str) {
        let difference = difference(found, wanted);
        assert!(difference <= TOLERANCE, "{}: {what}: {difference}", self.name);
    }

    /// Logits of the whole prompt, fed in chunks that say so; and the cache after it.
    fn in_chunks(&self, size: usize) -> (Vec<f32>, Cache) {
        self.in_chunks_of(self.ids.len(), size)
    }

    fn in_chunks_of(&self, whole: usize, size: usize) -> (Vec<f32>, Cache) {
        let mut cache = self.model.new_cache();
        let mut logits = Vec::new();
        for chunk in self.ids.chunks(size) {
            let span = Span { whole, ..Span::new(chunk, cache.offset(), Logits::All) };
            logits.extend(forward_one(&self.model, span, &mut cache));
        }
        (logits, cache)
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
        let mut cache = self.model.new_cache();
        let span = self.part(0, self.ids.len(), Logits::Last);
        let mut token = best(&forward_one(&self.model, span, &mut cache));
        let (mut found, mut whole) = (vec![token], self.ids.len());
        while found.len() < self.greedy.len() {
            let length = cache.offset() + 1;
            if self.model.runs_again(whole, length) {
                cache = self.model.new_cache();
                let before: Vec<u32> =
                    self.ids.iter().chain(&found[..found.len() - 1]).copied().collect();
                let span = Span { whole: length, ..Span::new(&before, 0, Logits::None) };
                forward_one(&self.model, span, &mut cache);
                whole = length;
            }
            let span = Span::new(&[token], cache.offset(), Logits::Last);
            token = best(&forward_one(&self.model, span, &mut cache));
            found.push(token);
        }
        assert_eq!(found, self.greedy, "{}", self.name);
    }

    /// A token that the embedding lacks is an error, and not a row of zeros; the cache stays.
    fn check_tokens(&self) {
        let mut cache = self.model.new_cache();
        let pass = Pass::one(&[self.ids[0], u32::MAX], 0, Logits::Last);
        let fault = self.model.forward(&pass, &mut [&mut cache]).unwrap_err();
        assert!(fault.to_string().contains("4294967295"), "{fault}");
        assert_eq!((cache.offset(), cache.staged()), (0, 0));
    }

    /// Spans of different lengths, at different positions, give what each gives alone.
    fn check_packed(&self) {
        let all = self.ids.len();
        let starts = [0, 5, 11, 8];
        let lengths = [all, 9, all - 13, 1];
        let mut caches: Vec<Cache> = starts.iter().map(|_| self.model.new_cache()).collect();
        for (cache, &start) in caches.iter_mut().zip(&starts) {
            if start > 0 {
                forward_one(&self.model, self.part(0, start, Logits::None), cache);
            }
        }
        let each = || starts.into_iter().zip(lengths);
        let spans = each().map(|(start, length)| self.part(start, start + length, Logits::All));
        let mut refs: Vec<&mut Cache> = caches.iter_mut().collect();
        let logits = forward(&self.model, spans.collect(), &mut refs);
        for ((start, length), found) in each().zip(&logits) {
            self.assert_near(found, self.wanted(start, start + length), "packed");
        }
        // And each goes on alone from there.
        for (cache, (start, length)) in caches.iter_mut().zip(each()) {
            let at = start + length;
            if at < all {
                let found = forward_one(&self.model, self.part(at, all, Logits::All), cache);
                self.assert_near(&found, self.wanted(at, all), "alone again");
            }
        }
    }

    /// Going back and on again gives the same: from a pass that is settled in part, from further
    /// back, in a copy and at a mark.
    fn check_back(&self) {
        let all = self.ids.len();
        let mut cache = self.model.new_cache();
        forward_one(&self.model, self.part(0, 4, Logits::None), &mut cache);
        let mark = cache.mark();
        let mut copy = cache.share();
        let pass = Pass { spans: vec![self.part(4, all, Logits::None)], taps: Vec::new() };
        for kept in [all, 17, 9, 4] {
            self.model.forward(&pass, &mut [&mut cache]).unwrap();
            cache.settle(kept).unwrap();
            assert_eq!((cache.offset(), cache.staged()), (kept, 0));
            if kept < all {
                let found = forward_one(&self.model, self.part(kept, all, Logits::All), &mut cache);
                self.assert_near(&found, self.wanted(kept, all), "settled in part");
            }
            cache.return_to(&mark).unwrap();
        }
        let found = forward_one(&self.model, self.part(4, all, Logits::All), &mut copy);
        self.assert_near(&found, self.wanted(4, all), "a copy");
        copy.settle(0).unwrap();
        let found = forward_one(&self.model, self.part(0, all, Logits::All), &mut copy);
        self.assert_near(&found, self.wanted(0, all), "from the start");
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
        case.check_packed();
        case.check_back();
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
    let logits = forward_one(&model, Span::new(&ids, 0, Logits::Last), &mut cache);
    let seconds = start.elapsed().as_secs_f64();
    println!("prefill: {:.1} tokens/s ({seconds:.2} s)", ids.len() as f64 / seconds);
    let mut token = best(&logits);
    let start = std::time::Instant::now();
    for _ in 0..64 {
        let span = Span::new(&[token], cache.offset(), Logits::Last);
        token = best(&forward_one(&model, span, &mut cache));
    }
    println!("decode: {:.1} tokens/s", 64.0 / start.elapsed().as_secs_f64());
}
