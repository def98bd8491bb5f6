//! `lathe serve`, asked as programs ask it: over a socket.
#![cfg(feature = "mlx")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

use common::Sandbox;
use serde_json::{Value, json};

/// A server with the tiny llama of `tests/decoder` as `m`; ended when dropped.
struct Served {
    sandbox: Sandbox,
    child: Child,
    address: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}{}", self.head, self.body))
    }

    /// The objects of a stream of either kind.
    fn events(&self) -> Vec<Value> {
        let line = |line: &str| serde_json::from_str(line.strip_prefix("data: ").unwrap_or(line));
        self.body.lines().filter_map(|text| line(text).ok()).collect()
    }
}

impl Served {
    fn new(args: &[&str]) -> Served {
        let sandbox = Sandbox::new();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder/models/llama");
        for file in ["config.json", "model.safetensors"] {
            sandbox.file(&format!("llama/{file}"), std::fs::read(from.join(file)).unwrap());
        }
        sandbox.vocabulary("llama");
        let chat = "{% for message in messages %}{{ message.content }} {% endfor %}";
        let config = json!({"chat_template": chat}).to_string();
        sandbox.file("llama/tokenizer_config.json", config);
        sandbox.file("keys", "right\n");
        sandbox.lathe(&["create", "m", "llama"]).ok();
        let args = [&["serve", "--listen", "127.0.0.1:0"], args].concat();
        let mut child = sandbox.command(&args).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        let address = said.trim().rsplit("http://").next().unwrap().to_owned();
        Served { sandbox, child, address }
    }

    fn send(&self, head: &str, body: &str) -> Reply {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let host = if head.contains("Host:") { "" } else { "Host: localhost\r\n" };
        let text =
            format!("{head}\r\n{host}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        let all = String::from_utf8(all).unwrap();
        let (head, body) = all.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { dechunked(body) } else { body.to_owned() };
        Reply { status, head: head.to_owned(), body }
    }

    fn post(&self, path: &str, body: Value) -> Reply {
        let head = format!("POST {path} HTTP/1.1\r\nContent-Type: application/json");
        self.send(&head, &body.to_string())
    }

    fn get(&self, path: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1"), "")
    }
}

fn dechunked(mut body: &str) -> String {
    let mut all = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        all.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    all
}

/// The whole answer of each API is the command line's, and a stream's pieces joined are the same.
#[test]
fn every_api_answers_as_the_command_line_does_streamed_or_not() {
    let served = Served::new(&[]);
    let run = ["run", "m", "t1 t2 t3", "-n", "12", "--temperature", "0", "-o", "json"];
    let wanted = served.sandbox.lathe(&run).json()["text"].clone();
    let messages = json!([{"role": "user", "content": "t1 t2 t3"}]);
    let text_of = |events: &[Value], pointer: &str| -> Value {
        events.iter().filter_map(|e| e.pointer(pointer)?.as_str()).collect::<String>().into()
    };

    let ask = |stream: bool| {
        json!({"model": "m", "messages": messages, "max_tokens": 12, "temperature": 0,
            "stream": stream, "seed": 1})
    };
    let whole = served.post("/v1/chat/completions", ask(false)).json();
    assert_eq!(whole["choices"][0]["message"]["content"], wanted, "{whole}");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    let streamed = served.post("/v1/chat/completions", ask(true));
    assert_eq!(text_of(&streamed.events(), "/choices/0/delta/content"), wanted);
    assert!(streamed.body.ends_with("data: [DONE]\n\n"), "{}", streamed.body);

    let ask = |stream: bool| {
        json!({"model": "m", "messages": messages, "stream": stream,
            "options": {"num_predict": 12, "temperature": 0}})
    };
    let whole = served.post("/api/chat", ask(false)).json();
    assert_eq!(whole["message"]["content"], wanted, "{whole}");
    assert_eq!((&whole["done"], &whole["eval_count"]), (&json!(true), &json!(12)));
    let streamed = served.post("/api/chat", ask(true)).events();
    assert_eq!(text_of(&streamed, "/message/content"), wanted);
    assert_eq!(streamed.last().unwrap()["done_reason"], "length");

    let ask = |stream: bool| {
        json!({"model": "m", "messages": messages, "max_tokens": 12, "temperature": 0,
            "stream": stream})
    };
    let whole = served.post("/v1/messages", ask(false)).json();
    assert_eq!(whole["content"][0]["text"], wanted, "{whole}");
    assert_eq!(whole["stop_reason"], "max_tokens");
    let streamed = served.post("/v1/messages?beta=true", ask(true)).events();
    assert_eq!(text_of(&streamed, "/delta/text"), wanted);
    assert_eq!(streamed.last().unwrap()["type"], "message_stop");

    let ask = |stream: bool| {
        json!({"model": "m", "input": "t1 t2 t3", "max_output_tokens": 12, "temperature": 0,
            "stream": stream})
    };
    let whole = served.post("/v1/responses", ask(false)).json();
    assert_eq!(whole["output"][0]["content"][0]["text"], wanted, "{whole}");
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    let streamed = served.post("/v1/responses", ask(true)).events();
    assert_eq!(text_of(&streamed, "/delta"), wanted);
    assert_eq!(streamed.last().unwrap()["type"], "response.incomplete");

    let prompt = json!({"model": "m", "prompt": "t1 t2 t3", "max_tokens": 12, "temperature": 0});
    let whole = served.post("/v1/completions", prompt).json();
    assert_eq!(whole["choices"][0]["text"], wanted, "{whole}");
    let counted =
        served.post("/v1/messages/count_tokens", json!({"model": "m", "messages": messages}));
    assert_eq!(counted.json(), json!({"input_tokens": 3}));
    let ids = served.post("/tokenize", json!({"model": "m", "content": "t4 t5"})).json();
    assert_eq!(ids, json!({"tokens": [4, 5]}));
}

/// Six clients at once, some of whom go away: each answer is that of a quiet server, and the server
/// goes on.
#[test]
fn answers_do_not_depend_on_who_else_is_asking() {
    let served = Served::new(&[]);
    let ask = |client: usize, stream: bool| {
        let words: Vec<String> =
            (0..5 + 7 * client).map(|at| format!("t{}", 1 + (at * 7 + client) % 90)).collect();
        // Greedy ones and seeded ones.
        let temperature = if client.is_multiple_of(2) { 0.0 } else { 0.8 };
        json!({"model": "m", "messages": [{"role": "user", "content": words.join(" ")}],
            "max_tokens": 30 - client, "temperature": temperature, "seed": 5 + client, "stream": stream})
    };
    let text = |client: usize| {
        let answer = served.post("/v1/chat/completions", ask(client, false)).json();
        answer["choices"][0]["message"]["content"].clone()
    };
    let quiet: Vec<Value> = (0..6).map(text).collect();
    let crowd: Vec<Value> = std::thread::scope(|scope| {
        let leaving = (0..4).map(|_| {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(&served.address).unwrap();
                let body = json!({"model": "m", "prompt": "t1 t2", "stream": true}).to_string();
                let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
                let text = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                stream.write_all(text.as_bytes()).unwrap();
            })
        });
        leaving.for_each(drop);
        let asked: Vec<_> = (0..6)
            .map(|client| {
                scope.spawn({
                    let text = &text;
                    move || text(client)
                })
            })
            .collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert_eq!(crowd, quiet);
    assert_eq!(served.get("/health").status, 200);
}

/// A model under another name, with words and parameters of its own; what was loaded under that name
/// is gone.
#[test]
fn models_are_made_of_others_over_the_api() {
    let served = Served::new(&[]);
    let answer = |model: &str| {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "t1"}],
            "stream": false, "options": {"temperature": 0}});
        served.post("/api/chat", body).json()
    };
    let own = |count: u64, system: &str| {
        json!({"model": "mine", "from": "m", "system": system,
            "parameters": {"num_predict": count, "stop": ["t99", "t98"]},
            "messages": [{"role": "user", "content": "t5"}, {"role": "assistant", "content": "t6"}]})
    };
    let made = served.post("/api/create", own(3, "t7 t8")).events();
    assert_eq!(made.last().unwrap()["status"], "success", "{made:?}");
    let first = answer("mine");
    assert_eq!((&first["eval_count"], &first["prompt_eval_count"]), (&json!(3), &json!(5)));
    assert_eq!(served.post("/api/create", own(4, "t7")).status, 200);
    let second = answer("mine");
    assert_eq!((&second["eval_count"], &second["prompt_eval_count"]), (&json!(4), &json!(4)));
    for (field, value) in [
        ("from", json!("/etc")),
        ("from", json!("nobody")),
        ("parameters.top_p", json!({"top_p": 7})),
        ("parameters.nonsense", json!({"nonsense": 1})),
        ("parser", json!("nobody")),
        ("files", json!({"a": "sha256:0"})),
        ("messages[0]", json!([{"role": "x"}])),
    ] {
        let mut body = json!({"model": "other", "from": "m"});
        body[field.split(['.', '[']).next().unwrap()] = value;
        let reply = served.post("/api/create", body);
        assert!((400..500).contains(&reply.status), "{field}: {} {}", reply.status, reply.body);
    }
    assert_eq!(served.get("/api/tags").json()["models"].as_array().unwrap().len(), 2);
}

#[test]
fn what_is_not_honoured_or_makes_no_sense_is_refused_by_name() {
    let served = Served::new(&["--max-body", "64KiB"]);
    let messages = json!([{"role": "user", "content": "t1"}]);
    for (path, field, value) in [
        ("/v1/chat/completions", "response_format", json!({"type": "json_object"})),
        ("/v1/chat/completions", "tool_choice", json!("required")),
        ("/v1/chat/completions", "temperature", json!(-1)),
        ("/v1/chat/completions", "temperature", json!("hot")),
        ("/v1/chat/completions", "n", json!(1000)),
        ("/v1/chat/completions", "stop", json!("")),
        ("/v1/chat/completions", "audio", json!({"voice": "x"})),
        ("/v1/chat/completions", "no_such_field", json!(1)),
        ("/api/chat", "format", json!("json")),
        ("/api/chat", "keep_alive", json!([1])),
        ("/v1/responses", "previous_response_id", json!("resp_1")),
        ("/v1/responses", "text.format", json!({"format": {"type": "json_object"}})),
        ("/v1/responses", "truncation", json!("auto")),
        ("/v1/responses", "input[0].type", json!([{"type": "item_reference", "id": "x"}])),
        ("/v1/responses", "tools[0].type", json!([{"type": "mcp", "name": "x"}])),
        ("/v1/messages", "mcp_servers", json!([1])),
        ("/v1/messages", "thinking", json!({"type": "x"})),
    ] {
        let mut body = json!({"model": "m", "messages": messages, "max_tokens": 2});
        if path.starts_with("/api") {
            body.as_object_mut().unwrap().remove("max_tokens");
        }
        if path == "/v1/responses" {
            body = json!({"model": "m", "input": "t1"});
        }
        body[field.split(['.', '[']).next().unwrap()] = value;
        let reply = served.post(path, body);
        assert_eq!(reply.status, 400, "{path} {field}: {}", reply.body);
        assert!(reply.body.contains(field), "{path} {field}: {}", reply.body);
    }
    let chat = |body: &str| {
        served.send("POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json", body)
    };
    for body in ["", "[]", "{", &"[".repeat(5000), r#"{"model": "\ud800"}"#] {
        assert_eq!(chat(body).status, 400, "{body:.40}");
    }
    assert_eq!(chat(&"x".repeat(70_000)).status, 413);
    for name in ["../../etc/passwd", "/etc/passwd", "m\n"] {
        let reply =
            served.post("/v1/chat/completions", json!({"model": name, "messages": messages}));
        assert_eq!(reply.status, 400, "{name}: {}", reply.body);
    }
    let unknown =
        served.post("/v1/messages", json!({"model": "x", "messages": messages, "max_tokens": 2}));
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["type"]),
        (404, &json!("not_found_error"))
    );
    let long = "t1 ".repeat(2000);
    let long = json!({"model": "m", "messages": [{"role": "user", "content": long}]});
    let reply = served.post("/v1/chat/completions", long);
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(served.get("/health").json()["status"], "ok");
}

#[test]
fn only_who_may_comes_in() {
    let served = Served::new(&["--api-key-file", "keys", "--allow-origin", "http://ours"]);
    let with = |header: &str| served.send(&format!("GET /v1/models HTTP/1.1\r\n{header}"), "");
    let key = "Authorization: Bearer right";
    for (headers, status) in [
        ("Accept: */*", 401),
        ("Authorization: Bearer wrong", 401),
        (key, 200),
        ("x-api-key: right", 200),
        (&format!("{key}\r\nHost: evil.example"), 403),
        (&format!("{key}\r\nHost: 127.0.0.1:11435"), 200),
        (&format!("{key}\r\nOrigin: https://evil.example"), 403),
        (&format!("{key}\r\nOrigin: http://ours"), 200),
    ] {
        let reply = with(headers);
        assert_eq!(reply.status, status, "{headers}: {}", reply.body);
        assert!(reply.head.contains("x-request-id: req_"), "{}", reply.head);
    }
    assert_eq!(served.get("/metrics").status, 401);
    let open = served.sandbox.lathe(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(open.code, 2, "{}", open.stderr);
    assert!(open.stderr.contains("--insecure"), "{}", open.stderr);
}
