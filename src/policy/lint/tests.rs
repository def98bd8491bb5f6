use super::*;

fn findings(yaml: &str) -> Vec<(&'static str, usize, String)> {
    let mut library = Library::built_in();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.yaml");
    std::fs::write(&path, yaml).unwrap();
    library.add_file(&path).unwrap();
    let entry = library.get("p").unwrap().clone();
    let found = lint(&library, &entry).unwrap();
    found.iter().map(|f| (f.lint.code(), f.position().0, f.message.clone())).collect()
}

fn codes(yaml: &str) -> Vec<(&'static str, usize)> {
    findings(yaml).into_iter().map(|(code, line, _)| (code, line)).collect()
}

#[test]
fn shadowed_rules_are_found_and_conditions_are_not_taken_for_shadows() {
    let yaml = "name: p\nextends: base\ntensors:\n\
        - {id: a, match: '**.{q,k}_proj.weight', format: [requested], because: x}\n\
        - {id: b, match: '**.k_proj.weight', format: [eight_bit], because: x}\n\
        - {id: c, match: '**.v_proj.weight', when: requested.bits == 4, format: [eight_bit], because: x}\n\
        - {id: d, match: '**.v_proj.weight', format: [requested], because: x}\n";
    assert_eq!(codes(yaml), [("shadowed-rule", 5)]);
}

#[test]
fn guards_shadow_too() {
    let yaml = "name: p\nextends: base\ntensors:\n\
        - {id: a, match: '**.router.proj.weight', format: [requested], because: x}\n";
    assert_eq!(codes(yaml), [("shadowed-rule", 4)]);
}

#[test]
fn unused_names_are_found() {
    let yaml = "name: p\nextends: base\nsets:\n  s: ['**.x.**']\nlet:\n  v: [num_hidden_layers]\n\
        schedules:\n  w: {head: 1/4}\n";
    let expected = [("unused-set", 4), ("unused-value", 6), ("unused-schedule", 8)];
    assert_eq!(codes(yaml), expected);
}

#[test]
fn ladders_that_never_fall_through_are_found() {
    let yaml = "name: p\nextends: base\ntensors:\n\
        - id: a\n  match: '**.x.weight'\n  because: x\n  format: [requested, requested]\n\
        - id: b\n  match: '**.y.weight'\n  because: x\n  format: [source, int4]\n\
        - id: c\n  match: '**.z.weight'\n  because: x\n  format: [eight_bit, requested]\n";
    assert_eq!(codes(yaml), [("unreachable-rung", 7), ("unreachable-rung", 11)]);
}

#[test]
fn expressions_of_the_wrong_type_and_unknown_config_paths_are_found() {
    let yaml = "name: p\nextends: base\ntensors:\n\
        - {id: a, match: '**.x.weight', when: layer + 1, format: [requested], because: x}\n\
        - {id: b, match: '**.y.weight', when: config.num_hiden_layers == 3, format: [requested], because: x}\n";
    assert_eq!(codes(yaml), [("expression-type", 4), ("unknown-config-path", 5)]);
}

#[test]
fn expressions_of_a_decoder_are_understood_and_name_what_is_known() {
    let yaml = "name: p\nextends: base\ndecoder:\n  defaults: {p: {own_key: 1}}\n  \
        let: {a: hidden_size, b: own_key}\n  embed: {tensor: e, scale: a + b}\n  layers:\n    \
        tensor: layers.{i}\n    count: num_hiden_layers ?? 2\n    steps:\n      \
        - when: layer > config.text_config.num_hidden_layers\n        rms_norm: norm_a\n      \
        - {when: 'layer > ', rms_norm: norm_b}\n  head: {tensor: h, scale: rope_parameters.factr}\n";
    let found = findings(yaml);
    let lines: Vec<_> = found.iter().map(|(code, line, _)| (*code, *line)).collect();
    let unknown = "unknown-config-path";
    assert_eq!(lines, [(unknown, 9), ("bad-expression", 13), (unknown, 14)], "{found:?}");
    assert!(found[0].2.contains("num_hiden_layers") && found[2].2.contains("factr"));
}

/// A decoder of one layer; `more` stands above, `steps` in it.
fn decoder(more: &str, tensor: &str, steps: &str) -> String {
    format!(
        "name: p\nextends: base\ndecoder:\n  embed: {{tensor: e}}\n  head: {{tensor: h}}\n  {more}\n  \
         layers:\n    tensor: {tensor}\n    count: num_hidden_layers\n    steps:\n{steps}"
    )
}

#[test]
fn words_of_a_decoder_are_those_that_there_are() {
    let mlp =
        |activation: &str| format!("      - mlp: {{up: u, down: d, activation: '{activation}'}}\n");
    let steps =
        ["silu", "hidden_act", "silou", "hiden_act", "a ? b", "layer > 1 ? \"gelu\" : \"relu\""];
    let yaml = decoder("unused: []", "layers.{i}", &steps.map(mlp).concat());
    let found = findings(&yaml);
    let lines: Vec<_> = found.iter().map(|(code, line, _)| (*code, *line)).collect();
    let word = "unknown-word";
    assert_eq!(lines, [(word, 13), (word, 14), ("bad-expression", 15)], "{found:?}");
    assert!(found[0].2.contains("no activation is named `silou`"));
    let router = |scores: &str| {
        format!(
            "      - moe:\n          router: {{tensor: r, top_k: 2, scores: {scores}}}\n          \
             experts: {{up: u, down: d, activation: silu}}\n"
        )
    };
    let yaml = decoder(
        "unused: []",
        "layers.{i}",
        &["softmax", "scoring_func", "softmax_of_choosen"].map(router).concat(),
    );
    assert_eq!(codes(&yaml), [(word, 18)]);
    let rope = "      - attention: {q: q, k: k, v: v, o: o, heads: 2, head_dim: 2, \
                rope: {kinds: {yarn: longrop, su: longrope}}}\n";
    assert_eq!(codes(&decoder("unused: []", "layers.{i}", rope)), [(word, 11)]);
}

#[test]
fn suggestions_are_words_and_keys() {
    let mut library = Library::built_in();
    let dir = tempfile::tempdir().unwrap();
    let steps = ["silou", "hiden_act"]
        .map(|word| format!("      - mlp: {{up: u, down: d, activation: {word}}}\n"));
    let path = dir.path().join("p.yaml");
    std::fs::write(&path, decoder("unused: []", "layers.{i}", &steps.concat())).unwrap();
    library.add_file(&path).unwrap();
    let entry = library.get("p").unwrap().clone();
    let found = lint(&library, &entry).unwrap();
    let help: Vec<&str> = found.iter().map(|finding| finding.help.as_str()).collect();
    assert_eq!(help, ["did you mean `silu`?", "did you mean `hidden_act`?"]);
}

#[test]
fn names_in_a_decoder_can_be_those_of_tensors() {
    let norms = ["a.b-c_1.weight", "a..b", "when ?? x", "x.{i}", ".x"];
    let steps = norms.map(|name| format!("      - rms_norm: '{name}'\n")).concat();
    let name = "impossible-name";
    let expected = [(name, 12), (name, 13), (name, 14), (name, 15)];
    assert_eq!(codes(&decoder("root: [model, '']", "layers.{i}", &steps)), expected);
    assert_eq!(codes(&decoder("unused: []", "layers", "      - rms_norm: norm\n")), [(name, 8)]);
    let globs = "unused: ['**.a.*', 'a..b', 'a[']";
    let glob = "impossible-glob";
    let yaml = decoder(globs, "layers.{i}", "      - rms_norm: norm\n");
    assert_eq!(codes(&yaml), [(glob, 6), (glob, 6)]);
}

#[test]
fn values_of_a_decoder_are_used_in_it() {
    let steps = "      - mlp: {up: u, down: d, activation: act, bias: c}\n    let: {c: layer, d: c, e: e}\n";
    let yaml = decoder("let: {a: hidden_size, b: a, act: hidden_act}", "layers.{i}", steps);
    let found = findings(&yaml);
    let words: Vec<&str> = found.iter().map(|(_, _, message)| message.as_str()).collect();
    let unused = ["`b`", "`d`", "`e`"];
    assert_eq!(found.len(), 3, "{found:?}");
    for (name, (code, ..)) in unused.iter().zip(&found) {
        assert_eq!(*code, "unused-value");
        assert!(words.iter().any(|message| message.ends_with(name)), "{words:?}");
    }
}

#[test]
fn impossible_globs_and_missing_reasons_are_found() {
    let yaml = "name: p\nextends: base\ntensors:\n\
        - {id: a, match: 'model..x.weight', format: [requested]}\n";
    assert_eq!(codes(yaml), [("impossible-glob", 4), ("no-reason", 4)]);
}

#[test]
fn built_in_policies_are_clean() {
    let library = Library::built_in();
    let all: Vec<String> = library
        .iter()
        .flat_map(|entry| lint(&library, entry).unwrap())
        .map(|f| {
            format!("{}:{}: {}: {}", f.place.text.name, f.position().0, f.lint.code(), f.message)
        })
        .collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
}
