//! Creating, showing, copying, checking and removing models, on the command line.

mod common;

use std::fs;

use common::Sandbox;
use serde_json::{Value, json};

fn manifest(sandbox: &Sandbox, name: &str, tag: &str) -> Value {
    let path = format!("store/manifests/registry.ollama.ai/library/{name}/{tag}");
    serde_json::from_slice(&fs::read(sandbox.path(&path)).unwrap()).unwrap()
}

fn blob(sandbox: &Sandbox, layer: &Value) -> Vec<u8> {
    let digest = layer["digest"].as_str().unwrap().replace(':', "-");
    fs::read(sandbox.path("store/blobs").join(digest)).unwrap()
}

#[test]
fn a_model_is_created_once_and_the_second_time_writes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    let first = sandbox.lathe(&["create", "m:int4", "model", "-q", "int4", "-o", "json"]).result();
    assert_eq!((&first["name"], &first["unchanged"]), (&json!("m:int4"), &json!(false)));
    let stored = sandbox.stored();
    // A blob for each distinct tensor and file, the config blob, and the manifest.
    assert_eq!(first["new_blobs"].as_u64().unwrap() as usize, stored.len() - 1);
    let times =
        |path: &str| fs::metadata(sandbox.path("store").join(path)).unwrap().modified().unwrap();
    let before: Vec<_> = stored.iter().map(|path| times(path)).collect();
    let again = sandbox.lathe(&["create", "m:int4", "model", "-q", "int4", "--jobs", "3"]);
    assert!(again.ok().contains("unchanged"));
    assert_eq!(sandbox.stored(), stored);
    assert_eq!(stored.iter().map(|path| times(path)).collect::<Vec<_>>(), before);
    // What is missing or cut is written again, and said to have been.
    let cut = stored.iter().find(|path| path.contains("blobs/")).unwrap();
    let whole = fs::read(sandbox.path("store").join(cut)).unwrap();
    fs::write(sandbox.path("store").join(cut), &whole[..1]).unwrap();
    let mended = sandbox.lathe(&["create", "m:int4", "model", "-q", "int4"]).ok();
    assert!(mended.contains("written again"), "{mended}");
    assert_eq!(fs::read(sandbox.path("store").join(cut)).unwrap(), whole);
    let copy = sandbox.lathe(&["create", "other", "model", "-q", "int4"]).ok();
    assert!(copy.contains("every blob was in the store already"), "{copy}");
}

#[test]
fn the_manifest_holds_tensors_files_and_what_the_modelfile_says() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.file(
        "sub/Modelfile",
        "FROM ../model\nSYSTEM Be terse.\nPARAMETER stop a\nPARAMETER stop b\nPARAMETER top_k 5\n\
         LICENSE MIT\nTEMPLATE {{ .Prompt }}\nMESSAGE user hi\nPARSER qwen3\nREQUIRES 0.30\n",
    );
    sandbox.lathe(&["create", "m", "-f", "sub/Modelfile", "-q", "int8"]).ok();
    let manifest = manifest(&sandbox, "m", "latest");
    let layers = manifest["layers"].as_array().unwrap();
    let of = |kind: &str| {
        let media_type = format!("application/vnd.ollama.image.{kind}");
        layers.iter().filter(|layer| layer["mediaType"] == *media_type).collect::<Vec<_>>()
    };
    let text = |kind: &str| String::from_utf8(blob(&sandbox, of(kind)[0])).unwrap();
    assert_eq!(of("tensor").len(), common::llama_tensors().len());
    let files: Vec<_> = of("json").iter().map(|layer| &layer["name"]).collect();
    assert_eq!(files, ["config.json", "generation_config.json", "tokenizer_config.json"]);
    assert_eq!(text("system"), "Be terse.");
    assert_eq!(text("template"), "{{ .Prompt }}");
    assert_eq!(text("license"), "MIT");
    assert_eq!(text("params"), r#"{"stop":["a","b"],"top_k":5}"#);
    assert_eq!(text("messages"), r#"[{"role":"user","content":"hi"}]"#);
    let config: Value = serde_json::from_slice(&blob(&sandbox, &manifest["config"])).unwrap();
    assert_eq!(config["model_format"], "safetensors");
    assert_eq!(config["file_type"], "int8");
    assert_eq!((&config["parser"], &config["requires"]), (&json!("qwen3"), &json!("0.30.0")));
    for layer in layers.iter().chain([&manifest["config"]]) {
        assert_eq!(layer["size"], blob(&sandbox, layer).len());
    }
}

#[test]
fn a_stored_model_can_be_the_source_and_shares_its_blobs() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.lathe(&["create", "base", "model", "-q", "int4"]).ok();
    let modelfile = "FROM base\nSYSTEM Be kind.\nPARAMETER seed 7\n";
    sandbox.lathe_with(&["create", "kind", "-f", "-"], modelfile).ok();
    let more = "FROM kind\nPARAMETER top_k 3\n";
    let made = sandbox.lathe_with(&["create", "kinder", "-f", "-", "-o", "json"], more).result();
    assert_eq!(made["new_blobs"], 1, "the parameters only");
    let shown = sandbox.lathe(&["show", "kinder", "--modelfile"]).ok();
    assert_eq!(shown, "FROM kinder:latest\nSYSTEM Be kind.\nPARAMETER seed 7\nPARAMETER top_k 3\n");
    let refused = sandbox.lathe(&["create", "x", "base", "-q", "int8"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
}

#[test]
fn a_draft_comes_beside_its_target_or_is_added_later_with_the_same_blobs() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.model("small");
    sandbox
        .lathe(&[
            "create",
            "both",
            "model",
            "--draft",
            "small",
            "-q",
            "int4",
            "--quantize-draft",
            "int8",
        ])
        .ok();
    sandbox.lathe(&["create", "alone", "model", "-q", "int4"]).ok();
    sandbox
        .lathe_with(
            &["create", "later", "-f", "-", "--quantize-draft", "int8"],
            "FROM alone\nDRAFT small\n",
        )
        .ok();
    let layers = |name: &str| {
        let mut layers = manifest(&sandbox, name, "latest")["layers"].as_array().unwrap().clone();
        layers.sort_by_key(ToString::to_string);
        layers
    };
    assert_eq!(layers("both"), layers("later"));
    assert!(layers("both").iter().any(|l| l["name"] == "draft/config.json"));
    let shown = sandbox.lathe(&["show", "later", "-o", "json"]).json();
    assert_eq!(shown["draft"]["architecture"], "LlamaForCausalLM");
    assert_eq!(shown["draft"]["tensor_prefix"], "draft.");
    let formats = sandbox.lathe(&["show", "later", "--tensors", "-o", "json"]).json();
    let format = |name: &str| {
        let tensors = formats["tensors"].as_array().unwrap();
        tensors.iter().find(|t| t["name"] == name).unwrap()["format"].clone()
    };
    assert_eq!(format("model.layers.0.mlp.up_proj.weight"), "int4");
    assert_eq!(format("draft.model.layers.0.mlp.up_proj.weight"), "int8");
}

#[test]
fn a_dry_run_tells_everything_and_writes_nothing_and_its_plan_can_be_given_back() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    let plan =
        sandbox.lathe(&["create", "m", "model", "-q", "int4", "--dry-run", "-o", "json"]).ok();
    let table = sandbox.lathe(&["create", "m", "model", "-q", "int4", "--dry-run"]).ok();
    assert!(table.contains("bits per weight") && table.contains("base.yaml:"), "{table}");
    let yaml = sandbox.lathe(&["create", "m", "model", "-q", "int4", "-n", "-o", "yaml"]).ok();
    assert!(!sandbox.path("store").exists());
    sandbox.file("plan.json", &plan);
    sandbox.file("plan.yaml", &yaml);
    sandbox.lathe(&["create", "a", "model", "--plan", "plan.json"]).ok();
    sandbox.lathe(&["create", "b", "model", "--plan", "plan.yaml"]).ok();
    sandbox.lathe(&["create", "c", "model", "-q", "int4"]).ok();
    assert_eq!(manifest(&sandbox, "a", "latest"), manifest(&sandbox, "c", "latest"));
    assert_eq!(manifest(&sandbox, "b", "latest"), manifest(&sandbox, "c", "latest"));
}

#[test]
fn models_are_listed_copied_checked_and_removed() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    assert_eq!(sandbox.lathe(&["list", "-o", "json"]).json(), json!({ "models": [] }));
    sandbox.lathe(&["create", "m:int4", "model", "-q", "int4"]).ok();
    sandbox.lathe(&["cp", "m:int4", "me/copy"]).ok();
    let list = sandbox.lathe(&["list", "-o", "json"]).json();
    let models = list["models"].as_array().unwrap();
    let names: Vec<_> = models.iter().map(|model| &model["name"]).collect();
    assert_eq!(names, ["m:int4", "me/copy:latest"]);
    assert_eq!(models[0]["digest"], models[1]["digest"]);
    assert_eq!(models[0]["format"], "int4");
    assert!(sandbox.lathe(&["list", "COPY"]).ok().lines().count() == 2, "the header and one row");
    assert!(sandbox.lathe(&["verify"]).ok().contains("are whole"));
    sandbox.lathe(&["rm", "m:int4"]).ok();
    assert!(sandbox.lathe(&["verify", "me/copy"]).ok().contains("are whole"));
    let damaged = sandbox.stored()[0].clone();
    let path = sandbox.path("store").join(&damaged);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let verified = sandbox.lathe(&["verify", "--delete"]);
    assert_eq!(verified.code, 1);
    assert!(verified.stderr.contains("corrupt-blob") && verified.stderr.contains("me/copy"));
    assert!(!path.exists());
    sandbox.lathe(&["create", "me/copy", "model", "-q", "int4"]).ok();
    assert!(sandbox.lathe(&["verify"]).ok().contains("are whole"));
    sandbox.lathe(&["rm", "me/copy"]).ok();
    sandbox.lathe(&["gc"]).ok();
    assert_eq!(sandbox.stored(), [""; 0]);
}

#[test]
fn an_export_has_mlx_lms_names_and_formats_for_each_module() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.lathe(&["create", "m", "model", "-q", "int4"]).ok();
    sandbox.lathe(&["export", "m", "out/mlx", "--as", "mlx-lm"]).ok();
    let config: Value =
        serde_json::from_slice(&fs::read(sandbox.path("out/mlx/config.json")).unwrap()).unwrap();
    assert_eq!(config["hidden_size"], 64);
    let quantization = &config["quantization"];
    assert_eq!(config["quantization_config"], *quantization);
    let (four, eight) = (
        json!({"group_size": 64, "bits": 4, "mode": "affine"}),
        json!({"group_size": 64, "bits": 8, "mode": "affine"}),
    );
    let tensors = sandbox.lathe(&["show", "m", "--tensors", "-o", "json"]).json();
    let file = fs::read(sandbox.path("out/mlx/model.safetensors")).unwrap();
    let exported = safetensors::SafeTensors::deserialize(&file).unwrap();
    let mut expected = 0;
    for tensor in tensors["tensors"].as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap();
        let module = name.strip_suffix(".weight").unwrap();
        expected += 1;
        exported.tensor(name).unwrap();
        if tensor["format"] == "source" {
            assert!(exported.tensor(&format!("{module}.scales")).is_err());
            continue;
        }
        expected += 2;
        for companion in ["scales", "biases"] {
            exported.tensor(&format!("{module}.{companion}")).unwrap();
        }
        let told = quantization.get(module).unwrap_or(quantization);
        let wanted = if tensor["format"] == "int8" { &eight } else { &four };
        for key in ["group_size", "bits", "mode"] {
            assert_eq!(told[key], wanted[key], "{name}");
        }
    }
    assert_eq!(exported.len(), expected);
    let blocked = sandbox.lathe(&["export", "m", "out/mlx"]);
    assert_eq!(blocked.code, 2, "{}", blocked.stderr);
    assert_eq!(fs::read_dir(sandbox.path("out")).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn completions_are_for_every_shell() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(sandbox.lathe(&["completions", shell]).ok().contains("create"), "{shell}");
    }
}

/// The examples read as Modelfiles, and FROM leads to where `make model` puts the model.
#[test]
fn the_example_modelfiles_work_as_they_stand() {
    let sandbox = Sandbox::new();
    sandbox.model("models/SmolLM2-135M-Instruct");
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/Modelfile.examples");
    let mut count = 0;
    for entry in fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let file = format!("Modelfile.examples/{name}");
        sandbox.file(&file, fs::read(&path).unwrap());
        sandbox.lathe(&["create", "example", "-f", &file, "-q", "int4"]).ok();
        count += 1;
    }
    assert!(count >= 3);
}
