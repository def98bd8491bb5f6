//! `POST /api/create`: a model of the store under another name, with words and parameters of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::create::{self, From as Base, Recipe, Settings};
use crate::modelfile::{self, Message, Modelfile, Parameter, Parameters};
use crate::server::answer::respond;
use crate::server::fields::{self, Table, given};
use crate::server::problem::{Api, Problem};
use crate::server::state::Server;
use crate::store::{Name, Store};
use crate::write;

const FILES: &str = "weights are imported with `lathe create`";

const FIELDS: Table = Table {
    honoured: &[
        "model",
        "name",
        "from",
        "template",
        "system",
        "parameters",
        "messages",
        "license",
        "parser",
        "renderer",
        "stream",
    ],
    ignored: &["info"],
    refused: &[
        ("files", FILES),
        ("adapters", "adapters are not supported"),
        ("quantize", FILES),
        ("remote_host", "models are of this machine"),
        ("modelfile", "say it with `from`, `system`, `parameters`, …"),
    ],
};

/// `POST /api/create`
pub async fn create(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    respond(Api::Ollama, created(&server, &body).await)
}

async fn created(server: &Server, body: &[u8]) -> Result<Response, Problem> {
    let body = fields::object(body)?;
    FIELDS.check(&body)?;
    let streams = fields::flag(&body, "stream")?.unwrap_or(true);
    let missing = |field: &str| Problem::field(field, format!("`{field}` is missing"));
    let text = |field: &str| fields::text(&body, field);
    let name = text("model")?.or(text("name")?).ok_or_else(|| missing("model"))?;
    let name = Name::parse(name)?;
    // A name, never a path.
    let from = Name::parse(text("from")?.ok_or_else(|| missing("from"))?)?;
    let modelfile = modelfile(&body)?;
    let recipe = Recipe { from: Base::Model(from), draft: None, modelfile, text: None };
    let store = server.config.store.clone();
    let settings = Settings { policy_dir: server.config.policy_dir.clone(), ..Settings::default() };
    let stored = name.clone();
    let made = tokio::task::spawn_blocking(move || make(recipe, &settings, &stored, &store)).await;
    let failed = |_| Problem::from(crate::fault::Fault::new(crate::fault::Code::Internal, FAILED));
    made.map_err(failed)??;
    // What was loaded under this name is another model now.
    server.keeper.unload(&name);
    let last = json!({"status": "success"});
    if !streams {
        return Ok(Json(last).into_response());
    }
    let lines = format!("{}\n{last}\n", json!({"status": "writing manifest"}));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response())
}

const FAILED: &str = "creating failed inside lathe: this is a fault of it";

fn make(recipe: Recipe, settings: &Settings, name: &Name, store: &Store) -> Result<(), Problem> {
    // What is wrong before anything is written is wrong in what was asked for.
    let asked = |problem: Problem| match problem.status {
        StatusCode::INTERNAL_SERVER_ERROR => Problem { status: StatusCode::BAD_REQUEST, ..problem },
        _ => problem,
    };
    let prepared =
        create::prepare(recipe, settings, store).map_err(|faults| asked(faults.into()))?;
    let quantizer = write::best_quantizer()?;
    let options = write::Options {
        jobs: 1,
        memory: write::default_memory(),
        quantizer: &*quantizer,
        progress: &write::Silent,
        cancel: &AtomicBool::new(false),
    };
    prepared.write(name, store, &options, &|_, _| Ok(()))?;
    Ok(())
}

fn modelfile(body: &Map<String, Value>) -> Result<Modelfile, Problem> {
    let text = |field: &str| fields::text(body, field);
    Ok(Modelfile {
        template: text("template")?.map(Into::into),
        system: text("system")?.map(str::to_owned),
        parser: text("parser")?.map(Into::into),
        renderer: text("renderer")?.map(Into::into),
        licenses: texts(body, "license")?,
        parameters: parameters(body)?,
        messages: messages(body)?,
        ..Modelfile::default()
    })
}

/// One text, or a list of them.
fn texts(body: &Map<String, Value>, field: &str) -> Result<Vec<String>, Problem> {
    let wrong = || Problem::field(field, format!("`{field}` takes a text or a list of texts"));
    let Some(value) = given(body, field) else { return Ok(Vec::new()) };
    let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let texts = listed.iter().map(|value| value.as_str().map(str::to_owned));
    texts.collect::<Option<_>>().ok_or_else(wrong)
}

fn parameters(body: &Map<String, Value>) -> Result<Parameters, Problem> {
    let wrong = || Problem::field("parameters", "`parameters` takes an object");
    let Some(listed) = given(body, "parameters") else { return Ok(BTreeMap::new()) };
    let mut parameters = BTreeMap::new();
    for (name, value) in listed.as_object().ok_or_else(wrong)? {
        let field = format!("parameters.{name}");
        let parameter = match Parameter::named(name) {
            Some(parameter) => parameter,
            None if Parameter::is_ignored(name) => continue,
            None => return Err(Problem::refused(&field, "there is no such parameter")),
        };
        let wanted = |wanted: String| Problem::field(&field, format!("`{field}` takes {wanted}"));
        let one = |value: &Value| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            parameter.read(&text).map_err(wanted)
        };
        let read = match value {
            Value::Array(values) => {
                let texts = values.iter().map(one).collect::<Result<Vec<_>, Problem>>()?;
                let texts = texts.into_iter().map(|value| match value {
                    modelfile::Value::Texts(texts) => Ok(texts),
                    _ => Err(wanted(parameter.wanted())),
                });
                modelfile::Value::Texts(texts.collect::<Result<Vec<_>, _>>()?.concat())
            }
            value => one(value)?,
        };
        parameters.insert(name.clone(), read);
    }
    Ok(parameters)
}

fn messages(body: &Map<String, Value>) -> Result<Vec<Message>, Problem> {
    let message = |(at, value): (usize, &Value)| {
        serde_json::from_value(value.clone()).map_err(|_| {
            let why = "a message has a role (system, user, assistant) and a content, a text";
            Problem::field(&format!("messages[{at}]"), why)
        })
    };
    fields::list(body, "messages")?.iter().enumerate().map(message).collect()
}
