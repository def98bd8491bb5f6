//! Answers of each family, whole and letter by letter; templates against what jinja2 gives
//! (`tests/reference/make_template_fixtures.py`).

use serde_json::{Value, json};

use super::*;

/// The pieces of an answer, given at once and one letter at a time, which must be the same.
fn pieces(parser: &str, prompt: &str, answer: &str, tools: &[Value]) -> Vec<Piece> {
    let answers = Answers::named(parser, &[]).unwrap();
    let take = |chunks: Vec<String>| {
        let mut parser = answers.answer(prompt, tools);
        let mut found: Vec<Piece> = chunks.iter().flat_map(|chunk| parser.push(chunk)).collect();
        found.extend(parser.finish());
        joined(found)
    };
    let whole = take(vec![answer.to_owned()]);
    assert_eq!(take(answer.chars().map(String::from).collect()), whole, "{answer:?}");
    whole
}

/// Neighbours of one kind as one piece.
fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(Piece::Text(a)), Piece::Text(b))
            | (Some(Piece::Thinking(a)), Piece::Thinking(b)) => a.push_str(&b),
            (_, piece) => joined.push(piece),
        }
    }
    joined
}

fn text(text: &str) -> Piece {
    Piece::Text(text.into())
}

fn thinking(text: &str) -> Piece {
    Piece::Thinking(text.into())
}

fn call(name: &str, arguments: Value) -> Piece {
    Piece::Call(ToolCall { name: name.into(), arguments })
}

#[test]
fn thinking_is_taken_out() {
    let whole = "<think>\nLet me see <b>.\n\n</think>\n\nIt is 4 < 5.\n";
    let expected = [thinking("Let me see <b>."), text("It is 4 < 5.\n")];
    assert_eq!(pieces("qwen3", "", whole, &[]), expected);
}

#[test]
fn a_prompt_may_have_opened_the_thinking() {
    let rest = "Hm.\n</think>\n\nYes.";
    let prompt = "<|im_start|>assistant\n<think>\n";
    assert_eq!(pieces("qwen3.5", prompt, rest, &[]), [thinking("Hm."), text("Yes.")]);
    let closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(pieces("qwen3.5", closed, "Yes.", &[]), [text("Yes.")]);
}

#[test]
fn thinking_that_never_ends_is_thinking() {
    assert_eq!(pieces("qwen3", "", "<think>a\nb  ", &[]), [thinking("a\nb")]);
}

#[test]
fn what_only_looks_like_a_mark_is_text() {
    let whole = "a <thin line, <tool_cal> and </think> stay";
    assert_eq!(pieces("qwen3", "", whole, &[]), [text(whole)]);
}

#[test]
fn json_calls() {
    let whole = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n\
                 <tool_call>{\"name\": \"g\", \"arguments\": \"{\\\"y\\\": 2}\"}</tool_call>";
    let expected = [text("Let me see.\n"), call("f", json!({"x": 1})), call("g", json!({"y": 2}))];
    assert_eq!(pieces("qwen3", "", whole, &[]), expected);
    // No call after all.
    let broken = "<tool_call>{\"name\": </tool_call>";
    assert_eq!(pieces("qwen3", "", broken, &[]), [text("{\"name\": ")]);
}

fn schema() -> Value {
    json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {
        "code": {"type": "string"}, "count": {"type": "integer"}}}}})
}

#[test]
fn calls_as_function_tags() {
    let whole = "<tool_call>\n<function=f>\n<parameter=code>\n123\n</parameter>\n<parameter=count>\n4\n\
                 </parameter>\n<parameter=other>\ntwo\nlines\n</parameter>\n</function>\n</tool_call>";
    let expected = call("f", json!({"code": "123", "count": 4, "other": "two\nlines"}));
    for parser in ["qwen3.5", "nemotron-3-nano"] {
        assert_eq!(pieces(parser, "", whole, &[schema()]), std::slice::from_ref(&expected));
    }
}

#[test]
fn calls_as_keys_and_values() {
    let whole = "<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>7</arg_value>\n\
                 <arg_key>list</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>";
    let expected = call("f", json!({"code": "7", "list": [1, 2]}));
    for parser in ["glm-4.7", "laguna"] {
        assert_eq!(pieces(parser, "", whole, &[schema()]), std::slice::from_ref(&expected));
    }
}

#[test]
fn coheres_sections() {
    let whole = "<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n {\"tool_call_id\": \"0\", \
                 \"tool_name\": \"f\", \"parameters\": {\"x\": 1}}\n]<|END_ACTION|>";
    assert_eq!(pieces("cohere", "", whole, &[]), [thinking("Hm."), call("f", json!({"x": 1}))]);
    let plain = "<|START_RESPONSE|>Hello.<|END_RESPONSE|>";
    assert_eq!(pieces("cohere", "", plain, &[]), [text("Hello.")]);
}

#[test]
fn deepseeks_calls_of_both_kinds() {
    let older = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\": \
                 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n\
                 ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let newer = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": 1}<｜tool▁call▁end｜>\
                 <｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    for whole in [older, newer] {
        let expected = [call("f", json!({"x": 1})), call("g", json!({}))];
        assert_eq!(pieces("deepseek3", "", whole, &[]), expected);
    }
}

#[test]
fn mistrals_calls_of_both_kinds() {
    let older = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}}, {\"name\": \"g\", \
                 \"arguments\": {}}]";
    let newer = "[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g[ARGS]{}";
    for whole in [older, newer] {
        let expected = [call("f", json!({"x": 1})), call("g", json!({}))];
        assert_eq!(pieces("mistral", "", whole, &[]), expected);
    }
}

#[test]
fn gemmas_notation() {
    let whole = "<|channel>thought\nHm.<channel|><|tool_call>call:f{city:<|\"|>Zürich, {CH}<|\"|>,\
                 days:2,deep:{a:[1,true,<|\"|>b<|\"|>],c:null}}<tool_call|>Done.";
    let arguments =
        json!({"city": "Zürich, {CH}", "days": 2, "deep": {"a": [1, true, "b"], "c": null}});
    let expected = [thinking("Hm."), call("f", arguments), text("Done.")];
    assert_eq!(pieces("gemma4", "", whole, &[]), expected);
}

/// Messages of Glimmer, and the calls that MiniMax and it write as tags with names in quotes.
#[test]
fn invocations_as_tags() {
    let whole = " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Hello.<|eot|>";
    assert_eq!(pieces("glimmer", "", whole, &[]), [thinking("Hm."), text("Hello.")]);
    let calls = " to=self<|message|>Hm.<|eom|><atem:function_calls>\n<atem:invoke name=\"f\">\n\
                 <atem:parameter name=\"x\">1</atem:parameter>\n\
                 <atem:parameter name=\"s\">a\n\"b\"</atem:parameter>\n</atem:invoke>\n\
                 <atem:invoke name=\"g\">\n</atem:invoke>\n</atem:function_calls>";
    let f = call("f", json!({"x": 1, "s": "a\n\"b\""}));
    let expected = [thinking("Hm."), f, call("g", json!({}))];
    assert_eq!(pieces("glimmer", "", calls, &[]), expected);
    let broken = "<atem:function_calls><atem:invoke name=f></atem:function_calls>";
    assert_eq!(pieces("glimmer", "", broken, &[]), [text("<atem:invoke name=f>")]);
}

#[test]
fn harmonys_channels() {
    let whole = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final\
                 <|message|>Hello.";
    assert_eq!(pieces("gpt-oss", "", whole, &[]), [thinking("Hm."), text("Hello.")]);
    let calls = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary \
                 to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|call|>";
    assert_eq!(pieces("gpt-oss", "", calls, &[]), [thinking("Hm."), call("f", json!({"x": 1}))]);
    let first = "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>";
    assert_eq!(pieces("harmony", "", first, &[]), [call("f", json!({}))]);
}

#[test]
fn every_parser_of_the_folder_is_carried_and_reads() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("policies/parsers");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let answers = Answers::named(&name, &[]).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        assert_eq!(answers.name, name);
        count += 1;
    }
    assert!(count >= 11, "{count} parsers");
}

#[test]
fn a_policy_folder_adds_parsers_and_replaces_them() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("parsers")).unwrap();
    let file = |name: &str, body: &str| {
        std::fs::write(folder.path().join(format!("parsers/{name}.yaml")), body).unwrap();
    };
    file("mine", "name: mine\nthinking: {open: '[[', close: ']]'}\n");
    file("qwen3", "name: qwen3\n");
    file("bad", "name: bad\nthinkin: 1\n");
    let named = |name| Answers::named(name, &[folder.path()]);
    assert_eq!(named("mine").unwrap().thinking.unwrap().open, "[[");
    assert_eq!(named("qwen3").unwrap().thinking, None);
    let fault = named("bad").unwrap_err();
    assert!(fault.to_string().contains("bad.yaml") && fault.message.contains("thinkin"), "{fault}");
    let fault = named("nobody").unwrap_err();
    assert!(fault.help.unwrap().contains("glm-4.7"));
}

#[test]
fn templates_as_jinja2_renders_them() {
    let cases: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/chat/templates.json")).unwrap();
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 20);
    for case in cases {
        let list = |key: &str| case[key].as_array().cloned().unwrap_or_default();
        let conversation = Conversation {
            messages: list("messages"),
            tools: list("tools"),
            thinking: case["thinking"].as_bool(),
            add_generation_prompt: true,
            variables: case["variables"].as_object().cloned().unwrap_or_default(),
        };
        let source = case["template"].as_str().unwrap();
        let rendered = Template::compile("test", source).and_then(|t| t.render(&conversation));
        match (rendered, case["text"].as_str()) {
            (Ok(text), Some(expected)) => assert_eq!(text, expected, "{source}"),
            (Err(fault), None) => {
                let refusal = case["refusal"].as_str().unwrap();
                assert!(fault.message.contains(refusal), "{source}: {fault}");
            }
            (rendered, expected) => panic!("{source}: {rendered:?}, expected {expected:?}"),
        }
    }
}

/// `tests/reference/make_expression_fixtures.py`: filters, tests and methods, one by one.
#[test]
fn expressions_as_jinja2_evaluates_them() {
    let fixture: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/chat/expressions.json")).unwrap();
    let conversation = Conversation {
        messages: fixture["messages"].as_array().unwrap().clone(),
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let cases = fixture["cases"].as_array().unwrap();
    assert!(cases.len() > 700, "{}", cases.len());
    let mut differ = Vec::new();
    for case in cases {
        let source = case[0].as_str().unwrap();
        let rendered = Template::compile("test", source).and_then(|t| t.render(&conversation)).ok();
        if rendered.as_deref() != case[1].as_str() {
            differ.push(format!("{source}: {rendered:?}, expected {}", case[1]));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[test]
fn a_bad_template_is_pointed_at() {
    let fault = Template::compile("mine.jinja", "line\n{% if x %}\n{{ y + }}").err().unwrap();
    let place = fault.place.expect("points into the template");
    assert_eq!(place.text.line_column(place.span.start).0, 3);
    assert_eq!(place.text.name, "mine.jinja");
}

#[test]
fn strftime_now_gives_a_date() {
    let template = Template::compile("t", "{{ strftime_now('%Y-%m-%d') }}").unwrap();
    let text = template.render(&Conversation::default()).unwrap();
    let date: Vec<&str> = text.split('-').collect();
    assert!(date.len() == 3 && date[0].parse::<u32>().unwrap() >= 2024, "{text}");
}

#[test]
fn go_templates_are_told_from_jinja() {
    for go in
        ["{{ .Prompt }}", "{{- if .System }}x{{ end }}", "{{ range $i, $m := .Messages }}{{ end }}"]
    {
        assert!(is_go(go), "{go}");
    }
    for jinja in
        ["{{ messages[0].content }}", "{% for m in messages %}{{ m.content }}{% endfor %}", "plain"]
    {
        assert!(!is_go(jinja), "{jinja}");
    }
}
