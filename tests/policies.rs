//! The built-in policies: each has tests beside it that hold, and nothing in the sources knows the
//! names that policies are about.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lathe::format::Formats;
use lathe::policy::Library;
use lathe::policy_test;
use regex::Regex;
use serde_json::Value;

fn root(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

fn files(folder: &Path, ending: &str, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, ending, out);
        } else if path.to_string_lossy().ends_with(ending) {
            out.push(path);
        }
    }
    out.sort();
}

fn policies() -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&root("policies/architectures"), ".yaml", &mut found);
    found.retain(|path| !path.to_string_lossy().ends_with(".test.yaml"));
    assert!(found.len() > 20);
    found
}

#[test]
fn every_policy_has_a_test_beside_it_and_it_holds() {
    let library = Library::load(None).unwrap();
    let mut wrong = Vec::new();
    for policy in policies() {
        // `base` is what the others extend: their tests are its tests.
        if policy.ends_with("base.yaml") {
            continue;
        }
        let test = policy.with_extension("test.yaml");
        if !test.is_file() {
            wrong.push(format!("{} has no test", policy.display()));
            continue;
        }
        let report = policy_test::run(&library, &test, false).unwrap();
        assert!(report.compared > 0, "{}", test.display());
        wrong.extend(report.failures.iter().map(|failure| format!("{failure:?}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The words of a policy that name an architecture, a model type or a part of a tensor's name; those
/// that name a producer, its layouts and parameters, or a parser.
#[derive(Default)]
struct Words {
    models: BTreeSet<String>,
    sources: BTreeSet<String>,
    tensors: BTreeSet<String>,
}

impl Words {
    fn of_policies() -> Words {
        let mut words = Words::default();
        for path in policies() {
            let text = std::fs::read_to_string(&path).unwrap();
            let policy: Value = serde_yaml::from_str(&text).unwrap();
            words.models.extend(strings(&policy["match"]["architectures"]));
            words.models.extend(strings(&policy["match"]["model_types"]));
            for set in policy["sets"].as_object().into_iter().flatten() {
                words.globs(set.1);
            }
            for section in ["guards", "drafts", "tensors", "drop", "keep"] {
                for rule in policy[section].as_array().into_iter().flatten() {
                    words.globs(&rule["match"]);
                    words.globs(&rule["except"]);
                }
            }
        }
        let mut found = Vec::new();
        files(&root("policies/sources"), ".yaml", &mut found);
        assert!(found.len() > 20);
        for path in found {
            let text = std::fs::read_to_string(&path).unwrap();
            let source: Value = serde_yaml::from_str(&text).unwrap();
            words.sources.extend(strings(&source["name"]));
            words.sources.extend(strings(&source["producer"]));
            let companions = source["companions"].as_object().into_iter().flatten();
            let suffixes = companions.map(|(_, companion)| &companion["suffix"]);
            for suffix in suffixes.chain([&source["weight"]["suffix"], &source["consumed"]]) {
                let suffixes = strings(suffix);
                words.sources.extend(suffixes.iter().map(|word| word.trim_matches('.').into()));
            }
            for program in source["refused"].as_array().into_iter().flatten() {
                words.sources.extend(strings(&program["methods"]));
            }
        }
        let mut found = Vec::new();
        files(&root("policies/parsers"), ".yaml", &mut found);
        assert!(found.len() > 10);
        let stems = found.iter().map(|path| path.file_stem().unwrap().to_string_lossy().into());
        words.sources.extend(stems);
        // What lathe writes is MLX's, whoever else writes it too; its formats are named alike.
        words.sources.retain(|word| !word.is_empty() && word != "mlx");
        words.sources.retain(|word| Formats::built_in().get(word).is_none());
        // A key of layout files, a word of English, the parser of models that name none, and the
        // package that `doctor` looks for.
        for word in ["input_scale", "scales", "plain", "transformers"] {
            words.sources.remove(word);
        }
        words
    }

    fn globs(&mut self, globs: &Value) {
        for glob in strings(globs).iter().flat_map(|glob| alternatives(glob)) {
            // A name of a set has no dot.
            let parts = glob.split('.').filter(|_| glob.contains('.'));
            self.tensors.extend(parts.filter(|part| is_word(part)).map(str::to_string));
        }
    }
}

fn strings(value: &Value) -> Vec<String> {
    match value {
        Value::String(one) => vec![one.clone()],
        Value::Array(many) => many.iter().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}

/// `a.{b,c}` as `a.b` and `a.c`.
fn alternatives(glob: &str) -> Vec<String> {
    match (glob.find('{'), glob.find('}')) {
        (Some(open), Some(close)) => glob[open + 1..close]
            .split(',')
            .flat_map(|one| alternatives(&format!("{}{one}{}", &glob[..open], &glob[close + 1..])))
            .collect(),
        _ => vec![glob.to_string()],
    }
}

fn is_word(part: &str) -> bool {
    part.len() > 2 && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The string literals of a source, without comments and tests.
fn literals(source: &str) -> Vec<String> {
    let code = match source.find("#[cfg(test)]\nmod tests {") {
        Some(tests) => &source[..tests],
        None => source,
    };
    let code: Vec<&str> =
        code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let quotes = Regex::new(r#"b?'(\\.|[^\\'])'"#).unwrap();
    let code = quotes.replace_all(&code.join("\n"), "' '").into_owned();
    let literal = Regex::new(r#""((?:[^"\\]|\\[\s\S])*)""#).unwrap();
    literal.captures_iter(&code).map(|found| found[1].to_string()).collect()
}

/// Names of models, anywhere in a literal. Names of tensors: those of several words anywhere
/// (`v_proj`), plain ones (`experts`) where the literal is one or more whole segments of a name.
/// Keys of the decoder language are no names of tensors where it is resolved (`src/decoder/parts`).
/// Not asked of `weight`, `bias` and `biases`: every framework calls a module's parameters so, and
/// safetensors of all producers are read by them.
#[test]
fn no_source_knows_a_name_that_policies_are_about() {
    let words = Words::of_policies();
    assert!(words.models.contains("LlamaForCausalLM") && words.tensors.contains("v_proj"));
    assert!(words.sources.contains("modelopt-nvfp4") && words.sources.contains("harmony"));
    let conventions = ["weight", "bias", "biases"];
    let segments = Regex::new(r"^\.?[a-z0-9_]+(\.[a-z0-9_]+)*\.?$").unwrap();
    let schema: Value =
        serde_json::from_str(&std::fs::read_to_string(root("schemas/policy.schema.json")).unwrap())
            .unwrap();
    let mut keys = BTreeSet::new();
    properties(&schema, &mut keys);
    assert!(keys.contains("gated_mlp") && keys.contains("router"));
    let mut sources = Vec::new();
    files(&root("src"), ".rs", &mut sources);
    sources.retain(|path| !path.ends_with("tests.rs") && !path.iter().any(|part| part == "tests"));
    let mut wrong = Vec::new();
    for path in sources {
        let source = std::fs::read_to_string(&path).unwrap();
        let resolves = path.starts_with(root("src/decoder/parts"));
        // mlx-lm's folders are written here.
        let exports = path.starts_with(root("src/export"));
        let serves = path.starts_with(root("src/server"));
        for literal in literals(&source) {
            // "audio" is a field of OpenAI's API.
            if resolves && keys.contains(&literal) || serves && literal == "audio" {
                continue;
            }
            let word = literal.trim_matches('.');
            if words.sources.contains(word) && !conventions.contains(&word) && !exports {
                wrong.push(format!("{}: {word:?} of a source or parser", path.display()));
            }
            let is_name = segments.is_match(&literal);
            let parts = literal.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for part in parts.filter(|part| !conventions.contains(part)) {
                let telling =
                    part.contains(['_', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
                if words.models.contains(part)
                    || words.tensors.contains(part) && (telling || is_name)
                {
                    wrong.push(format!("{}: {part:?} in {literal:?}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The keys of every object of a schema.
fn properties(schema: &Value, keys: &mut BTreeSet<String>) {
    match schema {
        Value::Object(entries) => {
            if let Some(Value::Object(named)) = entries.get("properties") {
                keys.extend(named.keys().cloned());
            }
            entries.values().for_each(|value| properties(value, keys));
        }
        Value::Array(items) => items.iter().for_each(|value| properties(value, keys)),
        _ => {}
    }
}

#[test]
fn the_search_for_names_finds_them() {
    let source =
        "/// v_proj\nlet quote = '\"'; let a = \"x.v_proj\"; // \"no\"\nlet b = \"experts\";";
    assert_eq!(literals(source), ["x.v_proj", "no", "experts"]);
    assert_eq!(alternatives("**.{a,b}.{c,d}"), ["**.a.c", "**.a.d", "**.b.c", "**.b.d"]);
}

#[test]
fn every_lint_is_documented() {
    let docs = std::fs::read_to_string(root("docs/policies.md")).unwrap();
    let codes = lathe::policy::lint::Lint::ALL.iter().map(|lint| lint.code());
    let missing: Vec<_> = codes.filter(|code| !docs.contains(&format!("`{code}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
