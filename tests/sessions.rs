//! Conversations: a turn runs only what is new, and answers as if nothing had been kept.
#![cfg(feature = "mlx")]

mod common;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use common::Sandbox;
use lathe::engine::{Answer, Engine, Loading, Options, Prompt, Request, Session};
use lathe::store::{Name, Store};
use serde_json::{Value, json};

/// Asks for an answer by words that stand nowhere once there is one, as templates do that open the
/// model's thinking.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }} {% endfor %}\
                        {% if add_generation_prompt %}t9 t10 {% endif %}";

/// One of the tiny models of `tests/decoder`, whose vocabulary is t0, t1, …, with room for long
/// answers, and without a token that ends them.
fn engine(sandbox: &Sandbox, name: &str) -> Engine {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder/models").join(name);
    let mut config: Value =
        json5::from_str(&fs::read_to_string(from.join("config.json")).unwrap()).unwrap();
    config["max_position_embeddings"] = 4096.into();
    config["eos_token_id"] = Value::Null;
    sandbox.file("m/config.json", config.to_string());
    sandbox.file("m/model.safetensors", fs::read(from.join("model.safetensors")).unwrap());
    sandbox.vocabulary("m");
    sandbox.file("m/tokenizer_config.json", json!({ "chat_template": TEMPLATE }).to_string());
    let folder = sandbox.path("m");
    sandbox.lathe(&["create", "m", folder.to_str().unwrap(), "--no-smoke"]).ok();
    let store = Store::open(Some(&sandbox.path("store"))).unwrap();
    Engine::load(&store, &Name::parse("m").unwrap(), Loading::default()).unwrap()
}

fn ask(engine: &Engine, session: &mut Session, messages: &[&str], tokens: usize) -> Answer {
    let roles = ["user", "assistant"].into_iter().cycle();
    let messages = messages.iter().zip(roles);
    let messages =
        messages.map(|(content, role)| json!({"role": role, "content": content})).collect();
    let request = Request {
        prompt: Prompt::Chat { messages, tools: Vec::new() },
        options: Options { max_tokens: Some(tokens), ..Options::default() },
    };
    engine.answer(session, &request, &|| true, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// The answers are longer than what a window keeps (8 tokens, and 64 to go back by, in rooms of
/// 256), and the next turn has not them but a short text, as when thinking is left out.
fn later_turns_run_only_what_is_new(name: &str) {
    let sandbox = Sandbox::new();
    let engine = engine(&sandbox, name);
    let mut session = Session::default();
    let (first, second, third) = ("t11 t12 t13 t14 t15 t16 t17 t18 t19 t20 t21", "t31 t32", "t41");
    let mut conversation = vec![first];
    for (turn, kept) in [(0, 0), (1, 11), (2, 14)] {
        let answer = ask(&engine, &mut session, &conversation, 400);
        assert_eq!(answer.statistics.reused_tokens, kept, "{name}: turn {turn}");
        let cold = ask(&engine, &mut Session::default(), &conversation, 400);
        assert_eq!(answer.tokens, cold.tokens, "{name}: turn {turn}");
        assert_eq!(answer.tokens.len(), 400);
        conversation.extend(["t77", [second, third][turn % 2]]);
    }
    // Another beginning shares nothing, and an earlier turn asked otherwise shares its beginning.
    let edited = ask(&engine, &mut session, &[first, "t77", "t50 t51"], 9);
    assert_eq!(edited.statistics.reused_tokens, 11, "{name}");
    let cold = ask(&engine, &mut Session::default(), &[first, "t77", "t50 t51"], 9);
    assert_eq!(edited.tokens, cold.tokens, "{name}");
    let other = ask(&engine, &mut session, &["t60 t61"], 9);
    assert_eq!(other.statistics.reused_tokens, 0, "{name}");
}

#[test]
fn with_windows() {
    later_turns_run_only_what_is_new("gemma3");
}

#[test]
fn with_windows_and_sinks() {
    later_turns_run_only_what_is_new("gpt_oss");
}

#[test]
fn with_recurrent_states() {
    later_turns_run_only_what_is_new("qwen3_5");
}
