//! Bad input, on the command line: what is wrong, where, what to do; the exit code; nothing left.

mod common;

use std::fs;

use common::{Outcome, Sandbox, config};

/// The run failed with this code, said each of the texts (in the message or the help), and the
/// store has not so much as begun to exist.
#[track_caller]
fn refused(sandbox: &Sandbox, outcome: &Outcome, code: i32, texts: &[&str]) {
    // Long lines are wrapped with a bar before them.
    let words = |text: &str| {
        let parts = text.split(|c: char| c.is_whitespace() || c == '│');
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    };
    let said = words(&outcome.stderr);
    assert_eq!(outcome.code, code, "{said}");
    for text in texts {
        assert!(said.contains(text), "{text:?} is not in:\n{}", outcome.stderr);
    }
    assert!(!said.contains("panicked"), "{said}");
    assert!(!sandbox.path("store").exists(), "{:?}", sandbox.stored());
}

#[test]
fn no_such_folder() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.lathe(&["create", "m", "./nowhere"]);
    refused(&sandbox, &outcome, 1, &["no-such-folder", "nowhere", "config.json"]);
}

#[test]
fn neither_a_folder_nor_a_model() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.lathe(&["create", "m", "nowhere"]);
    refused(&sandbox, &outcome, 1, &["no-such-folder", "no model nowhere:latest in the store"]);
}

#[test]
fn no_config() {
    let sandbox = Sandbox::new();
    fs::remove_file(sandbox.model("model").join("config.json")).unwrap();
    let outcome = sandbox.lathe(&["create", "m", "model"]);
    refused(&sandbox, &outcome, 1, &["no-config", "config.json", "help:"]);
}

#[test]
fn no_weights() {
    let sandbox = Sandbox::new();
    fs::remove_file(sandbox.model("model").join("model.safetensors")).unwrap();
    let outcome = sandbox.lathe(&["create", "m", "model"]);
    refused(&sandbox, &outcome, 1, &["no-weights", "help:"]);
}

#[test]
fn a_truncated_shard() {
    let sandbox = Sandbox::new();
    let path = sandbox.model("model").join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    let outcome = sandbox.lathe(&["create", "m", "model", "-q", "int4"]);
    refused(
        &sandbox,
        &outcome,
        1,
        &["bad-header", "model.safetensors", "100 are missing", "model.norm.weight", "download"],
    );
}

#[test]
fn an_unknown_format_is_told_with_the_nearest_before_anything_is_read() {
    let sandbox = Sandbox::new();
    sandbox.file("model/config.json", "garbage");
    let outcome = sandbox.lathe(&["create", "m", "model", "-q", "nvpf4"]);
    refused(&sandbox, &outcome, 1, &["unknown-format", "nvpf4", "did you mean nvfp4?", "mxfp8"]);
    assert!(!outcome.stderr.contains("garbage"));
}

#[test]
fn a_modelfile_without_from() {
    let sandbox = Sandbox::new();
    sandbox.file("Modelfile", "SYSTEM hello\n");
    let outcome = sandbox.lathe(&["create", "m"]);
    refused(&sandbox, &outcome, 1, &["modelfile", "no FROM", "add a line FROM"]);
}

#[test]
fn a_modelfile_whose_from_is_nowhere_and_all_else_that_is_wrong_with_it() {
    let sandbox = Sandbox::new();
    sandbox.file("Modelfile", "FROM ./gone\nDRAFT ./gone2\n");
    let outcome = sandbox.lathe(&["create", "m"]);
    refused(&sandbox, &outcome, 1, &["no folder ./gone", "1 FROM ./gone", "2 DRAFT ./gone2"]);
    sandbox.file("Modelfile", "FORM x\nPARAMETER temprature 1\n");
    let outcome = sandbox.lathe(&["create", "m"]);
    refused(&sandbox, &outcome, 1, &["did you mean FROM?", "did you mean temperature?", "no FROM"]);
}

#[test]
fn a_draft_that_is_the_model_itself() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.file("Modelfile", "FROM model\nDRAFT ./model/../model\n");
    let outcome = sandbox.lathe(&["create", "m"]);
    refused(&sandbox, &outcome, 2, &["the draft is the same folder", "2 DRAFT"]);
}

#[test]
fn an_image_generation_folder_is_out_of_scope() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.file("model/model_index.json", "{}");
    let outcome = sandbox.lathe(&["create", "m", "model"]);
    refused(&sandbox, &outcome, 1, &["image-model", "model_index.json", "out of scope"]);
}

#[test]
fn a_config_with_nan_is_legal_and_garbage_is_not() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    let odd = config().to_string().replacen('{', "{\"a\": NaN, \"b\": -Infinity, ", 1);
    sandbox.file("model/config.json", odd);
    let plan = sandbox.lathe(&["create", "m", "model", "-q", "int4", "--dry-run", "-o", "json"]);
    assert_eq!(plan.json()["source"]["architecture"], "LlamaForCausalLM");
    sandbox.file("model/config.json", "{\"model_type\": \"llama\",\n \"hidden_size\": oops}");
    let outcome = sandbox.lathe(&["create", "m", "model"]);
    refused(&sandbox, &outcome, 1, &["bad-config", "config.json", "2 \"hidden_size\": oops"]);
}

#[test]
fn a_store_that_cannot_be_written() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.file("file", "");
    for bad in ["file", "file/below"] {
        let outcome = sandbox.lathe(&["create", "m", "model", "--store", bad]);
        refused(&sandbox, &outcome, 1, &["store", "file", "--store or LATHE_STORE"]);
    }
}

#[test]
fn a_format_for_a_draft_that_is_not_there() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    for flag in ["--quantize-draft", "--draft-quantize"] {
        let outcome = sandbox.lathe(&["create", "m", "model", flag, "int4"]);
        refused(&sandbox, &outcome, 2, &["usage", "there is no draft"]);
    }
}

#[test]
fn wrong_usage_ends_with_2() {
    let sandbox = Sandbox::new();
    for args in [
        &["create"] as &[&str],
        &["create", "m"],
        &["create", "m", "x", "-f", "y"],
        &["create", "m", "x", "--memory", "lots"],
        &["create", "m", "x", "--jobs", "0"],
        &["frobnicate"],
        &["show"],
    ] {
        let outcome = sandbox.lathe(args);
        assert_eq!(outcome.code, 2, "{args:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.is_empty());
    }
}

#[test]
fn scripts_get_every_fault_as_json() {
    let sandbox = Sandbox::new();
    sandbox.file("model/config.json", "{");
    let outcome = sandbox.lathe(&["create", "m", "model", "--output", "json"]);
    assert_eq!(outcome.code, 1);
    let error = &serde_json::from_str::<serde_json::Value>(&outcome.stdout).unwrap()["error"];
    let codes: Vec<_> = error["details"].as_array().unwrap().iter().map(|d| &d["code"]).collect();
    assert_eq!(codes, ["bad-config", "no-weights"]);
    assert_eq!(error["code"], "bad-config");
    assert!(error["message"].as_str().unwrap().starts_with("2 faults, the first: "));
    let outcome = sandbox.lathe(&["show", "nothing", "-o", "json"]);
    assert!(outcome.stdout.contains("\"no-such-model\""), "{}", outcome.stdout);
    assert_eq!(outcome.code, 1);
}

#[test]
fn a_plan_for_another_folder_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    let plan = sandbox.lathe(&["create", "m", "model", "-n", "-o", "json"]).ok();
    sandbox.file("plan.json", plan);
    let mut tensors = common::llama_tensors();
    tensors.pop();
    sandbox.file("model/model.safetensors", common::safetensors(&tensors));
    let outcome = sandbox.lathe(&["create", "m", "model", "--plan", "plan.json"]);
    refused(&sandbox, &outcome, 1, &["stale-plan", "help:"]);
}

#[test]
fn what_is_wrong_with_many_tensors_alike_is_said_once_and_names_them() {
    let sandbox = Sandbox::new();
    sandbox.fp8_model("model", |_, _| 0.01);
    sandbox.fp8_config("model", [128, 128]);
    let create = ["create", "m", "model", "-o", "json"];
    let error = serde_json::from_str::<serde_json::Value>(&sandbox.lathe(&create).stdout);
    let details = error.unwrap()["error"]["details"].as_array().unwrap().clone();
    // Six of the seven in each layer are of two shapes, and all in both layers are.
    let named = |detail: &serde_json::Value| {
        let others = detail["others"].as_array().map_or(0, Vec::len);
        assert!(detail["tensor"].is_string(), "{detail}");
        1 + others
    };
    let mut counts: Vec<usize> = details.iter().map(named).collect();
    counts.sort_unstable();
    assert_eq!(counts, [2, 4, 8], "{details:#?}");
    let outcome = sandbox.lathe(&create[..3]);
    let down = "model.layers.1.mlp.down_proj.weight_scale_inv";
    refused(&sandbox, &outcome, 1, &["bad-scale", "; the same of", down]);
    assert_eq!(outcome.stderr.matches("layout fp8-block").count(), 3, "{}", outcome.stderr);
}

#[test]
fn scales_that_are_no_numbers_are_warned_of() {
    let sandbox = Sandbox::new();
    let name = "model.layers.1.mlp.down_proj.weight_scale_inv";
    sandbox.fp8_model("model", |tensor, number| match (tensor, number) {
        (tensor, 1 | 3) if tensor == name => f32::NAN,
        _ => 0.01,
    });
    let outcome = sandbox.lathe(&["create", "m", "model"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("warning: the source is damaged"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(&format!("{name} (2 of 8)")), "{}", outcome.stderr);
    let create = ["create", "m", "model", "-o", "json"];
    let warnings = sandbox.lathe(&create).result()["warnings"].as_array().unwrap().clone();
    let found: Vec<_> = warnings.iter().filter(|w| w["code"] == "not-finite").collect();
    assert_eq!(found.len(), 1, "{warnings:?}");
    assert_eq!(found[0]["tensor"], name);

    sandbox.fp8_model("model", |_, _| 0.01);
    let warnings = sandbox.lathe(&create).result()["warnings"].clone();
    assert!(!warnings.to_string().contains("not-finite"), "{warnings}");
}
