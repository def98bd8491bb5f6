//! Tiny model folders, and the program to try on them.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::{Map, Value, json};

/// A folder of its own for each test: models, Modelfiles and a store.
pub struct Sandbox {
    dir: tempfile::TempDir,
}

/// What a run of the program gave.
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        Sandbox { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file, and the folders above it.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// A llama of two layers whose weights follow a fixed pattern.
    pub fn model(&self, name: &str) -> PathBuf {
        self.file(&format!("{name}/config.json"), config().to_string());
        self.file(&format!("{name}/model.safetensors"), safetensors(&llama_tensors()));
        self.file(
            &format!("{name}/tokenizer_config.json"),
            r#"{"chat_template":"{{ messages }}"}"#,
        );
        self.file(&format!("{name}/generation_config.json"), "{}");
        self.path(name)
    }

    /// Gives a model folder a vocabulary whose words are t0, t1, ….
    pub fn vocabulary(&self, name: &str) -> PathBuf {
        let vocabulary: Map<String, Value> =
            (0..512).map(|id| (format!("t{id}"), id.into())).collect();
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": [],
            "normalizer": null,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": null,
            "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
        });
        self.file(&format!("{name}/tokenizer.json"), tokenizer.to_string())
    }

    /// The same llama as transformers writes it in FP8, with blocks of 32 whose factors `scale`
    /// gives by tensor and number.
    pub fn fp8_model(&self, name: &str, scale: impl Fn(&str, usize) -> f32) -> PathBuf {
        self.model(name);
        let mut tensors = Vec::new();
        for (tensor, shape) in llama_tensors() {
            let elements = shape.iter().product();
            if !tensor.contains("_proj") {
                tensors.push((tensor, safetensors::Dtype::BF16, shape, vec![0x3c; elements * 2]));
                continue;
            }
            let blocks: Vec<usize> = shape.iter().map(|axis| axis.div_ceil(32)).collect();
            let factors = format!("{tensor}_scale_inv");
            let bytes = (0..blocks.iter().product())
                .flat_map(|number| scale(&factors, number).to_le_bytes())
                .collect();
            let codes = (0..elements).map(|at| (at * 37 % 0x70) as u8).collect();
            tensors.push((tensor, safetensors::Dtype::F8_E4M3, shape, codes));
            tensors.push((factors, safetensors::Dtype::F32, blocks, bytes));
        }
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let file = safetensors::serialize(views, None).unwrap();
        self.file(&format!("{name}/model.safetensors"), file);
        self.fp8_config(name, [32, 32]);
        self.path(name)
    }

    /// Writes its config, with blocks of this size.
    pub fn fp8_config(&self, name: &str, block: [u64; 2]) {
        let mut config = config();
        config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": block});
        self.file(&format!("{name}/config.json"), config.to_string());
    }

    /// A llama of eight layers and 44 MB of noise: it takes a while, so that things can happen
    /// meanwhile.
    pub fn larger_model(&self, name: &str) -> PathBuf {
        let mut config = config();
        for (key, value) in
            [("num_hidden_layers", 8), ("hidden_size", 512), ("intermediate_size", 1024)]
        {
            config[key] = value.into();
        }
        self.file(&format!("{name}/config.json"), config.to_string());
        self.file(&format!("{name}/tokenizer.json"), "{}");
        let mut tensors = vec![("model.embed_tokens.weight".to_string(), vec![8192, 512])];
        for layer in 0..8 {
            for (name, shape) in [
                ("self_attn.q_proj", vec![512, 512]),
                ("self_attn.k_proj", vec![128, 512]),
                ("self_attn.v_proj", vec![128, 512]),
                ("self_attn.o_proj", vec![512, 512]),
                ("mlp.gate_proj", vec![1024, 512]),
                ("mlp.up_proj", vec![1024, 512]),
                ("mlp.down_proj", vec![512, 1024]),
            ] {
                tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
            }
        }
        let mut state = 1u32;
        let file = safetensors_of(&tensors, |_, _| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Between 2^-8 and 1, of either sign.
            ((state >> 16) & 0x8000) as u16 | (0x3b80 + ((state >> 20) & 0x3ff) as u16)
        });
        self.file(&format!("{name}/model.safetensors"), file);
        self.path(name)
    }

    /// The command `lathe` in the sandbox, with the sandbox's own store, to be run in any way.
    pub fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lathe"));
        command
            .current_dir(self.dir.path())
            .env("LATHE_STORE", self.path("store"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("NO_COLOR", "1")
            .args(args);
        command
    }

    /// Runs lathe in the sandbox, with the sandbox's own store.
    pub fn lathe(&self, args: &[&str]) -> Outcome {
        self.lathe_with(args, "")
    }

    pub fn lathe_with(&self, args: &[&str], stdin: &str) -> Outcome {
        let output = Command::from_std(self.command(args)).write_stdin(stdin).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Outcome {
            code: output.status.code().unwrap(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Files of the store without its lock, relative, sorted.
    pub fn stored(&self) -> Vec<String> {
        let root = self.path("store");
        let mut found = Vec::new();
        below(&root, &mut found);
        let mut found: Vec<_> = found
            .iter()
            .map(|path| path.strip_prefix(&root).unwrap().display().to_string())
            .filter(|name| name != "lathe.lock")
            .collect();
        found.sort();
        found
    }
}

impl Outcome {
    /// The run's standard output, when it went well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// The same, as JSON.
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// Standard output as JSON, one value a line, however the run went.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The last of the events of a run that went well.
    #[track_caller]
    pub fn result(self) -> Value {
        let last = self.events().pop();
        self.ok();
        last.unwrap()
    }
}

fn below(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() { below(&entry.path(), out) } else { out.push(entry.path()) }
    }
}

pub fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 96, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true
    })
}

/// Names and shapes of the tiny llama.
pub fn llama_tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![("model.embed_tokens.weight".to_string(), vec![96, 64])];
    for layer in 0..2 {
        let mut add = |name: &str, shape: &[usize]| {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        };
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(&format!("self_attn.{name}"), &[64, 64]);
        }
        add("mlp.gate_proj", &[128, 64]);
        add("mlp.up_proj", &[128, 64]);
        add("mlp.down_proj", &[64, 128]);
        add("input_layernorm", &[64]);
        add("post_attention_layernorm", &[64]);
    }
    tensors.push(("model.norm.weight".to_string(), vec![64]));
    tensors
}

/// A safetensors file of these BF16 tensors, in a pattern.
pub fn safetensors(tensors: &[(String, Vec<usize>)]) -> Vec<u8> {
    safetensors_of(tensors, |name, i| {
        // A pattern that differs from tensor to tensor and has both signs.
        let value = ((i * 37 + name.len() * 11) % 101) as f32 / 50.0 - 1.0;
        (value.to_bits() >> 16) as u16
    })
}

/// A safetensors file of these BF16 tensors, each element's bits from its tensor's name and index.
pub fn safetensors_of(
    tensors: &[(String, Vec<usize>)],
    mut bits: impl FnMut(&str, usize) -> u16,
) -> Vec<u8> {
    let mut header = Map::new();
    let mut data = Vec::new();
    for (name, shape) in tensors {
        let begin = data.len();
        for i in 0..shape.iter().product::<usize>() {
            data.extend_from_slice(&bits(name, i).to_le_bytes());
        }
        header.insert(
            name.clone(),
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()]}),
        );
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}
