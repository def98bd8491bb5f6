use serde_json::json;

use super::*;
use crate::decoder::description::{self, Expr};
use crate::decoder::values::Scope;

fn read(config: &Json, head_dim: usize) -> Result<Rotation, Unclear> {
    let theta = Some(Expr::Text("rope_theta ?? 10000.0".into()));
    let rope = description::Rope { theta, partial: Some(Expr::Float(1.0)), ..Default::default() };
    let scope = Scope::of_object(config, &[]);
    Rotation::read(&Given::of(&scope, &rope, head_dim).unwrap())
}

/// `tests/decoder/ropes.json`, which `ropes.py` makes with transformers, has the forms in which
/// published configs give rotations.
#[test]
fn frequencies_are_those_of_transformers() {
    let cases: Json =
        serde_json::from_str(include_str!("../../../tests/decoder/ropes.json")).unwrap();
    let mut compared = 0;
    for case in cases["cases"].as_array().unwrap() {
        let mut config = cases["base"].clone();
        config.as_object_mut().unwrap().extend(case["config"].as_object().unwrap().clone());
        let name = &case["name"];
        let found = read(&config, 16);
        let Some(wanted) = case["lengths"].as_object() else {
            assert!(found.is_err(), "{name}: transformers fails on it");
            continue;
        };
        let found = found.unwrap_or_else(|unclear| panic!("{name}: {}", unclear.what));
        let mut of_length = &Json::Null;
        for length in cases["lengths"].as_array().unwrap() {
            of_length = wanted.get(&length.to_string()).unwrap_or(of_length);
            let length = length.as_u64().unwrap() as usize;
            let (frequencies, factor) = found.of_length(length);
            let found = std::iter::once(&factor).chain(&*frequencies);
            let wanted: Vec<f64> = serde_json::from_value(of_length.clone()).unwrap();
            assert_eq!(frequencies.len() + 1, wanted.len(), "{name}");
            for (found, wanted) in found.zip(wanted) {
                let near = (f64::from(*found) - wanted).abs() <= 2e-6 * wanted.abs();
                assert!(near, "{name} at {length}: {found} and not {wanted}");
                compared += 1;
            }
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn lengths_that_are_turned_alike_are_known() {
    let of = |parameters: Json| {
        read(&json!({"max_position_embeddings": 64, "rope_scaling": parameters}), 4).unwrap()
    };
    let dynamic = of(json!({"type": "dynamic", "factor": 2.0}));
    assert!(
        dynamic.is_same_of(1, 64) && !dynamic.is_same_of(64, 65) && !dynamic.is_same_of(65, 66)
    );
    assert_eq!(dynamic.reach, Some(128));
    let lists = json!({"type": "su", "original_max_position_embeddings": 32,
                       "short_factor": [1.0, 1.0], "long_factor": [2, 3]});
    let long = of(lists);
    assert!(long.is_same_of(1, 32) && !long.is_same_of(32, 33) && long.is_same_of(33, 64));
    let yarn = of(json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}));
    assert!(yarn.is_same_of(1, 1000));
    assert_eq!(yarn.reach, Some(128));
}

/// Both readings are told, and where it stands.
#[test]
fn what_has_no_single_meaning_is_refused() {
    let said = |config: Json| {
        let unclear = read(&config, 4).unwrap_err();
        format!("{} | {}", unclear.what, unclear.help)
    };
    let of = |parameters: Json| said(json!({"rope_scaling": parameters}));
    for (found, wanted) in [
        (
            of(json!({"factor": 4.0})),
            "rope_scaling of the config gives `factor` and no `rope_type`",
        ),
        (
            of(json!({"rope_type": null, "type": "linear", "factor": 4.0})),
            "could be taken as \"linear\", and as null",
        ),
        (
            of(json!({"rope_type": "default", "type": "linear", "factor": 4.0})),
            "transformers takes the first",
        ),
        (of(json!({"full_attention": {"rope_theta": 5e4}})), "(`full_attention`)"),
        (
            of(json!({"type": "ntk"})),
            "known are default, mrope, linear, dynamic, llama3, yarn, longrope, su, proportional",
        ),
        (of(json!({"type": "linear", "factor": 0})), "`factor: 0`, and it should be above 0"),
        (of(json!({"type": "dynamic", "factor": 2.0})), "`max_position_embeddings`"),
        (of(json!({"partial_rotary_factor": 2.0})), "2 of a head rotated"),
        (of(json!({"partial_rotary_factor": null})), "`partial_rotary_factor: null`"),
        (said(json!({"rope_parameters": [1]})), "rope_parameters of the config is [1]"),
    ] {
        assert!(found.contains(wanted), "{found}");
    }
    // The same kind twice is one meaning.
    assert!(read(&json!({"rope_scaling": {"rope_type": "default", "type": "mrope"}}), 4).is_ok());
}

/// transformers looks for `truncate` beside the kinds of layers, and not inside.
#[test]
fn whether_yarn_is_rounded_has_one_meaning() {
    let of = |truncate: Option<Json>, parameters: &str| {
        let mut yarn = json!({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4});
        if let Some(truncate) = truncate {
            yarn["truncate"] = truncate;
        }
        let config = json!({"max_position_embeddings": 64, "rope_parameters": {"full": yarn},
                            "rope_scaling": yarn});
        let parameters = Some(Expr::Text(parameters.into()));
        let rope = description::Rope { parameters, ..Default::default() };
        let scope = Scope::of_object(&config, &[]);
        Rotation::read(&Given::of(&scope, &rope, 16).unwrap())
    };
    let inner = "rope_parameters[\"full\"]";
    let rounded = of(None, inner).unwrap();
    assert_eq!(of(Some(json!(true)), inner).unwrap(), rounded);
    assert_ne!(of(Some(json!(false)), "rope_scaling").unwrap(), rounded);
    for truncate in [json!(false), Json::Null] {
        let unclear = of(Some(truncate), inner).unwrap_err();
        assert!(unclear.ambiguous && unclear.what.contains("for a kind of layer"), "{unclear:?}");
    }
}

#[test]
fn a_class_that_turns_whole_heads_does_not_read_a_part() {
    let config = json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}});
    let turned = |partial: Option<Expr>| {
        let theta = Some(Expr::Float(10000.0));
        let rope = description::Rope { theta, partial, ..Default::default() };
        let scope = Scope::of_object(&config, &[]);
        let rotation = Rotation::read(&Given::of(&scope, &rope, 16).unwrap());
        rotation.unwrap_or_else(|unclear| panic!("{}", unclear.what)).of_length(8).0.len()
    };
    assert_eq!(turned(None), 8);
    assert_eq!(turned(Some(Expr::Text("partial_rotary_factor".into()))), 4);
}
