//! What `lathe create` says while it works and when it has ended.

mod common;

use common::Sandbox;
use serde_json::json;

#[test]
fn scripts_get_events_one_a_line_and_the_result_last() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.vocabulary("model");
    let outcome = sandbox.lathe(&["create", "m", "model", "-q", "int4", "-o", "json"]);
    let events = outcome.events();
    let named = |name: &'static str| events.iter().filter(move |event| event["event"] == name);
    let phases: Vec<_> = named("phase").map(|event| &event["phase"]).collect();
    assert_eq!(phases, ["writing", "checking", "syncing"]);
    let tensors = common::llama_tensors();
    let bytes: usize = tensors.iter().map(|(_, shape)| shape.iter().product::<usize>() * 2).sum();
    assert_eq!(events[0], json!({"event": "phase", "phase": "writing", "total": bytes}));
    for (name, _) in &tensors {
        let blob = named("blob").find(|event| event["name"] == **name).unwrap();
        let file = blob["digest"].as_str().unwrap().replace(':', "-");
        let stored = std::fs::metadata(sandbox.path("store/blobs").join(file)).unwrap();
        assert_eq!(blob["size"], stored.len(), "{name}");
    }
    let result = events.last().unwrap();
    assert_eq!(result["event"], "created");
    assert_eq!(result["name"], "m:latest");
    assert_eq!(result["from"], "model");
    assert_eq!(result["warnings"], json!([]));
    assert!(result["seconds"].as_f64().unwrap() > 0.0);
    let new = named("blob").filter(|event| event["new"] == true).count();
    assert_eq!(result["new_blobs"], new + 3, "and the config, the origin and the policy");
}

#[test]
fn a_failure_is_the_last_event() {
    let sandbox = Sandbox::new();
    let model = sandbox.model("model");
    // The store cannot be made: its place is taken.
    sandbox.file("taken", "");
    let arguments = ["create", "m", "model", "-q", "int4", "-o", "json", "--store", "taken/store"];
    let outcome = sandbox.lathe(&arguments);
    assert_eq!(outcome.code, 1);
    assert_eq!(outcome.events().last().unwrap()["error"]["code"], "store");
    assert!(model.exists());
}

#[test]
fn quiet_leaves_the_result_for_scripts_and_nothing_for_people() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.vocabulary("model");
    let quiet = sandbox.lathe(&["create", "m", "model", "-q", "int4", "--quiet"]);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str(), quiet.code), ("", "", 0));
    let again = ["create", "m", "model", "-q", "int4", "--quiet", "-o", "json"];
    let again = sandbox.lathe(&again).json();
    assert_eq!((&again["event"], &again["unchanged"]), (&json!("created"), &json!(true)));
}

#[test]
fn the_end_says_what_was_made_from_what_in_how_long_and_how_to_go_on() {
    let sandbox = Sandbox::new();
    sandbox.model("model");
    sandbox.vocabulary("model");
    let made = sandbox.lathe(&["create", "m:int4", "model", "-q", "int4", "--no-smoke"]);
    assert_eq!(made.stderr, "", "no progress where lines cannot be changed and work is short");
    let said = made.ok();
    let (first, second) = said.trim_end().split_once('\n').unwrap();
    assert!(first.starts_with("created m:int4 from model in 0."), "{first}");
    assert!(first.contains(" s, ") && first.ends_with(" new blobs"), "{first}");
    assert!(second.ends_with(" m:int4"), "{second}");
}
