//! The frame: routes, and what is asked of every request before one is looked at.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post};
use serde_json::{Map, Value, json};

use super::answer::respond;
use super::keep::KeepAlive;
use super::problem::{Api, Problem};
use super::state::{Server, digest, unchanged};
use super::worker::{Said, What, unexpected};
use super::{anthropic, fields, ollama, openai, responses};
use crate::engine::Prompt;

/// Most time that a client has for a body.
const BODY_TIME: Duration = Duration::from_secs(30);

impl Server {
    /// Whether a key is one of those that are known. Takes as long for a wrong one as for a right one.
    fn knows(&self, key: &str) -> bool {
        let key = digest(key);
        let differs =
            |known: &[u8; 32]| known.iter().zip(&key).fold(0, |all, (a, b)| all | (a ^ b));
        self.keys.iter().fold(false, |found, known| found | (differs(known) == 0))
    }

    fn admits(&self, request: &Request) -> Result<(), Problem> {
        let headers = request.headers();
        if !self.host_is_ours(headers) {
            let why = "this Host is not a name of this server (--allow-host)";
            return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden_host", why));
        }
        if let Some(origin) = headers.get(header::ORIGIN)
            && !self.origin_may(origin, headers)
        {
            let why = "pages of this origin may not ask this server (--allow-origin)";
            return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden_origin", why));
        }
        if self.keys.is_empty() || request.method() == Method::OPTIONS {
            return Ok(());
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
        let key = headers.get("x-api-key").and_then(|value| value.to_str().ok());
        match bearer.or(key) {
            Some(key) if self.knows(key) => Ok(()),
            _ => Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                "invalid_api_key",
                "this server asks for a key: `Authorization: Bearer …` or `x-api-key`",
            )),
        }
    }

    /// Another name that leads here may be a page's that wants to reach this machine's network.
    fn host_is_ours(&self, headers: &HeaderMap) -> bool {
        let Some(host) = headers.get(header::HOST) else { return true };
        let Ok(host) = host.to_str() else { return false };
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<std::net::IpAddr>().is_ok()
            || self.config.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    fn origin_may(&self, origin: &HeaderValue, headers: &HeaderMap) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        let own = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        own.is_some_and(|host| origin == format!("http://{host}"))
            || self.config.origins.iter().any(|known| known == origin || known == "*")
    }

    fn allow_page(&self, origin: Option<HeaderValue>, response: &mut Response) {
        let Some(origin) = origin else { return };
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        let allow = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta";
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(allow));
        let methods = HeaderValue::from_static("GET, POST, DELETE, HEAD");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    }
}

/// Everything that is served.
pub fn routes(server: Arc<Server>) -> Router {
    Router::new()
        .route("/", get(|| async { "lathe is running" }))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(apply_template))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{*id}", get(openai::model))
        .route("/v1/chat/completions", post(openai::chat))
        .route("/v1/completions", post(openai::completions))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/api/version", get(ollama::version))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/show", post(ollama::show))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/create", post(ollama::create))
        .route("/api/copy", post(ollama::copy))
        .route("/api/delete", delete(ollama::delete))
        .fallback(any(|request: Request| async move {
            let (path, api) = (request.uri().path(), Api::of(request.uri().path()));
            let what = format!("there is no {:.100} here", path.escape_default().to_string());
            Problem::new(StatusCode::NOT_FOUND, "not_found", what).response(api)
        }))
        .method_not_allowed_fallback(|request: Request| async move {
            let what = format!("{} is not asked so", request.uri().path());
            let api = Api::of(request.uri().path());
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", what).response(api)
        })
        .layer(axum::middleware::from_fn_with_state(server.clone(), frame))
        .with_state(server)
}

/// What is done before and after every request.
async fn frame(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let api = Api::of(request.uri().path());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let admitted = server.admits(&request);
    let pages = if admitted.is_ok() { origin } else { None };
    let mut response = match admitted {
        Err(problem) => problem.response(api),
        Ok(()) if request.method() == Method::OPTIONS && pages.is_some() => {
            StatusCode::NO_CONTENT.into_response()
        }
        Ok(()) => match read(request, server.config.max_body).await {
            Ok(request) => next.run(request).await,
            Err(problem) => problem.response(api),
        },
    };
    server.allow_page(pages, &mut response);
    if let Ok(id) = HeaderValue::from_str(&server.id("req_")) {
        response.headers_mut().insert("x-request-id", id);
    }
    server.metrics.responded(response.status().as_u16());
    response
}

/// The request with all of its body, within bounds of size and time.
async fn read(request: Request, most: usize) -> Result<Request, Problem> {
    let (parts, body) = request.into_parts();
    let told = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let large = || {
        let what = format!("the body has more than {most} bytes (--max-body)");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", what)
    };
    if told.and_then(|told| told.parse::<u64>().ok()).is_some_and(|told| told > most as u64) {
        return Err(large());
    }
    let read = tokio::time::timeout(BODY_TIME, axum::body::to_bytes(body, most)).await;
    let bytes = read.map_err(|_| {
        let what = format!("the body did not come within {} s", BODY_TIME.as_secs());
        Problem::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", what)
    })?;
    Ok(Request::from_parts(parts, Body::from(bytes.map_err(|_| large())?)))
}

async fn health(State(server): State<Arc<Server>>) -> Response {
    let ill: Vec<String> = server.keeper.ill().iter().map(ToString::to_string).collect();
    let status = if ill.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let word = if ill.is_empty() { "ok" } else { "ill" };
    (status, axum::Json(json!({"status": word, "ill": ill}))).into_response()
}

async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let all = server.keeper.all();
    let active = all.iter().map(|model| model.waiting()).sum();
    let text = server.metrics.text(all.len(), active);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn say(server: &Server, body: &Map<String, Value>, what: What) -> Result<Said, Problem> {
    let model = fields::model(body)?;
    server.ask(&model, KeepAlive::Default, what, unchanged()).await?.said().await
}

async fn tokenize(State(server): State<Arc<Server>>, body: axum::body::Bytes) -> Response {
    let reply = async {
        let body = fields::object(&body)?;
        let text = fields::text(&body, "content")?.unwrap_or_default().to_owned();
        match say(&server, &body, What::Encode(text)).await? {
            Said::Ids(ids) => Ok(axum::Json(json!({"tokens": ids})).into_response()),
            _ => Err(unexpected()),
        }
    };
    respond(Api::OpenAi, reply.await)
}

async fn detokenize(State(server): State<Arc<Server>>, body: axum::body::Bytes) -> Response {
    let reply = async {
        let body = fields::object(&body)?;
        let wrong = || Problem::field("tokens", "`tokens` takes a list of ids");
        let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
        let listed = body.get("tokens").and_then(Value::as_array).ok_or_else(wrong)?;
        let ids = listed.iter().map(id).collect::<Option<Vec<u32>>>().ok_or_else(wrong)?;
        match say(&server, &body, What::Decode(ids)).await? {
            Said::Text(text) => Ok(axum::Json(json!({"content": text})).into_response()),
            _ => Err(unexpected()),
        }
    };
    respond(Api::OpenAi, reply.await)
}

async fn apply_template(State(server): State<Arc<Server>>, body: axum::body::Bytes) -> Response {
    let reply = async {
        let body = fields::object(&body)?;
        let messages = openai::messages(fields::list(&body, "messages")?)?;
        let tools = fields::list(&body, "tools")?.to_vec();
        match say(&server, &body, What::Render(Prompt::Chat { messages, tools })).await? {
            Said::Text(text) => Ok(axum::Json(json!({"prompt": text})).into_response()),
            _ => Err(unexpected()),
        }
    };
    respond(Api::OpenAi, reply.await)
}
