//! What published checkpoints and configs of each architecture carry, or leave out.
//!
//! The models are the tiny ones of `tests/decoder`, whose greedy continuation by `transformers` is
//! known. Whatever is added to one here is what `transformers` passes over, so the answer stays.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde_json::{Map, Value, json};

use super::common::{Outcome, Sandbox};

pub(super) type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// One of the tiny models, to be changed before it is written.
pub(super) struct Tiny {
    pub config: Value,
    pub tensors: Tensors,
    pub prompt: Vec<i32>,
    pub greedy: Vec<i32>,
}

pub(super) fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder/models")
}

pub(super) fn read(path: &Path) -> Tensors {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let owned = |(name, view): (String, TensorView)| {
        (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    file.tensors().into_iter().map(owned).collect()
}

impl Tiny {
    pub fn new(name: &str) -> Tiny {
        let config = fs::read(models().join(name).join("config.json")).unwrap();
        let reference = read(&models().join(format!("{name}.ref.safetensors")));
        let ids = |name: &str| {
            let (words, _) = reference[name].2.as_chunks::<4>();
            words.iter().map(|word| i32::from_le_bytes(*word)).collect()
        };
        Tiny {
            config: serde_json::from_slice(&config).unwrap(),
            tensors: read(&models().join(name).join("model.safetensors")),
            prompt: ids("input_ids"),
            greedy: ids("greedy"),
        }
    }

    /// Adds a tensor of this shape, of a number that would be seen in the answer.
    fn add(&mut self, name: &str, shape: &[usize]) {
        let one_and_a_half = 0x3fc0_u16.to_le_bytes();
        let bytes = one_and_a_half.repeat(shape.iter().product());
        self.tensors.insert(name.into(), (Dtype::BF16, shape.into(), bytes));
    }

    /// Renames by what names begin with; the first that fits.
    pub fn rename(&mut self, beginnings: &[(&str, &str)]) {
        let new = |name: String| {
            let fits =
                beginnings.iter().find_map(|(old, new)| Some((name.strip_prefix(old)?, new)));
            fits.map_or(name.clone(), |(rest, new)| format!("{new}{rest}"))
        };
        self.tensors =
            std::mem::take(&mut self.tensors).into_iter().map(|(n, t)| (new(n), t)).collect();
    }

    pub fn write(&self, sandbox: &Sandbox, name: &str) {
        sandbox.file(&format!("{name}/config.json"), self.config.to_string());
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        sandbox.file(&format!("{name}/model.safetensors"), serialize(views, None).unwrap());
        let words: Map<String, Value> = (0..512).map(|id| (format!("t{id}"), id.into())).collect();
        let tokenizer = json!({
            "version": "1.0", "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
        });
        sandbox.file(&format!("{name}/tokenizer.json"), tokenizer.to_string());
    }

    /// What `create` said, and that the model answers as `transformers` does.
    #[track_caller]
    fn answers(&self, sandbox: &Sandbox, name: &str) -> String {
        self.write(sandbox, name);
        let created = sandbox.lathe(&["create", "m", name]);
        assert_eq!(created.code, 0, "{name}: {}", created.stderr);
        self.runs(sandbox, name);
        created.stderr
    }

    #[track_caller]
    pub fn runs(&self, sandbox: &Sandbox, name: &str) {
        let prompt: Vec<String> = self.prompt.iter().map(|id| format!("t{id}")).collect();
        let run = ["run", "m", "--raw", &prompt.join(" "), "-n", "16", "--temperature", "0"];
        let outcome: Outcome = sandbox.lathe(&[&run[..], &["-o", "json"]].concat());
        assert_eq!(outcome.code, 0, "{name}: {}{}", outcome.stdout, outcome.stderr);
        let ends = match &self.config["eos_token_id"] {
            Value::Array(ids) => ids.clone(),
            id => vec![id.clone()],
        };
        let end = self.greedy.iter().position(|id| ends.contains(&json!(id)));
        let wanted = &self.greedy[..end.unwrap_or(self.greedy.len())];
        assert_eq!(outcome.json()["tokens"], json!(wanted), "{name}");
    }
}

#[track_caller]
fn answers(name: &str, change: impl FnOnce(&mut Tiny)) -> String {
    let mut tiny = Tiny::new(name);
    change(&mut tiny);
    tiny.answers(&Sandbox::new(), name)
}

/// The tower and projector of each architecture that is published with one, by their published
/// names, and the heads that predict further tokens.
const CARRIED: &[(&str, &[&str])] = &[
    (
        "gemma3",
        &[
            "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight",
            "vision_tower.vision_model.embeddings.position_embedding.weight",
            "multi_modal_projector.mm_input_projection_weight",
            "model.vision_tower.vision_model.post_layernorm.weight",
        ],
    ),
    (
        "gemma4_moe",
        &[
            "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight",
            "model.vision_tower.std_bias",
            "model.vision_tower.patch_embedder.position_embedding_table",
            "model.embed_vision.embedding_projection.weight",
            "model.vision_embedder.patch_dense.weight",
            "model.audio_tower.layers.0.feed_forward1.ffw_layer_1.input_max",
            "model.embed_audio.embedding_projection.weight",
        ],
    ),
    (
        "ministral3",
        &[
            "vision_tower.patch_conv.weight",
            "multi_modal_projector.linear_1.weight",
            "vision_tower.transformer.layers.0.attention.q_proj.weight",
            "multi_modal_projector.patch_merger.merging_layer.weight",
        ],
    ),
    (
        "qwen3_5",
        &[
            "model.visual.blocks.0.attn.qkv.weight",
            "model.visual.merger.norm.bias",
            "mtp.fc.weight",
            "mtp.layers.0.self_attn.q_proj.weight",
            "mtp.norm.weight",
        ],
    ),
    (
        "qwen3_5_moe",
        &[
            "model.visual.pos_embed.weight",
            "mtp.layers.0.mlp.experts.gate_up_proj",
            "mtp.layers.0.mlp.gate.weight",
            "mtp.pre_fc_norm_hidden.weight",
        ],
    ),
    (
        "qwen3_next",
        &[
            "mtp.fc.weight",
            "mtp.layers.0.mlp.shared_expert_gate.weight",
            "mtp.pre_fc_norm_embedding.weight",
        ],
    ),
    (
        "nemotron_h",
        &[
            "mtp.layers.0.eh_proj.weight",
            "mtp.layers.0.mixer.q_proj.weight",
            "vision_model.radio_model.model.blocks.0.attn.qkv.weight",
            "mlp1.1.weight",
            "sound_encoder.encoder.layers.0.conv.pointwise_conv1.weight",
            "sound_projection.linear1.weight",
        ],
    ),
];

#[test]
fn towers_projectors_and_further_heads_are_passed_over() {
    for (name, carried) in CARRIED {
        answers(name, |tiny| carried.iter().for_each(|tensor| tiny.add(tensor, &[32, 32])));
    }
}

/// Old checkpoints carry the tables of rotary positions, one for each layer or one for all.
#[test]
fn rotary_tables_are_passed_over() {
    let rotating = [
        "cohere2_moe",
        "deepseek_v3",
        "gemma2",
        "gemma3",
        "gemma4_moe",
        "glm4_moe",
        "glm4_moe_lite",
        "gpt_oss",
        "laguna",
        "lfm2",
        "lfm2_moe",
        "llama",
        "minimax_m2",
        "ministral3",
        "mistral",
        "qwen2",
        "qwen3",
        "qwen3_5",
        "qwen3_moe",
        "qwen3_next",
    ];
    for name in rotating {
        answers(name, |tiny| {
            tiny.add("model.layers.0.self_attn.rotary_emb.inv_freq", &[4]);
            tiny.add("model.layers.1.self_attn.rotary_emb.cos_cached", &[4, 8]);
            tiny.add("model.rotary_emb.inv_freq", &[4]);
        });
    }
}

/// DeepSeek V3, GLM-4.5 and later: whole layers after the last, which predict further tokens.
#[test]
fn layers_beyond_the_last_are_passed_over_where_the_config_says_that_they_predict_further_tokens() {
    let add_layer = |tiny: &mut Tiny, layer: usize| {
        let last = tiny.config["num_hidden_layers"].as_u64().unwrap() as usize - 1;
        let begin = format!("model.layers.{last}.");
        let of_last = tiny.tensors.iter().filter_map(|(name, tensor)| {
            Some((name.strip_prefix(&begin)?.to_owned(), tensor.1.clone()))
        });
        let of_last: Vec<_> = of_last.collect();
        for (name, shape) in &of_last {
            tiny.add(&format!("model.layers.{layer}.{name}"), shape);
        }
        for (name, shape) in [
            ("eh_proj.weight", &[32, 64][..]),
            ("enorm.weight", &[32]),
            ("hnorm.weight", &[32]),
            ("embed_tokens.weight", &[96, 32]),
            ("shared_head.head.weight", &[96, 32]),
            ("shared_head.norm.weight", &[32]),
        ] {
            tiny.add(&format!("model.layers.{layer}.{name}"), shape);
        }
    };
    for name in ["deepseek_v3", "glm4_moe", "glm4_moe_lite"] {
        // One is what the class says when the config does not.
        answers(name, |tiny| add_layer(tiny, 2));
        answers(name, |tiny| {
            tiny.config["num_nextn_predict_layers"] = 2.into();
            add_layer(tiny, 2);
            add_layer(tiny, 3);
        });
        // A layer that nothing speaks of is no layer to pass over.
        let (sandbox, mut tiny) = (Sandbox::new(), Tiny::new(name));
        tiny.config["num_nextn_predict_layers"] = 0.into();
        add_layer(&mut tiny, 2);
        tiny.write(&sandbox, name);
        sandbox.lathe(&["create", "m", name, "--no-smoke"]).ok();
        let run = sandbox.lathe(&["run", "m", "--raw", "t1"]);
        assert_eq!(run.code, 1, "{name}");
        assert!(run.stderr.contains("model.layers.2."), "{name}: {}", run.stderr);
    }
}

/// Weights that were saved from inside a larger model, or from the model without its head.
#[test]
fn names_may_have_other_beginnings() {
    for (old, new) in [
        ("model.", ""),
        ("model.", "model.language_model."),
        ("model.", "language_model.model."),
        ("model.", "language_model."),
    ] {
        for name in ["llama", "ministral3", "lfm2"] {
            let inside = new.starts_with("language_model.model");
            answers(name, |tiny| {
                tiny.rename(&[(old, new)]);
                if inside {
                    tiny.rename(&[("lm_head", "language_model.lm_head")]);
                }
            });
        }
    }
    answers("nemotron_h", |tiny| tiny.rename(&[("model.", "backbone."), ("backbone.", "model.")]));
}

/// Scales of caches and inputs that a quantizer's runtime wants, left beside plain weights.
#[test]
fn scales_for_other_runtimes_are_dropped_and_told() {
    for name in ["llama", "deepseek_v3", "qwen3_moe", "gpt_oss", "laguna"] {
        let said = answers(name, |tiny| {
            for tensor in [
                "k_scale",
                "v_scale",
                "q_scale",
                "prob_scale",
                "kv_scale",
                "k_proj.k_scale",
                "v_proj.v_scale",
                "o_proj.input_scale",
                "o_proj.input_scale_ub",
                "k_proj.output_scale",
            ] {
                tiny.add(&format!("model.layers.0.self_attn.{tensor}"), &[1]);
            }
        });
        assert!(said.contains("kv_scale"), "{said}");
        assert!(said.contains("input_scale_ub"), "{said}");
    }
}

/// A bias of zeros where the architecture has none is what GPTQ's tools write; any other is a fault.
#[test]
fn a_bias_of_zeros_is_nothing_and_another_is_told() {
    let zeros = |tiny: &mut Tiny, name: &str, bytes: [u8; 2]| {
        let tensor = (Dtype::F16, vec![32], bytes.repeat(32));
        tiny.tensors.insert(format!("model.layers.0.self_attn.{name}.bias"), tensor);
    };
    let (sandbox, mut tiny) = (Sandbox::new(), Tiny::new("llama"));
    zeros(&mut tiny, "o_proj", [0, 0]);
    zeros(&mut tiny, "q_proj", [0, 0x80]);
    let said = tiny.answers(&sandbox, "llama");
    assert!(said.contains("2 biases that the model has no place for"), "{said}");
    // They are neither stored nor exported.
    sandbox.lathe(&["export", "m", "out", "--as", "mlx-lm"]).ok();
    assert!(!sandbox.lathe(&["show", "m", "--tensors"]).ok().contains("_proj.bias"));
    assert!(read(&sandbox.path("out/model.safetensors")).keys().all(|n| !n.contains("bias")));
    let (sandbox, mut tiny) = (Sandbox::new(), Tiny::new("llama"));
    zeros(&mut tiny, "o_proj", [1, 0]);
    zeros(&mut tiny, "k_proj", [0, 0]);
    tiny.write(&sandbox, "llama");
    let plan = sandbox.lathe(&["create", "m", "llama", "-n", "-o", "json"]).json();
    assert_eq!(plan["runs"], false);
    let strict = sandbox.lathe(&["create", "m", "llama", "--strict"]);
    assert!(strict.code == 1 && strict.stderr.contains("o_proj.bias"), "{}", strict.stderr);
    let made = sandbox.lathe(&["create", "m", "llama"]);
    for words in ["1 biases that", "k_proj.bias", "can be imported and not run", "o_proj.bias"] {
        assert!(made.code == 0 && made.stderr.contains(words), "{words}: {}", made.stderr);
    }
    let run = sandbox.lathe(&["run", "m", "--raw", "t1"]);
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("self_attn.o_proj.bias"), "{}", run.stderr);
}

/// The same of single experts, of which none may be missing from a stack.
#[test]
fn biases_of_zeros_beside_single_experts_are_nothing() {
    let (sandbox, mut tiny) = (Sandbox::new(), Tiny::new("qwen3_moe"));
    let experts: Vec<String> = tiny
        .tensors
        .keys()
        .filter_map(|name| Some(name.strip_suffix(".weight")?.to_owned()))
        .filter(|module| module.contains(".experts."))
        .collect();
    assert!(experts.len() >= 12, "{experts:?}");
    for module in &experts {
        let bias = (Dtype::F16, vec![32], vec![0; 64]);
        tiny.tensors.insert(format!("{module}.bias"), bias);
    }
    let said = tiny.answers(&sandbox, "qwen3_moe");
    assert!(said.contains(&format!("{} biases that", experts.len())), "{said}");
    assert!(!sandbox.lathe(&["show", "m", "--tensors"]).ok().contains("proj.bias"));
    // Zeros of all experts but one are the biases of a model that lathe does not know.
    let one = format!("{}.bias", experts[0]);
    tiny.tensors.insert(one, (Dtype::F16, vec![32], vec![1; 64]));
    tiny.write(&sandbox, "other");
    let made = sandbox.lathe(&["create", "m", "other", "--no-smoke"]);
    assert!(made.stderr.contains("can be imported and not run"), "{}", made.stderr);
}

/// As transformers does it, a tied model may be stored with its head alone, which is its embedding.
#[test]
fn a_tied_model_may_be_stored_with_its_head_alone() {
    for (name, embedding, head) in [
        ("qwen3", "model.embed_tokens.weight", "lm_head.weight"),
        (
            "gemma3_vision",
            "language_model.model.embed_tokens.weight",
            "language_model.lm_head.weight",
        ),
    ] {
        for request in [&[][..], &["-q", "int8-g32"]] {
            let (sandbox, mut tiny) = (Sandbox::new(), Tiny::new(name));
            let table = tiny.tensors.remove(embedding).unwrap();
            assert!(tiny.tensors.insert(head.into(), table).is_none());
            tiny.write(&sandbox, name);
            sandbox.lathe(&[&["create", "m", name, "--no-smoke"], request].concat()).ok();
            if request.is_empty() {
                tiny.runs(&sandbox, name);
            }
            sandbox.lathe(&["run", "m", "--raw", "t3", "-n", "2"]).ok();
            // mlx-lm has no other name for it than the embedding's.
            sandbox.lathe(&["export", "m", "out"]).ok();
            let exported = read(&sandbox.path("out/model.safetensors"));
            assert!(exported.contains_key(embedding), "{:?}", exported.keys());
            assert!(!exported.contains_key(head));
            sandbox.lathe(&["create", "m", "out", "--no-smoke"]).ok();
            if request.is_empty() {
                tiny.runs(&sandbox, name);
            }
        }
    }
    // Where the config does not tie them the embedding is missing.
    let (sandbox, mut tiny) = (Sandbox::new(), Tiny::new("llama"));
    tiny.tensors.remove("model.embed_tokens.weight");
    tiny.write(&sandbox, "llama");
    let plan = sandbox.lathe(&["create", "m", "llama", "-n", "-o", "json"]).json();
    assert_eq!(plan["runs"], false);
    assert!(plan["warnings"].to_string().contains("no embedding embed_tokens"));
}

/// What transformers' config classes take for an absent `eos_token_id` ends no answer there:
/// `generate` goes by generation_config.json, or by config.json as it stands.
#[test]
fn the_end_token_of_a_config_class_ends_nothing() {
    let mut tiny = Tiny::new("mistral");
    assert_eq!(tiny.config.as_object_mut().unwrap().remove("eos_token_id"), Some(json!(2)));
    assert!(tiny.greedy[..4].contains(&2), "{:?}", tiny.greedy);
    tiny.answers(&Sandbox::new(), "mistral");
}

/// Phi-3's class takes `yarn` for `longrope`, which older configs called so.
#[test]
fn phi3_is_turned_as_its_class_reads_older_configs() {
    for key in ["type", "rope_type"] {
        let said = answers("phi3_partial", |tiny| {
            let rope = tiny.config["rope_parameters"].as_object_mut().unwrap();
            rope.remove("rope_type");
            rope.insert(key.into(), "yarn".into());
        });
        assert!(!said.contains("does not read"), "{said}");
    }
}

/// Gemma 4 as published: layers that read another's keys carry weights for keys of their own. And
/// as transformers saves it: what differs by layer under numbers of as many digits as the largest.
#[test]
fn gemma4_is_read_as_published_and_as_saved_again() {
    answers("gemma4_shared", |tiny| {
        for layer in [2, 3] {
            let dim = if layer == 3 { 16 } else { 8 };
            for (name, shape) in [
                ("k_proj", vec![2 * dim, 32]),
                ("v_proj", vec![2 * dim, 32]),
                ("k_norm", vec![dim]),
            ] {
                tiny.add(&format!("model.layers.{layer}.self_attn.{name}.weight"), &shape);
            }
        }
    });
    answers("gemma4_shared", |tiny| {
        let config = tiny.config.as_object_mut().unwrap();
        config.remove("global_head_dim");
        config.insert(
            "per_layer_config".into(),
            json!({"01": {"head_dim": 16}, "03": {"head_dim": 16}}),
        );
    });
    answers("gemma4_moe", |tiny| {
        let config = tiny.config.as_object_mut().unwrap();
        config.remove("global_head_dim");
        config.remove("num_global_key_value_heads");
        let own = json!({"1": {"head_dim": 16, "num_key_value_heads": 1}});
        config.insert("per_layer_config".into(), own);
    });
}

/// Keys that the class of the architecture does not read, left in a config from another model.
#[test]
fn keys_that_the_library_does_not_read_change_nothing() {
    let window: &[(&str, Value)] =
        &[("sliding_window", json!(3)), ("use_sliding_window", json!(true))];
    let bias: &[(&str, Value)] = &[("attention_bias", json!(true)), ("mlp_bias", json!(true))];
    let part: &[(&str, Value)] = &[("partial_rotary_factor", json!(0.5))];
    let router: &[(&str, Value)] = &[("norm_topk_prob", json!(false))];
    for (name, keys) in [
        ("llama", window),
        ("llama", part),
        ("deepseek_v3", window),
        ("deepseek_v3", part),
        ("glm4_moe", window),
        ("glm4_moe_lite", window),
        ("minimax_m2", window),
        ("minimax_m2", bias),
        ("lfm2", window),
        ("lfm2", bias),
        ("lfm2_moe", window),
        ("nemotron_h", window),
        ("mistral", bias),
        ("mistral", part),
        ("ministral3", bias),
        ("ministral3", part),
        ("qwen2", bias),
        ("qwen2", part),
        ("qwen3", part),
        ("qwen3_moe", part),
        ("gemma2", part),
        ("gemma3", part),
        ("qwen3_5", window),
        ("qwen3_5_moe", router),
        ("laguna", router),
        ("minimax_m2", router),
        ("gpt_oss", router),
        ("qwen3_next", window),
    ] {
        answers(name, |tiny| {
            for (key, value) in keys {
                tiny.config[*key] = value.clone();
            }
        });
    }
    // A window of Qwen is one only where it is asked for.
    for name in ["qwen2", "qwen3", "qwen3_moe"] {
        answers(name, |tiny| {
            tiny.config["sliding_window"] = 3.into();
            tiny.config["max_window_layers"] = 0.into();
        });
    }
}

/// `config.tie_word_embeddings` of the top level decides, whatever the inner object or the class
/// says; and what the top level holds besides is not the text's.
#[test]
fn each_level_of_a_config_is_read_for_what_it_says() {
    answers("qwen3_5", |tiny| {
        let mut text = std::mem::take(&mut tiny.config);
        text["tie_word_embeddings"] = false.into();
        tiny.config = json!({
            "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
            "tie_word_embeddings": true, "eos_token_id": text["eos_token_id"], "text_config": text,
            // Of another model.
            "rms_norm_eps": 0.5, "rope_theta": 3.0, "rope_scaling": {"rope_type": "linear", "factor": 9.0},
        });
    });
    answers("gemma3_vision", |tiny| {
        for (key, value) in [
            ("num_attention_heads", json!(2)),
            ("rms_norm_eps", json!(0.5)),
            ("rope_theta", json!(3.0)),
        ] {
            tiny.config[key] = value;
        }
    });
}

/// A head that differs from the embedding is used although the config ties them, and told; one that
/// does not differ is the embedding.
#[test]
fn a_tied_model_with_another_head_uses_it_and_says_so() {
    let said = answers("qwen3_head", |_| {});
    assert!(said.contains("lm_head.weight") && said.contains("tie_word_embeddings"), "{said}");
    // An export says that they are two, which mlx-lm needs to be told; both levels of it.
    let (sandbox, tiny) = (Sandbox::new(), Tiny::new("mistral3"));
    let said = tiny.answers(&sandbox, "mistral3");
    assert!(said.contains("language_model.lm_head.weight"), "{said}");
    sandbox.lathe(&["export", "m", "out", "--as", "mlx-lm"]).ok();
    let config: Value =
        serde_json::from_slice(&fs::read(sandbox.path("out/config.json")).unwrap()).unwrap();
    assert_eq!(config["tie_word_embeddings"], false);
    assert_eq!(config["text_config"]["tie_word_embeddings"], false);
    let said = sandbox.lathe(&["create", "m", "out"]);
    assert!(!said.stderr.contains("tie_word_embeddings"), "{}", said.stderr);
    tiny.runs(&sandbox, "out");
    let said = answers("qwen3", |tiny| {
        let embedding = tiny.tensors["model.embed_tokens.weight"].clone();
        tiny.tensors.insert("lm_head.weight".into(), embedding);
    });
    assert!(!said.contains("tie_word_embeddings"), "{said}");
}
