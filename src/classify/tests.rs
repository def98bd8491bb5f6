//! Layouts and claims on inventories made here; producers' own folders are in `tests/sources.rs`.

use std::time::Instant;

use serde_json::{Value, json};

use super::*;
use crate::fault::Code;
use crate::read::{Shard, TensorInfo};

fn inventory(config: Value, tensors: &[(&str, Dtype, &[u64])]) -> Inventory {
    let mut tensors: Vec<TensorInfo> = tensors
        .iter()
        .map(|(name, dtype, shape)| TensorInfo {
            name: name.to_string(),
            dtype: *dtype,
            shape: shape.to_vec(),
            shard: 0,
            range: 0..0,
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let shard = Shard { name: "model.safetensors".into(), size: 0, modified: None };
    Inventory { config, tensors, shards: vec![shard], ..Inventory::default() }
}

fn layout_of(config: Value, tensors: &[(&str, Dtype, &[u64])]) -> (String, Vec<u64>) {
    let classified =
        classify(&inventory(config, tensors)).unwrap_or_else(|faults| panic!("{faults}"));
    let weight = &classified.weights[0];
    (weight.layout.to_string(), weight.shape.clone())
}

fn faults_of(tensors: &[(&str, Dtype, &[u64])]) -> Vec<(Code, String)> {
    let faults = classify(&inventory(json!({}), tensors)).expect_err("refused");
    faults.0.into_iter().map(|fault| (fault.code, fault.tensor.unwrap_or_default())).collect()
}

use Dtype::{BF16, F8E4M3 as E4M3, F32, I32, U8, U32};

#[test]
fn scales_decide_between_layouts_of_one_dtype() {
    let case = |scale: Dtype, shape: &[u64]| {
        layout_of(json!({}), &[("a.weight", U8, &[64, 64]), ("a.weight_scale", scale, shape)]).0
    };
    assert_eq!(case(U8, &[64, 4]), "modelopt-mxfp4");
    assert_eq!(case(F32, &[128, 2]), "modelopt-int4");
    let fp8 = |scale: &[u64]| {
        layout_of(json!({}), &[("a.weight", E4M3, &[256, 320]), ("a.weight_scale", F32, scale)]).0
    };
    assert_eq!(fp8(&[2, 3]), "fp8-block");
    assert_eq!(fp8(&[2, 1, 3, 1]), "fp8-block");
    assert_eq!(fp8(&[256, 1]), "fp8-channel");
    assert_eq!(fp8(&[256]), "fp8-channel");
    assert_eq!(fp8(&[]), "fp8-tensor");
    assert_eq!(fp8(&[1]), "fp8-tensor");
    assert_eq!(fp8(&[1, 1]), "fp8-tensor");
}

#[test]
fn mlx_bits_come_from_the_config_and_must_fit() {
    let tensors: [(&str, Dtype, &[u64]); 3] = [
        ("m.a.weight", U32, &[16, 32]),
        ("m.a.scales", BF16, &[16, 4]),
        ("m.a.biases", BF16, &[16, 4]),
    ];
    let four = json!({"quantization": {"bits": 4, "group_size": 64}});
    assert_eq!(layout_of(four, &tensors), ("mlx-affine".into(), vec![16, 256]));
    let over = json!({"quantization": {"bits": 6, "group_size": 64, "m.a": {"bits": 8, "group_size": 32}}});
    assert_eq!(layout_of(over, &tensors), ("mlx-affine".into(), vec![16, 128]));
    let wrong = json!({"quantization": {"bits": 6, "group_size": 64}});
    let faults = classify(&inventory(wrong, &tensors)).unwrap_err();
    assert_eq!(faults.0[0].code, Code::BadScale, "{faults}");
    for silent in [json!({}), json!({"quantization": {"bits": "4", "group_size": 64}})] {
        let faults = classify(&inventory(silent, &tensors)).unwrap_err();
        assert_eq!(faults.0[0].code, Code::BadConfig, "{faults}");
    }
}

#[test]
fn what_does_not_fit_is_named_all_at_once() {
    let found = faults_of(&[
        ("a.weight", E4M3, &[128, 128]),
        ("b.weight_packed", U8, &[128, 64]),
        ("b.weight_scale", E4M3, &[128, 8]),
        ("c.scales", BF16, &[128, 2]),
        ("d.weight", Dtype::F8E5M2, &[8, 8]),
        ("e.qweight", I32, &[8, 8]),
        ("f.weight", BF16, &[8, 8]),
        ("f.pre_quant_scale", BF16, &[8]),
    ]);
    let expected = [
        (Code::Companion, "a.weight"),
        (Code::Companion, "b.weight_packed"),
        (Code::Unsupported, "d.weight"),
        (Code::Companion, "e.qweight"),
        (Code::Companion, "f.pre_quant_scale"),
        (Code::Companion, "c.scales"),
    ];
    let expected: Vec<_> = expected.iter().map(|(code, name)| (*code, name.to_string())).collect();
    assert_eq!(found, expected);
}

#[test]
fn strays_beside_floats_are_dropped_with_a_warning() {
    let tensors: [(&str, Dtype, &[u64]); 3] = [
        ("a.weight", BF16, &[128, 128]),
        ("a.weight_scale_inv", F32, &[1, 1]),
        ("attn.k_scale", F32, &[]),
    ];
    let classified = classify(&inventory(json!({}), &tensors)).unwrap();
    assert_eq!(classified.weights.len(), 1);
    let told: Vec<_> = classified.warnings.iter().map(|w| w.tensor.clone().unwrap()).collect();
    assert_eq!(told, ["a.weight_scale_inv", "attn.k_scale"]);
}

#[test]
fn claims_are_held_against_the_tensors() {
    let tensors: [(&str, Dtype, &[u64]); 5] = [
        ("language_model.model.layers.0.q.weight", E4M3, &[128, 128]),
        ("language_model.model.layers.0.q.weight_scale", F32, &[]),
        ("language_model.model.layers.0.r.proj.weight", E4M3, &[128, 128]),
        ("language_model.model.layers.0.r.proj.weight_scale", F32, &[]),
        ("language_model.model.layers.1.q.weight", BF16, &[128, 128]),
    ];
    let warned = |ignore: Value, targets: Value| {
        let config = json!({"quantization_config": {
            "ignore": ignore, "config_groups": {"g": {"targets": targets}},
        }});
        let classified = classify(&inventory(config, &tensors)).unwrap();
        let codes = classified.warnings.iter().filter(|w| w.code == Code::ConfigDisagrees.as_str());
        codes.map(|warning| warning.tensor.clone().unwrap()).collect::<Vec<_>>()
    };
    let q1 = "language_model.model.layers.1.q.weight";
    let r = "language_model.model.layers.0.r.proj.weight";
    assert_eq!(warned(json!([]), json!(["Linear"])), [q1]);
    assert_eq!(warned(json!([]), json!(["re:.*\\.q$"])), [q1]);
    assert!(warned(json!(["re:.*layers\\.1\\."]), json!(["Linear"])).is_empty());
    assert!(warned(json!(["model.language_model.layers.1.q"]), json!(["Linear"])).is_empty());
    assert!(warned(json!(["model.layers.1*"]), json!(["Linear"])).is_empty());
    // A module above a quantized one is named: its weight is denied with it.
    assert_eq!(warned(json!(["model.layers.0.r", "*layers.1*"]), json!([])), [r]);
}

#[test]
fn a_block_size_that_the_shapes_contradict_is_overruled_with_a_warning() {
    let config = json!({"quantization_config": {"weight_block_size": [64.0, 64.0]}});
    let tensors: [(&str, Dtype, &[u64]); 2] =
        [("a.weight", E4M3, &[128, 128]), ("a.weight_scale_inv", F32, &[1, 1])];
    let classified = classify(&inventory(config, &tensors)).unwrap();
    assert_eq!(classified.warnings[0].code, Code::ConfigDisagrees.as_str());
    let WeightKind::Decode { decode, .. } = &classified.weights[0].kind else { panic!() };
    assert_eq!(decode.ops, [Op::DecodeFp8 { block: [128, 128] }]);
}

#[test]
fn groups_that_mlx_lacks_are_told_as_re_quantized() {
    let case = |group: u64| {
        let tensors: [(&str, Dtype, &[u64]); 2] =
            [("a.weight_packed", I32, &[64, 32]), ("a.weight_scale", BF16, &[64, 256 / group])];
        let config =
            json!({"quantization_config": {"config_groups": {"g": {"weights": {"num_bits": 4}}}}});
        classify(&inventory(config, &tensors)).unwrap()
    };
    let kept = |group| match &case(group).weights[0].kind {
        WeightKind::Keep { format, .. } => format.to_string(),
        _ => "decoded".into(),
    };
    assert_eq!(kept(64), "int4");
    assert_eq!(kept(128), "int4-g128");
    assert_eq!(kept(32), "int4-g32");
    assert_eq!(kept(256), "int4", "one scale a row is repeated");
    assert_eq!(kept(16), "decoded");
    assert_eq!(case(16).warnings[0].code, Code::Requantized.as_str());
}

#[test]
fn many_tensors_take_little_time() {
    let names: Vec<String> = (0..25_000)
        .flat_map(|n| {
            [".weight_packed", ".weight_scale", ".weight_global_scale"]
                .map(|suffix| format!("model.layers.{}.mlp.experts.{n}.up_proj{suffix}", n / 512))
        })
        .collect();
    let tensors: Vec<(&str, Dtype, &[u64])> = names
        .iter()
        .map(|name| match name {
            name if name.ends_with("packed") => (name.as_str(), U8, &[512, 1024][..]),
            name if name.ends_with("global_scale") => (name.as_str(), F32, &[1][..]),
            name => (name.as_str(), E4M3, &[512, 128][..]),
        })
        .collect();
    let config = json!({"quantization_config": {"ignore": ["lm_head", "re:.*gate$"],
        "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4}}}}});
    let inventory = inventory(config, &tensors);
    let begun = Instant::now();
    assert_eq!(classify(&inventory).unwrap().weights.len(), 25_000);
    let took = begun.elapsed();
    println!("{} tensors: {took:?}", tensors.len());
    // Far above what it takes, so that only something quadratic fails.
    assert!(took.as_secs() < 20, "{took:?}");
}

/// ModelOpt's MXFP4 of gpt-oss is `[experts, in, out / 2]`; transformers' kinds are the other way.
#[test]
fn the_sides_of_stacked_experts_are_proven() {
    let sizes = json!({"hidden_size": 64, "intermediate_size": 64});
    let gate_up = ("m.experts.gate_up_proj", U8, &[4, 64, 64][..]);
    let gate_up_scale = ("m.experts.gate_up_proj_weight_scale", U8, &[4, 64, 4][..]);
    let down = ("m.experts.down_proj", U8, &[4, 64, 32][..]);
    let down_scale = ("m.experts.down_proj_weight_scale", U8, &[4, 64, 2][..]);
    let read = |config: &Value, tensors: &[(&str, Dtype, &[u64])]| {
        let weights = classify(&inventory(config.clone(), tensors)).map(|found| found.weights);
        let weights = weights.map_err(|faults| faults.0[0].message.clone())?;
        let what = |weight: Weight| (weight.name, weight.shape);
        Ok::<_, String>(weights.into_iter().map(what).collect::<Vec<_>>())
    };
    // A square is told by what stands beside it.
    let both = read(&sizes, &[gate_up, gate_up_scale, down, down_scale]).unwrap();
    let kept = [
        ("m.experts.down_proj".to_string(), vec![4, 64, 64]),
        ("m.experts.gate_up_proj".to_string(), vec![4, 64, 128]),
    ];
    assert_eq!(both, kept);
    let square = read(&sizes, &[down, down_scale]).unwrap_err();
    assert!(square.contains("[.., out, in]") && square.contains("[.., in, out]"), "{square}");
    let unknown = read(&json!({}), &[gate_up, gate_up_scale]).unwrap_err();
    assert!(unknown.contains("64 outputs of 128 inputs"), "{unknown}");
    assert!(unknown.contains("128 outputs of 64 inputs"), "{unknown}");
    // As said: [experts, out, in / 2].
    let said = ("m.experts.gate_up_proj", U8, &[4, 128, 32][..]);
    let said_scale = ("m.experts.gate_up_proj_weight_scale", U8, &[4, 128, 2][..]);
    let straight = read(&sizes, &[said, said_scale]).unwrap();
    assert_eq!(straight, [("m.experts.gate_up_proj.weight".to_string(), vec![4, 128, 64])]);
    // 8-bit floats are decoded, and turned.
    let fp8 = ("m.experts.gate_up_proj", E4M3, &[4, 64, 128][..]);
    let fp8_scale = ("m.experts.gate_up_proj_scale_inv", F32, &[4, 1, 1][..]);
    let turned = read(&sizes, &[fp8, fp8_scale]).unwrap();
    assert_eq!(turned, [("m.experts.gate_up_proj.weight".to_string(), vec![4, 128, 64])]);
    // A layout that is never turned is refused where the sizes contradict it.
    let other = ("m.experts.gate_up_proj.weight", U8, &[4, 64, 64][..]);
    let other_scale = ("m.experts.gate_up_proj.weight_scale", U8, &[4, 64, 4][..]);
    let refused = read(&sizes, &[other, other_scale]).unwrap_err();
    assert!(refused.contains("those of the second"), "{refused}");
}

/// Floats called like companions are the model's own, unless some weight has such companions.
#[test]
fn what_is_only_called_like_a_companion_is_kept() {
    let own = [("a.scales", BF16, &[8][..]), ("b.weight", BF16, &[8, 8])];
    let found = classify(&inventory(json!({}), &own)).unwrap();
    assert_eq!(found.weights.len(), 2);
    let quantized = [
        ("a.scales", BF16, &[8, 1][..]),
        ("own.scales", BF16, &[8]),
        ("b.weight", U32, &[8, 8]),
        ("b.scales", BF16, &[8, 1]),
        ("b.biases", BF16, &[8, 1]),
    ];
    let config = json!({"quantization": {"bits": 4, "group_size": 64}});
    let faults = classify(&inventory(config, &quantized)).expect_err("a weight is missing");
    let named: Vec<_> = faults.0.iter().filter_map(|fault| fault.tensor.as_deref()).collect();
    assert_eq!(named, ["a.scales"]);
}
