//! Folders that MLX's tools and lathe's own export wrote, and what Ollama's importer stored.
//!
//! The models are the tiny ones of `tests/decoder`, whose greedy continuation by `transformers` is
//! known; here they are laid out as other programs do it.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use safetensors::serialize;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::architectures::{Tensors, Tiny, models, read};
use super::common::Sandbox;

type Tensor = (Dtype, Vec<usize>, Vec<u8>);

fn bytes_of(tensors: &Tensors, metadata: &[(&str, &str)]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    serialize(views, Some(metadata)).unwrap()
}

/// Writes a model whose files say whose arrays they hold.
fn write(tiny: &Tiny, sandbox: &Sandbox, name: &str, format: &str) {
    tiny.write(sandbox, name);
    let bytes = bytes_of(&tiny.tensors, &[("format", format)]);
    sandbox.file(&format!("{name}/model.safetensors"), bytes);
}

/// Stacks what single experts have, `….experts.3.x` becoming `….experts.x`.
fn stack_experts(tensors: &mut Tensors) {
    let mut stacks = BTreeMap::<String, BTreeMap<usize, Tensor>>::new();
    let apart: Vec<String> =
        tensors.keys().filter(|name| expert(name).is_some()).cloned().collect();
    for name in apart {
        let (stacked, number) = expert(&name).unwrap();
        stacks.entry(stacked).or_default().insert(number, tensors.remove(&name).unwrap());
    }
    for (name, experts) in stacks {
        let (dtype, shape, _) = experts[&0].clone();
        let shape = [vec![experts.len()], shape].concat();
        let bytes = experts.into_values().flat_map(|(.., bytes)| bytes).collect();
        tensors.insert(name, (dtype, shape, bytes));
    }
}

fn expert(name: &str) -> Option<(String, usize)> {
    let (group, rest) = name.split_once(".experts.")?;
    let (number, rest) = rest.split_once('.')?;
    Some((format!("{group}.experts.{rest}"), number.parse().ok()?))
}

fn replace(tensors: &mut Tensors, old: &str, new: &str) {
    let renamed = |(name, tensor): (String, Tensor)| (name.replace(old, new), tensor);
    *tensors = std::mem::take(tensors).into_iter().map(renamed).collect();
}

/// Channels last, `[channels, 1, kernel]` becoming `[channels, kernel, 1]`.
fn channels_last(tensors: &mut Tensors) {
    for (name, (_, shape, _)) in tensors.iter_mut().filter(|(name, _)| name.contains("conv")) {
        if let [_, 1, _] = shape.as_slice() {
            shape.swap(1, 2);
            assert!(name.ends_with(".weight"));
        }
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let number = |bytes: &[u8; 2]| half::bf16::from_le_bytes(*bytes).to_f32();
    bytes.as_chunks::<2>().0.iter().map(number).collect()
}

fn bf16(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect()
}

/// What of a `[heads, in, out]` or `[…, rows, columns]` tensor is taken, in a new order of axes.
fn picked(tensor: &Tensor, shape: [usize; 3], at: impl Fn([usize; 3]) -> usize) -> Tensor {
    let size = tensor.2.len() / tensor.1.iter().product::<usize>();
    let mut bytes = Vec::new();
    for a in 0..shape[0] {
        for b in 0..shape[1] {
            for c in 0..shape[2] {
                let from = at([a, b, c]) * size;
                bytes.extend_from_slice(&tensor.2[from..from + size]);
            }
        }
    }
    (tensor.0, shape.to_vec(), bytes)
}

/// kv_b_proj as mlx-lm splits it.
fn split_latent(tiny: &mut Tiny) {
    let size = |key: &str| tiny.config[key].as_u64().unwrap() as usize;
    let heads = size("num_attention_heads");
    let [nope, values, rank] = [size("qk_nope_head_dim"), size("v_head_dim"), size("kv_lora_rank")];
    let whole: Vec<String> =
        tiny.tensors.keys().filter(|name| name.contains("kv_b_proj")).cloned().collect();
    assert_eq!(whole.len(), 2);
    for name in whole {
        let tensor = tiny.tensors.remove(&name).unwrap();
        let of =
            |head: usize, row: usize, column: usize| (head * (nope + values) + row) * rank + column;
        let keys = picked(&tensor, [heads, rank, nope], |[h, r, n]| of(h, n, r));
        let out = picked(&tensor, [heads, values, rank], |[h, v, r]| of(h, nope + v, r));
        tiny.tensors.insert(name.replace("kv_b_proj", "embed_q"), keys);
        tiny.tensors.insert(name.replace("kv_b_proj", "unembed_out"), out);
    }
}

/// gpt-oss' experts as mlx-lm has them: gate and up apart, `[experts, out, in]`, biases called so.
fn split_gpt_oss(tensors: &mut Tensors) {
    for layer in 0..2 {
        let experts = format!("model.layers.{layer}.mlp.experts");
        let gate_up = tensors.remove(&format!("{experts}.gate_up_proj")).unwrap();
        let bias = tensors.remove(&format!("{experts}.gate_up_proj_bias")).unwrap();
        let [count, hidden, both] = gate_up.1[..] else { panic!("{:?}", gate_up.1) };
        for (half, name) in ["gate_proj", "up_proj"].into_iter().enumerate() {
            let matrix = picked(&gate_up, [count, both / 2, hidden], |[e, out, input]| {
                (e * hidden + input) * both + 2 * out + half
            });
            tensors.insert(format!("{experts}.{name}.weight"), matrix);
            let (dtype, _, bytes) =
                picked(&bias, [count, both / 2, 1], |[e, out, _]| e * both + 2 * out + half);
            tensors.insert(format!("{experts}.{name}.bias"), (dtype, vec![count, both / 2], bytes));
        }
        let down = tensors.remove(&format!("{experts}.down_proj")).unwrap();
        let [_, inner, _] = down.1[..] else { panic!("{:?}", down.1) };
        let turned = picked(&down, [count, hidden, inner], |[e, out, input]| {
            (e * inner + input) * hidden + out
        });
        tensors.insert(format!("{experts}.down_proj.weight"), turned);
        let bias = tensors.remove(&format!("{experts}.down_proj_bias")).unwrap();
        tensors.insert(format!("{experts}.down_proj.bias"), bias);
    }
}

/// A tiny model as mlx-lm 0.32.2 converts it.
fn converted(name: &str) -> Tiny {
    let mut tiny = Tiny::new(name);
    stack_experts(&mut tiny.tensors);
    channels_last(&mut tiny.tensors);
    let tensors = &mut tiny.tensors;
    match name {
        "deepseek_v3" | "glm4_moe_lite" => split_latent(&mut tiny),
        "gpt_oss" => split_gpt_oss(tensors),
        "laguna" => {
            replace(tensors, ".mlp.gate.weight", ".mlp.gate.proj.weight");
            replace(tensors, ".experts.e_score_", ".gate.e_score_");
        }
        "lfm2_moe" | "minimax_m2" => {
            for (old, new) in
                [(".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj.")]
            {
                replace(tensors, old, new);
            }
        }
        "nemotron_h" => {
            replace(tensors, ".experts.up_proj.", ".switch_mlp.fc1.");
            replace(tensors, ".experts.down_proj.", ".switch_mlp.fc2.");
        }
        "gemma4_moe" => {
            for layer in 0..2 {
                let experts = format!("model.layers.{layer}.experts");
                let both = tensors.remove(&format!("{experts}.gate_up_proj")).unwrap();
                let [count, rows, columns] = both.1[..] else { panic!("{:?}", both.1) };
                for (half, name) in ["gate_proj", "up_proj"].into_iter().enumerate() {
                    let part = picked(&both, [count, rows / 2, columns], |[e, row, column]| {
                        (e * rows + half * rows / 2 + row) * columns + column
                    });
                    tensors.insert(format!("{experts}.switch_glu.{name}.weight"), part);
                }
                let down = tensors.remove(&format!("{experts}.down_proj")).unwrap();
                tensors.insert(format!("{experts}.switch_glu.down_proj.weight"), down);
            }
        }
        _ => {}
    }
    if !matches!(name, "gpt_oss" | "gemma4_moe") {
        replace(&mut tiny.tensors, ".experts.", ".switch_mlp.");
    }
    tiny
}

/// mlx-lm's own converted folders of these models give the same tokens in mlx-lm, too.
#[test]
fn folders_that_mlx_lm_wrote_run() {
    for name in [
        "deepseek_v3",
        "gemma4_moe",
        "glm4_moe",
        "glm4_moe_lite",
        "gpt_oss",
        "laguna",
        "lfm2_moe",
        "minimax_m2",
        "nemotron_h",
        "qwen3_moe",
    ] {
        let (sandbox, tiny) = (Sandbox::new(), converted(name));
        write(&tiny, &sandbox, name, "mlx");
        sandbox.lathe(&["create", "m", name, "--no-smoke", "--quiet"]).ok();
        tiny.runs(&sandbox, name);
    }
}

/// Adds the 1 to norms as mlx-lm does it, in BF16.
fn shift_norms(tensors: &mut Tensors) {
    let shifted = [".input_layernorm.", ".post_attention_layernorm.", ".q_norm.", ".k_norm."];
    let mut count = 0;
    for (name, (_, _, bytes)) in tensors.iter_mut() {
        if shifted.iter().any(|part| name.contains(part)) || name == "model.norm.weight" {
            *bytes = bf16(floats(bytes).into_iter().map(|weight| weight + 1.0));
            count += 1;
        }
    }
    assert_eq!(count, 11);
}

/// Two architectures whose norms mlx-lm changes. Rounding 1 + w to BF16 changes these tiny
/// models' answers: the tokens are mlx-lm 0.32.2's, in float32 on the CPU.
#[test]
fn norms_that_mlx_lm_changed_are_not_changed_again() {
    for (name, greedy) in [
        ("qwen3_5", [25, 30, 31, 12, 1, 84, 72, 55, 90, 1, 14, 21, 39, 51, 51, 51]),
        ("qwen3_next", [95, 40, 64, 12, 38, 34, 69, 61, 54, 64, 72, 75, 77, 38, 84, 25]),
    ] {
        let (sandbox, mut tiny) = (Sandbox::new(), converted(name));
        shift_norms(&mut tiny.tensors);
        tiny.greedy = greedy.to_vec();
        write(&tiny, &sandbox, name, "mlx");
        sandbox.lathe(&["create", "m", name, "--no-smoke", "--quiet"]).ok();
        tiny.runs(&sandbox, name);
    }
}

/// The layout of a conversion without any mark of the converter proves nothing of the values.
#[test]
fn norms_that_may_be_changed_are_refused() {
    let (sandbox, mut tiny) = (Sandbox::new(), converted("qwen3_5"));
    write(&tiny, &sandbox, "unmarked", "pt");
    let refused = sandbox.lathe(&["create", "m", "unmarked", "--no-smoke"]);
    assert_eq!(refused.code, 1);
    for word in ["conv1d", "mlx-lm", "`quantization`", "norms", "publisher's own folder"] {
        assert!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
    }
    let conv = tiny.tensors.get_mut("model.layers.0.linear_attn.conv1d.weight").unwrap();
    conv.1.swap(1, 2);
    write(&tiny, &sandbox, "mixed", "mlx");
    sandbox.lathe(&["create", "m", "mixed", "--no-smoke"]);
    let refused = sandbox.lathe(&["run", "m", "--raw", "t1", "-n", "1"]);
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("mixture"), "{}", refused.stderr);
}

fn names() -> Vec<String> {
    let folders = fs::read_dir(models()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = folders
        .filter(|path| path.is_dir())
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        // It has no policy here.
        .filter(|name| name != "mixtral")
        .collect();
    names.sort();
    names
}

fn tokens(sandbox: &Sandbox, model: &str, tiny: &Tiny) -> Value {
    let prompt: Vec<String> = tiny.prompt.iter().map(|id| format!("t{id}")).collect();
    let prompt = prompt.join(" ");
    let run = ["run", model, "--raw", &prompt, "-n", "16", "--temperature", "0", "-o", "json"];
    sandbox.lathe(&run).json()["tokens"].clone()
}

/// create, export, create: the same answers.
fn round_trips(format: &[&str]) {
    let names = names();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let (sandbox, tiny) = (Sandbox::new(), Tiny::new(&name));
        tiny.write(&sandbox, &name);
        let create = ["create", "first", &name, "--no-smoke", "--quiet"];
        sandbox.lathe(&[&create, format].concat()).ok();
        let before = tokens(&sandbox, "first", &tiny);
        sandbox.lathe(&["export", "first", "out", "--as", "mlx-lm"]).ok();
        sandbox.lathe(&["create", "second", "out", "--no-smoke", "--quiet"]).ok();
        assert_eq!(tokens(&sandbox, "second", &tiny), before, "{name} {format:?}");
        if format.is_empty() {
            sandbox.lathe(&["cp", "second", "m"]).ok();
            tiny.runs(&sandbox, &name);
        }
    }
}

#[test]
fn what_export_writes_is_read_again() {
    round_trips(&[]);
}

/// Groups of 32, so that these small tensors are quantized.
#[test]
fn what_export_writes_of_quantized_models_is_read_again() {
    round_trips(&["-q", "int8-g32"]);
}

/// Takes the stacked tensors of a model's blobs apart, as Ollama's importer stores experts: one
/// blob for a group, a tensor with its companions for each expert.
fn take_apart(sandbox: &Sandbox, model: &str, change: impl Fn(&mut Tensors)) -> usize {
    let store = sandbox.path("store");
    let path = store.join(format!("manifests/registry.ollama.ai/library/{model}/latest"));
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut count = 0;
    for layer in manifest["layers"].as_array_mut().unwrap() {
        let name = layer["name"].as_str().unwrap_or_default().to_string();
        if !name.contains(".experts") {
            continue;
        }
        let blob = |digest: &str| store.join("blobs").join(digest.replace(':', "-"));
        let old = fs::read(blob(layer["digest"].as_str().unwrap())).unwrap();
        let (_, header) = safetensors::SafeTensors::read_metadata(&old).unwrap();
        let metadata = header.metadata().clone().unwrap_or_default();
        let metadata: Vec<(&str, &str)> =
            metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let mut apart = Tensors::new();
        for (name, (dtype, shape, bytes)) in read(&blob(layer["digest"].as_str().unwrap())) {
            let (group, rest) = name.split_once(".experts.").unwrap();
            let each = bytes.len() / shape[0];
            for (number, bytes) in bytes.chunks(each).enumerate() {
                let tensor = (dtype, shape[1..].to_vec(), bytes.to_vec());
                apart.insert(format!("{group}.experts.{number}.{rest}"), tensor);
            }
        }
        change(&mut apart);
        let bytes = bytes_of(&apart, &metadata);
        let digest: String =
            Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        layer["digest"] = format!("sha256:{digest}").into();
        layer["size"] = bytes.len().into();
        fs::write(store.join(format!("blobs/sha256-{digest}")), &bytes).unwrap();
        count += 1;
    }
    fs::write(&path, manifest.to_string()).unwrap();
    count
}

#[test]
fn experts_that_are_stored_one_by_one_run() {
    for name in ["deepseek_v3", "glm4_moe_lite", "nemotron_h", "qwen3_5_moe"] {
        let (sandbox, tiny) = (Sandbox::new(), Tiny::new(name));
        tiny.write(&sandbox, name);
        sandbox.lathe(&["create", "m", name, "--no-smoke", "--quiet"]).ok();
        assert!(take_apart(&sandbox, "m", |_| ()) > 0);
        tiny.runs(&sandbox, name);
        // What is exported is stacked again.
        sandbox.lathe(&["export", "m", "out"]).ok();
        sandbox.lathe(&["create", "m", "out", "--no-smoke", "--quiet"]).ok();
        tiny.runs(&sandbox, name);
    }
}

/// Global scales of single experts: doubled scales with a global scale of a half are the same
/// weights.
#[test]
fn global_scales_of_single_experts_count() {
    for name in ["glm4_moe_lite", "nemotron_h", "qwen3_5_moe"] {
        let (sandbox, tiny) = (Sandbox::new(), Tiny::new(name));
        tiny.write(&sandbox, name);
        sandbox.lathe(&["create", "m", name, "-q", "nvfp4", "--no-smoke", "--quiet"]).ok();
        let stacked = tokens(&sandbox, "m", &tiny);
        let with_global = |tensors: &mut Tensors| {
            let scales: Vec<String> =
                tensors.keys().filter(|name| name.ends_with(".scale")).cloned().collect();
            for name in scales {
                let (_, shape, bytes) = tensors.get_mut(&name).unwrap();
                assert!(shape[1] <= 2, "{name} {shape:?}");
                for scale in bytes {
                    // E4M3, doubled: denormals are spaced as the least normals are.
                    *scale = if *scale < 8 { 2 * *scale } else { *scale + 8 };
                    assert!(*scale < 0x7f, "it overflows");
                }
                let global = (Dtype::F32, vec![], 0.5_f32.to_le_bytes().to_vec());
                tensors.insert(name.replace(".scale", ".global_scale"), global);
            }
        };
        assert!(take_apart(&sandbox, "m", with_global) > 0);
        assert_eq!(tokens(&sandbox, "m", &tiny), stacked, "{name}");
    }
}

/// Experts `[experts, in, out / 2]` are read as they stand; `down_proj` of the tiny model is told
/// by its sides and `gate_up_proj`, whose sides are equal, by it.
#[test]
fn modelopts_gpt_oss_is_read_as_it_stands() {
    let (sandbox, mut tiny) = (Sandbox::new(), Tiny::new("gpt_oss"));
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/found/modelopt-gpt-oss");
    tiny.tensors.extend(read(&found.join("experts.safetensors")));
    tiny.config["quantization_config"] = json!({"quant_method": "modelopt", "quant_algo": "MXFP4", "producer": {"name": "modelopt"}});
    tiny.greedy = vec![12, 8, 62, 59, 95, 43, 62, 43, 54, 2];
    tiny.write(&sandbox, "folder");
    sandbox.lathe(&["create", "m", "folder", "--no-smoke", "--quiet"]).ok();
    tiny.runs(&sandbox, "folder");
    sandbox.lathe(&["export", "m", "out"]).ok();
    sandbox.lathe(&["create", "m", "out", "--no-smoke", "--quiet"]).ok();
    tiny.runs(&sandbox, "exported");

    // Without sizes in the config nothing proves a reading.
    tiny.config.as_object_mut().unwrap().remove("intermediate_size");
    tiny.write(&sandbox, "unproven");
    let refused = sandbox.lathe(&["create", "n", "unproven", "--no-smoke"]);
    assert_eq!(refused.code, 1);
    for word in ["[.., out, in]", "[.., in, out]", "gate_up_proj", "down_proj"] {
        assert!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
    }
}

/// Gemma 4's router has a tensor called `scale`.
#[test]
fn tensors_named_like_companions_are_tensors() {
    let (sandbox, mut tiny) = (Sandbox::new(), Tiny::new("gemma4_moe"));
    for name in ["x.scale", "x.bias", "x.global_scale", "y.scales", "y.biases", "z.scale", "z"] {
        let tensor = (Dtype::BF16, vec![4], vec![0x3f; 8]);
        tiny.tensors.insert(format!("model.audio_tower.{name}"), tensor);
    }
    tiny.write(&sandbox, "folder");
    for format in [&[][..], &["-q", "int8-g32"]] {
        let create = ["create", "m", "folder", "--no-smoke", "--quiet"];
        sandbox.lathe(&[&create, format].concat()).ok();
        sandbox.lathe(&["verify", "m"]).ok();
        sandbox.lathe(&["show", "m", "--quant"]).ok();
        let shown = sandbox.lathe(&["show", "m", "--tensors"]).ok();
        let all = ["layers.0.router.scale", "tower.x.scale", "tower.x.global_scale", "y.scales"];
        for name in all.into_iter().chain(["tower.x.bias", "y.biases", "tower.z.scale"]) {
            let line = shown.lines().find(|line| line.contains(name));
            let line = line.unwrap_or_else(|| panic!("{name}: {shown}"));
            assert!(line.contains("source") && line.contains("BF16"), "{line}");
        }
        fs::remove_dir_all(sandbox.path("out")).ok();
        sandbox.lathe(&["export", "m", "out"]).ok();
        let exported = read(&sandbox.path("out/model.safetensors"));
        for (name, tensor) in &tiny.tensors {
            if name.ends_with(".scale") || name.contains("audio_tower") {
                assert_eq!(exported.get(name), Some(tensor), "{name}");
            }
        }
        sandbox.lathe(&["create", "m", "out", "--no-smoke", "--quiet"]).ok();
        tiny.runs(&sandbox, "folder");
    }
}

/// What mlx-lm asks for by name comes from the policy: the model's own, or that of a folder.
#[test]
fn an_export_reads_a_policy_of_the_users() {
    let sandbox = Sandbox::new();
    let mut tiny = Tiny::new("llama");
    for key in ["rope_theta", "rope_scaling", "rope_parameters"] {
        tiny.config.as_object_mut().unwrap().remove(key);
    }
    tiny.write(&sandbox, "folder");
    sandbox.lathe(&["create", "m", "folder", "--no-smoke"]).ok();
    let llama = include_str!("../../policies/architectures/llama.yaml");
    let other = llama.replace("rope_theta: 10000.0", "rope_theta: 12345.0");
    assert_ne!(llama, other);
    sandbox.file("mine/llama.yaml", other);
    let theta = |out: &str, more: &[&str]| {
        sandbox.lathe(&[&["export", "m", out][..], more].concat()).ok();
        let config = fs::read(sandbox.path(out).join("config.json")).unwrap();
        serde_json::from_slice::<Value>(&config).unwrap()["rope_theta"].clone()
    };
    assert_eq!(theta("own", &[]), 10000.0);
    assert_eq!(theta("theirs", &["--policy-dir", "mine"]), 12345.0);
}

/// What mlx-lm is known to compute otherwise is told by an export, and only there.
#[test]
fn an_export_tells_what_mlx_lm_does_not_read() {
    for (name, told) in [("gpt_oss", true), ("llama_yarn", false)] {
        let sandbox = Sandbox::new();
        Tiny::new(name).write(&sandbox, "folder");
        sandbox.lathe(&["create", "m", "folder", "--no-smoke"]).ok();
        let exported = sandbox.lathe(&["export", "m", "out", "-o", "json"]).json();
        let warnings = exported["warnings"].to_string();
        assert_eq!(warnings.contains("mlx-lm does not read `truncate`"), told, "{warnings}");
    }
}
