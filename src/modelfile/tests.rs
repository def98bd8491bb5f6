//! What the Modelfile language is, by example.

use super::*;

fn text(body: &str) -> Arc<Text> {
    Arc::new(Text { name: "Modelfile".into(), body: body.into() })
}

fn parse(body: &str) -> Modelfile {
    Modelfile::parse(&text(body)).unwrap_or_else(|faults| panic!("{faults}\n{body}"))
}

/// Each fault as `line:column message (help)`.
fn faults(body: &str) -> Vec<String> {
    let shown = |fault: Fault| {
        let place = fault.place.map_or_else(String::new, |place| {
            let (line, column) = place.text.line_column(place.span.start);
            format!("{line}:{column} ")
        });
        format!("{place}{} ({})", fault.message, fault.help.unwrap_or_default())
    };
    Modelfile::parse(&text(body)).expect_err(body).0.into_iter().map(shown).collect()
}

#[test]
fn every_command_is_read() {
    let file = parse(
        "# a comment\n\
         from ./model\n\
         Draft ./draft\n\
         TEMPLATE \"\"\"{{ .System }}\n{{ .Prompt }}\"\"\"\n\
         SYSTEM You are \"terse\".\n\
         LICENSE MIT\n\
         LICENSE \"\"\"\nApache\n\"\"\"\n\
         PARSER qwen3\n\
         RENDERER qwen3.5\n\
         REQUIRES v0.14\n\
         \tPARAMETER temperature 0.7  \n\
         PARAMETER num_ctx 4096\n\
         PARAMETER use_mmap false\n\
         PARAMETER stop \"<|im_end|>\"\n\
         PARAMETER stop User: \n\
         MESSAGE user Hello there\n\
         MESSAGE assistant \"\"\"Hi.\nHow are you?\"\"\"\n",
    );
    assert_eq!(file.from.value, "./model");
    assert_eq!(file.draft, Some("./draft".into()));
    assert_eq!(file.template, Some("{{ .System }}\n{{ .Prompt }}".into()));
    assert_eq!(file.system.as_deref(), Some("You are \"terse\"."));
    assert_eq!(file.licenses, ["MIT", "\nApache\n"]);
    assert_eq!(file.parser, Some("qwen3".into()));
    assert_eq!(file.renderer, Some("qwen3.5".into()));
    assert_eq!(file.requires.as_deref(), Some("0.14.0"));
    let json = serde_json::to_string(&file.parameters).unwrap();
    assert_eq!(
        json,
        r#"{"num_ctx":4096,"stop":["<|im_end|>","User:"],"temperature":0.7,"use_mmap":false}"#
    );
    assert_eq!(
        serde_json::to_string(&file.messages).unwrap(),
        r#"[{"role":"user","content":"Hello there"},{"role":"assistant","content":"Hi.\nHow are you?"}]"#
    );
    assert!(file.warnings.is_empty());
}

#[test]
fn quotations_end_with_the_last_quotes_of_a_line() {
    let system = |body: &str| parse(&format!("FROM x\n{body}\nPARSER p")).system.unwrap();
    assert_eq!(system("SYSTEM \"a \"b\" c\""), "a \"b\" c");
    assert_eq!(system("SYSTEM \"two\nlines\""), "two\nlines");
    assert_eq!(system("SYSTEM \"\"\"say \"\"\"x\"\"\" twice\"\"\""), "say \"\"\"x\"\"\" twice");
    assert_eq!(system("SYSTEM \"\"\"say \"yes\"\"\"\""), "say \"yes\"");
    assert_eq!(system("SYSTEM \"\"\"\r\na\r\n\"\"\"\r"), "\na\n");
    assert_eq!(system("SYSTEM \"\""), "");
    assert_eq!(system("SYSTEM it's # not a comment"), "it's # not a comment");
    assert_eq!(parse("\u{feff}FROM x\r\n").from.value, "x");
}

#[test]
fn all_faults_are_found_at_once_and_point_at_their_place() {
    let found = faults(
        "FORM ./model\n\
         PARAMETER temprature 1\n\
         PARAMETER top_k 1.5\n\
         PARAMETER use_mmap maybe\n\
         PARAMETER stop\n\
         MESSAGE robot hello\n\
         REQUIRES soon\n\
         SYSTEM\n\
         ADAPTER ./lora\n\
         DRAFT a\n\
         DRAFT b\n",
    );
    insta::assert_snapshot!(found.join("\n"), @r#"
    1:1 unknown command "FORM" (did you mean FROM?)
    2:11 unknown parameter "temprature" (did you mean temperature?)
    3:17 top_k takes a whole number, not "1.5" (tokens to draw from, the likeliest first; 0 for all)
    4:20 use_mmap takes true or false, not "maybe" (whether weights are mapped (Ollama))
    5:11 PARAMETER lacks its second value (PARAMETER takes a name and a value, e.g. temperature 0.7)
    6:9 unknown role "robot" (a message is by system, user or assistant)
    7:10 "soon" is not a version: unexpected character 's' while parsing major version number (REQUIRES takes a semantic version, e.g. 0.14.0)
    8:1 SYSTEM has no value (write it after the command: SYSTEM …)
    9:1 lathe cannot apply adapters (LoRA) yet (merge the adapter into the model first, and give the merged folder to FROM)
    11:1 a second DRAFT (a Modelfile has one DRAFT; remove the other)
    the Modelfile has no FROM (add a line FROM with a model folder, or a model of `lathe list`)
    "#);
}

#[test]
fn an_unclosed_quotation_is_told_at_its_quotes() {
    assert_eq!(
        faults("FROM x\nSYSTEM \"\"\"hello\nFRON y\n"),
        [
            "2:8 this quotation is never closed (end it with the same quotes, \" or \"\"\", as the last of a line)"
        ]
    );
    assert_eq!(faults("")[0].split(" (").next(), Some("the Modelfile has no FROM"));
    assert!(faults("FROM x\nPARAMETER temperature inf").len() == 1);
    assert!(faults("FROM x\nPARAMETER temperature NaN").len() == 1);
}

#[test]
fn what_has_no_effect_is_a_warning() {
    let file = parse("FROM x\nPARAMETER mirostat 1\n");
    assert_eq!(file.warnings.len(), 1);
    assert!(file.parameters.is_empty());
}

mod round_trip {
    use super::*;
    use proptest::prelude::*;

    /// Texts with the characters that matter, but never `"""`, which ends a block.
    fn value() -> impl Strategy<Value = String> {
        "[a\"# \nb\t]{0,24}".prop_filter("ends a block", |text| {
            !text.contains("\"\"\"") && !format!("{text}\"\"\"").contains("\"\"\"\"\"")
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(
            from in "[a-z./]{1,8}", system in value(), license in value(), stop in value(),
            said in value(), temperature in 0.0f64..1e3, top_k in any::<i64>(),
        ) {
            let parameters = Parameters::from([
                ("stop".into(), Value::Texts(vec![stop])),
                ("temperature".into(), Value::Float(temperature)),
                ("top_k".into(), Value::Int(top_k)),
            ]);
            let file = Modelfile {
                from: from.as_str().into(),
                system: Some(system),
                licenses: vec![license],
                parameters,
                messages: vec![Message { role: Role::User, content: said }],
                ..Modelfile::default()
            };
            let written = file.to_string();
            prop_assert_eq!(Modelfile::parse(&text(&written)).map_err(|f| f.to_string()), Ok(file), "{}", written);
        }

        #[test]
        fn no_text_makes_it_panic(body in "([A-Z]{0,9}|FROM|PARAMETER|[\" \n\r#é\u{feff}]){0,30}") {
            let _ = Modelfile::parse(&text(&body));
        }
    }
}
