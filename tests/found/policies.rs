//! Names, labels and policies in the store, as Ollama and later versions read them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::common::Sandbox;
use lathe::policy::file::Choice;
use lathe::policy::parsers::Answers;
use lathe::policy::{Library, Policy, stored};

/// `policies/known/ollama.yaml`.
#[derive(Deserialize)]
struct Known {
    renderers: Vec<String>,
    parsers: Vec<String>,
    cannot_run: std::collections::BTreeMap<String, Vec<String>>,
}

fn known() -> Known {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies/known/ollama.yaml");
    serde_yaml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Every name that a choice may give.
fn choices(choice: Option<&Choice>) -> Vec<String> {
    match choice {
        None => Vec::new(),
        Some(Choice::Always(name)) => vec![name.clone()],
        Some(Choice::Cases(cases)) => cases.iter().map(|case| case.name.clone()).collect(),
    }
}

#[test]
fn policies_write_no_renderer_or_parser_that_ollama_lacks() {
    let known = known();
    let mut written = BTreeSet::new();
    for entry in Library::built_in().iter() {
        let exempt = known.cannot_run.get(&entry.file.name);
        for (choice, names) in
            [(&entry.file.renderer, &known.renderers), (&entry.file.parser, &known.parsers)]
        {
            for name in choices(choice.as_ref()) {
                let knows = names.contains(&name) || exempt.is_some_and(|e| e.contains(&name));
                assert!(knows, "{}: Ollama has no {name}", entry.file.name);
                written.insert(name);
            }
        }
        // And lathe takes the answers apart that it promises to.
        for name in choices(entry.file.parser.as_ref()) {
            Answers::named(&name, &[]).unwrap();
        }
    }
    for name in ["qwen3-coder", "qwen3.8", "poolside-v1", "nemotron-3.5-nano", "glimmer"] {
        assert!(written.contains(name), "{name} is never written");
    }
}

fn config_blob(sandbox: &Sandbox, name: &str) -> Value {
    let manifest = manifest(sandbox, name);
    serde_json::from_slice(&blob(sandbox, &manifest["config"])).unwrap()
}

fn manifest(sandbox: &Sandbox, name: &str) -> Value {
    let path = format!("store/manifests/registry.ollama.ai/library/{name}/latest");
    serde_json::from_slice(&fs::read(sandbox.path(&path)).unwrap()).unwrap()
}

fn blob(sandbox: &Sandbox, layer: &Value) -> Vec<u8> {
    let digest = layer["digest"].as_str().unwrap().replace(':', "-");
    fs::read(sandbox.path("store/blobs").join(digest)).unwrap()
}

/// The tiny llama as another architecture.
fn model_of(sandbox: &Sandbox, architecture: &str, template: &str) {
    sandbox.model("model");
    let mut config = crate::common::config();
    config["architectures"] = json!([architecture]);
    config["model_type"] = json!("qwen3");
    sandbox.file("model/config.json", config.to_string());
    let template = json!({ "chat_template": template }).to_string();
    sandbox.file("model/tokenizer_config.json", template);
}

#[test]
fn the_config_blob_of_qwen3_is_what_ollama_runs() {
    let sandbox = Sandbox::new();
    for (template, thinks) in [("{{ messages }}", false), ("<think></think>", true)] {
        model_of(&sandbox, "Qwen3ForCausalLM", template);
        sandbox.lathe(&["create", "m", "model", "--no-smoke"]).ok();
        let config = config_blob(&sandbox, "m");
        assert_eq!(
            (&config["parser"], &config["renderer"]),
            (&json!("qwen3"), &json!("qwen3-coder"))
        );
        assert_eq!(config["requires"], "0.14.0");
        let claimed = config["capabilities"].as_array().unwrap().contains(&json!("thinking"));
        assert_eq!(claimed, thinks, "{template}");
    }
    sandbox.lathe_with(&["create", "n", "-f", "-"], "FROM m\nREQUIRES 0.20.0\n").ok();
    assert_eq!(config_blob(&sandbox, "n")["requires"], "0.20.0");
}

/// The header of a safetensors file, as text and without its padding.
fn header(bytes: &[u8]) -> (String, &[u8]) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    assert_eq!(length % 8, 0);
    let text = std::str::from_utf8(&bytes[8..8 + length]).unwrap();
    (text.trim_end().to_string(), &bytes[8 + length..])
}

/// What Go makes of a map of the same entries.
fn sorted(header: &str) -> String {
    fn ordered(value: &Value) -> Value {
        match value {
            // The fields of a tensor are a struct's, in its order.
            Value::Object(map) if map.contains_key("dtype") => json!(map),
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
                entries.into_iter().map(|(key, inner)| (key.clone(), ordered(inner))).collect()
            }
            other => other.clone(),
        }
    }
    ordered(&serde_json::from_str(header).unwrap()).to_string()
}

#[test]
fn headers_have_sorted_keys_and_labels_that_ollama_reads() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    let cases = [
        ("int4-g32", json!({"quant_type": "int4", "group_size": "32"})),
        ("int8-g32", json!({"quant_type": "int8", "group_size": "32"})),
        ("int4", json!({"quant_type": "int4", "group_size": "64"})),
        ("int3", json!({"quant_type": "affine", "group_size": "64", "bits": "3"})),
        ("nvfp4", json!({"quant_type": "nvfp4", "group_size": "16"})),
    ];
    for (format, expected) in cases {
        let made = sandbox.lathe(&["create", "m", "model", "-q", format, "--no-smoke"]);
        assert_eq!(made.stderr.contains("Ollama cannot read"), format == "int3", "{}", made.stderr);
        made.ok();
        let manifest = manifest(&sandbox, "m");
        let layers = manifest["layers"].as_array().unwrap();
        let mut labelled = 0;
        for layer in
            layers.iter().filter(|layer| layer["mediaType"].as_str().unwrap().ends_with("tensor"))
        {
            let bytes = blob(&sandbox, layer);
            let (text, _) = header(&bytes);
            assert_eq!(text, sorted(&text));
            let name = layer["name"].as_str().unwrap();
            if name == "model.layers.0.self_attn.q_proj.weight" {
                let header: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(header["__metadata__"], expected, "{format}");
                labelled += 1;
            }
        }
        assert_eq!(labelled, 1);
        let shown = sandbox.lathe(&["show", "m", "--tensors", "-o", "json"]).json();
        let tensors = shown["tensors"].as_array().unwrap();
        let is = |t: &&Value| t["name"] == "model.layers.0.self_attn.q_proj.weight";
        assert_eq!(tensors.iter().find(is).unwrap()["format"], format);
    }
}

/// The library in which every policy is the text that a stored model would carry of it.
fn carried() -> (Library, usize) {
    let built_in = Library::built_in();
    let mut library = Library::built_in();
    let dir = tempfile::tempdir().unwrap();
    let mut count = 0;
    for entry in built_in.iter() {
        let policy = built_in.compile(entry).unwrap();
        let file = stored::merged(&policy, None);
        let text = stored::text(&file).unwrap();
        let read = stored::read("m", text.as_bytes()).unwrap();
        let name = &entry.file.name;
        assert_eq!(read.file.decoder, policy.decoder, "{name}");
        assert_eq!(read.file.parsers, policy.parsers, "{name}");
        assert!(stored::same(&read.file, &file), "{name}");
        let again = Policy::compile(vec![read]).unwrap();
        // An id that two files use is told apart by the second one's name.
        let id = |id: &str| id.split("-of-base").next().unwrap().to_string();
        let rules = |policy: &Policy| -> Vec<_> {
            policy.rules.iter().map(|rule| (id(&rule.info.id), rule.ladder.clone())).collect()
        };
        assert_eq!(rules(&again), rules(&policy), "{name}: the rules, in their order");
        let keys = |policy: &Policy| {
            let names = |names: Vec<&String>| names.into_iter().cloned().collect::<Vec<_>>();
            (
                names(policy.values.keys().collect()),
                names(policy.capabilities.keys().collect()),
                policy.fit.iter().map(|rule| rule.id.clone()).collect::<Vec<_>>(),
                (policy.stack.len(), policy.drops.len(), policy.role(), policy.strict),
            )
        };
        assert_eq!(keys(&again), keys(&policy), "{name}");
        // What is merged once stays as it is, byte by byte.
        assert_eq!(stored::text(&stored::merged(&again, None)).unwrap(), text, "{name}");
        library.add_file(&sandboxed(&dir, name, &text)).unwrap();
        count += 1;
    }
    (library, count)
}

fn sandboxed(dir: &tempfile::TempDir, name: &str, text: &str) -> std::path::PathBuf {
    let path = dir.path().join(format!("{name}.yaml"));
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_merged_policy_decides_as_the_files_that_it_was_made_of() {
    let (library, count) = carried();
    assert!(count > 20);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies/architectures");
    let mut compared = 0;
    for test in fs::read_dir(tests).unwrap().map(|entry| entry.unwrap().path()) {
        if !test.to_string_lossy().ends_with(".test.yaml") {
            continue;
        }
        let report = lathe::policy_test::run(&library, &test, false).unwrap();
        assert!(report.failures.is_empty(), "{}: {:?}", test.display(), report.failures);
        compared += report.compared;
    }
    assert!(compared > 1000, "{compared}");
}

/// Texts that YAML would read as something else, and expressions that are no texts.
#[test]
fn what_yaml_could_misread_comes_back_as_it_was() {
    let sandbox = Sandbox::new();
    let yaml = r##"
name: odd
match: {architectures: ["yes", "1e5", "null", "~"]}
let: {a: {from: ["0x10"], default: "1"}, b: {default: 3}, c: {default: true}, "on": x}
sets: {"1.0": ["**.a: b", "# c", "- d", "'e'", "*.f"]}
schedules: {s: {head: 1/8, every: 3}}
tensors:
  - {id: "true", match: "1.0", format: [int4, source], because: "two\nlines: and #a hash "}
  - {id: "12", match: ["**"], when: "a == 1 && layer >= 0", format: source}
capabilities: {completion: "true"}
parsers:
  - {name: odd, thinking: {open: "<t>\n", close: "\t</t>"}, drop: [" ", "\u2028", "\\n"]}
parser: odd
decoder:
  let: {x: 1.0, y: "1.0", z: 1, t: "true", u: true, e: 1.0e-6, big: 1e30}
  embed: {tensor: e}
  layers: {tensor: "layers.{i}", count: 2, steps: [{rms_norm: {}}, {per_layer_input: {}}, {residual: []}]}
  head: {tensor: "null", tied: "false"}
"##;
    let path = sandbox.file("odd.yaml", yaml);
    let mut library = Library::built_in();
    library.add_file(&path).unwrap();
    let policy = library.compile(library.get("odd").unwrap()).unwrap();
    let file = stored::merged(&policy, None);
    let text = stored::text(&file).unwrap();
    let read = stored::read("m", text.as_bytes()).unwrap();
    assert_eq!(read.file.decoder, policy.chain[0].file.decoder);
    assert_eq!(read.file.parsers, policy.chain[0].file.parsers);
    assert!(stored::same(&read.file, &file), "{text}");
    assert_eq!(serde_json::to_value(&read.file).unwrap(), serde_json::to_value(&file).unwrap());
}

const POLICY: &str = "application/vnd.lathe.image.policy";

/// The layers of policies, name and text.
fn policies_of(sandbox: &Sandbox, name: &str) -> Vec<(String, String)> {
    let layers = manifest(sandbox, name)["layers"].as_array().unwrap().clone();
    let policies = layers.iter().filter(|layer| layer["mediaType"] == POLICY);
    policies
        .map(|layer| {
            let name = layer["name"].as_str().unwrap().to_string();
            (name, String::from_utf8(blob(sandbox, layer)).unwrap())
        })
        .collect()
}

/// Takes the policies out of a manifest, as if the model had been stored before models had them.
fn strip(sandbox: &Sandbox, name: &str) {
    let mut manifest = manifest(sandbox, name);
    let layers = manifest["layers"].as_array_mut().unwrap();
    layers.retain(|layer| layer["mediaType"] != POLICY);
    let path = format!("store/manifests/registry.ollama.ai/library/{name}/latest");
    sandbox.file(&path, manifest.to_string());
}

#[test]
fn a_model_and_its_draft_carry_their_policies_which_copies_keep() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.model("small");
    sandbox.lathe(&["create", "both", "model", "--draft", "small", "--no-smoke"]).ok();
    let both = policies_of(&sandbox, "both");
    let names: Vec<&str> = both.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["policy.yaml", "draft/policy.yaml"]);
    let printed = sandbox.lathe(&["policy", "show", "--of", "both"]).ok();
    assert_eq!(printed, both[0].1);
    assert!(printed.contains("name: llama") && printed.contains("\n  version: 1\n"), "{printed}");
    assert!(!printed.contains("extends:"), "{printed}");
    let draft = sandbox.lathe(&["policy", "show", "--of", "both", "--draft"]).ok();
    assert_eq!(draft, both[1].1);
    // As a file in a folder of policies it reads like any other.
    sandbox.file("mine/llama.yaml", &printed);
    sandbox.lathe(&["create", "again", "model", "--policy-dir", "mine", "--no-smoke"]).ok();
    assert_eq!(policies_of(&sandbox, "again")[0], both[0]);

    sandbox.lathe(&["cp", "both", "copy"]).ok();
    assert_eq!(policies_of(&sandbox, "copy"), both);
    sandbox
        .lathe_with(&["create", "kind", "-f", "-", "--no-smoke"], "FROM both\nSYSTEM Be kind.\n")
        .ok();
    assert_eq!(policies_of(&sandbox, "kind"), both);
    sandbox.lathe(&["create", "alone", "model", "--no-smoke"]).ok();
    assert_eq!(policies_of(&sandbox, "alone"), both[..1]);
    let none = sandbox.lathe(&["policy", "show", "--of", "alone", "--draft"]);
    assert_eq!(none.code, 2, "{}", none.stderr);
    sandbox
        .lathe_with(&["create", "later", "-f", "-", "--no-smoke"], "FROM alone\nDRAFT small\n")
        .ok();
    assert_eq!(policies_of(&sandbox, "later"), both);
    // Another parser comes with its definition.
    sandbox
        .lathe_with(&["create", "other", "-f", "-", "--no-smoke"], "FROM both\nPARSER cohere\n")
        .ok();
    let other = policies_of(&sandbox, "other");
    assert!(other[0].1.contains("START_ACTION") && other.contains(&both[1]), "{other:?}");
    // A model from before gets one when another is made of it.
    strip(&sandbox, "both");
    sandbox.lathe_with(&["create", "newer", "-f", "-", "--no-smoke"], "FROM both\nSYSTEM x\n").ok();
    assert_eq!(policies_of(&sandbox, "newer"), both[..1]);
    let shown = sandbox.lathe(&["show", "newer", "-o", "json"]).json();
    assert_eq!(shown["policy"]["name"], "llama");
    assert_eq!(shown["policy"]["version"], 1);
    assert_eq!(shown["draft_policy"], Value::Null);
    assert!(sandbox.lathe(&["verify", "newer"]).ok().contains("are whole"));
}

#[test]
fn a_policy_of_a_later_version_is_refused_by_name() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.lathe(&["create", "m", "model", "--no-smoke"]).ok();
    let (_, text) = policies_of(&sandbox, "m").remove(0);
    let later = text.replace("version: 1", "version: 2").replace("name: llama", "nom: llama");
    let fault = stored::read("m", later.as_bytes()).unwrap_err();
    assert_eq!(fault.code.as_str(), "newer-policy");
    assert!(fault.message.contains("version 2, and this lathe reads 1"), "{}", fault.message);
    assert!(fault.help.unwrap().contains("lathe update"));
    // Under the version that is read, a key that is not known names its writer.
    let newer = text.replace(env!("CARGO_PKG_VERSION"), "99.0.0").replace("guards:", "gards:");
    let fault = stored::read("m", newer.as_bytes()).unwrap_err();
    assert!(fault.help.unwrap().contains("written by lathe 99.0.0"));
}

/// `lathe update`, without touching tensors: the difference first, then the policy in place.
#[test]
fn an_update_shows_the_difference_and_puts_the_policy_in_place() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.lathe(&["create", "m", "model", "-q", "int4", "--no-smoke"]).ok();
    let before = manifest(&sandbox, "m");
    let same = sandbox.lathe(&["update", "m"]).ok();
    assert!(same.contains("has this policy already"), "{same}");

    let (_, text) = policies_of(&sandbox, "m").remove(0);
    let newer = text.replacen("activation: hidden_act", "activation: '\"gelu\"'", 1).replacen(
        "format:\n  - eight_bit\n  - requested",
        "format:\n  - requested",
        1,
    );
    let newer = format!("{newer}parser: qwen3\nrequires: 0.15.0\n");
    assert_ne!(newer, text);
    sandbox.file("mine/llama.yaml", &newer);
    let dry =
        sandbox.lathe(&["update", "m", "--policy-dir", "mine", "--dry-run", "-o", "json"]).json();
    assert_eq!(dry["applied"], false);
    let policy = &dry["update"]["policies"][0];
    assert_eq!((&policy["role"], &policy["from"]["name"]), (&json!("target"), &json!("llama")));
    assert_eq!(policy["running"], json!(["parsers", "decoder.layers"]));
    let facts = dry["update"]["facts"].as_array().unwrap();
    let fact = |what: &str| facts.iter().find(|fact| fact["what"] == what).unwrap()["to"].clone();
    assert_eq!((fact("parser"), fact("requires")), (json!("qwen3"), json!("0.15.0")));
    assert_eq!(fact("capabilities"), "completion, tools");
    let again = dry["update"]["create_again"].as_array().unwrap();
    assert!(again.iter().any(|one| one["is"] == "int8" && one["would_be"] == "int4"), "{again:?}");
    assert_eq!(manifest(&sandbox, "m"), before, "a dry run changes nothing");

    let shown = sandbox.lathe(&["update", "m", "--policy-dir", "mine", "-n"]).ok();
    for what in [
        "--- policy.yaml (now)",
        "+requires: \"0.15.0\"",
        "changes for running the model: parsers",
        "would need create again",
    ] {
        assert!(shown.contains(what), "{what}: {shown}");
    }
    let nobody = sandbox.lathe(&["update", "m", "--policy-dir", "mine"]);
    assert_eq!((nobody.code, nobody.stderr.contains("--yes")), (2, true), "{}", nobody.stderr);
    let done = sandbox.lathe(&["update", "m", "--policy-dir", "mine", "-y", "-o", "json"]).json();
    assert_eq!(done["applied"], true);
    let after = manifest(&sandbox, "m");
    let tensors = |manifest: &Value| -> Vec<Value> {
        let layers = manifest["layers"].as_array().unwrap();
        layers.iter().filter(|layer| layer["mediaType"] != POLICY).cloned().collect()
    };
    assert_eq!(tensors(&after), tensors(&before));
    assert!(policies_of(&sandbox, "m")[0].1.contains("gelu"));
    assert_eq!(config_blob(&sandbox, "m")["requires"], "0.15.0");
    let settled = sandbox.lathe(&["update", "m", "--policy-dir", "mine"]).ok();
    assert!(settled.contains("has this policy already"), "{settled}");
    // And back again, to the very same manifest.
    sandbox.lathe(&["update", "m", "-y", "--no-smoke"]).ok();
    assert_eq!(manifest(&sandbox, "m"), before);
}

#[test]
fn an_update_gives_a_model_from_before_its_policy_and_mends_its_names() {
    let sandbox = Sandbox::new();
    model_of(&sandbox, "Qwen3ForCausalLM", "x");
    sandbox
        .lathe_with(&["create", "m", "-f", "-", "--no-smoke"], "FROM model\nRENDERER qwen3.5\n")
        .ok();
    assert_eq!(config_blob(&sandbox, "m")["renderer"], "qwen3.5");
    // What a Modelfile said stays where that can be told.
    let kept = sandbox.lathe(&["update", "m", "-y"]).ok();
    assert!(kept.contains("has this policy already"), "{kept}");
    strip(&sandbox, "m");
    let note = sandbox.lathe(&["policy", "show", "--of", "m"]);
    assert!(note.stderr.contains("carries no policy yet"), "{}", note.stderr);
    let done = sandbox.lathe(&["update", "m", "-y", "--no-smoke"]).ok();
    assert!(done.contains("renderer: qwen3.5 → qwen3-coder"), "{done}");
    assert_eq!(config_blob(&sandbox, "m")["renderer"], "qwen3-coder");
    assert_eq!(policies_of(&sandbox, "m").len(), 1);
}

/// A parser of a policy folder goes with the model.
#[test]
fn a_parser_of_a_policy_folder_is_carried_and_counts_among_the_capabilities() {
    let sandbox = Sandbox::new();
    model_of(&sandbox, "MineForCausalLM", "x");
    let parser = "name: mine\nthinking: {open: \"<a>\", close: \"</a>\"}\n\
                  tools: [{open: \"[\", close: \"]\", form: function-tags}]\n";
    sandbox.file("mine/parsers/mine.yaml", parser);
    sandbox.file(
        "mine/mine.yaml",
        "name: mine\nextends: llama\nmatch: {architectures: [MineForCausalLM]}\nparser: mine\n",
    );
    sandbox.lathe(&["create", "m", "model", "--policy-dir", "mine", "--no-smoke"]).ok();
    let config = config_blob(&sandbox, "m");
    assert_eq!(config["capabilities"], json!(["completion", "tools", "thinking"]));
    let (_, text) = policies_of(&sandbox, "m").remove(0);
    let carried = stored::read("m", text.as_bytes()).unwrap();
    assert_eq!(carried.file.parsers[0].name, "mine");
    let policy = Policy::compile(vec![carried]).unwrap();
    assert_eq!(policy.answers("mine", &[]).unwrap().thinking.unwrap().open, "<a>");
}

/// Bytes that no format minds.
fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| ((seed + 7 * at) % 64) as u8).collect()
}

/// A file of these tensors: name, dtype, shape, bytes.
fn file_of(sandbox: &Sandbox, name: &str, tensors: &[(String, &str, Vec<usize>, Vec<u8>)]) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let dtype = serde_json::from_value(json!(dtype)).unwrap();
        (name, safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).unwrap())
    });
    sandbox.file(name, safetensors::serialize(views, None).unwrap());
}

/// Digests from `blob_digests.py`, which packs the same tensors as Ollama's importer does.
#[test]
fn what_is_copied_kept_or_stacked_has_the_digests_of_ollamas_importer() {
    let sandbox = Sandbox::new();
    let mut tensors = vec![("model.norm.weight".to_string(), "BF16", vec![32], bytes(1, 64))];
    let mut nvfp4 = |base: &str, seeds: [usize; 2], factor: f32| {
        tensors.push((format!("{base}.weight"), "U8", vec![32, 32], bytes(seeds[0], 1024)));
        tensors.push((
            format!("{base}.weight_scale"),
            "F8_E4M3",
            vec![32, 4],
            bytes(seeds[1], 128),
        ));
        let factor = factor.to_le_bytes().to_vec();
        tensors.push((format!("{base}.weight_scale_2"), "F32", vec![], factor));
    };
    nvfp4("model.layers.0.self_attn.q_proj", [2, 3], 0.5);
    let projections = [("down_proj", 10), ("gate_proj", 20), ("up_proj", 30)];
    for (proj, seed) in projections {
        for (expert, factor) in [(0, 0.5), (1, 0.25)] {
            let base = format!("model.layers.1.mlp.experts.{expert}.{proj}");
            nvfp4(&base, [seed + expert, seed + 2 + expert], factor);
        }
    }
    for (proj, seed) in projections {
        for expert in 0..2 {
            let name = format!("model.layers.0.mlp.experts.{expert}.{proj}.weight");
            tensors.push((name, "BF16", vec![32, 32], bytes(seed + expert, 2048)));
        }
    }
    file_of(&sandbox, "model/model.safetensors", &tensors);
    let mut config = crate::common::config();
    config["architectures"] = json!(["Qwen3MoeForCausalLM"]);
    config["num_experts"] = json!(2);
    sandbox.file("model/config.json", config.to_string());

    let k = "model.layers.0.self_attn.k_proj";
    let affine = [
        (format!("{k}.weight"), "U32", vec![32, 8], bytes(4, 1024)),
        (format!("{k}.scales"), "BF16", vec![32, 1], bytes(5, 64)),
        (format!("{k}.biases"), "BF16", vec![32, 1], bytes(6, 64)),
    ];
    file_of(&sandbox, "mlx/model.safetensors", &affine);
    config["quantization"] = json!({"bits": 4, "group_size": 64});
    sandbox.file("mlx/config.json", config.to_string());

    let digests = |model: &str| -> std::collections::BTreeMap<String, String> {
        sandbox.lathe(&["create", model, model, "--no-smoke"]).ok();
        let layers = manifest(&sandbox, model)["layers"].as_array().unwrap().clone();
        let named = layers.iter().filter(|layer| layer["name"].is_string());
        let text = |value: &Value| value.as_str().unwrap().to_string();
        named.map(|layer| (text(&layer["name"]), text(&layer["digest"]))).collect()
    };
    let (model, mlx) = (digests("model"), digests("mlx"));
    for (name, digest) in [
        ("model.norm.weight", "38466187a65b736e9ebf49fac50c4814c29bf8f25b7b0117603d2f83ede0be4d"),
        (
            "model.layers.0.self_attn.q_proj.weight",
            "31eda4e4e6f20b9df40d09c54954e0b4978295e0ff23370ceea4f25b54d3d80e",
        ),
        (
            "model.layers.0.mlp.experts",
            "020ebe696af149b90000fda1767b24fda41ab04082da58c4f39203dd04b0f5cc",
        ),
        (
            "model.layers.1.mlp.experts",
            "f1b0df1e46fcb054b8ea9fea8a9081feb9ad656fc04c7c22534b522d37515fe2",
        ),
    ] {
        assert_eq!(model[name], format!("sha256:{digest}"), "{name}");
    }
    assert_eq!(
        mlx["model.layers.0.self_attn.k_proj.weight"],
        "sha256:317bd2572f94891de921b268b0fec58549a1dc16c6954598657acdf70f38024c"
    );
    // What the layouts say is read back.
    let shown = sandbox.lathe(&["show", "model", "--tensors", "-o", "json"]).json();
    let formats = shown["tensors"].as_array().unwrap();
    assert_eq!(formats.iter().filter(|tensor| tensor["format"] == "nvfp4").count(), 4);
}
