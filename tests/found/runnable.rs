//! Whether a model can be run is known before it is written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lathe::decoder::parts::{Table, TensorSpec, resolve};
use lathe::fault::{Fault, Faults};
use lathe::model::{Compute, Folder, TensorSource, Weight, load};
use lathe::policy::{Library, Policy, Role};
use serde_json::{Value, json};

use super::common::{self, Sandbox};

const CPU: Compute = Compute::Cpu;

fn decoders() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder")
}

/// A tiny model, and what is wrong with it.
struct Tiny {
    folder: Folder,
    config: Value,
    policy: Policy,
    /// A tensor that is not there.
    lost: Option<String>,
    /// A tensor that lacks its last row.
    short: Option<String>,
}

impl TensorSource for Tiny {
    fn names(&self) -> Vec<String> {
        self.folder.names().into_iter().filter(|name| self.lost.as_ref() != Some(name)).collect()
    }

    fn tensor(&self, name: &str) -> Result<Option<Weight>, Fault> {
        if self.lost.as_deref() == Some(name) {
            return Ok(None);
        }
        let weight = self.folder.tensor(name)?;
        Ok(weight.map(|weight| match weight {
            Weight::Float(mut tensor) if self.short.as_deref() == Some(name) => {
                let rows = tensor.shape[0] as usize;
                tensor.bytes = tensor.bytes.slice(..tensor.bytes.len() / rows * (rows - 1));
                tensor.shape[0] -= 1;
                Weight::Float(tensor)
            }
            other => other,
        }))
    }
}

impl Tiny {
    fn open(name: &str) -> Tiny {
        let path = decoders().join("models").join(name);
        let text = fs::read_to_string(path.join("config.json")).unwrap();
        let config: Value = json5::from_str(&text).unwrap();
        let mut library = Library::built_in();
        library.add_file(&decoders().join("mixtral.yaml")).unwrap();
        let architecture = config["architectures"][0].as_str().unwrap();
        let entry = library.find(architecture, Role::Target).unwrap();
        let policy = library.compile(&entry.clone()).unwrap();
        let folder = Folder::open(&path, "experts").unwrap();
        Tiny { folder, config, policy, lost: None, short: None }
    }

    /// What headers and config alone tell.
    fn resolved(&self) -> Result<(), Faults> {
        let held = |name: String| {
            let held: TensorSpec = self.held(&name).unwrap().unwrap();
            (name, held)
        };
        let tensors: BTreeMap<String, TensorSpec> = self.names().into_iter().map(held).collect();
        let described = self.policy.described().unwrap();
        resolve(described, &self.config, &Table::of_headers(tensors)).map(drop)
    }

    fn loaded(&self) -> Result<(), Faults> {
        load(self, self.policy.described().unwrap(), &self.config, CPU).map(drop)
    }

    /// Both refuse, with the same words, and the first of them has these and a place.
    #[track_caller]
    fn refuses(&self, words: &str) {
        let [resolved, loaded] = [self.resolved(), self.loaded()].map(Result::unwrap_err);
        assert_eq!(resolved.to_string(), loaded.to_string());
        let found = resolved.0.iter().find(|fault| fault.to_string().contains(words));
        let found = found.unwrap_or_else(|| panic!("{words}\n--\n{resolved}"));
        assert!(found.place.is_some(), "{found:?}");
    }
}

#[test]
fn headers_and_config_tell_of_every_tiny_model_what_loading_finds() {
    let mut names: Vec<String> = fs::read_dir(decoders().join("models"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 20, "{names:?}");
    for name in names {
        let tiny = Tiny::open(&name);
        tiny.resolved().unwrap_or_else(|faults| panic!("{name}:\n{faults}"));
        tiny.loaded().unwrap_or_else(|faults| panic!("{name}:\n{faults}"));
    }
}

#[test]
fn what_is_wrong_with_tensors_is_the_same_from_headers_and_from_loading() {
    let mut tiny = Tiny::open("llama");
    tiny.lost = Some("model.layers.1.mlp.down_proj.weight".into());
    tiny.refuses("model.layers.1.mlp.down_proj.weight: the decoder needs this tensor");
    tiny.lost = None;
    tiny.short = Some("model.layers.0.self_attn.q_proj.weight".into());
    tiny.refuses("model.layers.0.self_attn.q_proj.weight: has 31 rows where the config makes 32");
    let mut tiny = Tiny::open("qwen3_moe");
    tiny.short = Some("model.layers.1.mlp.gate.weight".into());
    tiny.refuses("experts where the config makes");
    let mut tiny = Tiny::open("gemma3");
    tiny.short = Some("model.layers.0.input_layernorm.weight".into());
    tiny.refuses("elements where the config makes");
}

#[test]
fn what_a_config_cannot_mean_is_a_fault_with_its_place_and_no_panic() {
    for (model, key, value, words) in [
        ("llama", "num_hidden_layers", json!(1_000_000), "the config makes 1000000 layers"),
        ("llama", "num_hidden_layers", json!(-3), "count is -3"),
        ("llama", "num_attention_heads", json!(-4), "heads is -4"),
        ("llama", "head_dim", json!(i64::MAX), "which is too large"),
        ("llama", "num_attention_heads", json!(2.5), "should be a whole number and is 2.5"),
        ("llama", "num_attention_heads", json!("four"), "should be a whole number and is a text"),
        ("llama", "rope_parameters", json!({"rope_theta": 1e4, "rope_type": "spiral"}), "spiral"),
        (
            "qwen3_5",
            "rope_parameters",
            json!({"rope_theta": 1e4, "partial_rotary_factor": 2.0}),
            "2 of a head rotated",
        ),
        ("qwen3_moe", "num_experts_per_tok", json!(4096), "cannot choose 4096 of"),
    ] {
        let mut tiny = Tiny::open(model);
        for old in ["rope_scaling", "rope_theta"] {
            if key == "rope_parameters" {
                tiny.config.as_object_mut().unwrap().remove(old);
            }
        }
        tiny.config[key] = value;
        tiny.refuses(words);
    }
}

#[test]
fn what_differs_only_in_the_layer_is_told_once_with_its_count_and_its_line() {
    let mut tiny = Tiny::open("llama");
    tiny.config["num_attention_heads"] = json!(8);
    let faults = tiny.resolved().unwrap_err();
    let of_q = faults.0.iter().filter(|fault| fault.to_string().contains("q_proj"));
    let of_q: Vec<&Fault> = of_q.collect();
    assert_eq!(of_q.len(), 1, "{faults}");
    assert_eq!(
        of_q[0].others.len() + 1,
        tiny.config["num_hidden_layers"].as_u64().unwrap() as usize
    );
    let place = of_q[0].place.as_ref().unwrap();
    assert_eq!(place.text.body[place.span.clone()].trim(), "q_proj");
}

fn llama(sandbox: &Sandbox, change: impl FnOnce(&mut Value)) -> String {
    sandbox.model("m");
    sandbox.file("m/tokenizer.json", "{}");
    let mut config = common::config();
    change(&mut config);
    sandbox.file("m/config.json", config.to_string());
    "m".into()
}

fn codes(warnings: &Value) -> Vec<&str> {
    warnings.as_array().unwrap().iter().map(|warning| warning["code"].as_str().unwrap()).collect()
}

#[test]
fn a_dry_run_says_what_is_in_the_way_and_strict_refuses_it() {
    let sandbox = Sandbox::new();
    llama(&sandbox, |_| ());
    let plan = sandbox.lathe(&["create", "x", "m", "-n", "-o", "json"]).json();
    assert_eq!(plan["runs"], true, "{}", plan["warnings"]);
    llama(&sandbox, |config| config["head_dim"] = json!(16));
    let plan = sandbox.lathe(&["create", "x", "m", "-n", "-o", "json"]).json();
    assert_eq!(plan["runs"], false);
    assert!(codes(&plan["warnings"]).contains(&"decoder"), "{}", plan["warnings"]);
    let told = sandbox.lathe(&["create", "x", "m", "-n"]);
    let told = format!("{}{}", told.stdout, told.stderr);
    for words in
        ["[decoder]", "can be imported and not run", "q_proj", "the same of", "llama.yaml:"]
    {
        assert!(told.contains(words), "{words}: {told}");
    }
    let strict = sandbox.lathe(&["create", "x", "m", "-n", "--strict"]);
    assert_eq!(strict.code, 1, "{}", strict.stderr);
    assert!(strict.stderr.contains("decoder") && strict.stderr.contains("q_proj"));
    let quantized = sandbox.lathe(&["create", "x", "m", "-n", "-q", "int4", "-o", "json"]).json();
    assert_eq!(quantized["runs"], false);
}

#[test]
fn a_model_that_cannot_run_is_made_and_no_word_says_that_it_can_be_run() {
    let sandbox = Sandbox::new();
    llama(&sandbox, |config| config["head_dim"] = json!(16));
    for arguments in [&["--no-smoke"][..], &[]] {
        let made = sandbox.lathe(&[&["create", "x", "m"], arguments].concat());
        let told = format!("{}{}", made.stdout, made.stderr);
        assert_eq!(made.code, 0, "{told}");
        assert!(!told.contains("run it"), "{told}");
        assert!(told.contains("can be imported and not run"), "{told}");
    }
    let quiet = sandbox.lathe(&["create", "x", "m", "--no-smoke", "--quiet"]);
    assert!(quiet.stderr.contains("can be imported and not run"), "{}", quiet.stderr);
    let report = sandbox.lathe(&["create", "x", "m", "--no-smoke", "-o", "json"]).result();
    assert_eq!(report["runs"], false);
    assert!(codes(&report["warnings"]).contains(&"decoder"));
    // What is built on it cannot run either.
    let built = sandbox.lathe(&["create", "y", "x", "--no-smoke"]);
    let told = format!("{}{}", built.stdout, built.stderr);
    assert!(told.contains("can be imported and not run") && !told.contains("run it"), "{told}");
    let shown = sandbox.lathe(&["show", "x", "-o", "json"]).json();
    assert_eq!((&shown["runs"], &shown["capabilities"]), (&json!(false), &json!([])));
    assert!(shown["manifest_capabilities"].as_array().unwrap().contains(&json!("completion")));
    assert!(sandbox.lathe(&["show", "x"]).ok().contains("no: tensor model.layers.0.self_attn"));
}

/// A machine of two megabytes stands for one that is too small for a large model.
#[test]
fn a_model_too_large_to_try_says_that_it_was_not_tried() {
    let sandbox = Sandbox::new();
    sandbox.model("m");
    sandbox.vocabulary("m");
    let made = |memory: &str, arguments: &[&str]| {
        let mut command = sandbox.command(&[&["create", "x", "m"], arguments].concat());
        let output = command.env("LATHE_MACHINE_MEMORY", memory).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
    };
    let [stdout, stderr] = made("2000", &[]);
    assert!(stderr.contains("whether the model runs was not tried: its"), "{stderr}");
    assert!(!stdout.contains("run it"), "{stdout}");
    let [stdout, _] = made("2000", &["-o", "json"]);
    let report: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&report["runs"], &report["smoke"]["loss"]), (&Value::Null, &Value::Null));
    let note = report["smoke"]["note"].as_str().unwrap();
    assert!(note.contains("was not tried") && note.contains("2.00 kB"), "{note}");
    let [stdout, stderr] = made("2000000000", &[]);
    assert!(stdout.contains("x:latest is unchanged"), "{stdout}");
    assert!(stderr.contains("smoke check") && !stderr.contains("was not tried"), "{stderr}");
}

#[test]
fn a_model_without_a_vocabulary_cannot_run() {
    let sandbox = Sandbox::new();
    sandbox.model("m");
    let plan = sandbox.lathe(&["create", "x", "m", "-n", "-o", "json"]).json();
    assert_eq!(plan["runs"], false);
    assert!(codes(&plan["warnings"]).contains(&"tokenizer"), "{}", plan["warnings"]);
    let made = sandbox.lathe(&["create", "x", "m", "--no-smoke"]).ok();
    assert!(!made.contains("run it"), "{made}");
}

#[test]
fn a_capability_that_lathe_lacks_is_the_manifests_and_not_lathes() {
    let sandbox = Sandbox::new();
    llama(&sandbox, |config| config["vision_config"] = json!({"hidden_size": 8}));
    let made = sandbox.lathe(&["create", "x", "m", "--no-smoke"]).ok();
    assert!(made.contains("run it: lathe run x"), "{made}");
    let shown = sandbox.lathe(&["show", "x", "-o", "json"]).json();
    assert_eq!(shown["runs"], true);
    let has = |key: &str, name: &str| shown[key].as_array().unwrap().contains(&json!(name));
    assert!(has("manifest_capabilities", "vision") && !has("capabilities", "vision"), "{shown}");
    assert!(has("capabilities", "completion"));
    let table = sandbox.lathe(&["show", "x"]).ok();
    assert!(table.contains("not with lathe") && table.contains("vision"), "{table}");
}

#[test]
fn tests_of_policies_can_ask_whether_a_model_runs() {
    let sandbox = Sandbox::new();
    let tensors: Vec<String> = common::llama_tensors()
        .iter()
        .map(|(name, shape)| format!("      {name}: {}\n", json!(shape)))
        .collect();
    let case = |name: &str, heads: u64, runs: bool| {
        let mut config = common::config();
        config["head_dim"] = json!(64 / heads);
        format!(
            "  - name: {name}\n    config: {config}\n    runs: {runs}\n    tensors:\n{}",
            tensors.concat()
        )
    };
    let cases = [case("fits", 2, true), case("does not", 4, false), case("wrong", 4, true)];
    sandbox.file("p/llama.test.yaml", format!("policy: llama\ncases:\n{}", cases.concat()));
    let told = sandbox.lathe(&["policy", "test", "p"]);
    let told = format!("{}{}", told.stdout, told.stderr);
    assert!(told.contains("wrong") && told.contains("does not run: tensor"), "{told}");
    assert!(!told.contains("\"fits\"") && !told.contains("\"does not\""), "{told}");
}
