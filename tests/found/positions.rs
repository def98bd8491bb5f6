//! Rotary positions of every kind, and how far a decoder is exact.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use lathe::decoder::unread;
use lathe::engine::{Engine, Loading, Options, Prompt, Request, Scheduler};
use lathe::policy::{Library, Role};
use lathe::store::{Name, Store};
use mlx_rs::{Array, Dtype};
use serde_json::{Map, Value, json};

use crate::common::{Outcome, Sandbox};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder/models")
}

fn config_of(name: &str) -> Value {
    serde_json::from_slice(&fs::read(models().join(name).join("config.json")).unwrap()).unwrap()
}

/// A tiny model of `tests/decoder` with its config changed, and a vocabulary of numbered words.
fn model(sandbox: &Sandbox, name: &str, change: impl FnOnce(&mut Value)) {
    let mut config = config_of(name);
    change(&mut config);
    sandbox.file("it/config.json", config.to_string());
    let weights = fs::read(models().join(name).join("model.safetensors")).unwrap();
    sandbox.file("it/model.safetensors", weights);
    let vocabulary: Map<String, Value> = (0..96).map(|id| (format!("t{id}"), id.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    });
    sandbox.file("it/tokenizer.json", tokenizer.to_string());
}

/// The prompt of a reference and its greedy continuation; `long_` names the longer one.
fn reference(name: &str, prompt: &str) -> (Vec<u32>, Vec<u32>) {
    let arrays = Array::load_safetensors(models().join(format!("{name}.ref.safetensors"))).unwrap();
    let ids = |what: &str| {
        let array = arrays[&format!("{prompt}{what}")].as_dtype(Dtype::Uint32).unwrap();
        array.eval().unwrap();
        array.as_slice::<u32>().to_vec()
    };
    (ids("input_ids"), ids("greedy"))
}

fn words(ids: &[u32]) -> String {
    ids.iter().map(|id| format!("t{id}")).collect::<Vec<_>>().join(" ")
}

fn run(sandbox: &Sandbox, ids: &[u32], more: &[&str]) -> Outcome {
    let words = words(ids);
    let args = ["run", "m", "--raw", &words, "-o", "json", "-n", "16", "--temperature", "0"];
    sandbox.lathe(&[&args, more].concat())
}

/// What comes before the token that ends an answer: the reference goes on after it.
fn up_to_end(config: &Value, greedy: &[u32]) -> Vec<u32> {
    let ends = |id: &u32| config["eos_token_id"] == json!(id);
    greedy[..greedy.iter().position(ends).unwrap_or(greedy.len())].to_vec()
}

const LONG: [&str; 5] = ["llama_dynamic", "llama_longrope", "llama_yarn", "phi3", "phi3_partial"];

/// The trained length of these models, 26 tokens, lies between their two prompts, and the answer to
/// the shorter crosses it. `generate` of transformers gave what is right.
#[test]
fn prompts_on_both_sides_of_the_trained_length_and_answers_across_it() {
    for name in LONG {
        let sandbox = Sandbox::new();
        model(&sandbox, name, |_| ());
        sandbox.lathe(&["create", "m", "it", "--quiet"]).ok();
        for prompt in ["", "long_"] {
            let (ids, greedy) = reference(name, prompt);
            let answer = run(&sandbox, &ids, &[]).json();
            let wanted = up_to_end(&config_of(name), &greedy);
            assert_eq!(answer["tokens"], json!(wanted), "{prompt}{name}");
        }
    }
}

/// What a turn left in memory serves the next one only where it was turned as that needs: the
/// longer prompt begins with the shorter, whose tokens were turned as those of a short sequence.
#[test]
fn a_conversation_runs_again_what_was_turned_for_another_length() {
    for name in LONG {
        let sandbox = Sandbox::new();
        model(&sandbox, name, |_| ());
        sandbox.lathe(&["create", "m", "it", "--quiet"]).ok();
        let store = Store::open(Some(&sandbox.path("store"))).unwrap();
        let name_in_store = Name::parse("m").unwrap();
        let engine = Engine::load(&store, &name_in_store, Loading::default()).unwrap();
        let mut session = Scheduler::default();
        for (prompt, reused) in [("", 0), ("long_", if name == "llama_yarn" { 20 } else { 0 })] {
            let (ids, greedy) = reference(name, prompt);
            let options = Options {
                max_tokens: Some(if prompt.is_empty() { 1 } else { 16 }),
                ..Options::default()
            };
            let request = Request { prompt: Prompt::Plain(words(&ids)), options };
            let nothing = &mut |_| ControlFlow::Continue(());
            let answer = engine.answer(&mut session, &request, &|| true, nothing).unwrap();
            let wanted = up_to_end(&config_of(name), &greedy);
            assert_eq!(answer.tokens[..], wanted[..answer.tokens.len()], "{prompt}{name}");
            assert_eq!(answer.statistics.reused_tokens, reused, "{prompt}{name}");
        }
    }
}

/// Told once, with where it stands and both readings, and not taken as unscaled: `create` refuses
/// what readers take in different ways, and imports what nobody here reads.
#[test]
fn rotations_without_a_single_meaning_are_refused() {
    for (key, value, wanted) in [
        ("rope_scaling", json!({"factor": 4.0}), "gives `factor` and no `rope_type`"),
        (
            "rope_scaling",
            json!({"rope_type": "linear", "type": "dynamic", "factor": 4.0}),
            "says `rope_type: \"linear\"` and `type: \"dynamic\"`",
        ),
        ("rope_parameters", json!({"rope_theta": null}), "gives `rope_theta: null`"),
        (
            "rope_scaling",
            json!({"rope_type": null, "type": "linear", "factor": 4.0}),
            "gives `rope_type: null`",
        ),
        (
            "rope_parameters",
            json!({"full_attention": {"rope_type": "default", "rope_theta": 5e4}}),
            "(`full_attention`)",
        ),
        ("rope_scaling", json!({"type": "ntk", "factor": 4.0}), "says `rope_type: ntk`"),
    ] {
        let sandbox = Sandbox::new();
        model(&sandbox, "llama", |config| {
            config.as_object_mut().unwrap().remove("rope_parameters");
            config[key] = value;
        });
        let fault = |outcome: &Outcome| {
            assert_eq!(outcome.code, 1, "{}", outcome.stdout);
            let told: Value = serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap();
            let faults = told["error"]["details"].as_array().unwrap();
            let message = faults[0]["message"].as_str().unwrap();
            assert!(faults.len() == 1 && message.contains(wanted), "{wanted}\n{told}");
            assert!(message.starts_with(&format!("{key} of the config")), "{message}");
            faults[0]["code"].as_str().unwrap().to_owned()
        };
        if wanted.ends_with("ntk`") {
            sandbox.lathe(&["create", "m", "it", "--quiet"]).ok();
            assert_eq!(fault(&sandbox.lathe(&["run", "m", "t5", "-o", "json"])), "decoder");
            continue;
        }
        for more in [&[][..], &["--no-smoke"], &["--strict"], &["--dry-run"], &["-q", "int8-g32"]] {
            let made = sandbox.lathe(&[&["create", "m", "it", "-o", "json"], more].concat());
            assert_eq!(fault(&made), "ambiguous");
        }
        assert!(!sandbox.stored().iter().any(|path| path.contains("manifests")));
        let shown = sandbox.lathe(&["create", "m", "it"]);
        assert!(shown.stderr.contains("llama.yaml:"), "{}", shown.stderr);
    }
}

/// A llama that a policy of the user's calls exact up to `index_topk`.
fn with_bound(sandbox: &Sandbox) {
    let llama = include_str!("../../policies/architectures/llama.yaml");
    let bounded = llama
        .replace("  context: max_position", "  exact_context: index_topk\n  context: max_position");
    assert_ne!(llama, bounded);
    sandbox.file("mine/architectures/llama.yaml", bounded);
    model(sandbox, "llama", |config| config["index_topk"] = 24.into());
}

/// Longer prompts are refused with the reason, answers end there, and it is told before.
#[test]
fn a_decoder_is_run_as_far_as_it_is_exact() {
    let sandbox = Sandbox::new();
    with_bound(&sandbox);
    let (ids, greedy) = reference("llama", "");
    let mine = ["--policy-dir", "mine"];
    let plan =
        sandbox.lathe(&["create", "m", "it", "--dry-run", "-o", "json", "--policy-dir", "mine"]);
    let warned = |report: &Value| {
        let warnings = report["warnings"].as_array().unwrap().clone();
        let of = |code: &str| warnings.iter().filter(|warning| warning["code"] == code).count();
        (of("exact-context"), of("unread-config"))
    };
    assert_eq!(warned(&plan.json()), (1, 0));
    let created =
        sandbox.lathe(&["create", "m", "it", "-o", "json", "--policy-dir", "mine"]).result();
    assert_eq!(warned(&created), (1, 0));
    assert_eq!(sandbox.lathe(&["show", "m", "-o", "json"]).json()["exact_context"], 24);
    let shown = sandbox.lathe(&["show", "m"]);
    assert!(shown.stderr.contains("exact up to 24 tokens"), "{}", shown.stderr);
    for more in [&[] as &[&str], &mine] {
        let answer = run(&sandbox, &ids, more).json();
        assert_eq!(answer["tokens"], json!(greedy[..4]));
        assert_eq!(answer["reason"], "length");
        let long = [ids.clone(), greedy.clone()].concat();
        let refused = run(&sandbox, &long[..24], more);
        assert_eq!(refused.code, 1);
        let told = format!("{}{}", refused.stdout, refused.stderr);
        for wanted in ["context-too-long", "24 tokens", "exact_context"] {
            assert!(told.contains(wanted), "{wanted}\n{told}");
        }
    }
}

#[test]
fn keys_that_matter_and_are_not_read_are_told_when_a_model_is_made() {
    let sandbox = Sandbox::new();
    model(&sandbox, "llama", |config| {
        config["index_topk"] = 24.into();
        config["embedding_multiplier"] = 12.0.into();
        config["residual_multiplier"] = 1.0.into();
        config["attention_chunk_size"] = Value::Null;
        config["rope_parameters"]["alpha"] = 1000.into();
    });
    let report = sandbox.lathe(&["create", "m", "it", "-o", "json"]).result();
    let warnings = report["warnings"].as_array().unwrap().iter();
    let told: Vec<&str> = warnings
        .filter(|warning| warning["code"] == "unread-config")
        .map(|warning| warning["message"].as_str().unwrap().split('`').nth(1).unwrap())
        .collect();
    assert_eq!(told, ["embedding_multiplier", "index_topk", "rope_parameters.alpha"]);
    let plan = sandbox.lathe(&["create", "m", "it", "--dry-run"]);
    let told = format!("{}{}", plan.stdout, plan.stderr);
    assert!(told.contains("a sparse indexer picks"), "{told}");
}

/// The configs that transformers writes for the tiny models have every key of their classes; those
/// of the policies' tests are published ones.
#[test]
fn built_in_decoders_read_all_of_their_configs_that_matters() {
    let library = Library::built_in();
    let decoder = |config: &Value| {
        let architecture = config["architectures"][0].as_str()?;
        let found = library.find(architecture, Role::Target).ok()?;
        library.compile(&found.clone()).unwrap().decoder
    };
    let mut compared = 0;
    for entry in fs::read_dir(models()).unwrap().map(Result::unwrap) {
        if entry.path().is_dir() {
            let text = fs::read_to_string(entry.path().join("config.json")).unwrap();
            let config: Value = json5::from_str(&text).unwrap();
            let Some(decoder) = decoder(&config) else { continue };
            assert_eq!(unread(&decoder, &config), [], "{:?}", entry.path());
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
    let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies/architectures");
    for entry in fs::read_dir(policies).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if !name.ends_with(".test.yaml") {
            continue;
        }
        let test: Value = serde_yaml::from_str(&fs::read_to_string(entry.path()).unwrap()).unwrap();
        for case in test["cases"].as_array().unwrap() {
            let Some(decoder) = decoder(&case["config"]) else { continue };
            assert_eq!(unread(&decoder, &case["config"]), [], "{name}");
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared}");
}
