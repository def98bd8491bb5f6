//! Against what Python's `tokenizers` and `sentencepiece` made of the same texts
//! (`tests/reference/make_tokenizer_fixtures.py`).

use serde_json::{Value, json};

use super::*;

const EXPECTED: &str = include_str!("../../tests/fixtures/tokenizer/expected.json");
const BYTE_LEVEL: &[u8] = include_bytes!("../../tests/fixtures/tokenizer/byte-level.json");
const BPE: &[u8] = include_bytes!("../../tests/fixtures/tokenizer/bpe.model");
const UNIGRAM: &[u8] = include_bytes!("../../tests/fixtures/tokenizer/unigram.model");

fn load(name: &str, vocabulary: &[u8], config: Value) -> Tokenizer {
    let mut files = Files::default();
    files.insert(name, vocabulary.to_vec());
    files.insert("tokenizer_config.json", config.to_string().into_bytes());
    Tokenizer::load(&files).unwrap()
}

fn byte_level() -> Tokenizer {
    load("tokenizer.json", BYTE_LEVEL, json!({"bos_token": "<bos>", "eos_token": "<eos>"}))
}

/// `legacy` off is how SentencePiece itself puts the space in front.
fn sentencepiece(model: &[u8]) -> Tokenizer {
    load("tokenizer.model", model, json!({"legacy": false}))
}

fn compare(tokenizer: &Tokenizer, name: &str) {
    let expected: Value = serde_json::from_str(EXPECTED).unwrap();
    for case in expected[name]["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids = tokenizer.encode_rendered(text).unwrap();
        assert_eq!(json!(ids), case["ids"], "{name}: ids of {text:?}");
        assert_eq!(json!(tokenizer.decode(&ids, Kept::All)), case["decoded"], "{name}: {text:?}");
    }
    for case in expected[name]["random"].as_array().unwrap() {
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(json!(tokenizer.decode(&ids, Kept::All)), case["decoded"], "{name}: {ids:?}");
    }
}

#[test]
fn byte_level_as_python() {
    compare(&byte_level(), "byte-level");
}

#[test]
fn sentencepiece_bpe_as_python() {
    compare(&sentencepiece(BPE), "bpe");
}

#[test]
fn sentencepiece_unigram_as_python() {
    compare(&sentencepiece(UNIGRAM), "unigram");
}

#[test]
fn streams_whole_characters_only() {
    for tokenizer in [byte_level(), sentencepiece(BPE)] {
        let text = "na\u{EF}ve 東京 👩🏽‍🚀 e\u{301}!";
        let ids = tokenizer.encode_rendered(text).unwrap();
        let mut stream = tokenizer.stream(Kept::None);
        let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
        assert!(pieces.iter().any(String::is_empty), "no byte waited: {pieces:?}");
        pieces.push(stream.finish());
        assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')), "{pieces:?}");
        assert_eq!(pieces.concat(), text);
    }
}

#[test]
fn a_broken_character_is_shown_when_it_cannot_be_completed() {
    let tokenizer = sentencepiece(BPE);
    let byte = |byte: u8| tokenizer.id(&format!("<0x{byte:02X}>")).unwrap();
    let mut stream = tokenizer.stream(Kept::None);
    assert_eq!(stream.push(byte(0xE6)), "");
    assert_eq!(stream.push(byte(0x9D)), "");
    // Completed: 東.
    assert_eq!(stream.push(byte(0xB1)), "東");
    assert_eq!(stream.push(byte(0xE6)), "");
    // A letter cannot complete it.
    assert_eq!(stream.push(byte(b'a')), "\u{FFFD}a");
    assert_eq!(stream.push(byte(0xFF)), "\u{FFFD}");
    assert_eq!(stream.push(byte(0xF0)), "");
    assert_eq!(stream.push(byte(0x9F)), "");
    assert_eq!(stream.finish(), "\u{FFFD}\u{FFFD}");
    assert_eq!(stream.finish(), "");
}

#[test]
fn special_tokens_are_shown_when_asked_for() {
    let tokenizer = byte_level();
    let ids = tokenizer.encode_rendered("<bos>fox<eos>").unwrap();
    assert_eq!(ids.first(), Some(&1));
    assert_eq!(tokenizer.decode(&ids, Kept::None), "fox");
    assert_eq!(tokenizer.decode(&ids, Kept::All), "<bos>fox<eos>");
    let kept = tokenizer.kept(["a <eos> mark"].into_iter());
    assert_eq!(kept, Kept::These([2].into()));
    assert_eq!(tokenizer.decode(&ids, kept), "fox<eos>");
}

#[test]
fn the_config_says_whether_a_plain_text_has_a_beginning() {
    let ids = |config| load("tokenizer.json", BYTE_LEVEL, config).encode("fox").unwrap();
    let bare = ids(json!({"bos_token": "<bos>"}));
    let mut with = vec![1];
    with.extend(&bare);
    assert_eq!(ids(json!({"bos_token": "<bos>", "add_bos_token": true})), with);
    assert_eq!(ids(json!({"bos_token": {"content": "<bos>"}, "add_bos_token": false})), bare);
    // A .model file: a beginning unless the config says otherwise.
    let spm = |config| load("tokenizer.model", BPE, config).encode("fox").unwrap();
    assert_eq!(spm(json!({}))[0], 1);
    assert_ne!(spm(json!({"add_bos_token": false}))[0], 1);
}

#[test]
fn the_pre_tokenizer_decides() {
    // The config claims SentencePiece's conventions; the vocabulary is byte-level.
    let claims = json!({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": true,
                        "legacy": true});
    compare(&load("tokenizer.json", BYTE_LEVEL, claims), "byte-level");
}

#[test]
fn ends_are_those_of_all_configs() {
    let mut files = Files::default();
    files.insert("tokenizer.json", BYTE_LEVEL.to_vec());
    files.insert("tokenizer_config.json", br#"{"eos_token": "<eos>"}"#.to_vec());
    files.insert("generation_config.json", br#"{"eos_token_id": [7, 8]}"#.to_vec());
    files.insert("config.json", br#"{"text_config": {"eos_token_id": 9}, "x": NaN,}"#.to_vec());
    let tokenizer = Tokenizer::load(&files).unwrap();
    assert_eq!(tokenizer.ends().iter().copied().collect::<Vec<_>>(), [2, 7, 8, 9]);
    assert!(tokenizer.is_end(8) && !tokenizer.is_end(1));
}

#[test]
fn tokens_added_later_are_found() {
    let size = byte_level().size();
    let config = json!({"added_tokens_decoder": {
        size.to_string(): {"content": "<|late|>", "special": true},
        "1": {"content": "<bos>", "special": true},
        "99999": {"content": "<|elsewhere|>", "special": true},
    }});
    let tokenizer = load("tokenizer.json", BYTE_LEVEL, config);
    assert_eq!(tokenizer.id("<|late|>"), Some(size as u32));
    assert_eq!(tokenizer.id("<|elsewhere|>"), None);
    assert_eq!(tokenizer.encode_rendered("<|late|>").unwrap(), [size as u32]);
}

#[test]
fn tekken_ranks_become_merges() {
    use base64::prelude::{BASE64_STANDARD, Engine as _};
    let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    // "abc" is made of "ab" and "c"; "xyz" is reached by no merge, yet is a whole word.
    tokens.extend([b"ab".to_vec(), b"abc".to_vec(), b" abc".to_vec(), b"xyz".to_vec()]);
    let vocab: Vec<Value> = tokens
        .iter()
        .enumerate()
        .map(|(rank, bytes)| json!({"rank": rank, "token_bytes": BASE64_STANDARD.encode(bytes)}))
        .collect();
    let tekken = json!({
        "config": {"pattern": r" ?\p{L}+|\s+|[^\s\p{L}]+", "default_vocab_size": 270,
                   "default_num_special_tokens": 10},
        "vocab": vocab,
        "special_tokens": [{"rank": 1, "token_str": "<s>"}, {"rank": 3, "token_str": "[INST]"}],
    });
    let tokenizer = load("tekken.json", tekken.to_string().as_bytes(), json!({"bos_token": "<s>"}));
    let ids = tokenizer.encode("[INST]abc abc abd xyz").unwrap();
    let byte = |byte: u8| 10 + u32::from(byte);
    let expected = [
        1,
        3,
        267,
        268,
        byte(b' '),
        266,
        byte(b'd'),
        byte(b' '),
        byte(b'x'),
        byte(b'y'),
        byte(b'z'),
    ];
    assert_eq!(ids, expected);
    assert_eq!(tokenizer.encode_rendered("xyz").unwrap(), [269]);
    assert_eq!(tokenizer.decode(&ids, Kept::None), "abc abc abd xyz");
}

#[test]
fn what_cannot_be_read_is_named() {
    let fault = |files: Files| Tokenizer::load(&files).err().unwrap();
    let none = fault(Files::default());
    assert!(none.to_string().contains("no vocabulary"), "{none}");
    let mut files = Files::default();
    files.insert("qwen.tiktoken", Vec::new());
    assert!(fault(files).message.contains("qwen.tiktoken"));
    for (name, bytes) in [
        ("tokenizer.json", &b"{\"version\": 1}"[..]),
        ("tokenizer.model", b"\xFF\xFF not protobuf"),
        ("tokenizer.model", b""),
        ("tekken.json", b"{}"),
    ] {
        let mut files = Files::default();
        files.insert(name, bytes.to_vec());
        let fault = fault(files);
        assert_eq!(fault.code, Code::Tokenizer);
        assert_eq!(fault.file.as_deref(), Some(name.as_ref()), "{fault}");
    }
}

/// Parts of a text as Python encodes them, control tokens alone and the rest by a vocabulary that has
/// none.
#[test]
fn spelled_control_tokens_are_characters() {
    let expected: Value = serde_json::from_str(EXPECTED).unwrap();
    let vocabularies = [
        ("byte-level", byte_level()),
        ("bpe", sentencepiece(BPE)),
        ("unigram", sentencepiece(UNIGRAM)),
    ];
    for (name, tokenizer) in vocabularies {
        let controls = Controls::new(&tokenizer, |_| false).unwrap();
        for case in expected[name]["spelled"].as_array().unwrap() {
            let mut rendered = Rendered::default();
            for part in case["parts"].as_array().unwrap() {
                let (text, meant) = (part[0].as_str().unwrap(), part[1].as_bool().unwrap());
                let at = rendered.text.len();
                rendered.text.push_str(text);
                let found = controls.find(text).map(|range| range.start + at..range.end + at);
                rendered.spelled.extend(found.filter(|_| !meant));
            }
            let ids = controls.encode(&tokenizer, &rendered).unwrap();
            assert_eq!(json!(ids), case["ids"], "{name}: {rendered:?}");
            let decoded = tokenizer.decode(&ids, Kept::All);
            assert_eq!(decoded, rendered.text, "{name}");
        }
    }
}

/// A run of control tokens costs no more than its length.
#[test]
fn many_spelled_tokens_are_encoded_in_time() {
    let tokenizer = byte_level();
    let controls = Controls::new(&tokenizer, |_| false).unwrap();
    let text = "<eos>".repeat(100_000);
    let spelled: Vec<_> = controls.find(&text).collect();
    assert_eq!(spelled.len(), 100_000);
    let ids = controls.encode(&tokenizer, &Rendered { text, spelled }).unwrap();
    assert!(ids.iter().all(|id| !tokenizer.is_end(*id)));
}
