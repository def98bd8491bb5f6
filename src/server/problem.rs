//! What a client is told when a request cannot be answered, in the form of its API.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::fault::{Code, Fault, Faults};

/// Whose form an error has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `{error: {message, type, param, code}}`
    OpenAi,
    /// `{error: "message"}`
    Ollama,
    /// `{type: "error", error: {type, message}}`
    Anthropic,
}

impl Api {
    /// Whose a path is.
    pub fn of(path: &str) -> Api {
        if path.starts_with("/v1/messages") {
            Api::Anthropic
        } else if path.starts_with("/api/") {
            Api::Ollama
        } else {
            Api::OpenAi
        }
    }
}

/// Why a request is not answered.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The status of the response.
    pub status: StatusCode,
    /// What is wrong.
    pub message: String,
    /// The field that it is about.
    pub field: Option<String>,
    /// A stable word for programs.
    pub code: &'static str,
}

impl Problem {
    /// A problem of this status.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Problem {
        Problem { status, message: message.into(), field: None, code }
    }

    /// A field that is wrong.
    pub fn field(field: &str, message: impl Into<String>) -> Problem {
        let problem = Problem::new(StatusCode::BAD_REQUEST, "invalid_value", message);
        Problem { field: Some(field.to_owned()), ..problem }
    }

    /// A field that is known and not honoured.
    pub fn refused(field: &str, why: &str) -> Problem {
        let problem = Problem::field(field, format!("`{field}` is not supported: {why}"));
        Problem { code: "unsupported_parameter", ..problem }
    }

    /// The body in the form of an API.
    pub fn body(&self, api: Api) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            500 => "api_error",
            503 => "overloaded_error",
            _ => "invalid_request_error",
        };
        match api {
            Api::OpenAi => json!({"error": {
                "message": self.message, "type": kind, "param": self.field, "code": self.code,
            }}),
            Api::Ollama => json!({"error": self.message}),
            Api::Anthropic => {
                json!({"type": "error", "error": {"type": kind, "message": self.message}})
            }
        }
    }

    /// The response in the form of an API.
    pub fn response(&self, api: Api) -> Response {
        let mut response = (self.status, axum::Json(self.body(api))).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Problem {
        let (status, code) = match fault.code {
            Code::NoSuchModel => (StatusCode::NOT_FOUND, "model_not_found"),
            Code::ContextTooLong => (StatusCode::BAD_REQUEST, "context_length_exceeded"),
            Code::Usage | Code::BadName | Code::Template => {
                (StatusCode::BAD_REQUEST, fault.code.as_str())
            }
            other => (StatusCode::INTERNAL_SERVER_ERROR, other.as_str()),
        };
        Problem::new(status, code, fault.to_string())
    }
}

impl From<Faults> for Problem {
    fn from(faults: Faults) -> Problem {
        let none = || Fault::new(Code::Internal, "it failed without a reason");
        faults.0.into_iter().next().unwrap_or_else(none).into()
    }
}
