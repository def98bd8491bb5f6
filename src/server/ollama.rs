//! Ollama's API: `/api/*`, streams as one JSON object a line.

mod create;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

pub use create::create;

use super::answer::{Shape, respond, stream};
use super::fields::{self, Table, given};
use super::keep::KeepAlive;
use super::problem::{Api, Problem};
use super::state::Server;
use super::worker::{Done, Event, Set, What};
use crate::checkpoint::architecture;
use crate::engine::Prompt;
use crate::store::{Entry, Name, media};

const GRAMMAR: &str = "answers of a given form are not enforced yet";

const CHAT: Table = Table {
    honoured: &[
        "model",
        "messages",
        "stream",
        "tools",
        "options",
        "keep_alive",
        "think",
        "format",
        "truncate",
    ],
    ignored: &["shift", "debug_render_only"],
    refused: &[
        ("logprobs", "log-probabilities are told by /v1/chat/completions"),
        ("top_logprobs", "log-probabilities are told by /v1/chat/completions"),
    ],
};

const GENERATE: Table = Table {
    honoured: &[
        "model",
        "prompt",
        "system",
        "stream",
        "raw",
        "options",
        "keep_alive",
        "think",
        "format",
        "truncate",
    ],
    ignored: &["shift", "debug_render_only"],
    refused: &[
        ("suffix", "the model is not asked to fill in"),
        ("template", "a model's own template is used; `raw` uses none"),
        ("context", "give the conversation to /api/chat"),
        ("images", "models read text only"),
        ("logprobs", "log-probabilities are told by /v1/completions"),
        ("top_logprobs", "log-probabilities are told by /v1/completions"),
    ],
};

/// `GET /api/version`: the version of the API, which clients compare.
pub async fn version() -> Response {
    Json(json!({"version": "0.14.0"})).into_response()
}

/// `GET /api/tags`
pub async fn tags(State(server): State<Arc<Server>>) -> Response {
    let listed = server.config.store.list().map_err(Problem::from).map(|entries| {
        let models: Vec<Value> = entries.iter().map(|entry| row(&server, entry)).collect();
        Json(json!({"models": models})).into_response()
    });
    respond(Api::Ollama, listed)
}

fn row(server: &Server, entry: &Entry) -> Value {
    let size = entry.manifest.as_ref().map_or(0, |manifest| manifest.size());
    json!({
        "name": entry.name, "model": entry.name, "modified_at": time(entry.modified), "size": size,
        "digest": entry.digest.hex(), "details": details(server, entry),
    })
}

fn details(server: &Server, entry: &Entry) -> Value {
    let store = &server.config.store;
    let manifest = entry.manifest.as_ref().ok();
    let config = manifest.and_then(|manifest| store.model_config(manifest).ok());
    let family = config.as_ref().and_then(|config| config["model_type"].as_str()).unwrap_or("");
    let stored = manifest.and_then(|manifest| store.config(manifest).ok());
    json!({
        "parent_model": "", "format": "safetensors", "family": family, "families": [family],
        "parameter_size": "", "quantization_level": stored.map_or(String::new(), |s| s.file_type),
    })
}

fn time(time: std::time::SystemTime) -> String {
    humantime::format_rfc3339_nanos(time).to_string()
}

/// `GET /api/ps`
pub async fn ps(State(server): State<Arc<Server>>) -> Response {
    let models: Vec<Value> = server
        .keeper
        .all()
        .iter()
        .map(|model| {
            let entry = server.config.store.entry(&model.name);
            let details = entry.map_or(Value::Null, |entry| details(&server, &entry));
            json!({
                "name": model.name, "model": model.name, "size": model.size, "size_vram": 0,
                "digest": model.digest.hex(), "details": details,
                "expires_at": model.expires().map(time), "context_length": model.facts().context,
            })
        })
        .collect();
    Json(json!({"models": models})).into_response()
}

/// `POST /api/show`
pub async fn show(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    let shown = || {
        let body = fields::object(&body)?;
        let (store, entry) = (&server.config.store, entry(&server, &body)?);
        let manifest = entry.manifest.clone()?;
        let stored = store.config(&manifest)?;
        let config = store.model_config(&manifest).unwrap_or(Value::Null);
        let text = |media_type: &str| -> Result<Option<String>, Problem> {
            let Some(layer) = manifest.of_type(media_type).next() else { return Ok(None) };
            Ok(Some(String::from_utf8_lossy(&store.read_blob(layer)?).into_owned()))
        };
        let template = match text(media::TEMPLATE)? {
            Some(template) => Some(template),
            None => store.chat_template(&manifest)?,
        };
        let family = config["model_type"].as_str().unwrap_or("unknown");
        let named =
            |name: &str| config.get(name).or_else(|| config["text_config"].get(name)).cloned();
        let mut info = Map::new();
        info.insert("general.architecture".into(), family.into());
        let names = [
            ("max_position_embeddings", "context_length"),
            ("hidden_size", "embedding_length"),
            ("num_hidden_layers", "block_count"),
            ("num_attention_heads", "attention.head_count"),
            ("num_key_value_heads", "attention.head_count_kv"),
            ("vocab_size", "vocab_size"),
        ];
        for (ours, theirs) in names {
            if let Some(value) = named(ours) {
                info.insert(format!("{family}.{theirs}"), value);
            }
        }
        if let Ok(name) = architecture(&config) {
            info.insert("general.name".into(), name.into());
        }
        let parameters = text(media::PARAMS)?.and_then(|text| serde_json::from_str(&text).ok());
        Ok(Json(json!({
            "license": text(media::LICENSE)?.unwrap_or_default(),
            "modelfile": format!("FROM {}\n", entry.name),
            "parameters": parameters.map_or(String::new(), |value| written(&value)),
            "template": template.unwrap_or_default(),
            "system": text(media::SYSTEM)?.unwrap_or_default(),
            "details": details(&server, &entry),
            "model_info": info,
            "capabilities": stored.capabilities,
            "modified_at": time(entry.modified),
        }))
        .into_response())
    };
    respond(Api::Ollama, shown())
}

/// Parameters as `/api/show` writes them: a name and a value a line.
fn written(parameters: &Value) -> String {
    let lines = parameters.as_object().into_iter().flatten().flat_map(|(name, value)| {
        let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        listed.iter().map(|value| format!("{name} {value}")).collect::<Vec<_>>()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn entry(server: &Server, body: &Map<String, Value>) -> Result<Entry, Problem> {
    let older = fields::text(body, "name")?;
    let name = match fields::text(body, "model")?.or(older) {
        Some(name) => Name::parse(name)?,
        None => return Err(Problem::field("model", "`model` is missing")),
    };
    Ok(server.config.store.entry(&name)?)
}

/// `POST /api/copy`
pub async fn copy(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    let copied = || {
        let body = fields::object(&body)?;
        let name = |field: &str| -> Result<Name, Problem> {
            let missing = || Problem::field(field, format!("`{field}` is missing"));
            Ok(Name::parse(fields::text(&body, field)?.ok_or_else(missing)?)?)
        };
        server.config.store.copy(&name("source")?, &name("destination")?)?;
        Ok(StatusCode::OK.into_response())
    };
    respond(Api::Ollama, copied())
}

/// `DELETE /api/delete`
pub async fn delete(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    let deleted = || {
        let entry = entry(&server, &fields::object(&body)?)?;
        server.config.store.remove(std::slice::from_ref(&entry.name))?;
        server.keeper.unload(&entry.name);
        Ok(StatusCode::OK.into_response())
    };
    respond(Api::Ollama, deleted())
}

/// How long a model stays: a number of seconds, or a text such as `5m`; below 0 for ever.
fn keep_alive(body: &Map<String, Value>) -> Result<KeepAlive, Problem> {
    let wrong = || {
        let why = "`keep_alive` takes seconds or a text such as \"5m\"; below 0 is for ever";
        Problem::field("keep_alive", why)
    };
    match given(body, "keep_alive") {
        None => Ok(KeepAlive::Default),
        Some(Value::Number(number)) => match number.as_f64() {
            Some(seconds) if seconds < 0.0 => Ok(KeepAlive::Forever),
            Some(seconds) => {
                Duration::try_from_secs_f64(seconds).map(KeepAlive::For).map_err(|_| wrong())
            }
            None => Err(wrong()),
        },
        Some(Value::String(text)) if text.starts_with('-') => Ok(KeepAlive::Forever),
        Some(Value::String(text)) if text == "0" => Ok(KeepAlive::For(Duration::ZERO)),
        Some(Value::String(text)) => {
            humantime::parse_duration(text).map(KeepAlive::For).map_err(|_| wrong())
        }
        Some(_) => Err(wrong()),
    }
}

fn setter(body: &Map<String, Value>) -> Result<Set, Problem> {
    let options = match given(body, "options") {
        None => Map::new(),
        Some(Value::Object(options)) => options.clone(),
        Some(_) => return Err(Problem::field("options", "`options` takes an object")),
    };
    let thinking = match given(body, "think") {
        None => None,
        Some(Value::Bool(think)) => Some(*think),
        Some(Value::String(level))
            if ["low", "medium", "high", "max"].contains(&level.as_str()) =>
        {
            Some(true)
        }
        Some(_) => {
            let why = "`think` takes true, false, low, medium, high or max";
            return Err(Problem::field("think", why));
        }
    };
    if given(body, "format").is_some_and(|format| format != "") {
        return Err(Problem::refused("format", GRAMMAR));
    }
    Ok(Box::new(move |mut set| {
        for (name, value) in options.iter().filter(|(_, value)| !value.is_null()) {
            let field = format!("options.{name}");
            set.set(name, value).map_err(|fault| Problem::field(&field, fault.to_string()))?;
        }
        set.thinking = thinking.or(set.thinking);
        set.check()?;
        Ok(set)
    }))
}

/// Messages as templates read them.
fn messages(given: &[Value]) -> Result<Vec<Value>, Problem> {
    for (at, message) in given.iter().enumerate() {
        if message["images"].as_array().is_some_and(|images| !images.is_empty()) {
            return Err(Problem::refused(
                &format!("messages[{at}].images"),
                "models read text only",
            ));
        }
    }
    let mut messages = super::openai::messages(given)?;
    for (out, message) in messages.iter_mut().zip(given) {
        if let Some(thinking) = message["thinking"].as_str() {
            out["reasoning_content"] = thinking.into();
        }
        if let Some(tool) = message["tool_name"].as_str() {
            out["name"] = tool.into();
        }
    }
    Ok(messages)
}

/// `POST /api/chat`
pub async fn chat(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    respond(Api::Ollama, chat_of(&server, &body).await)
}

async fn chat_of(server: &Server, body: &[u8]) -> Result<Response, Problem> {
    let body = fields::object(body)?;
    CHAT.check(&body)?;
    let messages = messages(fields::list(&body, "messages")?)?;
    if messages.is_empty() {
        return load(server, &body, &json!({"message": {"role": "assistant", "content": ""}}))
            .await;
    }
    let tools = fields::list(&body, "tools")?.to_vec();
    answer(server, &body, Prompt::Chat { messages, tools }, true).await
}

/// `POST /api/generate`
pub async fn generate(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    respond(Api::Ollama, generate_of(&server, &body).await)
}

async fn generate_of(server: &Server, body: &[u8]) -> Result<Response, Problem> {
    let body = fields::object(body)?;
    GENERATE.check(&body)?;
    let prompt = fields::text(&body, "prompt")?.unwrap_or_default().to_owned();
    if prompt.is_empty() {
        return load(server, &body, &json!({"response": ""})).await;
    }
    let raw = fields::flag(&body, "raw")?.unwrap_or(false);
    let model = server.model(&fields::model(&body)?, keep_alive(&body)?).await?;
    let prompt = if raw || !model.facts().can_chat {
        Prompt::Plain(prompt)
    } else {
        let system = fields::text(&body, "system")?;
        let system = system.map(|text| json!({"role": "system", "content": text}));
        let user = json!({"role": "user", "content": prompt});
        Prompt::Chat { messages: system.into_iter().chain([user]).collect(), tools: Vec::new() }
    };
    answer(server, &body, prompt, false).await
}

/// A request without a prompt loads a model, or unloads it.
async fn load(
    server: &Server,
    body: &Map<String, Value>,
    shown: &Value,
) -> Result<Response, Problem> {
    let (name, keep) = (fields::model(body)?, keep_alive(body)?);
    drop(setter(body)?);
    let reason = if keep == KeepAlive::For(Duration::ZERO) {
        server.keeper.unload(&server.config.store.entry(&Name::parse(&name)?)?.name);
        "unload"
    } else {
        drop(server.model(&name, keep).await?);
        "load"
    };
    let mut reply = json!({"model": name, "created_at": time(std::time::SystemTime::now())});
    let fields = shown.as_object().into_iter().flatten();
    fields.for_each(|(name, value)| reply[name] = value.clone());
    reply["done"] = true.into();
    reply["done_reason"] = reason.into();
    Ok(Json(reply).into_response())
}

async fn answer(
    server: &Server,
    body: &Map<String, Value>,
    prompt: Prompt,
    chat: bool,
) -> Result<Response, Problem> {
    let model = fields::model(body)?;
    let streams = fields::flag(body, "stream")?.unwrap_or(true);
    let (keep, set) = (keep_alive(body)?, setter(body)?);
    let asked = server.ask(&model, keep, What::Answer(prompt), set).await?;
    let mut lines = Lines { model, chat };
    if streams {
        return stream(vec![asked], lines).await;
    }
    let whole = asked.whole().await?;
    let calls: Vec<Value> = whole.calls.iter().map(call).collect();
    let mut reply = lines.line(&whole.text, &whole.thinking, calls);
    lines.finish(&mut reply, whole.done.as_ref());
    Ok(Json(reply).into_response())
}

fn call(call: &crate::chat::ToolCall) -> Value {
    json!({"function": {"name": call.name, "arguments": call.arguments}})
}

struct Lines {
    model: String,
    /// Whether the words are a message or a plain response.
    chat: bool,
}

impl Lines {
    fn line(&mut self, text: &str, thinking: &str, calls: Vec<Value>) -> Value {
        let created = time(std::time::SystemTime::now());
        let mut line = json!({"model": self.model, "created_at": created});
        let words = if self.chat {
            line["message"] = json!({"role": "assistant", "content": text});
            &mut line["message"]
        } else {
            line["response"] = text.into();
            &mut line
        };
        if !thinking.is_empty() {
            words["thinking"] = thinking.into();
        }
        if !calls.is_empty() {
            words["tool_calls"] = calls.into();
        }
        line["done"] = false.into();
        line
    }

    fn finish(&self, line: &mut Value, done: Option<&Done>) {
        let Some(done) = done else { return };
        let statistics = &done.statistics;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        line["done"] = true.into();
        line["done_reason"] = done.reason.as_str().into();
        line["total_duration"] = nanos(statistics.prefill + statistics.decode).into();
        line["load_duration"] = nanos(done.load).into();
        line["prompt_eval_count"] = statistics.prompt_tokens.into();
        line["prompt_eval_duration"] = nanos(statistics.prefill).into();
        line["eval_count"] = statistics.answer_tokens.into();
        line["eval_duration"] = nanos(statistics.decode).into();
    }
}

impl Shape for Lines {
    fn media_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn begin(&mut self) -> String {
        String::new()
    }

    fn event(&mut self, _index: usize, event: Event) -> String {
        let line = match event {
            Event::Text(text, _) => self.line(&text, "", Vec::new()),
            Event::Thinking(text) => self.line("", &text, Vec::new()),
            Event::Call(made) => self.line("", "", vec![call(&made)]),
            Event::Done(done) => {
                let mut line = self.line("", "", Vec::new());
                self.finish(&mut line, Some(&done));
                line
            }
            Event::Said(_) | Event::Failed(_) => return String::new(),
        };
        format!("{line}\n")
    }

    fn end(&mut self) -> String {
        String::new()
    }

    fn failed(&mut self, problem: &Problem) -> String {
        format!("{}\n", problem.body(Api::Ollama))
    }
}
