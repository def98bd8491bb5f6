//! `lathe create` killed at random moments: what is in the store stays valid, and the next create
//! ends with the same digests.
//!
//! Ten times in the test run; `LATHE_KILLS=200 cargo test --test killed` for more.

#![cfg(unix)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A llama of 2 layers and some 20 MB: long enough to be killed in the middle.
fn model(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    fs::write(
        dir.join("config.json"),
        r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 8,
            "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 8192}"#,
    )
    .unwrap();
    fs::write(dir.join("tokenizer.json"), "{}").unwrap();
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
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    let mut state = 1u32;
    for (name, shape) in tensors {
        let start = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // BF16 between 2^-8 and 1, of either sign.
            let bits = ((state >> 16) & 0x8000) as u16 | (0x3b80 + ((state >> 20) & 0x3ff) as u16);
            data.extend_from_slice(&bits.to_le_bytes());
        }
        let entry = serde_json::json!(
            {"dtype": "BF16", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name, entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    fs::write(dir.join("model.safetensors"), bytes).unwrap();
}

fn lathe(arguments: &[&str], store: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lathe"));
    command.args(arguments).arg("--store").arg(store).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn succeed(arguments: &[&str], store: &Path) {
    let done = lathe(arguments, store).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "lathe {arguments:?}: {said}");
}

fn names(dir: &Path) -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(dir) else { return BTreeSet::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn manifest(store: &Path) -> PathBuf {
    store.join("manifests/registry.ollama.ai/library/m/latest")
}

#[test]
fn a_killed_create_leaves_a_store_that_the_next_one_completes() {
    let kills: u32 = std::env::var("LATHE_KILLS").map_or(10, |n| n.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    model(&source);
    let source = source.to_str().unwrap();
    let create = ["create", "m", source, "-q", "int4"];

    let undisturbed = dir.path().join("undisturbed");
    let begun = Instant::now();
    succeed(&create, &undisturbed);
    let took = begun.elapsed();
    let expected = fs::read(manifest(&undisturbed)).unwrap();
    let blobs = names(&undisturbed.join("blobs"));

    let store = dir.path().join("store");
    let mut cut_short = 0;
    for kill in 0..kills {
        let _ = fs::remove_dir_all(&store);
        let mut child = lathe(&create, &store).spawn().unwrap();
        // Evenly spread over the run, and a little beyond its end.
        std::thread::sleep(took.mul_f64(1.1 * f64::from(kill) / f64::from(kills)));
        let ended = child.try_wait().unwrap().is_some();
        child.kill().unwrap();
        child.wait().unwrap();
        cut_short += u32::from(!ended);

        let listed = manifest(&store).exists();
        if store.exists() {
            succeed(&["verify"], &store);
        }
        // Only whole blobs bear the names of blobs.
        for name in names(&store.join("blobs")).iter().filter(|n| n.starts_with("sha256-")) {
            let size = |store: &Path| fs::metadata(store.join("blobs").join(name)).unwrap().len();
            assert!(blobs.contains(name), "kill {kill}: {name} is no blob of the model");
            assert_eq!(size(&store), size(&undisturbed), "kill {kill}: {name}");
        }
        if listed {
            assert_eq!(fs::read(manifest(&store)).unwrap(), expected, "kill {kill}");
        }
        succeed(&create, &store);
        assert_eq!(fs::read(manifest(&store)).unwrap(), expected, "kill {kill}");
        succeed(&["verify"], &store);
        succeed(&["gc"], &store);
        assert_eq!(names(&store.join("blobs")), blobs, "kill {kill}: nothing else is left");
    }
    assert!(kills < 10 || cut_short > 0, "no kill came before the end ({took:?})");
}

#[test]
fn an_interrupt_ends_within_a_second_and_says_what_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    model(&source);
    let store = dir.path().join("store");
    let create = ["create", "m", source.to_str().unwrap(), "-q", "int4", "--jobs", "1"];
    // Some interrupts come before the work begins or after it has ended: try several moments.
    for moment in [5, 10, 20, 40, 80, 160, 320] {
        let _ = fs::remove_dir_all(&store);
        let child = lathe(&create, &store).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(moment));
        let begun = Instant::now();
        let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let done = child.wait_with_output().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1), "took {:?}", begun.elapsed());
        let said = String::from_utf8_lossy(&done.stderr);
        if done.status.code() == Some(130) {
            assert!(said.contains("interrupted"), "{said}");
            assert!(said.contains("kept"), "{said}");
            assert!(!manifest(&store).exists());
            return;
        }
    }
    panic!("no interrupt came while it worked");
}
