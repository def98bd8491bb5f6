//! Folders, good and bad, made here and read back.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A shard's bytes, from a header and as many data bytes as given.
fn shard(header: &Value, data: usize) -> Vec<u8> {
    raw(header.to_string().as_bytes(), data)
}

fn raw(header: &[u8], data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn tensor(dtype: &str, shape: &[i64], from: u64, to: u64) -> Value {
    json!({"dtype": dtype, "shape": shape, "data_offsets": [from, to]})
}

/// A folder with a config and these files.
fn folder_of(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// The faults of a folder with one shard of this header.
fn faults_of(header: &Value, data: usize) -> Vec<(Code, Option<String>)> {
    let dir = folder_of(&[("model.safetensors", &shard(header, data))]);
    codes(folder(dir.path()))
}

fn codes(result: Result<Inventory, Faults>) -> Vec<(Code, Option<String>)> {
    let faults = result.expect_err("this folder has faults");
    faults.0.into_iter().map(|fault| (fault.code, fault.tensor)).collect()
}

fn one(code: Code, tensor: &str) -> Vec<(Code, Option<String>)> {
    vec![(code, Some(tensor.into()))]
}

fn good() -> Vec<u8> {
    shard(&json!({"b": tensor("BF16", &[2, 3], 0, 12), "a": tensor("F32", &[], 12, 16)}), 16)
}

#[test]
fn a_whole_folder_is_read_with_its_side_files() {
    let dir = folder_of(&[
        ("model.safetensors", &good()),
        ("tokenizer.json", b"{}"),
        ("LICENSE.txt", b"free"),
        ("notes.txt", b"-"),
        ("tokenizer_config.json", br#"{"chat_template": "T", "x": {"y": [1]}}"#),
        ("hf_quant_config.json", br#"{"quantization": {"quant_algo": "FP8"}}"#),
    ]);
    let inventory = folder(dir.path()).unwrap();
    let names: Vec<&str> = inventory.tensors.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let b = &inventory.tensors[1];
    assert_eq!((b.dtype, b.shape.as_slice(), b.bytes()), (Dtype::BF16, &[2, 3][..], 12));
    assert_eq!(b.range.end - b.range.start, 12);
    assert_eq!(inventory.chat_template.as_deref(), Some("T"));
    assert_eq!(inventory.quant_config.unwrap()["quantization"]["quant_algo"], "FP8");
    let files: Vec<&str> = inventory.files.iter().map(|f| f.name.as_str()).collect();
    let expected = [
        "LICENSE.txt",
        "config.json",
        "hf_quant_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(files, expected);
}

#[test]
fn legal_oddities_are_accepted() {
    let header = json!({
        "__metadata__": {},
        "scalar": tensor("F32", &[], 0, 4),
        "empty": tensor("BF16", &[0], 4, 4),
        "empty2": tensor("BF16", &[128, 0], 4, 4),
    });
    let padded = raw(format!("{header}   ").as_bytes(), 4);
    let meta = shard(&json!({"__metadata__": {"format": "pt"}}), 0);
    let dir = folder_of(&[
        ("model-00001-of-00002.safetensors", &padded),
        ("model-00002-of-00002.safetensors", &meta),
    ]);
    assert_eq!(folder(dir.path()).unwrap().tensors.len(), 3);
}

#[test]
fn header_lengths_are_checked() {
    let cases: [(&[u8], &str); 5] = [
        (&[1, 2, 3], "shorter than any header"),
        (&[0; 16], "header length is 0"),
        (&[1, 0, 0, 0, 1, 0, 0, 0, b'{'], "over the format's limit"),
        (&[9, 0, 0, 0, 0, 0, 0, 0, b'{', b'}'], "only 2 bytes follow"),
        (&[255; 16], "over the format's limit"),
    ];
    for (bytes, expected) in cases {
        let dir = folder_of(&[("model.safetensors", bytes)]);
        let faults = folder(dir.path()).unwrap_err();
        assert_eq!(faults.0.len(), 1);
        assert_eq!(faults.0[0].code, Code::BadHeader);
        assert!(faults.0[0].message.contains(expected), "{}", faults.0[0]);
    }
}

#[test]
fn header_json_is_checked() {
    let cases: [(&[u8], &str); 7] = [
        (b"{\"a\":", "not valid JSON"),
        (b"{}\0\0\0", "NUL"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe", "not UTF-8"),
        (b"{\"__metadata__\":{\"a\":1}}", "not valid JSON"),
        (
            b"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"shape\":[],\"data_offsets\":[0,4]}}",
            "duplicate field",
        ),
        (b"{} trailing", "not valid JSON"),
    ];
    for (header, expected) in cases {
        let dir = folder_of(&[("model.safetensors", &raw(header, 0))]);
        let faults = folder(dir.path()).unwrap_err();
        assert_eq!(faults.0[0].code, Code::BadHeader, "{faults}");
        assert!(faults.0[0].message.contains(expected), "{faults}");
    }
}

#[test]
fn tensors_are_checked() {
    use Code::{BadTensor, UnknownDtype};
    let case = |header: Value, data| faults_of(&header, data);
    assert_eq!(case(json!({"t": tensor("C64", &[1], 0, 8)}), 8), one(UnknownDtype, "t"));
    assert_eq!(case(json!({"t": tensor("BF16", &[-4, 64], 0, 512)}), 512), one(BadTensor, "t"));
    assert_eq!(case(json!({"t": tensor("BF16", &[2, 2], 0, 6)}), 6), one(BadTensor, "t"));
    assert_eq!(case(json!({"t": tensor("BF16", &[2], 4, 0)}), 4), one(BadTensor, "t"));
    let huge = 1 << 30;
    let overflow = json!({"t": tensor("F64", &[huge, huge, huge], 0, 8)});
    assert_eq!(case(overflow, 8), one(BadTensor, "t"));
    assert_eq!(case(json!({"t": tensor("U8", &[2_147_483_647], 0, 8)}), 8), one(BadTensor, "t"));
    let odd = json!({"t": {"dtype": "U8", "shape": [1.5], "data_offsets": [0, 1]}});
    assert_eq!(case(odd, 1), one(BadTensor, "t"));
    let three = json!({"t": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}});
    assert_eq!(case(three, 1), one(BadTensor, "t"));
    let far = json!({"t": {"dtype": "U8", "shape": [1], "data_offsets": [u64::MAX - 1, u64::MAX]}});
    assert_eq!(case(far, 1), one(BadTensor, "t"));
}

#[test]
fn ranges_cover_the_file_exactly_once() {
    use Code::{BadHeader, BadTensor};
    let overlap = json!({"a": tensor("U8", &[4], 0, 4), "b": tensor("U8", &[4], 2, 6)});
    assert_eq!(faults_of(&overlap, 6), one(BadTensor, "b"));
    let hole = json!({"a": tensor("U8", &[4], 0, 4), "b": tensor("U8", &[4], 6, 10)});
    assert_eq!(faults_of(&hole, 10), one(BadTensor, "b"));
    let short = json!({"a": tensor("U8", &[4], 0, 4), "b": tensor("U8", &[4], 4, 8), "c": tensor("U8", &[4], 8, 12)});
    assert_eq!(faults_of(&short, 6), one(BadHeader, "b"), "one fault for a truncated shard");
    assert_eq!(faults_of(&json!({"a": tensor("U8", &[4], 0, 4)}), 9), [(BadHeader, None)]);
}

#[test]
fn names_come_once_in_a_shard_and_in_one_shard() {
    let twice = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    let dir = folder_of(&[("model.safetensors", &raw(twice, 2))]);
    assert_eq!(codes(folder(dir.path())), one(Code::DuplicateTensor, "a"));

    let both = shard(&json!({"a": tensor("U8", &[1], 0, 1)}), 1);
    let dir = folder_of(&[
        ("model-00001-of-00002.safetensors", &both),
        ("model-00002-of-00002.safetensors", &both),
    ]);
    assert_eq!(codes(folder(dir.path())), one(Code::DuplicateTensor, "a"));
}

#[test]
fn all_faults_of_a_folder_are_told_at_once() {
    let bad = json!({"a": tensor("C64", &[1], 0, 8), "b": tensor("BF16", &[-1], 8, 16)});
    let dir = folder_of(&[
        ("config.json", b"{ nonsense"),
        ("model-00001-of-00003.safetensors", &shard(&bad, 16)),
        ("model-00002-of-00003.safetensors", &[0; 8]),
        ("hf_quant_config.json", b"]"),
    ]);
    let found: Vec<Code> = codes(folder(dir.path())).into_iter().map(|(code, _)| code).collect();
    use Code::*;
    assert_eq!(found, [BadConfig, BadConfig, MissingShard]);
    std::fs::write(dir.path().join("model-00003-of-00003.safetensors"), [0; 8]).unwrap();
    let found: Vec<Code> = codes(folder(dir.path())).into_iter().map(|(code, _)| code).collect();
    assert_eq!(found, [BadConfig, BadConfig, UnknownDtype, BadTensor, BadHeader, BadHeader]);
}

fn index_of(map: Value) -> Vec<u8> {
    json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string().into_bytes()
}

#[test]
fn the_index_decides_and_is_held_against_the_shards() {
    let x = shard(&json!({"x": tensor("U8", &[1], 0, 1), "z": tensor("U8", &[1], 1, 2)}), 2);
    let y = shard(&json!({"y": tensor("U8", &[1], 0, 1)}), 1);
    let case = |map: Value| {
        let index = index_of(map);
        let dir = folder_of(&[
            (INDEX, &index),
            ("w1.safetensors", &x),
            ("w2.safetensors", &y),
            ("model-extra.safetensors", b"stray"),
        ]);
        folder(dir.path())
    };
    let inventory = case(json!({"x": "w1.safetensors", "z": "w1.safetensors"})).unwrap();
    assert_eq!(inventory.tensors.len(), 2, "files beside the index's are strays");
    let inventory = case(json!({"x": "w1.safetensors"})).unwrap();
    assert_eq!(inventory.tensors.len(), 2);
    assert_eq!(inventory.warnings[0].tensor.as_deref(), Some("z"));

    use Code::{BadIndex, MissingShard};
    let wrong = json!({"x": "w2.safetensors", "y": "w2.safetensors", "z": "w1.safetensors"});
    assert_eq!(codes(case(wrong)), one(BadIndex, "x"));
    let lost = json!({"q": "w1.safetensors", "x": "w1.safetensors"});
    assert_eq!(codes(case(lost)), one(BadIndex, "q"));
    assert_eq!(codes(case(json!({"x": "../w1.safetensors"}))), one(BadIndex, "x"));
    assert_eq!(codes(case(json!({"x": "/w1.safetensors"}))), one(BadIndex, "x"));
    assert_eq!(codes(case(json!({"x": "pytorch_model.bin"}))), one(BadIndex, "x"));
    assert_eq!(codes(case(json!({"x": "w3.safetensors"}))), one(MissingShard, "x"));
    assert_eq!(codes(case(json!({}))), [(BadIndex, None)]);
    let dir = folder_of(&[(INDEX, b"{}"), ("w1.safetensors", &x)]);
    assert_eq!(codes(folder(dir.path())), [(BadIndex, None)]);
    let twice = br#"{"weight_map": {"x": "w1.safetensors", "x": "w2.safetensors"}}"#;
    let dir = folder_of(&[(INDEX, twice), ("w1.safetensors", &x), ("w2.safetensors", &y)]);
    assert_eq!(codes(folder(dir.path()))[0], (BadIndex, Some("x".into())));
}

#[test]
fn one_consistent_set_is_taken_without_an_index() {
    let good = good();
    let meta = shard(&json!({}), 0);
    let taken = |files: &[&str]| -> Result<Vec<String>, Code> {
        let contents: Vec<(&str, &[u8])> = files
            .iter()
            .enumerate()
            .map(|(n, name)| (*name, if n == 0 { good.as_slice() } else { meta.as_slice() }))
            .collect();
        let dir = folder_of(&contents);
        match folder(dir.path()) {
            Ok(inventory) => Ok(inventory.shards.iter().map(|s| s.name.to_string()).collect()),
            Err(faults) => Err(faults.0[0].code),
        }
    };
    let strays = ["model.safetensors", "adapter_model.safetensors", "reference.safetensors"];
    assert_eq!(taken(&strays).unwrap(), ["model.safetensors"]);
    let old = [
        "model.safetensors-00001-of-00002.safetensors",
        "model.safetensors-00002-of-00002.safetensors",
    ];
    assert_eq!(taken(&old).unwrap(), old);
    let words = ["model-language.safetensors", "model-vision.safetensors"];
    assert_eq!(taken(&words).unwrap(), words);
    let numbered = ["weights.00.safetensors", "weights.01.safetensors"];
    assert_eq!(taken(&numbered).unwrap(), numbered);
    let both = ["model.safetensors", "model-00001-of-00001.safetensors"];
    assert_eq!(taken(&both), Err(Code::NoWeights));
    assert_eq!(taken(&["a.safetensors", "b.safetensors"]), Err(Code::NoWeights));
    assert_eq!(taken(&["consolidated.safetensors"]), Err(Code::NoWeights));
    assert_eq!(taken(&["pytorch_model.bin"]), Err(Code::NoWeights));
    assert_eq!(taken(&["model-00001-of-00002.safetensors"]), Err(Code::MissingShard));
}

#[test]
fn folders_that_are_no_model_are_refused() {
    assert_eq!(codes(folder(Path::new("/nonexistent/model"))), [(Code::NoSuchFolder, None)]);
    let dir = folder_of(&[("model_index.json", b"{}"), ("model.safetensors", &good())]);
    assert_eq!(codes(folder(dir.path())), [(Code::ImageModel, None)]);
    let dir = folder_of(&[("config.json", b"[1, 2]"), ("model.safetensors", &good())]);
    assert_eq!(codes(folder(dir.path())), [(Code::BadConfig, None)]);
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    assert_eq!(codes(folder(dir.path())), [(Code::NoConfig, None)]);
}

#[test]
fn configs_are_read_leniently_but_not_blindly() {
    let odd = b"{\"a\": NaN, \"b\": -Infinity, /* c */ \"d\": [1, 2,], \"e\": 1.5}";
    let dir = folder_of(&[("config.json", odd), ("model.safetensors", &good())]);
    let inventory = folder(dir.path()).unwrap();
    assert_eq!(inventory.config, json!({"a": null, "b": null, "d": [1, 2], "e": 1.5}));
    assert_eq!(inventory.warnings.len(), 1);

    let garbage = b"{\"a\": 1,\n  \"b\": @@}";
    let dir = folder_of(&[("config.json", garbage), ("model.safetensors", &good())]);
    let faults = folder(dir.path()).unwrap_err();
    let place = faults.0[0].place.as_ref().unwrap();
    assert_eq!(place.text.line_column(place.span.start), (2, 8));

    for deep in ["[".repeat(200_000), "{\"a\":".repeat(100_000), "[\"]\",".repeat(200_000)] {
        let dir = folder_of(&[("config.json", deep.as_bytes()), ("model.safetensors", &good())]);
        assert_eq!(codes(folder(dir.path())), [(Code::BadConfig, None)]);
    }
}

#[test]
fn chat_templates_are_found_where_producers_put_them() {
    let template = |files: &[(&str, &[u8])]| {
        let good = good();
        let mut all = vec![("model.safetensors", good.as_slice())];
        all.extend_from_slice(files);
        folder(folder_of(&all).path()).unwrap().chat_template
    };
    let named = br#"{"chat_template": [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "D"}]}"#;
    assert_eq!(template(&[]), None);
    assert_eq!(template(&[("tokenizer_config.json", named)]).as_deref(), Some("D"));
    let jinja: (&str, &[u8]) = ("chat_template.jinja", b"J");
    assert_eq!(template(&[("tokenizer_config.json", named), jinja]).as_deref(), Some("J"));
    let processor: (&str, &[u8]) = ("chat_template.json", br#"{"chat_template": "P"}"#);
    assert_eq!(template(&[("tokenizer_config.json", b"{}"), processor]).as_deref(), Some("P"));
}

#[test]
fn an_inventory_file_says_the_same_as_its_folder() {
    let dir = folder_of(&[
        ("model.safetensors", &good()),
        ("chat_template.jinja", b"J"),
        ("hf_quant_config.json", b"{\"q\": 1}"),
    ]);
    let inventory = folder(dir.path()).unwrap();
    let text = Described::from(&inventory).to_text();
    let path = dir.path().join("inventory.json");
    std::fs::write(&path, &text).unwrap();
    let again = source(&path).unwrap();
    assert_eq!(again.digest, inventory.digest);
    assert_eq!(again.config, inventory.config);
    assert_eq!(again.chat_template, inventory.chat_template);
    assert_eq!(again.quant_config, inventory.quant_config);
    let plain = |i: &Inventory| -> Vec<_> {
        i.tensors.iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone(), t.shard)).collect()
    };
    assert_eq!(plain(&again), plain(&inventory));
    assert!(inventory.has_weights() && !again.has_weights());

    for (from, to) in [("\"BF16\"", "\"C64\""), ("[2,3]", "[-2,3]"), ("],0]", "],7]")] {
        assert!(text.contains(from), "{text}");
        std::fs::write(&path, text.replace(from, to)).unwrap();
        let faults = source(&path).unwrap_err();
        assert!(faults.0[0].tensor.is_some(), "{faults}");
    }
}

#[test]
fn a_few_numbers_can_be_read() {
    let header = json!({"a": tensor("F32", &[2], 0, 8), "b": tensor("I32", &[1], 8, 12)});
    let mut bytes = shard(&header, 0);
    for number in [1.5f32, -2.0] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&7i32.to_le_bytes());
    let dir = folder_of(&[("model.safetensors", &bytes)]);
    let inventory = folder(dir.path()).unwrap();
    let values = Values::new(&inventory);
    let [a, b] = [&inventory.tensors[0], &inventory.tensors[1]];
    assert_eq!(values.floats(a).unwrap(), Some(vec![1.5, -2.0]));
    assert_eq!(values.integers(b).unwrap(), Some(vec![7]));
    assert_eq!(values.integers(a).unwrap(), None);
}
