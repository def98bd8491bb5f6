//! What is said of inputs that are not what they seem, and what is warned of.

use std::fs;

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::common::{Outcome, Sandbox, config, llama_tensors};

/// A tensor: name, dtype, shape, bytes.
pub type Raw = (String, Dtype, Vec<usize>, Vec<u8>);

const LFS: &str = "version https://git-lfs.github.com/spec/v1\n\
    oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 2690\n";

pub fn file(tensors: &[Raw]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// The tiny llama with each projection made of other tensors.
pub fn with_projections(of: impl Fn(&str, usize, usize) -> Vec<Raw>) -> Vec<Raw> {
    let mut tensors = Vec::new();
    for (name, shape) in llama_tensors() {
        match name.strip_suffix(".weight").filter(|module| module.ends_with("_proj")) {
            Some(module) => tensors.extend(of(module, shape[0], shape[1])),
            None => {
                let bytes = vec![0x3c; shape.iter().product::<usize>() * 2];
                tensors.push((name, Dtype::BF16, shape, bytes));
            }
        }
    }
    tensors
}

pub fn raw(name: String, dtype: Dtype, shape: &[usize]) -> Raw {
    let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
    (name, dtype, shape.to_vec(), vec![1; bytes])
}

/// The one fault of a run: its code, message and help. Its words are not wrapped in JSON.
#[track_caller]
fn fault(outcome: &Outcome) -> (String, String, String) {
    assert_ne!(outcome.code, 0, "{}", outcome.stdout);
    let last: Value = serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap();
    let details = last["error"]["details"].as_array().unwrap();
    assert_eq!(details.len(), 1, "{details:?}");
    let text = |key: &str| details[0][key].as_str().unwrap_or_default().to_string();
    (text("code"), text("message"), text("help"))
}

/// Of a dry run of a folder.
#[track_caller]
fn refused(sandbox: &Sandbox, source: &str) -> (String, String, String) {
    let outcome = sandbox.lathe(&["create", "m", source, "-o", "json"]);
    fault(&outcome)
}

#[track_caller]
pub fn contains(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

/// The messages of a plan's warnings of one code.
#[track_caller]
pub fn warnings(sandbox: &Sandbox, args: &[&str], code: &str) -> Vec<String> {
    let plan = sandbox.lathe(&[args, &["--dry-run", "-o", "json"]].concat()).json();
    let of_code = |warning: &&Value| warning["code"] == code;
    let found = plan["warnings"].as_array().unwrap().iter().filter(of_code);
    found.map(|warning| warning["message"].as_str().unwrap().to_string()).collect()
}

/// Code, and words of message and help, of what is given in a model's place.
fn in_a_models_place() -> Vec<(&'static str, &'static str, &'static [&'static str])> {
    vec![
        ("lfs", "not-downloaded", &["model.safetensors", "Git LFS pointer", "git lfs pull"]),
        ("lfs-tokenizer", "not-downloaded", &["tokenizer.json", "Git LFS pointer", "git lfs pull"]),
        ("lfs-config", "not-downloaded", &["config.json", "Git LFS pointer", "git lfs pull"]),
        ("page", "bad-header", &["a web page in place of the file", "download"]),
        ("m/model.safetensors", "not-a-model", &["one file of a model's weights", "folder: m"]),
        ("m/config.json", "not-a-model", &["one file of a model's folder", "folder: m"]),
        ("x.gguf", "not-a-model", &["GGUF", "safetensors"]),
        ("named-otherwise", "not-a-model", &["GGUF", "safetensors"]),
        ("pytorch_model.bin", "not-a-model", &["pickled", "save_pretrained"]),
        ("x.pt", "not-a-model", &["pickled", "save_pretrained"]),
        ("only-bin", "no-weights", &["pickled", "save_pretrained"]),
        ("cache/models--foo--bar", "not-a-model", &["foo/bar", "cache", "snapshots/new"]),
        ("cache", "not-a-model", &["2 models", "models--foo--bar/snapshots/new"]),
        ("cache/models--foo--bar/snapshots", "not-a-model", &["revisions", "snapshots/new"]),
        ("adapter", "not-a-model", &["adapter", "org/base", "merge_and_unload"]),
        ("empty", "not-a-model", &["empty", "download"]),
        ("above", "no-config", &["no config.json", "above/below"]),
    ]
}

#[test]
fn what_is_given_in_a_models_place_is_named_and_says_what_to_do() {
    let sandbox = Sandbox::new();
    let config = config().to_string();
    sandbox.model("m");
    for (folder, pointer) in [
        ("lfs", "model.safetensors"),
        ("lfs-tokenizer", "tokenizer.json"),
        ("lfs-config", "config.json"),
    ] {
        sandbox.model(folder);
        sandbox.file(&format!("{folder}/{pointer}"), LFS);
    }
    sandbox.file("page/config.json", &config);
    sandbox.file("page/model.safetensors", "<!DOCTYPE html><html>Sign in</html>");
    sandbox.file("x.gguf", b"GGUF\x03\0\0\0\0\0\0\0");
    sandbox.file("named-otherwise", b"GGUF\x03\0\0\0\0\0\0\0");
    sandbox.file("pytorch_model.bin", b"PK\x03\x04");
    sandbox.file("x.pt", b"\x80\x02\x8a\x0a");
    sandbox.file("only-bin/config.json", &config);
    sandbox.file("only-bin/pytorch_model.bin", b"PK\x03\x04");
    sandbox.file("only-bin/training_args.bin", b"PK\x03\x04");
    for revision in ["old", "new"] {
        sandbox.file(&format!("cache/models--foo--bar/snapshots/{revision}/config.json"), &config);
    }
    sandbox.file("cache/models--foo--bar/refs/main", "new");
    sandbox.file("cache/models--other--one/snapshots/x/config.json", &config);
    let adapter = r#"{"base_model_name_or_path": "org/base", "peft_type": "LORA"}"#;
    sandbox.file("adapter/adapter_config.json", adapter);
    sandbox.file("adapter/adapter_model.safetensors", "");
    fs::create_dir(sandbox.path("empty")).unwrap();
    sandbox.file("above/below/config.json", &config);

    for (source, code, words) in in_a_models_place() {
        let found = refused(&sandbox, source);
        assert_eq!(found.0, code, "{source}: {found:?}");
        contains(&format!("{} {}", found.1, found.2), words);
        // A Modelfile says it in the same words.
        let modelfile = sandbox.file("Modelfile", format!("FROM {source}\n"));
        let args = ["create", "m", "-f", modelfile.to_str().unwrap(), "-o", "json"];
        assert_eq!(fault(&sandbox.lathe(&args)).0, code, "{source}");
    }
    assert!(sandbox.stored().iter().all(|file| !file.contains("sha256")), "nothing was written");
}

/// Name, what configs call it, and the tensors of a projection `[out, in]` as it writes them.
type Producer = (&'static str, &'static str, fn(&str, usize, usize) -> Vec<Raw>);

fn producers() -> Vec<Producer> {
    vec![
        ("bitsandbytes", "bitsandbytes", |m, o, i| {
            vec![
                raw(format!("{m}.weight"), Dtype::U8, &[o * i / 2, 1]),
                raw(format!("{m}.weight.absmax"), Dtype::F32, &[o * i / 64]),
                raw(format!("{m}.weight.quant_map"), Dtype::F32, &[16]),
                raw(format!("{m}.weight.quant_state.bitsandbytes__nf4"), Dtype::U8, &[80]),
            ]
        }),
        ("bitsandbytes", "bitsandbytes", |m, o, i| {
            vec![
                raw(format!("{m}.weight"), Dtype::I8, &[o, i]),
                raw(format!("{m}.SCB"), Dtype::F32, &[o]),
                raw(format!("{m}.weight_format"), Dtype::U8, &[]),
            ]
        }),
        ("HQQ", "hqq", |m, o, i| {
            vec![
                raw(format!("{m}.W_q"), Dtype::U8, &[o / 2, i]),
                raw(format!("{m}.scale"), Dtype::BF16, &[o * i / 64, 1]),
                raw(format!("{m}.zero"), Dtype::BF16, &[o * i / 64, 1]),
            ]
        }),
        ("quanto", "quanto", |m, o, i| {
            vec![
                raw(format!("{m}.weight._data"), Dtype::I8, &[o, i]),
                raw(format!("{m}.weight._scale"), Dtype::BF16, &[o, 1]),
            ]
        }),
        ("AQLM", "aqlm", |m, o, i| {
            vec![
                raw(format!("{m}.codes"), Dtype::I16, &[o, i / 8, 1]),
                raw(format!("{m}.codebooks"), Dtype::F16, &[1, 256, 1, 8]),
                raw(format!("{m}.scales"), Dtype::F16, &[o, 1, 1, 1]),
            ]
        }),
        ("VPTQ", "vptq", |m, o, i| {
            vec![
                raw(format!("{m}.indices"), Dtype::I32, &[1, i, o / 8]),
                raw(format!("{m}.centroids.weight"), Dtype::BF16, &[1, 2048]),
            ]
        }),
        ("SpQR", "spqr", |m, o, i| {
            vec![
                raw(format!("{m}.dense_weights"), Dtype::I64, &[o * i / 16]),
                raw(format!("{m}.row_offsets"), Dtype::I32, &[o + 1]),
            ]
        }),
        ("EETQ", "eetq", |m, o, i| {
            vec![
                raw(format!("{m}.weight"), Dtype::I8, &[i, o]),
                raw(format!("{m}.weight_scales"), Dtype::F16, &[o]),
            ]
        }),
        ("HIGGS", "higgs", |m, o, i| {
            vec![
                raw(format!("{m}.weight"), Dtype::I16, &[o / 4, i]),
                raw(format!("{m}.scales"), Dtype::BF16, &[o, i / 64]),
                raw(format!("{m}.tables2"), Dtype::F32, &[16, 16, 1]),
            ]
        }),
        ("BitNet", "bitnet", |m, o, i| {
            vec![
                raw(format!("{m}.weight"), Dtype::U8, &[o / 4, i]),
                raw(format!("{m}.weight_scale"), Dtype::BF16, &[1]),
            ]
        }),
        ("FP-Quant", "fp_quant", |m, o, i| {
            vec![
                raw(format!("{m}.qweight"), Dtype::U8, &[o, i / 2]),
                raw(format!("{m}.scales"), Dtype::U8, &[o, i / 32]),
                raw(format!("{m}.forward_hadamard_matrix"), Dtype::BF16, &[32, 32]),
            ]
        }),
        ("torchao", "torchao", |m, o, i| {
            vec![
                raw(format!("{m}._weight_qdata"), Dtype::I8, &[o, i]),
                raw(format!("{m}._weight_scale"), Dtype::BF16, &[o, 1]),
            ]
        }),
        ("Quark", "quark", |m, o, i| {
            vec![
                raw(format!("{m}.weight"), Dtype::I32, &[o, i / 8]),
                raw(format!("{m}.weight_scale"), Dtype::BF16, &[i / 32, o]),
                raw(format!("{m}.weight_zero_point"), Dtype::I32, &[i / 32, o / 8]),
            ]
        }),
        ("Marlin", "marlin", |m, o, i| {
            vec![
                raw(format!("{m}.B"), Dtype::I32, &[i / 16, o * 2]),
                raw(format!("{m}.s"), Dtype::F16, &[1, o]),
            ]
        }),
        ("`a_new_one`", "a_new_one", |m, o, i| {
            vec![raw(format!("{m}.packed"), Dtype::I32, &[o, i / 8])]
        }),
    ]
}

#[test]
fn weights_of_programs_that_are_not_read_are_refused_by_the_programs_name() {
    let sandbox = Sandbox::new();
    for (name, method, projection) in producers() {
        let tensors = with_projections(projection);
        let mut told = config();
        told["quantization_config"] = json!({ "quant_method": method });
        sandbox.file("m/config.json", told.to_string());
        sandbox.file("m/model.safetensors", file(&tensors));
        let (code, message, help) = refused(&sandbox, "m");
        assert_eq!(code, "unsupported", "{name}: {message}");
        contains(&message, &[name]);
        contains(&help, &["take the model that it was made from", "-q"]);
    }
}

/// Marks tell who made them where the config says nothing.
#[test]
fn marks_of_a_program_are_known_without_a_claim() {
    let sandbox = Sandbox::new();
    let marked = ["bitsandbytes", "HQQ", "quanto", "AQLM", "SpQR", "HIGGS", "FP-Quant", "torchao"];
    for (name, _, projection) in producers() {
        if !marked.contains(&name) {
            continue;
        }
        sandbox.file("m/config.json", config().to_string());
        sandbox.file("m/model.safetensors", file(&with_projections(projection)));
        let (code, message, _) = refused(&sandbox, "m");
        assert_eq!(code, "unsupported", "{name}: {message}");
        contains(&message, &[name, "quantized it"]);
    }
}

#[test]
fn plain_floats_under_a_claim_are_read_with_a_warning() {
    let sandbox = Sandbox::new();
    sandbox.model("m");
    for (method, name) in [("hqq", "HQQ"), ("gptq", "`gptq`"), ("a_new_one", "`a_new_one`")] {
        let mut told = config();
        told["quantization_config"] = json!({ "quant_method": method });
        sandbox.file("m/config.json", told.to_string());
        let found = warnings(&sandbox, &["create", "m", "m"], "config-disagrees");
        assert_eq!(found.len(), 1, "{found:?}");
        contains(&found[0], &[name, "plain floats"]);
    }
}

#[test]
fn claims_about_modules_that_are_not_there_are_told() {
    let sandbox = Sandbox::new();
    sandbox.model("m");
    let mut told = config();
    told["quantization_config"] = json!({
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head", "model.layers.7.mlp", "re:.*nowhere.*", "model.layers.0.mlp", "re:.*k_proj"],
        "config_groups": {"g": {"targets": ["model.layers.9.mlp.up_proj"]}},
    });
    sandbox.file("m/config.json", told.to_string());
    let found = warnings(&sandbox, &["create", "m", "m"], "config-disagrees").join("\n");
    contains(&found, &["model.layers.7.mlp, re:.*nowhere.*", "model.layers.9.mlp.up_proj"]);
    for there in ["lm_head", "model.layers.0.mlp", "k_proj"] {
        assert!(!found.contains(there), "{there}: {found}");
    }
}

#[test]
fn eight_bit_floats_without_a_scale_are_named() {
    let sandbox = Sandbox::new();
    let tensors = with_projections(|module, out, inner| {
        vec![raw(format!("{module}.weight"), Dtype::F8_E4M3, &[out, inner])]
    });
    sandbox.file("m/config.json", config().to_string());
    sandbox.file("m/model.safetensors", file(&tensors));
    let (code, message, help) = refused(&sandbox, "m");
    assert_eq!(code, "companion");
    contains(&message, &["8-bit floats without a scale"]);
    contains(&help, &["weight_scale_inv", "BF16"]);
}

#[test]
fn what_mlx_needs_of_the_config_is_named() {
    let sandbox = Sandbox::new();
    let tensors = with_projections(|module, out, inner| {
        vec![
            raw(format!("{module}.weight"), Dtype::U32, &[out, inner / 8]),
            raw(format!("{module}.scales"), Dtype::BF16, &[out, inner / 64]),
            raw(format!("{module}.biases"), Dtype::BF16, &[out, inner / 64]),
        ]
    });
    sandbox.file("m/model.safetensors", file(&tensors));
    sandbox.file("m/config.json", config().to_string());
    let (code, message, _) = refused(&sandbox, "m");
    assert_eq!(code, "bad-config");
    contains(&message, &["config.json", "there is no quantization.{bits,group_size}"]);
    let mut told = config();
    told["quantization"] = json!({"bits": "4", "group_size": "64"});
    sandbox.file("m/config.json", told.to_string());
    contains(&refused(&sandbox, "m").1, &[r#"["4","64"]"#, "not whole numbers"]);
    told["quantization"] = json!({"bits": 4, "group_size": 64});
    sandbox.file("m/config.json", told.to_string());
    sandbox.lathe(&["create", "m", "m", "--dry-run"]).ok();
}

#[test]
fn a_damaged_blob_of_the_right_size_is_written_again() {
    let sandbox = Sandbox::new();
    sandbox.model("m");
    let create = ["create", "m", "m", "-q", "int4", "--no-smoke"];
    sandbox.lathe(&create).ok();
    contains(&sandbox.lathe(&create).ok(), &["unchanged", "nothing was written"]);
    let blobs: Vec<_> =
        fs::read_dir(sandbox.path("store/blobs")).unwrap().map(|e| e.unwrap().path()).collect();
    for blob in &blobs {
        let mut bytes = fs::read(blob).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(blob, bytes).unwrap();
    }
    assert_ne!(sandbox.lathe(&["verify"]).code, 0);
    contains(&sandbox.lathe(&create).ok(), &[&format!("{} blobs", blobs.len()), "written again"]);
    sandbox.lathe(&["verify"]).ok();
}

#[test]
fn a_whole_model_is_no_draft_without_its_embedding() {
    let sandbox = Sandbox::new();
    sandbox.model("m");
    let mut tensors = with_projections(|module, out, inner| {
        vec![raw(format!("{module}.weight"), Dtype::BF16, &[out, inner])]
    });
    sandbox.file("d/config.json", config().to_string());
    sandbox.file("d/model.safetensors", file(&tensors));
    sandbox.lathe(&["create", "t", "m", "--draft", "d", "--dry-run"]).ok();
    tensors.retain(|(name, ..)| !name.contains("embed_tokens"));
    sandbox.file("d/model.safetensors", file(&tensors));
    let outcome = sandbox.lathe(&["create", "t", "m", "--draft", "d", "-o", "json"]);
    let (code, message, _) = fault(&outcome);
    assert_eq!(code, "draft-misfit");
    contains(&message, &["embed_tokens.weight", "whole model"]);
}

#[test]
fn what_does_not_parse_is_sarif_too() {
    let sandbox = Sandbox::new();
    sandbox.file("bad.yaml", "name: p\nextends: base\nno_such_key: 1\n");
    sandbox.file("worse.yaml", "name: [\n");
    sandbox.file("found.yaml", "name: q\nextends: base\nsets:\n  unused: ['**.x.**']\n");
    let files = ["bad.yaml", "worse.yaml", "found.yaml"];
    let outcome = sandbox.lathe(&[&["policy", "lint", "-o", "sarif"], &files[..]].concat());
    assert_eq!(outcome.code, 1);
    let sarif: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(sarif["version"], "2.1.0");
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    let place = |result: &Value| {
        let place = &result["locations"][0]["physicalLocation"];
        (place["artifactLocation"]["uri"].to_string(), place["region"]["startLine"].as_u64())
    };
    let of = |rule: &str| {
        results.iter().filter(|result| result["ruleId"] == rule).map(place).collect::<Vec<_>>()
    };
    let syntax = of("policy-syntax");
    assert_eq!(syntax.len(), 2, "{results:?}");
    assert!(syntax[0].0.contains("bad.yaml") && syntax[0].1 == Some(3), "{syntax:?}");
    assert_eq!(of("unused-set").len(), 1);
    let rules = sarif["runs"][0]["tool"]["driver"]["rules"].as_array().unwrap();
    assert!(results.iter().all(|result| rules.iter().any(|rule| rule["id"] == result["ruleId"])));
}

#[test]
fn a_set_that_takes_the_place_of_an_inherited_one_is_used() {
    let sandbox = Sandbox::new();
    let base = sandbox.lathe(&["policy", "show", "base"]).ok();
    let yaml = "name: p\nextends: base\nsets:\n  vision: ['**.eyes.**']\n";
    assert!(base.contains("vision:"), "base has such a set, and rules that use it");
    sandbox.file("p.yaml", yaml);
    sandbox.lathe(&["policy", "lint", "p.yaml"]).ok();
    sandbox.file("p.yaml", yaml.replace("vision", "of_nobody"));
    assert_eq!(sandbox.lathe(&["policy", "lint", "p.yaml"]).code, 1);
}

/// Experts of which nothing but the number differs are explained once.
#[test]
fn explain_tells_of_experts_once() {
    let sandbox = Sandbox::new();
    let mut tensors = Vec::new();
    for (name, shape) in llama_tensors() {
        match name.strip_suffix("mlp.down_proj.weight") {
            Some(layer) => tensors.extend((0..12).map(|expert| {
                raw(format!("{layer}mlp.bank.{expert}.down_proj.weight"), Dtype::BF16, &shape)
            })),
            None => tensors.push(raw(name, Dtype::BF16, &shape)),
        }
    }
    sandbox.file("m/config.json", config().to_string());
    sandbox.file("m/model.safetensors", file(&tensors));
    let told = sandbox.lathe(&["policy", "explain", "m", "**.layers.0.**"]).ok();
    assert_eq!(told.matches("mlp.bank").count(), 1, "{told}");
    contains(&told, &["model.layers.0.mlp.bank.*.down_proj.weight", "12 alike"]);
    let scripts =
        sandbox.lathe(&["policy", "explain", "m", "**.layers.0.mlp.bank.**", "-o", "json"]);
    assert_eq!(scripts.json()["tensors"].as_array().unwrap().len(), 12);
}

#[test]
fn tables_keep_words_whole_at_any_width() {
    let sandbox = Sandbox::new();
    let folder = sandbox.model("m");
    sandbox.lathe(&["create", "some-model:with-a-tag", "m", "-q", "int4", "--no-smoke"]).ok();
    let folder = folder.to_str().unwrap();
    let tables: [&[&str]; 7] = [
        &["list"],
        &["show", "some-model:with-a-tag"],
        &["show", "some-model:with-a-tag", "--tensors"],
        &["show", "some-model:with-a-tag", "--quant"],
        &["create", "n", "m", "-q", "int4", "--dry-run"],
        &["plan", "diff", &format!("{folder}@int4"), &format!("{folder}@mxfp4")],
        &["policy", "list"],
    ];
    for table in tables {
        let at = |columns: &str| {
            let mut command = sandbox.command(table);
            let output = command.env("COLUMNS", columns).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let wide = at("1000");
        let known: std::collections::HashSet<&str> = wide.split_whitespace().collect();
        for columns in [40, 60, 80, 120] {
            let narrow = at(&columns.to_string());
            for line in narrow
                .lines()
                .filter(|line| !line.contains("warning [") && !line.contains("note ["))
            {
                let words: Vec<&str> = line.split_whitespace().collect();
                let broken = words.iter().find(|word| !known.contains(*word));
                assert!(broken.is_none(), "{table:?} at {columns}: {broken:?} in\n{narrow}");
                // A line is longer only for a word that is.
                let room = words.iter().map(|word| word.chars().count()).max().unwrap_or(0) + 24;
                let length = line.chars().count();
                let plain = table[0] == "create" || table[0] == "plan";
                assert!(plain || length <= columns.max(room), "{table:?} at {columns}: {line}");
            }
        }
    }
}

#[test]
fn words_that_are_the_fields() {
    let sandbox = Sandbox::new();
    sandbox.model("m");
    let gone = sandbox.lathe(&["show", "gone"]);
    assert!(!gone.stderr.contains("store store"), "{}", gone.stderr);
    contains(&gone.stderr.split_whitespace().collect::<Vec<_>>().join(" "), &["in the store at"]);
}
