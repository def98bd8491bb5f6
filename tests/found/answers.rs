//! How answers are made: templates, tokens that end them, recommended options, vocabularies.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::common::Sandbox;

/// Tokens of a scripted model: each answers with the next.
const WORDS: [&str; 12] =
    ["?", "x", "a", "b", "<|im_end|>", "c", "d", "<think>", "</think>", "<", "|im", "\n"];
/// Those that are special.
const SPECIAL: [&str; 3] = ["<|im_end|>", "<think>", "</think>"];
const SIZE: usize = 32;

/// A folder with a llama that answers each token with the one that follows it in `script`, the last
/// with itself: its layers add nothing, and its head is written out.
fn scripted(sandbox: &Sandbox, name: &str, script: &[&str]) {
    let id = |word: &str| WORDS.iter().position(|known| *known == word).unwrap();
    let mut next: Vec<usize> = (0..SIZE).collect();
    for pair in script.windows(2) {
        next[id(pair[0])] = id(pair[1]);
    }
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![SIZE, SIZE])];
    tensors.push(("lm_head.weight".to_owned(), vec![SIZE, SIZE]));
    tensors.push(("model.norm.weight".to_owned(), vec![SIZE]));
    for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        tensors.push((layer(&format!("self_attn.{part}")), vec![SIZE, SIZE]));
    }
    for part in ["gate_proj", "up_proj", "down_proj"] {
        tensors.push((layer(&format!("mlp.{part}")), vec![SIZE, SIZE]));
    }
    for part in ["input_layernorm", "post_attention_layernorm"] {
        tensors.push((layer(part), vec![SIZE]));
    }
    let file = super::common::safetensors_of(&tensors, |name, i| {
        let (row, column) = (i / SIZE, i % SIZE);
        let one = match name {
            "model.embed_tokens.weight" => row == column,
            "lm_head.weight" => next[column] == row,
            name => name.contains("norm"),
        };
        if one { 0x3f80 } else { 0 }
    });
    sandbox.file(&format!("{name}/model.safetensors"), file);
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": SIZE,
        "intermediate_size": SIZE, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": SIZE, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "tie_word_embeddings": false
    });
    sandbox.file(&format!("{name}/config.json"), config.to_string());
    sandbox.file(&format!("{name}/tokenizer.json"), tokenizer(&json!({})).to_string());
    let chat = "{% for m in messages %}{{ m.content }}{% endfor %}";
    sandbox
        .file(&format!("{name}/tokenizer_config.json"), json!({"chat_template": chat}).to_string());
}

/// The vocabulary of [`WORDS`], one letter a token where it is not special; `more` are further keys.
fn tokenizer(more: &Value) -> Value {
    let vocabulary: Map<String, Value> =
        WORDS.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    let added: Vec<Value> = SPECIAL
        .iter()
        .map(|word| {
            json!({"id": vocabulary[*word], "content": word, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    let mut tokenizer = json!({
        "version": "1.0", "added_tokens": added, "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated",
                          "invert": false},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
    });
    for (key, value) in more.as_object().unwrap() {
        tokenizer[key] = value.clone();
    }
    tokenizer
}

fn create(sandbox: &Sandbox, name: &str) -> String {
    let made = sandbox.lathe(&["create", name, name, "--no-smoke"]);
    let said = made.stderr.clone();
    made.ok();
    said
}

fn run(sandbox: &Sandbox, args: &[&str]) -> Value {
    let count = if args.contains(&"-n") { &[][..] } else { &["-n", "8"] };
    sandbox.lathe(&[&["run", "-o", "json"], count, args].concat()).json()
}

#[test]
fn a_stop_string_may_be_a_special_token_or_hold_one() {
    let sandbox = Sandbox::new();
    scripted(&sandbox, "s", &["x", "a", "b", "<|im_end|>", "c", "d"]);
    create(&sandbox, "s");
    for (stop, text) in [("<|im_end|>", "ab"), ("b<|im_end|>", "a"), ("<|im_end|>c", "ab")] {
        for raw in [&[][..], &["--raw"]] {
            let answer = run(&sandbox, &[&["s", "x", "--stop", stop], raw].concat());
            assert_eq!((&answer["text"], &answer["reason"]), (&json!(text), &json!("stop")));
        }
    }
    let answer = run(&sandbox, &["s", "x", "--stop", "<|im_end|>d"]);
    assert_eq!((&answer["text"], &answer["reason"]), (&json!("abcdddd"), &json!("length")));
    // The same, spelled by tokens that are not special.
    scripted(&sandbox, "t", &["x", "a", "<", "|im", "b"]);
    create(&sandbox, "t");
    assert_eq!(run(&sandbox, &["t", "x", "--stop", "<|im"])["text"], "a");
    let modelfile = "FROM s\nPARAMETER stop <|im_end|>\n";
    sandbox.lathe_with(&["create", "m", "-f", "-"], modelfile).ok();
    assert_eq!(run(&sandbox, &["m", "x"])["text"], "ab");
}

/// The order is that of transformers 5.24: `special_tokens_map.json` wins, and is not read where
/// `tokenizer_config.json` has an `added_tokens_decoder`.
#[test]
fn the_end_may_stand_only_in_special_tokens_map() {
    let sandbox = Sandbox::new();
    scripted(&sandbox, "s", &["x", "a", "b", "c", "d"]);
    for (config, map, text) in [
        (json!({}), json!({"eos_token": "c"}), "ab"),
        (json!({"eos_token": "b"}), json!({"eos_token": {"content": "c", "lstrip": false}}), "ab"),
        (json!({"eos_token": "b", "added_tokens_decoder": {}}), json!({"eos_token": "c"}), "a"),
    ] {
        sandbox.file("s/tokenizer_config.json", config.to_string());
        sandbox.file("s/special_tokens_map.json", map.to_string());
        create(&sandbox, "s");
        let answer = run(&sandbox, &["s", "--raw", "x"]);
        assert_eq!(
            (&answer["text"], &answer["reason"]),
            (&json!(text), &json!("stop")),
            "{config}"
        );
    }
}

/// The tiny llama of the decoder's tests, whose words are t0, t1, …
fn tiny_llama(sandbox: &Sandbox) -> (String, Vec<u32>) {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder/models");
    for file in ["config.json", "model.safetensors"] {
        sandbox.file(&format!("l/{file}"), fs::read(models.join("llama").join(file)).unwrap());
    }
    let vocabulary: Map<String, Value> = (0..512).map(|id| (format!("t{id}"), id.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    });
    sandbox.file("l/tokenizer.json", tokenizer.to_string());
    let arrays = mlx_rs::Array::load_safetensors(models.join("llama.ref.safetensors")).unwrap();
    let ids = arrays["input_ids"].as_dtype(mlx_rs::Dtype::Uint32).unwrap();
    ids.eval().unwrap();
    let ids = ids.as_slice::<u32>().to_vec();
    (ids.iter().map(|id| format!("t{id}")).collect::<Vec<_>>().join(" "), ids)
}

/// Tokens are those that transformers 5.24 generates under the same generation_config.json, in f32.
#[test]
fn penalties_and_forbidden_tokens_of_generation_config_hold_for_greedy_answers() {
    let sandbox = Sandbox::new();
    let (prompt, _) = tiny_llama(&sandbox);
    for (config, tokens) in [
        (json!({}), json!([93, 23, 91, 74, 37, 88, 37, 88, 37, 88, 37, 88, 37, 37, 37, 37])),
        (
            json!({"repetition_penalty": 1.3, "temperature": 0.1, "top_p": 0.2}),
            json!([93, 23, 91, 74, 37, 88, 66, 92, 3, 25, 89, 12, 37, 68, 94, 36]),
        ),
        (
            json!({"suppress_tokens": [93, 23]}),
            json!([88, 83, 19, 16, 77, 37, 88, 37, 88, 83, 39, 8, 88, 83, 39, 8]),
        ),
        (json!({"max_new_tokens": 3}), json!([93, 23, 91])),
        (json!({"stop_strings": ["t74"]}), json!([93, 23, 91, 74])),
    ] {
        sandbox.file("l/generation_config.json", config.to_string());
        create(&sandbox, "l");
        let count = if config["max_new_tokens"].is_null() { &["-n", "16"][..] } else { &[] };
        let args = [&["run", "l", "--raw", &prompt, "-o", "json"], count].concat();
        assert_eq!(sandbox.lathe(&args).json()["tokens"], tokens, "{config}");
    }
}

#[test]
fn what_is_out_of_range_in_generation_config_is_named_and_breaks_no_run() {
    let sandbox = Sandbox::new();
    scripted(&sandbox, "s", &["x", "a", "b"]);
    let config =
        json!({"do_sample": true, "top_p": 0, "min_p": 7, "temperature": "hot", "num_beams": 3});
    sandbox.file("s/generation_config.json", config.to_string());
    let said = create(&sandbox, "s");
    for what in ["top_p 0", "min_p 7", "temperature \"hot\"", "num_beams 3"] {
        assert!(said.contains(&format!("generation_config.json: {what}")), "{what}: {said}");
    }
    assert_eq!(run(&sandbox, &["s", "x", "-n", "2"])["text"], "ab");
}

/// Fine-tuning scripts leave both in the file.
#[test]
fn truncation_and_padding_of_a_tokenizer_are_not_obeyed() {
    let sandbox = Sandbox::new();
    scripted(&sandbox, "s", &["x", "a"]);
    let left = json!({
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": null,
                    "pad_id": 0, "pad_type_id": 0, "pad_token": "?"},
    });
    sandbox.file("s/tokenizer.json", tokenizer(&left).to_string());
    create(&sandbox, "s");
    assert_eq!(run(&sandbox, &["s", "--raw", "abcdx"])["statistics"]["prompt_tokens"], 5);
}

#[test]
fn line_ends_of_a_template_are_those_of_jinja2() {
    let sandbox = Sandbox::new();
    scripted(&sandbox, "s", &["x", "a"]);
    let chat = "{% for m in messages %}\r\n{{ m.content }}\r\n{% endfor %}\r\n";
    sandbox.file("s/chat_template.jinja", chat);
    create(&sandbox, "s");
    assert_eq!(run(&sandbox, &["s", "x"])["statistics"]["prompt_tokens"], 2);
}

#[test]
fn what_a_conversation_cannot_use_is_refused_at_create() {
    let sandbox = Sandbox::new();
    scripted(&sandbox, "s", &["x", "a"]);
    create(&sandbox, "s");
    for (line, said) in [
        ("TEMPLATE {% if %}", &["TEMPLATE", "cannot be understood", "Modelfile:2:"][..]),
        (
            "\nTEMPLATE \"\"\"{{ messages }}\n{% if 1 % 2 %}\n  a {{ one two }}{% endif %}\"\"\"",
            &["cannot be understood", "Modelfile:5:12"],
        ),
        ("TEMPLATE \"{{ one two }}\"", &["Modelfile:2:18"]),
        ("TEMPLATE \"\"\"\n{% if 1 %}\n\n\"\"\"", &["Modelfile:"]),
        ("PARAMETER top_p 7", &["top_p", "from 0 to 1", "Modelfile:2:17"]),
        ("PARAMETER num_ctx 0", &["num_ctx", "1 or more"]),
        ("PARAMETER top_k 1.5", &["top_k", "whole number"]),
        ("PARSER qwen33", &["PARSER qwen33", "did you mean qwen3", "Modelfile:2:8"]),
        ("RENDERER qwen3-codr", &["RENDERER qwen3-codr", "did you mean qwen3-coder", ":2:10"]),
    ] {
        sandbox.file("Modelfile", format!("FROM s\n{line}\n"));
        let refused = sandbox.lathe(&["create", "bad", "-f", "Modelfile"]);
        assert_eq!(refused.code, 1, "{line}: {}", refused.stdout);
        for what in said {
            assert!(refused.stderr.contains(what), "{line}, {what}: {}", refused.stderr);
        }
    }
    // Ollama's own, which lathe has no use for.
    for line in ["RENDERER olmo3", "PARSER cogito", "TEMPLATE {{ .Prompt }}"] {
        sandbox.file("Modelfile", format!("FROM s\n{line}\n"));
        sandbox.lathe(&["create", "good", "-f", "Modelfile"]).ok();
        assert_eq!(run(&sandbox, &["good", "x", "-n", "1"])["text"], "a", "{line}");
    }
    sandbox.file("s/chat_template.jinja", "one\n{% if %}{{ messages }}");
    let refused = sandbox.lathe(&["create", "bad", "s"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("chat_template.jinja:2:"), "{}", refused.stderr);
}

/// Puts other bytes of the same length into the blob that holds some: a store of before.
fn in_store(sandbox: &Sandbox, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let mut changed = 0;
    for blob in fs::read_dir(sandbox.path("store/blobs")).unwrap() {
        let path = blob.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        if text.contains(from) && bytes.len() < 10_000 {
            let mut permissions = fs::metadata(&path).unwrap().permissions();
            #[allow(clippy::permissions_set_readonly_false, reason = "a folder of the test's own")]
            permissions.set_readonly(false);
            fs::set_permissions(&path, permissions).unwrap();
            fs::write(&path, text.replace(from, to)).unwrap();
            changed += 1;
        }
    }
    assert!(changed > 0, "{from}");
}

#[test]
fn a_store_of_before_may_hold_what_is_refused_today() {
    let sandbox = Sandbox::new();
    scripted(&sandbox, "s", &["x", "a"]);
    sandbox.file("Modelfile", "FROM s\nPARAMETER top_p 0.75\nTEMPLATE {% if 1 %}x{% endif %}\n");
    sandbox.lathe(&["create", "m", "-f", "Modelfile", "--no-smoke"]).ok();
    in_store(&sandbox, "\"top_p\":0.75", "\"top_p\":7.25");
    let refused = sandbox.lathe(&["run", "m", "x"]);
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.contains("top_p") && refused.stderr.contains("--set"),
        "{}",
        refused.stderr
    );
    assert_eq!(run(&sandbox, &["m", "x", "--top-p", "0.9", "-n", "1"])["text"], "a");
    in_store(&sandbox, "{% if 1 %}x{% endif %}", "{% if   %}x{% endif %}");
    let refused = sandbox.lathe(&["run", "m", "x", "--top-p", "0.9"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("TEMPLATE:1:"), "{}", refused.stderr);
    let raw = run(&sandbox, &["m", "--raw", "x", "--top-p", "0.9", "-n", "1"]);
    assert_eq!(raw["text"], "a");
}

#[test]
fn a_folder_without_a_vocabulary_is_warned_of_and_not_said_to_run() {
    let sandbox = Sandbox::new();
    scripted(&sandbox, "s", &["x", "a"]);
    fs::remove_file(sandbox.path("s/tokenizer.json")).unwrap();
    sandbox.file("s/vocab.txt", "[UNK]\n");
    let made = sandbox.lathe(&["create", "s", "s"]);
    assert!(made.stderr.contains("carries no vocabulary"), "{}", made.stderr);
    assert!(!made.stdout.contains("run it"), "{}", made.stdout);
    assert_eq!(made.code, 0);
    let run = sandbox.lathe(&["run", "s", "x"]);
    assert!(run.stderr.contains("carries no vocabulary"), "{}", run.stderr);
}

/// Ids are those of transformers 5.24 (`AutoTokenizer` over the same files).
#[test]
fn vocab_json_and_merges_txt_are_a_vocabulary() {
    let sandbox = Sandbox::new();
    let mut letters = Vec::new();
    let mut other = 0x100_u32;
    for byte in 0_u32..256 {
        let own = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        letters.push(char::from_u32(if own { byte } else { other }).unwrap());
        other += u32::from(!own);
    }
    let mut words: Vec<String> = letters.iter().map(char::to_string).collect();
    let merges =
        ["t h", "th e", "Ġ the", "1 2", "e Ì", "Ã ©", "' t", "i s", "Ġ is", "3 4", "12 34"];
    words.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    words.push("<|endoftext|>".into());
    let end = words.len();
    let vocabulary: Map<String, Value> =
        words.into_iter().enumerate().map(|(id, word)| (word, id.into())).collect();
    let token = |content: &str| json!({"content": content, "special": true, "normalized": false});
    let texts = [
        "the the is 1234 x1234",
        "e\u{301} é don't<|im_end|>the<|endoftext|>\n\nthe  12",
        "  \n the",
    ];
    let gpt2 = json!([
        [257, 258, 264, 32, 266, 32, 120, 266],
        [101, 204, 129, 32, 261, 32, 100, 111, 110, 262, 268, 257, 267, 10, 10, 257, 32, 32, 259],
        [32, 32, 10, 258]
    ]);
    let qwen2 = json!([
        [257, 258, 264, 32, 49, 50, 51, 52, 32, 120, 49, 50, 51, 52],
        [261, 32, 261, 32, 100, 111, 110, 262, 268, 257, 267, 10, 10, 257, 32, 32, 49, 50],
        [32, 32, 10, 258]
    ]);
    let neox = json!([
        [257, 258, 264, 32, 266, 32, 120, 266],
        [261, 32, 261, 32, 100, 111, 110, 262, 268, 257, 267, 10, 10, 257, 32, 32, 259],
        [32, 32, 10, 258]
    ]);
    let mut files = lathe::tokenizer::Files::default();
    let bytes = |value: &Value| value.to_string().into_bytes();
    files.insert("vocab.json", bytes(&Value::Object(vocabulary)));
    files.insert("merges.txt", format!("#version: 0.2\n{}\n", merges.join("\n")).into_bytes());
    for (class, model_type, expected) in [
        (Some("GPT2Tokenizer"), "llama", &gpt2),
        (Some("PreTrainedTokenizerFast"), "llama", &gpt2),
        (Some("Qwen2TokenizerFast"), "llama", &qwen2),
        (None, "qwen3", &qwen2),
        (Some("GPTNeoXTokenizerFast"), "llama", &neox),
        (Some("CohereTokenizer"), "llama", &qwen2),
    ] {
        let decoder = json!({end.to_string(): token("<|im_end|>"), (end - 1).to_string(): token("<|endoftext|>")});
        let config = json!({"tokenizer_class": class, "added_tokens_decoder": decoder,
                            "eos_token": "<|im_end|>"});
        files.insert("tokenizer_config.json", bytes(&config));
        files.insert("config.json", bytes(&json!({"model_type": model_type})));
        let tokenizer = lathe::tokenizer::Tokenizer::load(&files).unwrap();
        let ids: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode(text).unwrap()).collect();
        assert_eq!(&json!(ids), expected, "{class:?}");
        assert!(tokenizer.is_end(end as u32));
    }
    // What stands around a plain text, and not around a rendered one.
    for (class, said, expected) in [
        ("GPT2Tokenizer", json!({}), vec![257]),
        ("GPT2Tokenizer", json!({"add_bos_token": true}), vec![267, 257]),
        ("GPT2Tokenizer", json!({"add_eos_token": true}), vec![257, 267]),
        ("GPT2Tokenizer", json!({"add_bos_token": true, "bos_token": null}), vec![257]),
        ("GPT2Tokenizer", json!({"add_bos_token": true, "bos_token": "is"}), vec![263, 257]),
        ("Qwen2Tokenizer", json!({"add_bos_token": true, "add_eos_token": true}), vec![257, 267]),
        ("Qwen2Tokenizer", json!({"add_eos_token": true, "eos_token": "is"}), vec![257, 263]),
        (
            "GPTNeoXTokenizer",
            json!({"add_bos_token": true, "add_eos_token": false}),
            vec![267, 257],
        ),
    ] {
        let mut config = said.clone();
        config["tokenizer_class"] = class.into();
        files.insert("tokenizer_config.json", bytes(&config));
        let tokenizer = lathe::tokenizer::Tokenizer::load(&files).unwrap();
        assert_eq!(tokenizer.encode("the").unwrap(), expected, "{class} {said}");
        assert_eq!(tokenizer.encode_rendered("the").unwrap(), [257], "{class} {said}");
    }
    // Older folders have what was added in files of their own.
    let config =
        json!({"tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": ["<|im_start|>"]});
    files.insert("tokenizer_config.json", bytes(&config));
    let added = json!({"<|im_end|>": end, "<|im_start|>": end + 1, "<tool>": end + 2});
    files.insert("added_tokens.json", bytes(&added));
    files.insert("special_tokens_map.json", bytes(&json!({"eos_token": "<|im_end|>"})));
    let tokenizer = lathe::tokenizer::Tokenizer::load(&files).unwrap();
    let ids = tokenizer.encode("<|im_start|>the<tool>the<|im_end|>").unwrap();
    assert_eq!(ids, [269, 257, 270, 257, 268]);
    assert_eq!(tokenizer.decode(&ids, lathe::tokenizer::Kept::None), "the<tool>the");
    files.insert("tokenizer_config.json", bytes(&json!({"tokenizer_class": "RobertaTokenizer"})));
    let refused = lathe::tokenizer::Tokenizer::load(&files).err().unwrap();
    assert!(refused.message.contains("RobertaTokenizer"), "{refused}");
    let _ = sandbox;
}

#[test]
fn the_architecture_may_be_given_as_a_text() {
    let sandbox = Sandbox::new();
    scripted(&sandbox, "s", &["x", "a"]);
    let path = sandbox.path("s/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["architectures"] = "LlamaForCausalLM".into();
    config["model_type"] = Value::Null;
    fs::write(&path, config.to_string()).unwrap();
    let plan = sandbox.lathe(&["create", "s", "s", "-n", "-o", "json"]).json();
    assert_eq!(plan["source"]["architecture"], "LlamaForCausalLM");
    create(&sandbox, "s");
    assert_eq!(run(&sandbox, &["s", "x", "-n", "1"])["text"], "a");
}

#[test]
fn options_are_as_documented_or_refused_by_name() {
    let sandbox = Sandbox::new();
    scripted(&sandbox, "s", &["x", "a", "b"]);
    create(&sandbox, "s");
    for given in [
        &["--seed", "-1"][..],
        &["--seed", "18446744073709551615"],
        &["--set", "seed=-1"],
        &["--set", "top_k=40.0"],
        &["--set", "num_predict=-1"],
        &["--temperature", "1e-40"],
        &["--temperature", "1e-50"],
        &["--set", "temperature=1e-38", "--top-k", "1"],
        &["--top-p", "0", "--temperature", "5"],
    ] {
        assert_eq!(
            run(&sandbox, &[&["s", "x", "-n", "2"], given].concat())["text"],
            "ab",
            "{given:?}"
        );
    }
    for (given, said) in [
        (["--set", "top_k=1.5"], "top_k takes a whole number, not 1.5"),
        (["--set", "num_ctx=0"], "num_ctx takes a whole number, 1 or more, not 0"),
        (["--set", "top_p=7"], "top_p takes a number from 0 to 1, not 7"),
        (["--set", "typical_p=0"], "typical_p"),
        (["--seed", "1.5"], "a seed is a whole number"),
    ] {
        let refused = sandbox.lathe(&[&["run", "s", "x"][..], &given].concat());
        assert_eq!(refused.code, 2, "{given:?}");
        assert!(refused.stderr.contains(said), "{given:?}: {}", refused.stderr);
    }
}

#[test]
fn an_answer_that_is_all_thinking_says_so() {
    let sandbox = Sandbox::new();
    scripted(&sandbox, "s", &["x", "<think>", "a", "b", "c"]);
    sandbox.file("s/generation_config.json", json!({"eos_token_id": 5}).to_string());
    sandbox.file("Modelfile", "FROM s\nPARSER qwen3\n");
    sandbox.lathe(&["create", "m", "-f", "Modelfile", "--no-smoke"]).ok();
    for (count, said) in [("2", "still thinking"), ("8", "ended without an answer")] {
        let answer = sandbox.lathe(&["run", "m", "x", "-n", count]);
        assert!(answer.stderr.contains(said), "{count}: {}", answer.stderr);
        assert_eq!(answer.ok().trim(), "");
    }
}

/// 4 MB in bytes that no merge reaches: it is not tokenized to find out that 64 tokens are too few.
#[test]
fn a_prompt_whose_bytes_alone_are_too_many_is_refused_at_once() {
    let sandbox = Sandbox::new();
    scripted(&sandbox, "s", &["x", "a"]);
    let vocabulary = json!({"x": 1, "a": 2, "Ġ": 3, "aa": 4, "?": 0});
    let more = json!({
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                          "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                    "use_regex": true},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a a"]},
    });
    sandbox.file("s/tokenizer.json", tokenizer(&more).to_string());
    create(&sandbox, "s");
    let refused = sandbox.lathe_with(&["run", "s", "-o", "json"], &"a".repeat(4_000_000));
    let error: Value = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!(error["error"]["code"], "context-too-long");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("at least 2000000 tokens"), "{message}");
    // One that may fit is tokenized: 100 letters are 50 tokens.
    let answer = sandbox.lathe_with(&["run", "s", "-o", "json", "-n", "1"], &"a".repeat(100));
    assert_eq!(answer.json()["statistics"]["prompt_tokens"], 50);
}
