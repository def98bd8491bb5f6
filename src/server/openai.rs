//! OpenAI's API: `/v1/models`, `/v1/chat/completions`; `/v1/completions` has a file of its own.

mod completions;

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

pub use completions::completions;

use super::answer::{Shape, Whole, data, respond, stream, wholes};
use super::fields::{self, Table, given};
use super::keep::KeepAlive;
use super::problem::{Api, Problem};
use super::state::{Server, now};
use super::worker::{Done, Event, Scored, Set, What};
use crate::chat::ToolCall;
use crate::engine::{Prompt, Reason};
use crate::store::{Entry, Name};

/// Why `response_format` and its kin are refused.
pub(super) const GRAMMAR: &str = "answers of a given form are not enforced yet";
const TEXT_ONLY: &str = "models read and write text only";

const CHAT: Table = Table {
    honoured: &[
        "model",
        "messages",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "seed",
        "n",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "reasoning_effort",
        "response_format",
        "parallel_tool_calls",
    ],
    ignored: &[
        "user",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "safety_identifier",
        "prompt_cache_retention",
        "verbosity",
    ],
    refused: &[
        ("functions", "use `tools`"),
        ("function_call", "use `tool_choice`"),
        ("audio", TEXT_ONLY),
        ("modalities", TEXT_ONLY),
        ("prediction", "there are no predicted outputs"),
        ("web_search_options", "lathe does not search"),
    ],
};

const NUMBERS: &[(&str, &str)] = &[
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("repetition_penalty", "repeat_penalty"),
];

/// The models of the store.
pub async fn models(State(server): State<Arc<Server>>) -> Response {
    let listed = server.config.store.list().map_err(Problem::from).map(|entries| {
        let data: Vec<Value> = entries.iter().map(description).collect();
        Json(json!({"object": "list", "data": data})).into_response()
    });
    respond(Api::OpenAi, listed)
}

/// One of them.
pub async fn model(State(server): State<Arc<Server>>, Path(id): Path<String>) -> Response {
    let found = Name::parse(&id).and_then(|name| server.config.store.entry(&name));
    let found = found.map_err(Problem::from).map(|entry| Json(description(&entry)).into_response());
    respond(Api::OpenAi, found)
}

fn description(entry: &Entry) -> Value {
    let created = entry.modified.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    json!({"id": entry.name, "object": "model", "created": created, "owned_by": "lathe"})
}

/// Messages as templates read them.
///
/// # Errors
/// At the first that cannot be read.
pub fn messages(given: &[Value]) -> Result<Vec<Value>, Problem> {
    let message = |(at, message): (usize, &Value)| {
        let place = format!("messages[{at}]");
        let role = match message["role"].as_str() {
            Some("developer") => "system",
            Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
            _ => {
                let why = "a role is system, developer, user, assistant or tool";
                return Err(Problem::field(&format!("{place}.role"), why));
            }
        };
        let content = fields::content(&message["content"], &format!("{place}.content"))?;
        let mut out = json!({"role": role, "content": content});
        for name in ["reasoning_content", "reasoning"] {
            if let Some(thinking) = message[name].as_str() {
                out["reasoning_content"] = thinking.into();
            }
        }
        for name in ["name", "tool_call_id"] {
            if let Some(text) = message[name].as_str() {
                out[name] = text.into();
            }
        }
        if let Some(calls) = message["tool_calls"].as_array().filter(|calls| !calls.is_empty()) {
            out["tool_calls"] = calls.iter().map(call_of_history).collect();
        }
        Ok(out)
    };
    given.iter().enumerate().map(message).collect()
}

/// Templates want arguments as an object; what is none stays the text that it is.
fn call_of_history(call: &Value) -> Value {
    let function = &call["function"];
    let arguments = match &function["arguments"] {
        Value::String(text) if text.trim().is_empty() => json!({}),
        Value::String(text) => serde_json::from_str::<Map<String, Value>>(text)
            .map_or_else(|_| text.as_str().into(), Value::Object),
        Value::Null => json!({}),
        other => other.clone(),
    };
    let mut out =
        json!({"type": "function", "function": {"name": function["name"], "arguments": arguments}});
    if let Some(id) = call["id"].as_str() {
        out["id"] = id.into();
    }
    out
}

/// The tools that may be called, by `tools` and `tool_choice`.
fn tools(body: &Map<String, Value>) -> Result<Vec<Value>, Problem> {
    let tools = fields::list(body, "tools")?;
    for (at, tool) in tools.iter().enumerate() {
        if tool["type"] != "function" || !tool["function"]["name"].is_string() {
            let why = "a tool is {type: \"function\", function: {name, parameters}}";
            return Err(Problem::field(&format!("tools[{at}]"), why));
        }
    }
    Ok(if forbids_calls(body)? { Vec::new() } else { tools.to_vec() })
}

/// Whether `tool_choice` says that no tool may be called.
///
/// # Errors
/// When it asks for what cannot be had.
pub(super) fn forbids_calls(body: &Map<String, Value>) -> Result<bool, Problem> {
    match given(body, "tool_choice") {
        None => Ok(false),
        Some(choice) if choice == "auto" => Ok(false),
        Some(choice) if choice == "none" => Ok(true),
        Some(_) => {
            Err(Problem::refused("tool_choice", "only auto and none; a call cannot be forced"))
        }
    }
}

struct Common {
    model: String,
    streams: bool,
    usage: bool,
    count: u64,
}

/// What both routes read alike.
fn common(body: &Map<String, Value>) -> Result<Common, Problem> {
    let count = fields::whole(body, "n", 1, 8)?.unwrap_or(1);
    let streams = fields::flag(body, "stream")?.unwrap_or(false);
    let mut usage = false;
    if let Some(options) = given(body, "stream_options") {
        let wrong = || Problem::field("stream_options", "`stream_options` takes an object");
        for (name, value) in options.as_object().ok_or_else(wrong)? {
            match name.as_str() {
                "include_usage" => usage = value == true,
                "include_obfuscation" => {}
                _ => return Err(Problem::refused(&format!("stream_options.{name}"), "unknown")),
            }
        }
    }
    if let Some(format) = given(body, "response_format")
        && format["type"] != "text"
    {
        return Err(Problem::refused("response_format", GRAMMAR));
    }
    // What holds for all is checked before a model is loaded.
    setter(body, 0, None)?(crate::engine::Options::default())?;
    Ok(Common { model: fields::model(body)?, streams, usage, count })
}

/// The options of the answer `index`.
///
/// # Errors
/// When a field has a value that it cannot have.
pub(super) fn setter(
    body: &Map<String, Value>,
    index: u64,
    logprobs: Option<usize>,
) -> Result<Set, Problem> {
    let one_call = fields::flag(body, "parallel_tool_calls")? == Some(false);
    let most = ["max_completion_tokens", "max_tokens"];
    let most = most.map(|name| fields::whole(body, name, 0, u64::from(u32::MAX)));
    let [most, older] = most;
    let most = most?.or(older?);
    let stops = fields::stops(body, "stop")?;
    let seed = match given(body, "seed") {
        None => None,
        Some(seed) => {
            let wrong = || Problem::field("seed", "`seed` takes a whole number");
            let seed = seed.as_i64().map(|seed| seed as u64).or(seed.as_u64());
            Some(seed.ok_or_else(wrong)?.wrapping_add(index))
        }
    };
    let bias = bias(body)?;
    let thinking = match fields::text(body, "reasoning_effort")? {
        None => None,
        Some("none") => Some(false),
        Some("minimal" | "low" | "medium" | "high" | "xhigh") => Some(true),
        Some(_) => {
            let why = "`reasoning_effort` is none, minimal, low, medium, high or xhigh";
            return Err(Problem::field("reasoning_effort", why));
        }
    };
    let body = body.clone();
    Ok(Box::new(move |mut options| {
        fields::set(&mut options, &body, NUMBERS)?;
        if let Some(stops) = stops {
            options.stops = stops;
            options.settle("stop");
        }
        if seed.is_some() {
            options.sampling.seed = seed;
            options.settle("seed");
        }
        if let Some(most) = most {
            options.max_tokens = usize::try_from(most).ok();
            options.settle("num_predict");
        }
        options.sampling.logit_bias.extend(bias);
        options.thinking = thinking.or(options.thinking);
        options.one_call = one_call;
        options.sampling.logprobs = logprobs;
        options.check()?;
        Ok(options)
    }))
}

fn bias(body: &Map<String, Value>) -> Result<Vec<(u32, f32)>, Problem> {
    let wrong = || {
        let why = "`logit_bias` takes an object of ids of tokens with numbers from -100 to 100";
        Problem::field("logit_bias", why)
    };
    let Some(bias) = given(body, "logit_bias") else { return Ok(Vec::new()) };
    let one = |(id, by): (&String, &Value)| {
        let by = by.as_f64().filter(|by| (-100.0..=100.0).contains(by))?;
        Some((id.parse().ok()?, by as f32))
    };
    bias.as_object().ok_or_else(wrong)?.iter().map(one).collect::<Option<_>>().ok_or_else(wrong)
}

/// `POST /v1/chat/completions`
pub async fn chat(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    respond(Api::OpenAi, chat_of(&server, &body).await)
}

async fn chat_of(server: &Server, body: &[u8]) -> Result<Response, Problem> {
    let body = fields::object(body)?;
    CHAT.check(&body)?;
    let common = common(&body)?;
    let messages = messages(fields::list(&body, "messages")?)?;
    if messages.is_empty() {
        return Err(Problem::field("messages", "`messages` is empty"));
    }
    let top = fields::whole(&body, "top_logprobs", 0, 20)?;
    let wanted = fields::flag(&body, "logprobs")?.unwrap_or(false);
    if top.is_some() && !wanted {
        return Err(Problem::field("top_logprobs", "`top_logprobs` needs `logprobs`: true"));
    }
    let logprobs = wanted.then_some(top.unwrap_or(0) as usize);
    let prompt = Prompt::Chat { messages, tools: tools(&body)? };
    let mut asked = Vec::new();
    for index in 0..common.count {
        let set = setter(&body, index, logprobs)?;
        let what = What::Answer(prompt.clone());
        asked.push(server.ask(&common.model, KeepAlive::Default, what, set).await?);
    }
    let head = Head { id: server.id("chatcmpl-"), created: now(), model: common.model };
    if common.streams {
        let prefix = server.id("call_");
        let usage = common.usage.then(Usage::default);
        return stream(asked, ChatStream { head, prefix, calls: 0, usage, scored: wanted }).await;
    }
    let wholes = wholes(asked).await?;
    let usage = Usage::of(&wholes);
    let choices = wholes.into_iter().enumerate().map(|(index, whole)| {
        let calls: Vec<Value> =
            whole.calls.iter().map(|made| call(made, &server.id("call_"))).collect();
        let content = match whole.text.is_empty() && !calls.is_empty() {
            true => Value::Null,
            false => whole.text.into(),
        };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !whole.thinking.is_empty() {
            message["reasoning_content"] = whole.thinking.into();
        }
        let reason = reason(whole.done.as_ref(), !calls.is_empty());
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let logprobs = wanted.then(|| json!({"content": scores(&whole.tokens), "refusal": null}));
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
    });
    let mut reply = head.of("chat.completion", choices.collect());
    reply["usage"] = usage.value();
    Ok(Json(reply).into_response())
}

/// What every object of an answer begins with.
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn of(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices,
        })
    }
}

#[derive(Default)]
struct Usage {
    prompt: usize,
    reused: usize,
    answer: usize,
    thinking: usize,
}

impl Usage {
    fn of(wholes: &[Whole]) -> Usage {
        let mut usage = Usage::default();
        wholes.iter().flat_map(|whole| &whole.done).for_each(|done| usage.add(done));
        usage
    }

    fn add(&mut self, done: &Done) {
        self.prompt = done.statistics.prompt_tokens;
        self.reused = self.reused.max(done.statistics.reused_tokens);
        self.answer += done.statistics.answer_tokens;
        self.thinking += done.thinking_tokens;
    }

    fn value(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt, "completion_tokens": self.answer,
            "total_tokens": self.prompt + self.answer,
            "prompt_tokens_details": {"cached_tokens": self.reused},
            "completion_tokens_details": {"reasoning_tokens": self.thinking},
        })
    }
}

fn reason(done: Option<&Done>, calls: bool) -> &'static str {
    match done.map(|done| done.reason) {
        Some(Reason::Length) => "length",
        _ if calls => "tool_calls",
        _ => "stop",
    }
}

fn call(call: &ToolCall, id: &str) -> Value {
    let arguments = call.arguments.to_string();
    json!({"id": id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
}

fn scores(tokens: &[Scored]) -> Value {
    let one = |token: &Scored| {
        let logprob = token.logprob.max(-9999.0);
        json!({"token": token.text, "logprob": logprob, "bytes": token.bytes})
    };
    let each = tokens.iter().map(|token| {
        let mut value = one(token);
        value["top_logprobs"] = token.top.iter().map(one).collect();
        value
    });
    each.collect()
}

struct ChatStream {
    head: Head,
    prefix: String,
    /// Calls of the present answer.
    calls: usize,
    usage: Option<Usage>,
    scored: bool,
}

impl ChatStream {
    fn chunk(&self, index: usize, delta: Value, reason: Option<&str>, logprobs: Value) -> String {
        let mut choice = json!({"index": index, "delta": delta, "finish_reason": reason});
        if self.scored {
            choice["logprobs"] = logprobs;
        }
        let mut chunk = self.head.of("chat.completion.chunk", json!([choice]));
        if self.usage.is_some() {
            chunk["usage"] = Value::Null;
        }
        data(&chunk)
    }
}

impl Shape for ChatStream {
    fn media_type(&self) -> &'static str {
        "text/event-stream"
    }

    fn begin(&mut self) -> String {
        self.chunk(0, json!({"role": "assistant", "content": ""}), None, Value::Null)
    }

    fn event(&mut self, index: usize, event: Event) -> String {
        match event {
            Event::Text(text, tokens) => {
                let logprobs = match self.scored {
                    true => json!({"content": scores(&tokens), "refusal": null}),
                    false => Value::Null,
                };
                self.chunk(index, json!({"content": text}), None, logprobs)
            }
            Event::Thinking(text) => {
                self.chunk(index, json!({"reasoning_content": text}), None, Value::Null)
            }
            Event::Call(made) => {
                let mut value = call(&made, &format!("{}{index}_{}", self.prefix, self.calls));
                value["index"] = self.calls.into();
                self.calls += 1;
                self.chunk(index, json!({"tool_calls": [value]}), None, Value::Null)
            }
            Event::Done(done) => {
                let reason = reason(Some(&done), self.calls > 0);
                self.calls = 0;
                if let Some(usage) = &mut self.usage {
                    usage.add(&done);
                }
                self.chunk(index, json!({}), Some(reason), Value::Null)
            }
            Event::Said(_) | Event::Failed(_) => String::new(),
        }
    }

    fn end(&mut self) -> String {
        let mut out = String::new();
        if let Some(usage) = &self.usage {
            let mut chunk = self.head.of("chat.completion.chunk", json!([]));
            chunk["usage"] = usage.value();
            out = data(&chunk);
        }
        out + "data: [DONE]\n\n"
    }

    fn failed(&mut self, problem: &Problem) -> String {
        data(&problem.body(Api::OpenAi))
    }
}
