use super::*;

/// The events of an answer that thinks, speaks and calls, and its object at the end.
fn events(reason: Reason, more: Vec<Event>) -> (Vec<Value>, Value) {
    let body = Map::new();
    let mut items = Items {
        reply: reply("resp_1", "m", &body),
        prefix: "x".into(),
        custom: vec!["patch".into()],
        done: Vec::new(),
        open: None,
        number: 0,
        ended: false,
    };
    let call =
        |name: &str, arguments: Value| Event::Call(ToolCall { name: name.into(), arguments });
    let text = |text: &str| Event::Text(text.into(), Vec::new());
    let mut all = vec![
        Event::Thinking("h".into()),
        Event::Thinking("m".into()),
        text("Good "),
        text("day"),
        call("weather", json!({"place": "Rome"})),
        call("patch", json!({"input": "+a"})),
    ];
    all.extend(more);
    let mut told = items.begin();
    for event in all {
        told += &items.event(0, event);
    }
    told += &match reason {
        Reason::Cancelled => items.failed(&Problem::field("x", "went wrong")),
        reason => items.event(
            0,
            Event::Done(Done {
                reason,
                statistics: Default::default(),
                thinking_tokens: 2,
                load: Default::default(),
            }),
        ),
    };
    told += &items.end();
    let events = told.trim_end().split("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let value: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), value["type"].as_str());
        value
    });
    (events.collect(), items.reply)
}

#[test]
fn every_item_begins_and_ends_in_order_and_one_event_is_the_last() {
    for (reason, last, more) in [
        (Reason::Stop, "response.completed", vec![]),
        (Reason::Length, "response.incomplete", vec![Event::Text("and".into(), Vec::new())]),
        (Reason::Cancelled, "response.failed", vec![Event::Thinking("hm".into())]),
    ] {
        let (events, reply) = events(reason, more);
        let numbers: Vec<u64> =
            events.iter().filter_map(|e| e["sequence_number"].as_u64()).collect();
        assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
        let of = |kind: &str| events.iter().filter(|e| e["type"] == kind).collect::<Vec<_>>();
        let ends = ["completed", "incomplete", "failed"].map(|end| of(&format!("response.{end}")));
        assert_eq!(ends.concat().len(), 1);
        assert_eq!(events.last().unwrap()["type"], last);
        assert_eq!(events.last().unwrap()["response"], reply);
        let added = of("response.output_item.added");
        let done: Vec<&Value> =
            of("response.output_item.done").iter().map(|e| &e["item"]).collect();
        assert_eq!(added.len(), done.len());
        for (at, (added, done)) in added.iter().zip(&done).enumerate() {
            assert_eq!((&added["output_index"], &added["item"]["id"]), (&json!(at), &done["id"]));
        }
        assert_eq!(reply["output"].as_array().unwrap().iter().collect::<Vec<_>>(), done);
        let kinds: Vec<&str> = done.iter().filter_map(|item| item["type"].as_str()).collect();
        assert_eq!(kinds[..4], ["reasoning", "message", "function_call", "custom_tool_call"]);
        assert_eq!(done[0]["content"][0]["text"], "hm");
        assert_eq!(done[1]["content"][0]["text"], "Good day");
        assert_eq!(done[2]["arguments"], json!({"place": "Rome"}).to_string());
        assert_eq!(done[3]["input"], "+a");
    }
}

/// Thoughts, words and calls of one turn are one message to a template.
#[test]
fn items_become_messages() {
    let body = json!({"instructions": "Be brief.", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{\"place\": \"Rome\"}"},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "+a"},
        {"type": "function_call_output", "call_id": "a", "output": "sunny"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "ok"}]},
    ]});
    let messages = input::messages(body.as_object().unwrap()).unwrap();
    let roles: Vec<&str> = messages.iter().filter_map(|m| m["role"].as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
    assert_eq!(messages[2]["reasoning_content"], "hm");
    assert_eq!(messages[2]["content"], "I look.");
    let call = |at: usize| &messages[2]["tool_calls"][at]["function"]["arguments"];
    assert_eq!((call(0), call(1)), (&json!({"place": "Rome"}), &json!({"input": "+a"})));
    assert_eq!(messages[4]["content"], "ok");
}
