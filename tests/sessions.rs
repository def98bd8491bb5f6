//! Conversations: a turn runs only what is new, and answers as if nothing had been kept. Answers that
//! share passes are what each is alone.
#![cfg(feature = "mlx")]

mod common;

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use common::Sandbox;
use lathe::engine::{
    Answer, Draft, Engine, Happened, Id, Limits, Loading, Options, Prompt, Reason, Request,
    Scheduler, Start,
};
use lathe::sample::{Sampler, Settings};
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

fn ask(engine: &Engine, scheduler: &mut Scheduler, messages: &[&str], tokens: usize) -> Answer {
    let roles = ["user", "assistant"].into_iter().cycle();
    let messages = messages.iter().zip(roles);
    let messages =
        messages.map(|(content, role)| json!({"role": role, "content": content})).collect();
    let request = Request {
        prompt: Prompt::Chat { messages, tools: Vec::new() },
        options: Options { max_tokens: Some(tokens), ..Options::default() },
    };
    engine.answer(scheduler, &request, &|| true, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// The answers are longer than what a window keeps (8 tokens, and 64 to go back by, in rooms of
/// 256), and the next turn has not them but a short text, as when thinking is left out.
fn later_turns_run_only_what_is_new(name: &str) {
    let sandbox = Sandbox::new();
    let engine = engine(&sandbox, name);
    let mut session = Scheduler::default();
    let (first, second, third) = ("t11 t12 t13 t14 t15 t16 t17 t18 t19 t20 t21", "t31 t32", "t41");
    let mut conversation = vec![first];
    for (turn, kept) in [(0, 0), (1, 11), (2, 14)] {
        let answer = ask(&engine, &mut session, &conversation, 400);
        assert_eq!(answer.statistics.reused_tokens, kept, "{name}: turn {turn}");
        let cold = ask(&engine, &mut Scheduler::default(), &conversation, 400);
        assert_eq!(answer.tokens, cold.tokens, "{name}: turn {turn}");
        assert_eq!(answer.tokens.len(), 400);
        conversation.extend(["t77", [second, third][turn % 2]]);
    }
    // Another beginning shares nothing, and an earlier turn asked otherwise shares its beginning:
    // windows and states go back a little from where they were kept.
    let edited = ask(&engine, &mut session, &[first, "t77", "t50 t51"], 9);
    assert_eq!(edited.statistics.reused_tokens, 12, "{name}");
    let cold = ask(&engine, &mut Scheduler::default(), &[first, "t77", "t50 t51"], 9);
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

/// Adds a prompt of so many tokens, and a greedy answer of so many.
fn add(engine: &Engine, scheduler: &mut Scheduler, (prompt, answer): (usize, usize)) -> Id {
    let tokens: Vec<u32> = (0..prompt).map(|at| 1 + (at * 7 + prompt) as u32 % 90).collect();
    add_tokens(engine, scheduler, &tokens, answer)
}

fn add_tokens(engine: &Engine, scheduler: &mut Scheduler, tokens: &[u32], answer: usize) -> Id {
    let limits = Limits { max_tokens: answer, context: 4096, ends: Arc::default() };
    let (start, sampler) = (Start { tokens, lasting: &[] }, Sampler::new(Settings::default()));
    scheduler.add(engine.model(), start, sampler, limits, Draft::None).unwrap()
}

/// Steps until nothing is due: the tokens of each.
fn run(engine: &Engine, scheduler: &mut Scheduler) -> HashMap<Id, Vec<u32>> {
    let mut chosen: HashMap<Id, Vec<u32>> = HashMap::new();
    while !scheduler.is_idle() {
        step(engine, scheduler, &mut chosen);
    }
    chosen
}

fn step(engine: &Engine, scheduler: &mut Scheduler, chosen: &mut HashMap<Id, Vec<u32>>) {
    for (id, happened) in scheduler.step(engine.model()) {
        match happened {
            Happened::Chose(choice) => chosen.entry(id).or_default().push(choice.id),
            Happened::Ended(why) => assert_eq!(scheduler.get(id).unwrap().ended(), Some(why)),
            Happened::Failed(fault) => panic!("{fault}"),
        }
    }
}

fn alone(engine: &Engine, size: (usize, usize)) -> Vec<u32> {
    let mut scheduler = Scheduler::default();
    let id = add(engine, &mut scheduler, size);
    run(engine, &mut scheduler).remove(&id).unwrap()
}

/// Three of different lengths, one of which comes while the others answer and whose prompt is run in
/// chunks beside them; a fourth is cancelled half-way. Windows of 8 tokens wrap many times.
fn answers_share_passes(name: &str) {
    let sandbox = Sandbox::new();
    let engine = engine(&sandbox, name);
    let sizes = [(5, 300), (40, 260), (700, 120)];
    let mut scheduler = Scheduler::default();
    let mut chosen = HashMap::new();
    let mut ids: Vec<Id> =
        sizes[..2].iter().map(|&size| add(&engine, &mut scheduler, size)).collect();
    let fourth = add(&engine, &mut scheduler, (9, 1000));
    for _ in 0..20 {
        step(&engine, &mut scheduler, &mut chosen);
    }
    ids.push(add(&engine, &mut scheduler, sizes[2]));
    for _ in 0..10 {
        step(&engine, &mut scheduler, &mut chosen);
    }
    scheduler.remove(fourth).unwrap();
    while !scheduler.is_idle() {
        step(&engine, &mut scheduler, &mut chosen);
    }
    for (id, size) in ids.iter().zip(sizes) {
        assert_eq!(chosen[id], alone(&engine, size), "{name}: {size:?}");
        assert_eq!(scheduler.get(*id).unwrap().ended(), Some(Reason::Length));
    }
    assert!(chosen[&fourth].len() < 31);
}

#[test]
fn shared_passes_with_windows() {
    answers_share_passes("gemma3");
}

#[test]
fn shared_passes_with_recurrent_states() {
    answers_share_passes("qwen3_5");
}

#[test]
fn shared_passes_with_latents() {
    answers_share_passes("deepseek_v3");
}

#[test]
fn shared_passes_with_experts() {
    answers_share_passes("gpt_oss");
}

/// A pass that fails ends whose fault it is, with a message, and nobody else.
#[test]
fn a_sequence_that_fails_leaves_the_others() {
    let sandbox = Sandbox::new();
    let engine = engine(&sandbox, "llama");
    let mut scheduler = Scheduler::default();
    let good = add(&engine, &mut scheduler, (5, 50));
    let bad = add_tokens(&engine, &mut scheduler, &[1, 1_000_000], 5);
    let (mut chosen, mut failed) = (Vec::new(), Vec::new());
    while !scheduler.is_idle() {
        for (id, happened) in scheduler.step(engine.model()) {
            match happened {
                Happened::Chose(choice) => chosen.push((id, choice.id)),
                Happened::Failed(fault) => failed.push((id, fault.to_string())),
                Happened::Ended(_) => {}
            }
        }
    }
    assert!(matches!(&failed[..], [(id, message)] if *id == bad && message.contains("1000000")));
    assert!(chosen.iter().all(|(id, _)| *id == good));
    let chosen: Vec<u32> = chosen.into_iter().map(|(_, token)| token).collect();
    assert_eq!(chosen, alone(&engine, (5, 50)));
}

/// Prompts that begin alike run their beginning once, whatever became of the first: it answers still,
/// or was cancelled. And what is kept stays within its budget.
fn beginnings_are_shared(name: &str) {
    let sandbox = Sandbox::new();
    let engine = engine(&sandbox, name);
    let mut scheduler = Scheduler::default();
    let mut chosen = HashMap::new();
    let system: Vec<u32> = (0..600).map(|at| 1 + at * 11 % 90).collect();
    let question = |last: u32| [&system[..], &[last, last + 1]].concat();
    let lasting = [system.len()];
    let add = |scheduler: &mut Scheduler, tokens: &[u32]| {
        let limits = Limits { max_tokens: 40, context: 4096, ends: Arc::default() };
        let start = Start { tokens, lasting: &lasting };
        let sampler = Sampler::new(Settings::default());
        scheduler.add(engine.model(), start, sampler, limits, Draft::None).unwrap()
    };
    let first = add(&mut scheduler, &question(3));
    for _ in 0..4 {
        step(&engine, &mut scheduler, &mut chosen);
    }
    let second = add(&mut scheduler, &question(60));
    assert_eq!(scheduler.get(second).unwrap().statistics().reused_tokens, 600, "{name}");
    scheduler.remove(first).unwrap();
    let third = add(&mut scheduler, &question(3));
    assert_eq!(scheduler.get(third).unwrap().statistics().reused_tokens, 601, "{name}");
    while !scheduler.is_idle() {
        step(&engine, &mut scheduler, &mut chosen);
    }
    for (id, last) in [(second, 60), (third, 3)] {
        let mut cold = Scheduler::default();
        let alone = add(&mut cold, &question(last));
        assert_eq!(chosen[&id], run(&engine, &mut cold)[&alone], "{name}");
    }
    // Half of what that took.
    let budget = scheduler.prefixes().bytes() / 2;
    let mut scheduler = Scheduler::new(budget);
    for last in [3, 60, 70] {
        let id = add(&mut scheduler, &question(last));
        run(&engine, &mut scheduler);
        scheduler.remove(id).unwrap();
        assert!(scheduler.prefixes().bytes() <= budget, "{name}");
    }
}

#[test]
fn beginnings_are_shared_by_prompts() {
    ["llama", "gemma3", "qwen3_5", "deepseek_v3"].into_iter().for_each(beginnings_are_shared);
}

/// What drafts changes nothing of a greedy answer, whatever is drafted at once: over windows, states,
/// latents and experts, for one sequence and for several, with budgets that end inside of a draft.
fn drafts_change_nothing(name: &str) -> usize {
    let sandbox = Sandbox::new();
    let engine = engine(&sandbox, name);
    // What repeats is looked up.
    let prompt: Vec<u32> = (0..60).map(|at| 1 + at * 7 % 13).collect();
    let begin = |scheduler: &mut Scheduler, answer: usize, draft: Draft| {
        let limits = Limits { max_tokens: answer, context: 4096, ends: Arc::default() };
        let (start, sampler) =
            (Start { tokens: &prompt, lasting: &[] }, Sampler::new(Settings::default()));
        scheduler.add(engine.model(), start, sampler, limits, draft).unwrap()
    };
    let mut plain = Scheduler::default();
    let id = begin(&mut plain, 200, Draft::None);
    let wanted = run(&engine, &mut plain).remove(&id).unwrap();
    let (mut drafted, mut accepted) = (0, 0);
    for depth in [0, 1, 2, 3, 5, 8, 16, 40] {
        let mut scheduler = Scheduler::default();
        scheduler.fix_depth(Some(depth));
        let budgets = [200, 1, 7, 50];
        let ids = budgets.map(|budget| begin(&mut scheduler, budget, Draft::Lookup));
        let chosen = run(&engine, &mut scheduler);
        for (id, budget) in ids.into_iter().zip(budgets) {
            assert_eq!(chosen[&id], wanted[..budget], "{name}: {depth} at once, {budget}");
            let statistics = scheduler.remove(id).unwrap();
            (drafted, accepted) = (drafted + statistics.drafted, accepted + statistics.accepted);
            assert!(
                statistics.accepted <= statistics.drafted && (depth > 0 || statistics.rounds == 0)
            );
        }
        // The next turn goes on from what drafts left.
        let again = begin(&mut scheduler, 30, Draft::Lookup);
        assert!(scheduler.get(again).unwrap().statistics().reused_tokens >= 59, "{name}");
        assert_eq!(run(&engine, &mut scheduler)[&again], wanted[..30], "{name}: {depth}, again");
    }
    assert!(drafted > 0, "{name}");
    accepted
}

#[test]
fn drafts_with_keys() {
    assert!(drafts_change_nothing("llama") > 0, "nothing was accepted");
}

#[test]
fn drafts_with_windows() {
    drafts_change_nothing("gemma3");
}

#[test]
fn drafts_with_recurrent_states() {
    drafts_change_nothing("qwen3_5");
}

#[test]
fn drafts_with_latents() {
    drafts_change_nothing("deepseek_v3");
}

#[test]
fn drafts_with_experts_and_sinks() {
    drafts_change_nothing("gpt_oss");
}

/// By hand, with more of them: `LATHE_SEQUENCES=10000 cargo test --release --test sessions flat`.
#[test]
fn memory_stays_flat_over_many_sequences() {
    let sandbox = Sandbox::new();
    let engine = engine(&sandbox, "qwen3_5");
    let count = std::env::var("LATHE_SEQUENCES").map_or(400, |count| count.parse().unwrap());
    let mut scheduler = Scheduler::default();
    let (mut ids, mut seen) = (Vec::new(), Vec::new());
    for begun in 0..count {
        ids.push(add(&engine, &mut scheduler, (1 + begun % 17, 1 + begun % 5)));
        if begun % 8 == 7 {
            run(&engine, &mut scheduler);
            ids.drain(..).for_each(|id| _ = scheduler.remove(id));
        }
        if begun % (count / 4) == count / 4 - 1 {
            seen.push(resident());
        }
    }
    let (early, late) = (seen[0] as f64, seen[seen.len() - 1] as f64);
    assert!(late <= 1.02 * early, "{seen:?}");
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let pid = sysinfo::get_current_pid().unwrap();
    let mut system = sysinfo::System::new();
    system.refresh_processes(sysinfo::ProcessesToUpdate::Some(&[pid]), true);
    system.process(pid).unwrap().memory()
}
