//! Plans on the command line: every form, inventories in place of folders, drafts that do not fit,
//! and what a stored model tells of its origin.

mod common;

use std::fs;

use common::Sandbox;
use serde_json::{Value, json};

/// A plan of the tiny llama in a form; its folder's name is the same in every sandbox.
fn plan(form: &str) -> String {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    let plan = sandbox.lathe(&["create", "m", "model", "-q", "int4", "--dry-run", "-o", form]).ok();
    assert!(!sandbox.path("store").exists());
    plan
}

#[test]
fn a_plan_as_a_table() {
    insta::with_settings!({snapshot_path => "snapshots", prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!("plan_table", plan("table"));
    });
}

#[test]
fn a_plan_as_yaml() {
    insta::with_settings!({snapshot_path => "snapshots", prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!("plan_yaml", plan("yaml"));
    });
}

#[test]
fn a_picture_holds_the_plan_and_needs_nothing_else() {
    let page = plan("html");
    assert!(page.starts_with("<!doctype html>"));
    for elsewhere in ["src=", "http://", "https://", "@import", "url("] {
        let allowed = page.matches(elsewhere).count();
        let namespace = page.matches("\"http://www.w3.org/2000/svg\"").count();
        let expected = if elsewhere == "http://" { namespace } else { 0 };
        assert_eq!(allowed, expected, "{elsewhere}");
    }
    let data = page.split("type=\"application/json\">").nth(1).unwrap();
    let data: Value = serde_json::from_str(data.split("</script>").next().unwrap()).unwrap();
    let json: Value = serde_json::from_str(&plan("json")).unwrap();
    assert_eq!(data["bytes_out"], json["totals"]["bytes_out"]);
    assert_eq!(data["tensors"].as_array().unwrap().len(), common::llama_tensors().len());
    let of = |name: &str| {
        let tensors = data["tensors"].as_array().unwrap();
        tensors.iter().find(|tensor| tensor["name"] == name).unwrap().clone()
    };
    assert_eq!(of("model.layers.1.mlp.up_proj.weight")["group"], "model layers 1");
    let rule = of("model.layers.1.mlp.down_proj.weight")["rule"].as_u64().unwrap() as usize;
    assert_eq!(data["rules"][rule]["id"], "sensitive");
}

#[test]
fn a_picture_is_of_a_plan() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    let outcome = sandbox.lathe(&["create", "m", "model", "-o", "html"]);
    assert_eq!(outcome.code, 2);
    assert!(outcome.stderr.contains("--dry-run"));
}

#[test]
fn an_inventory_plans_as_its_folder_does_and_cannot_be_created_from() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    let text = sandbox.lathe(&["inventory", "model"]).ok();
    sandbox.lathe(&["inventory", "model", "--to", "m.inventory.json"]).ok();
    assert_eq!(fs::read_to_string(sandbox.path("m.inventory.json")).unwrap(), text);
    let plan = |from: &str| {
        let args = ["create", "m", from, "-q", "nvfp4", "--dry-run", "-o", "json"];
        let mut plan = sandbox.lathe(&args).json();
        plan["source"]["dir"] = Value::Null;
        plan
    };
    assert_eq!(plan("m.inventory.json"), plan("model"));
    let outcome = sandbox.lathe(&["create", "m", "m.inventory.json"]);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("only describes a model"), "{}", outcome.stderr);
}

#[test]
fn a_draft_that_does_not_fit_is_refused_with_both_numbers_before_anything_is_written() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    let tensors = [("fc.weight".to_string(), vec![64, 200]), ("norm.weight".to_string(), vec![64])];
    sandbox.file("draft/model.safetensors", common::safetensors(&tensors));
    let config = json!({
        "architectures": ["DFlashDraftModel"], "hidden_size": 64, "vocab_size": 96,
        "num_hidden_layers": 1,
        "dflash_config": {"mask_token_id": 95, "target_layer_ids": [0, 5], "num_target_layers": 3}
    });
    sandbox.file("draft/config.json", config.to_string());
    let create = ["create", "m", "model", "--draft", "draft", "-o", "json"];
    let outcome = sandbox.lathe(&create);
    assert_eq!(outcome.code, 1);
    let said: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let details = said["error"]["details"].as_array().unwrap().clone();
    let messages: Vec<&str> = details.iter().map(|d| d["message"].as_str().unwrap()).collect();
    assert!(details.iter().all(|detail| detail["code"] == "draft-misfit"), "{details:?}");
    assert_eq!(messages.len(), 3, "{messages:?}");
    for (message, words) in messages.iter().zip([["3", "2"], ["[0,5]", "2"], ["200", "64"]]) {
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
    assert!(!sandbox.path("store").exists());

    // The same against a model that is in the store.
    sandbox.lathe(&["create", "stored", "model"]).ok();
    let before = sandbox.stored();
    let outcome = sandbox.lathe(&["create", "m", "stored", "--draft", "draft"]);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("draft-misfit"), "{}", outcome.stderr);
    assert_eq!(sandbox.stored(), before);
}

#[test]
fn a_stored_model_tells_what_each_tensor_was() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.lathe(&["create", "m", "model", "-q", "int4"]).ok();
    let shown = sandbox.lathe(&["show", "m", "--quant", "-o", "json"]).json();
    let tensors = shown["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), common::llama_tensors().len());
    let up = tensors.iter().find(|t| t["name"] == "model.layers.0.mlp.up_proj.weight").unwrap();
    assert_eq!(up["is"], "int4");
    assert_eq!(up["was"]["dtype"], "BF16");
    assert_eq!(up["was"]["layout"], "float");
    assert_eq!(up["was"]["operations"], "quantize");
    assert!(up["was"]["rule"].as_str().unwrap().starts_with("linear (architectures/base.yaml:"));
    // It travels with copies and with models made of the stored one.
    sandbox.lathe(&["cp", "m", "copy"]).ok();
    sandbox.file("Modelfile", "FROM m\nSYSTEM hi\n");
    sandbox.lathe(&["create", "derived"]).ok();
    for name in ["copy", "derived"] {
        let other = sandbox.lathe(&["show", name, "--quant", "-o", "json"]).json();
        assert_eq!(other["tensors"], shown["tensors"], "{name}");
    }
}

#[test]
fn wrong_usage_is_told_as_json_where_json_is_asked_for() {
    let sandbox = Sandbox::new();
    for args in [&["list", "--nonsense", "-o", "json"][..], &["show", "--output=json"]] {
        let outcome = sandbox.lathe(args);
        assert_eq!(outcome.code, 2);
        let said: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(said["error"]["code"], "usage");
    }
    assert_eq!(sandbox.lathe(&["list", "--nonsense"]).stdout, "");
}

/// An edit of a plan.
type Edit<'e> = &'e dyn Fn(&mut Value);

/// The plan of the tiny llama for int4, changed by `edit`, given back.
fn edited(edit: impl Fn(&mut Value)) -> (Sandbox, common::Outcome) {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    let args = ["create", "m", "model", "-q", "int4", "--dry-run", "-o", "json"];
    let mut plan = sandbox.lathe(&args).json();
    edit(&mut plan);
    sandbox.file("plan.json", plan.to_string());
    let outcome = sandbox.lathe(&["create", "m", "model", "--plan", "plan.json"]);
    (sandbox, outcome)
}

/// The tensor of that name in a plan.
fn tensor<'p>(plan: &'p mut Value, name: &str) -> &'p mut Value {
    let blobs = plan["blobs"].as_array_mut().unwrap();
    let blob = blobs.iter_mut().find(|blob| blob["name"] == name).unwrap();
    &mut blob["tensors"][0]
}

const UP: &str = "model.layers.0.mlp.up_proj.weight";

#[test]
fn a_format_can_be_edited_in_a_plan_and_the_model_tells_so() {
    let operation = |plan: &mut Value| tensor(plan, UP)["ops"][0]["format"] = json!("mxfp8");
    let both = |plan: &mut Value| {
        tensor(plan, UP)["format"] = json!("mxfp8");
        tensor(plan, UP)["ops"][0]["format"] = json!("mxfp8");
    };
    let edits: [Edit; 3] = [&|plan| tensor(plan, UP)["format"] = json!("mxfp8"), &operation, &both];
    for edit in edits {
        let (sandbox, outcome) = edited(edit);
        outcome.ok();
        let shown = sandbox.lathe(&["show", "m", "--quant", "-o", "json"]).json();
        let row = shown["tensors"].as_array().unwrap().iter().find(|t| t["name"] == UP).unwrap();
        assert_eq!((&row["is"], &row["was"]["rule"]), (&json!("mxfp8"), &json!("edited")));
        let diff = ["plan", "diff", "plan.json", "model@int4", "-o", "json"];
        assert_eq!(sandbox.lathe(&diff).json()["changed"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn what_is_not_to_be_edited_in_a_plan_is_refused() {
    let edits: [(&str, Edit); 7] = [
        ("the plan lacks this tensor", &|plan| {
            plan["blobs"].as_array_mut().unwrap().remove(3);
        }),
        ("its sources is other", &|plan| {
            tensor(plan, UP)["sources"][0]["name"] = json!("model.layers.1.mlp.up_proj.weight");
        }),
        ("cannot be renamed or added", &|plan| tensor(plan, UP)["name"] = json!("../../x")),
        ("its shape is other", &|plan| tensor(plan, UP)["shape"] = json!([64, 128])),
        ("edit both alike", &|plan| {
            tensor(plan, UP)["format"] = json!("int8");
            tensor(plan, UP)["ops"][0]["format"] = json!("mxfp8");
        }),
        ("unknown format", &|plan| tensor(plan, UP)["format"] = json!("int44")),
        ("made from other tensors", &|plan| plan["source"]["digest"] = json!("sha256:00")),
    ];
    for (words, edit) in edits {
        let (sandbox, outcome) = edited(edit);
        assert_eq!(outcome.code, 1, "{words}");
        let said = outcome.stderr.split_whitespace().filter(|word| *word != "│");
        let said = said.collect::<Vec<_>>().join(" ");
        assert!(said.contains(words), "{words:?} is not in {said}");
        assert!(!sandbox.path("store").exists());
    }
}

#[test]
fn faults_of_policies_name_the_file_and_are_found_before_planning() {
    let cases = [
        ("when: requested.bits == 4 && schedul(\"x\", layer, 4)", "did you mean `schedule`?"),
        ("format: []", "an empty ladder"),
        ("when: {a: 1}", "expected a string"),
        ("fromat: [int4]", "did you mean `format`?"),
    ];
    for (line, words) in cases {
        let sandbox = Sandbox::new();
        sandbox.model("model");
        let format = if line.contains("format") { "" } else { "    format: int4\n" };
        let policy = format!(
            "name: mine\nextends: base\nmatch: {{architectures: [LlamaForCausalLM]}}\n\
             tensors:\n  - id: a\n    match: \"**.x.weight\"\n{format}    {line}\n    because: b\n"
        );
        sandbox.file("policies/mine.yaml", policy);
        let args = ["create", "m", "model", "-q", "int4", "-n", "--policy-dir", "policies"];
        let outcome = sandbox.lathe(&args);
        assert_eq!(outcome.code, 1, "{line}");
        for words in [words, "policies/mine.yaml:"] {
            assert!(outcome.stderr.contains(words), "{words:?} is not in {}", outcome.stderr);
        }
    }
}

#[test]
fn an_expert_that_a_pattern_leaves_apart_is_refused() {
    let sandbox = Sandbox::new();
    let tensors: Vec<(String, Vec<usize>)> = (0..4)
        .map(|n| (format!("model.layers.0.block.experts.{n}.w1.weight"), vec![64, 64]))
        .collect();
    sandbox.file("model/model.safetensors", common::safetensors(&tensors));
    sandbox.file("model/config.json", r#"{"architectures": ["Odd"], "num_hidden_layers": 1}"#);
    let plan = ["create", "m", "model", "-q", "int4", "-n", "--policy-dir", "policies"];
    let policy = |index: &str| {
        format!(
            "name: odd\nextends: base\nmatch: {{architectures: [Odd]}}\nstack:\n  - id: mine\n    match: \
             '(?<group>.*\\.experts)\\.(?<index>{index})\\.(?<name>.*)'\n    \
             into: \"{{group}}.{{name}}\"\n    blob: \"{{group}}\"\n"
        )
    };
    sandbox.file("policies/odd.yaml", policy("[0-2]"));
    let outcome = sandbox.lathe(&plan);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("left apart"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("rule mine"), "{}", outcome.stderr);
    sandbox.file("policies/odd.yaml", policy("\\d+"));
    assert!(sandbox.lathe(&plan).ok().contains("stack 4, quantize"));
    // Without a policy the plan says so.
    let bare = sandbox.lathe(&["create", "m", "model", "-q", "int4", "-n"]).ok();
    assert!(bare.contains("no policy is for Odd"), "{bare}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    for args in [
        &["create", "m", "model", "-n"][..],
        &["inventory", "model"],
        &["list", "-o", "json"],
        &["completions", "bash"],
    ] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let run = std::process::Command::new(assert_cmd::cargo::cargo_bin("lathe"))
            .args(args)
            .current_dir(sandbox.path("."))
            .env("LATHE_STORE", sandbox.path("store"))
            .stdout(full)
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(1), "{args:?}");
        assert!(String::from_utf8_lossy(&run.stderr).contains("cannot write"), "{args:?}");
    }
}
