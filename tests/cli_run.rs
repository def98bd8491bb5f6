//! Answers from stored models, on the command line. The models are the tiny random ones of
//! `tests/decoder`, whose greedy continuation by `transformers` is known; a vocabulary whose words
//! are t0, t1, … lets a prompt say exactly the ids of the reference.
#![cfg(feature = "mlx")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::Sandbox;
use half::bf16;
use mlx_rs::{Array, Dtype};
use serde_json::{Map, Value, json};

fn decoder_tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder")
}

/// The tiny models, or others of the kind that `LATHE_TINY_MODELS` names.
fn models() -> PathBuf {
    let given = std::env::var_os("LATHE_TINY_MODELS").map(PathBuf::from);
    given.unwrap_or_else(|| decoder_tests().join("models"))
}

/// A folder with one of the tiny models and the vocabulary of numbered words.
fn model(sandbox: &Sandbox, name: &str) -> PathBuf {
    let from = models().join(name);
    for file in ["config.json", "model.safetensors"] {
        sandbox.file(&format!("{name}/{file}"), fs::read(from.join(file)).unwrap());
    }
    sandbox.vocabulary(name);
    let chat = "{% for message in messages %}{{ message.content }} {% endfor %}";
    sandbox
        .file(&format!("{name}/tokenizer_config.json"), json!({"chat_template": chat}).to_string());
    sandbox.path(name)
}

/// The reference's prompt and its greedy continuation.
fn reference(name: &str) -> (Vec<u32>, Vec<u32>) {
    let path = models().join(format!("{name}.ref.safetensors"));
    let arrays = Array::load_safetensors(path).unwrap();
    let ids = |name: &str| {
        let array = arrays[name].as_dtype(Dtype::Uint32).unwrap();
        array.eval().unwrap();
        array.as_slice::<u32>().to_vec()
    };
    (ids("input_ids"), ids("greedy"))
}

fn words(ids: &[u32]) -> String {
    ids.iter().map(|id| format!("t{id}")).collect::<Vec<_>>().join(" ")
}

/// A sandbox with the tiny llama as the model `m`.
fn with_llama() -> Sandbox {
    let sandbox = Sandbox::new();
    model(&sandbox, "llama");
    sandbox.lathe(&["create", "m", "llama"]).ok();
    sandbox
}

/// The words of an answer that are not its prompt.
fn run<'a>(sandbox: &Sandbox, args: &[&'a str]) -> Value {
    let all: Vec<&'a str> = ["run", "m", "-o", "json"].iter().chain(args).copied().collect();
    sandbox.lathe(&all).json()
}

/// From folder to answer: what is stored, found, loaded and run is the model of the reference.
#[test]
fn stored_models_answer_as_transformers_does() {
    let mut names: Vec<String> = fs::read_dir(models())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        // One has no policy here, and the other kind reads another model's keys.
        .filter(|name| name != "mixtral" && !name.contains("assistant"))
        .collect();
    names.sort();
    assert!(names.len() >= 17, "{names:?}");
    for name in names {
        let sandbox = Sandbox::new();
        model(&sandbox, &name);
        sandbox.lathe(&["create", "m", &name, "--quiet"]).ok();
        let (prompt, mut greedy) = reference(&name);
        let count = greedy.len().to_string();
        // The reference goes on after the token that ends an answer.
        let config: Value = serde_json::from_slice(
            &fs::read(sandbox.path(&format!("{name}/config.json"))).unwrap(),
        )
        .unwrap();
        let ends = |id: &u32| config["eos_token_id"] == json!(id);
        greedy.truncate(greedy.iter().position(ends).unwrap_or(greedy.len()));
        let answer = run(&sandbox, &[&words(&prompt), "-n", &count, "--temperature", "0"]);
        assert_eq!(answer["tokens"], json!(greedy), "{name}");
        assert_eq!(answer["statistics"]["prompt_tokens"], json!(prompt.len()), "{name}");
        assert_eq!(answer["text"], words(&greedy), "{name}");
    }
}

#[test]
fn a_policy_folder_makes_a_new_architecture_run() {
    let sandbox = Sandbox::new();
    model(&sandbox, "mixtral");
    sandbox.file(
        "mine/architectures/mixtral.yaml",
        fs::read(decoder_tests().join("mixtral.yaml")).unwrap(),
    );
    let (prompt, greedy) = reference("mixtral");
    let prompt = words(&prompt);
    let create = ["create", "m", "mixtral", "--policy-dir", "mine"];
    sandbox.lathe(&create).ok();
    // The model carries the policy; one that is given goes before it.
    for given in [&[][..], &["--policy-dir", "mine"]] {
        let args = [given, &[&prompt, "-n", "16", "--temperature", "0"]].concat();
        assert_eq!(run(&sandbox, &args)["tokens"], json!(greedy), "{given:?}");
    }
    sandbox.lathe(&["export", "m", "out"]).ok();
    sandbox.lathe(&["create", "back", "out", "--policy-dir", "mine"]).ok();
    let back = ["run", "back", &prompt, "-n", "16", "--temperature", "0", "-o", "json"];
    assert_eq!(sandbox.lathe(&back).json()["tokens"], json!(greedy));
    fs::create_dir(sandbox.path("empty")).unwrap();
    let unknown = sandbox.lathe(&["run", "m", &prompt, "--policy-dir", "empty"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("no-decoder"), "{}", unknown.stderr);
}

#[test]
fn what_is_piped_in_is_the_prompt_and_only_the_answer_is_printed() {
    let sandbox = with_llama();
    let (prompt, greedy) = reference("llama");
    let (question, rest) = prompt.split_at(10);
    let args = ["run", "m", &words(question), "-n", "16", "--temperature", "0"];
    let piped = sandbox.lathe_with(&args, &format!("{}\n", words(rest)));
    assert_eq!(piped.stderr, "");
    assert_eq!(piped.ok(), format!("{}\n", words(&greedy)));
    let verbose = [&args[..], &["--verbose"]].concat();
    let verbose = sandbox.lathe_with(&verbose, &words(rest));
    let read = format!("{} tokens", prompt.len());
    for what in ["load", "prefill", &read, "decode", "16 tokens", "tokens/s", "cache"] {
        assert!(verbose.stderr.contains(what), "{what}: {}", verbose.stderr);
    }
}

/// Where a disk is full, nothing is lost without a word.
#[test]
#[cfg(target_os = "linux")]
fn an_answer_that_cannot_be_written_is_an_error() {
    let sandbox = with_llama();
    for output in [&[][..], &["-o", "json"]] {
        let args = [&["run", "m", "t1 t2", "-n", "3"], output].concat();
        let mut command = sandbox.command(&args);
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let done = command.stdin(std::process::Stdio::null()).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains("standard output"), "{said}");
    }
}

#[test]
fn a_long_prompt_is_refused_with_both_numbers_and_an_answer_ends_with_the_context() {
    let sandbox = with_llama();
    let config = fs::read_to_string(sandbox.path("llama/config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let context = config["max_position_embeddings"].as_u64().unwrap() as usize;
    let long = sandbox.lathe(&["run", "m", "-o", "json", &"t1 ".repeat(context + 5)]);
    assert_eq!(long.code, 1);
    let error: Value = serde_json::from_str(&long.stdout).unwrap();
    assert_eq!(error["error"]["code"], "context-too-long");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains(&format!("{}", context + 5)), "{message}");
    assert!(message.contains(&format!("{context}")), "{message}");
    let ended = run(&sandbox, &["--set", "num_ctx=30", &"t7 ".repeat(25), "--temperature", "0"]);
    assert_eq!(ended["reason"], "length");
    assert_eq!(ended["tokens"].as_array().unwrap().len(), 5);
}

#[test]
fn a_stop_string_ends_the_answer_and_is_not_part_of_it() {
    let sandbox = with_llama();
    let (prompt, greedy) = reference("llama");
    let stop = format!("{} {}", words(&greedy[5..6]), words(&greedy[6..7]));
    let args = [&words(&prompt), "-n", "16", "--temperature", "0", "--stop", &stop];
    let answer = run(&sandbox, &args);
    assert_eq!(answer["reason"], "stop");
    assert_eq!(answer["text"], format!("{} ", words(&greedy[..5])));
}

#[test]
fn an_answer_with_a_seed_repeats() {
    let sandbox = with_llama();
    let ask = |seed: &str| {
        let args = ["t1 t2 t3", "-n", "24", "--temperature", "2", "--top-p", "0.9", "--seed", seed];
        run(&sandbox, &args)["tokens"].clone()
    };
    assert_eq!(ask("7"), ask("7"));
    assert_ne!(ask("7"), ask("8"));
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let sandbox = with_llama();
    let answer = run(&sandbox, &["t5 t6", "-n", "2", "--temperature", "0", "--logprobs", "512"]);
    let first = &answer["logprobs"][0];
    assert_eq!(first["id"], answer["tokens"][0]);
    let all = first["top"].as_array().unwrap();
    let sum: f64 = all.iter().map(|one| one["logprob"].as_f64().unwrap().exp()).sum();
    assert!((sum - 1.0).abs() < 1e-4, "{sum}");
    assert_eq!(all[0]["id"], first["id"]);
}

#[test]
fn the_modelfile_sets_system_messages_and_parameters() {
    let sandbox = with_llama();
    let modelfile = "FROM m\nSYSTEM t1 t2\nMESSAGE user t3\nMESSAGE assistant t4\n\
                     PARAMETER num_predict 3\nPARAMETER temperature 0\n";
    sandbox.lathe_with(&["create", "mine", "-f", "-"], modelfile).ok();
    let ask = |args: &[&str]| sandbox.lathe(&[&["run", "-o", "json"], args].concat()).json();
    let mine = ask(&["mine", "t5"]);
    assert_eq!(mine["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(mine["statistics"]["prompt_tokens"], 5);
    let plain = ask(&["m", "t1 t2 t3 t4 t5", "-n", "3", "--temperature", "0"]);
    assert_eq!(mine["tokens"], plain["tokens"]);
    assert_eq!(ask(&["mine", "--system", "t9", "t5"])["statistics"]["prompt_tokens"], 4);
}

#[test]
fn mistakes_are_named() {
    let sandbox = with_llama();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["run", "absent", "hi"], 1, "no-such-model"),
        (&["run", "m", "hi", "--set", "temprature=1"], 2, "did you mean temperature"),
        (&["run", "m", "hi", "--set", "temperature"], 2, "NAME=VALUE"),
        (&["run", "m", "hi", "--temperature", "-1"], 2, "temperature"),
        (&["run", "m", "hi", "--top-p", "1.5"], 2, "top_p"),
        (&["run", "m"], 2, "nothing was piped in"),
    ];
    for (args, code, what) in cases {
        let failed = sandbox.lathe(args);
        assert_eq!(failed.code, *code, "{args:?}: {}", failed.stderr);
        assert!(failed.stderr.contains(what), "{args:?}: {}", failed.stderr);
    }
}

/// A word-level vocabulary that spells the sentence of the check: each of its words is another id.
fn spelling(sandbox: &Sandbox, name: &str) {
    let sentence = "The quick brown fox jumps over the lazy dog. The capital of France is Paris, \
                    and water boils at one hundred degrees.";
    let mut vocabulary = Map::from_iter([("t0".to_owned(), Value::from(0))]);
    for word in sentence.split(' ') {
        let id = vocabulary.len();
        vocabulary.entry(word).or_insert(id.into());
    }
    let path = sandbox.path(&format!("{name}/tokenizer.json"));
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["model"]["vocab"] = vocabulary.into();
    fs::write(path, tokenizer.to_string()).unwrap();
}

#[test]
fn a_model_that_does_not_predict_text_is_refused_and_its_name_keeps_what_it_had() {
    let sandbox = Sandbox::new();
    let folder = model(&sandbox, "llama");
    spelling(&sandbox, "llama");
    let made = sandbox.lathe(&["create", "m", "llama", "-o", "json"]).events();
    let smoke = &made.last().unwrap()["smoke"];
    let (loss, even) = (smoke["loss"].as_f64().unwrap(), smoke["uniform"].as_f64().unwrap());
    assert!(loss < 1.5 * even, "{loss} of {even}");
    let before = sandbox.lathe(&["show", "m", "-o", "json"]).ok();

    let path = folder.join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    // Not numbers, and numbers a hundred times too large.
    for (what, factor) in [("no numbers", f32::NAN), ("less likely than chance", 100.0)] {
        let mut bytes = whole.clone();
        for number in bytes[data..].chunks_exact_mut(2) {
            let given = bf16::from_le_bytes([number[0], number[1]]).to_f32();
            let damaged = bf16::from_f32(given * factor);
            number.copy_from_slice(&damaged.to_le_bytes());
        }
        fs::write(&path, bytes).unwrap();
        let failed = sandbox.lathe(&["create", "m", "llama"]);
        assert_eq!(failed.code, 1);
        assert!(failed.stderr.contains("smoke-check"), "{}", failed.stderr);
        assert!(failed.stderr.contains(what), "{}", failed.stderr);
        assert_eq!(sandbox.lathe(&["show", "m", "-o", "json"]).ok(), before);
    }
    sandbox.lathe(&["create", "m", "llama", "--no-smoke"]).ok();
    assert_ne!(sandbox.lathe(&["show", "m", "-o", "json"]).ok(), before);
}

#[test]
fn a_model_that_predicts_nothing_for_its_scales_are_no_numbers_is_refused_for_that() {
    let sandbox = Sandbox::new();
    let folder = model(&sandbox, "llama");
    spelling(&sandbox, "llama");
    let path = folder.join("model.safetensors");
    let file = fs::read(&path).unwrap();
    let mut tensors = Vec::new();
    for (name, view) in safetensors::SafeTensors::deserialize(&file).unwrap().tensors() {
        let (dtype, shape) = (view.dtype(), view.shape().to_vec());
        if name.ends_with("down_proj.weight") {
            let codes = vec![0; view.data().len() / 2];
            let scale = f32::NAN.to_le_bytes().to_vec();
            tensors.push((format!("{name}_scale"), safetensors::Dtype::F32, vec![1], scale));
            tensors.push((name, safetensors::Dtype::F8_E4M3, shape, codes));
        } else {
            tensors.push((name, dtype, shape, view.data().to_vec()));
        }
    }
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    let failed = sandbox.lathe(&["create", "m", "llama", "-o", "json"]);
    assert_eq!(failed.code, 1, "{}", failed.stdout);
    let error = failed.events().pop().unwrap()["error"]["details"][0].clone();
    assert_eq!(error["code"], "smoke-check", "{error}");
    let help = error["help"].as_str().unwrap();
    assert!(help.contains("down_proj.weight_scale (1 of 1)"), "{help}");
}

#[test]
fn a_model_is_compared_with_what_another_program_computed() {
    let sandbox = Sandbox::new();
    let folder = model(&sandbox, "llama");
    let folder = folder.to_str().unwrap();
    let reference = models().join("llama.ref.safetensors");
    let reference = reference.to_str().unwrap();
    let check = |model: &str, more: &[&str]| {
        let all =
            [&["policy", "check", model, "--against", reference, "-o", "json"], more].concat();
        let outcome = sandbox.lathe(&all);
        (outcome.code, serde_json::from_str::<Value>(&outcome.stdout).unwrap())
    };
    for backend in ["cpu", "graph"] {
        let (code, report) = check(folder, &["--backend", backend]);
        assert_eq!(
            (code, &report["equal"], &report["greedy_equal"]),
            (0, &true.into(), &true.into())
        );
        assert!(report["max_difference"].as_f64().unwrap() < 1e-4, "{report}");
    }
    // Quantized weights are other weights, and that is seen.
    sandbox.lathe(&["create", "m", folder, "-q", "mxfp8", "--no-smoke"]).ok();
    let (code, report) = check("m", &[]);
    assert_eq!((code, &report["equal"]), (1, &false.into()));
    assert!(report["max_difference"].as_f64().unwrap() > 1e-3, "{report}");
    let (code, _) = check("m", &["--tolerance", "1e9"]);
    assert_eq!(code, i32::from(report["greedy_equal"] == false));
    // What is no reference is named, and what is needed is said.
    let weights = format!("{folder}/model.safetensors");
    let outcome = sandbox.lathe(&["policy", "check", folder, "--against", &weights]);
    assert_eq!(outcome.code, 2);
    assert!(outcome.stderr.contains("it has no input_ids"), "{}", outcome.stderr);
}
