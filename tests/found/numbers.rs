//! What quantizing reaches, and numbers that are none.

use safetensors::Dtype;
use serde_json::json;

use crate::common::{Sandbox, config, llama_tensors};
use crate::messages::{Raw, contains, file, raw, warnings, with_projections};

#[test]
fn a_quantization_that_reaches_little_says_how_much_and_why() {
    let sandbox = Sandbox::new();
    let narrow = |module: &str, out: usize, inner: usize| {
        let inner = if module.ends_with("down_proj") { inner } else { inner - 14 };
        vec![raw(format!("{module}.weight"), Dtype::BF16, &[out, inner])]
    };
    sandbox.file("m/config.json", config().to_string());
    sandbox.file("m/model.safetensors", file(&with_projections(narrow)));
    // Of each layer down_proj's 64·128 of 4·64·50 + 2·128·50 + 64·128 fit; the embedding's 96·64
    // is not asked for.
    let share = 8192.0 * 100.0 / (12800.0 + 12800.0 + 8192.0);
    let found = warnings(&sandbox, &["create", "m", "m", "-q", "int4"], "little-quantized");
    assert_eq!(found.len(), 1, "{found:?}");
    contains(&found[0], &[&format!("{share:.1} %"), "no group (64)", "(50)", "12 tensors"]);

    let none = |module: &str, out: usize, inner: usize| {
        vec![raw(format!("{module}.weight"), Dtype::BF16, &[out, inner - 14])]
    };
    sandbox.file("n/config.json", config().to_string());
    sandbox.file("n/model.safetensors", file(&with_projections(none)));
    let found = warnings(&sandbox, &["create", "n", "n", "-q", "mxfp4"], "little-quantized");
    contains(&found[0], &["none of the", "is quantized", "(32)", "(50, 114)"]);
    let whole = sandbox.model("whole");
    let args = ["create", "w", whole.to_str().unwrap(), "-q", "int4"];
    assert!(warnings(&sandbox, &args, "little-quantized").is_empty());
}

#[test]
fn the_format_of_a_model_in_which_nothing_is_quantized_is_none() {
    let sandbox = Sandbox::new();
    let none = |module: &str, out: usize, inner: usize| {
        vec![raw(format!("{module}.weight"), Dtype::BF16, &[out, inner - 14])]
    };
    sandbox.file("n/config.json", config().to_string());
    sandbox.file("n/model.safetensors", file(&with_projections(none)));
    sandbox.lathe(&["create", "n", "n", "-q", "int4", "--no-smoke"]).ok();
    let whole = sandbox.model("whole");
    let whole = whole.to_str().unwrap();
    sandbox.lathe(&["create", "w", whole, "-q", "int8", "--no-smoke"]).ok();

    let listed = sandbox.lathe(&["list", "-o", "json"]).json();
    let model = |name: &str| {
        let models = listed["models"].as_array().unwrap();
        models.iter().find(|model| model["name"] == format!("{name}:latest")).unwrap().clone()
    };
    assert_eq!(
        (model("n")["format"].as_str(), &model("n")["bits_per_weight"]),
        (Some(""), &json!(16.0))
    );
    assert_eq!(model("w")["format"], "int8");
    // 14 matrices of 8 bits with two scales of 16 bits a group of 64; embedding and norms of 16.
    let (eight, sixteen) = (2.0 * (4.0 * 4096.0 + 3.0 * 8192.0), 96.0 * 64.0 + 5.0 * 64.0);
    let bits = (eight * 8.5 + sixteen * 16.0) / (eight + sixteen);
    for found in [&model("w"), &sandbox.lathe(&["show", "w", "-o", "json"]).json()] {
        let found = found["bits_per_weight"].as_f64().unwrap();
        assert!((found - bits).abs() < 1e-9, "{found} and not {bits}");
    }
    let shown = sandbox.lathe(&["show", "n"]).ok();
    let row = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap().to_string();
    assert!(row("format ").ends_with(" -"), "{shown}");
    assert!(row("bits per weight").ends_with(" 16.00"), "{shown}");
    let list = sandbox.lathe(&["list", "n"]).ok();
    let words: Vec<&str> = list.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(&words[4..6], ["-", "16.00"], "{list}");
}

/// The tiny llama in another dtype.
fn of_dtype(dtype: Dtype, bytes: impl Fn(usize) -> Vec<u8>) -> Vec<Raw> {
    let tensor = |(name, shape): (String, Vec<usize>)| {
        let bytes = (0..shape.iter().product()).flat_map(&bytes).collect();
        (name, dtype, shape, bytes)
    };
    llama_tensors().into_iter().map(tensor).collect()
}

#[test]
fn numbers_that_are_none_are_told_of_plain_weights_copied_or_quantized() {
    let sandbox = Sandbox::new();
    let bf16 = |at: usize, odd: u16| match at {
        70 => odd.to_le_bytes().to_vec(),
        _ => (0x3c00 + at as u16 % 256).to_le_bytes().to_vec(),
    };
    let quiet = ["create", "m", "m", "--no-smoke"];
    let formats: [&[&str]; 4] = [&[], &["-q", "int4"], &["-q", "mxfp4"], &["-q", "nvfp4"]];
    // NaN, infinity, minus infinity: the same in F16, F32 and F64 below.
    for odd in [0x7fc0, 0x7f80, 0xff80] {
        sandbox.file("m/config.json", config().to_string());
        let tensors = of_dtype(Dtype::BF16, |at| bf16(at, odd));
        sandbox.file("m/model.safetensors", file(&tensors));
        for format in formats {
            let outcome = sandbox.lathe(&[&quiet[..], format].concat());
            assert_eq!(outcome.code, 0, "{}", outcome.stderr);
            contains(
                &outcome.stderr.split_whitespace().collect::<Vec<_>>().join(" "),
                &[
                    "weights are NaN or infinite",
                    "model.embed_tokens.weight (1 of 6144)",
                    "what is not quantized keeps them",
                ],
            );
            let group = match format {
                [] => continue,
                [_, "int4"] => "an infinity makes its whole group NaN",
                _ => "whole group next to zero",
            };
            contains(&outcome.stderr, &[group]);
        }
    }
    type Bytes = fn(usize) -> Vec<u8>;
    let wide: [(Dtype, Bytes); 3] = [
        (Dtype::F16, |at| if at == 9 { vec![0, 0x7c] } else { vec![0, 0x34] }),
        (Dtype::F32, |at| if at == 9 { f32::NAN } else { 0.25 }.to_le_bytes().to_vec()),
        (Dtype::F64, |at| if at == 9 { f64::INFINITY } else { 0.25 }.to_le_bytes().to_vec()),
    ];
    for (dtype, bytes) in wide {
        sandbox.file("m/model.safetensors", file(&of_dtype(dtype, bytes)));
        let events = sandbox.lathe(&[&quiet[..], &["-o", "json"]].concat()).events();
        let told = events.last().unwrap()["warnings"].to_string();
        contains(&told, &["not-finite", "model.embed_tokens.weight (1 of 6144)"]);
    }
    sandbox.file("m/model.safetensors", file(&of_dtype(Dtype::BF16, |at| bf16(at, 0x3c00))));
    assert!(!sandbox.lathe(&quiet).stderr.contains("NaN"));
}

/// The same numbers in F64 and in F32 give the same model but for what is kept as it is.
#[test]
fn doubles_are_quantized_as_the_floats_that_they_are() {
    let sandbox = Sandbox::new();
    let value = |at: usize| ((at * 37) % 101) as f32 / 50.0 - 1.0;
    for (folder, dtype) in [("d", Dtype::F64), ("f", Dtype::F32)] {
        sandbox.file(&format!("{folder}/config.json"), config().to_string());
        let tensors = of_dtype(dtype, |at| match dtype {
            Dtype::F64 => f64::from(value(at)).to_le_bytes().to_vec(),
            _ => value(at).to_le_bytes().to_vec(),
        });
        sandbox.file(&format!("{folder}/model.safetensors"), file(&tensors));
    }
    for format in ["int4", "int8", "mxfp4", "mxfp8", "nvfp4"] {
        for folder in ["d", "f"] {
            sandbox.lathe(&["create", folder, folder, "-q", format, "--no-smoke"]).ok();
        }
        let blobs = |name: &str| {
            let rows = sandbox.lathe(&["show", name, "--tensors", "-o", "json"]).json();
            let rows = rows["tensors"].as_array().unwrap().clone();
            let quantized = rows.into_iter().filter(|row| row["format"] != "source");
            quantized.map(|row| row["blob"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(blobs("d").len(), 14, "{format}");
        assert_eq!(blobs("d"), blobs("f"), "{format}");
    }
    sandbox.lathe(&["create", "d", "d", "--no-smoke"]).ok();
    sandbox.lathe(&["verify"]).ok();
}

/// What is planned is done, and what cannot be done is refused while planning.
#[test]
fn every_dtype_is_planned_as_it_is_written() {
    let sandbox = Sandbox::new();
    sandbox.file("m/config.json", config().to_string());
    use Dtype::*;
    let all = [
        BOOL, U8, I8, F8_E5M2, F8_E4M3, F8_E8M0, I16, U16, F16, BF16, I32, U32, F32, F64, I64, U64,
        F4, F6_E2M3, F6_E3M2, C64,
    ];
    for dtype in all {
        let tensors = with_projections(|module, out, inner| {
            vec![raw(format!("{module}.weight"), dtype, &[out, inner])]
        });
        sandbox.file("m/model.safetensors", file(&tensors));
        for format in [&[][..], &["-q", "int4"], &["-q", "nvfp4"]] {
            let create = [&["create", "m", "m", "--no-smoke"][..], format].concat();
            let planned = sandbox.lathe(&[&create[..], &["--dry-run"]].concat());
            let made = sandbox.lathe(&create);
            assert_eq!(planned.code, made.code, "{dtype:?} {format:?}: {}", made.stderr);
            let bare = |text: &str| text.contains("help:");
            assert!(planned.code == 0 || bare(&planned.stderr), "{dtype:?}: {}", planned.stderr);
        }
    }
}
