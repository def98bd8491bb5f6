//! Names, labels and policies in the store, as Ollama and later versions read them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::common::Sandbox;
use lathe::policy::Library;
use lathe::policy::file::Choice;
use lathe::policy::parsers::Answers;

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
