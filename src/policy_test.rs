//! Tests of policies, as data: `NAME.test.yaml` beside `NAME.yaml` in, what differs out.
//!
//! A case names a config and tensors (or an inventory file), requests, and for each request the
//! formats that are expected, or that they are kept in a snapshot `NAME.test.snap`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::document::Document;
use crate::dtype::Dtype;
use crate::fault::{Code, Fault, Faults};
use crate::format::SOURCE;
use crate::plan::{self, Options, Plan, Request};
use crate::policy::{Library, Role};
use crate::prepare;
use crate::read::{Inventory, Shard, TensorInfo};

/// The tests of a policy.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestFile {
    /// The policy that is tested; without it the one that each case's architecture finds.
    pub policy: Option<String>,
    /// The cases.
    pub cases: Vec<Case>,
}

/// A model in miniature, and what is expected of it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What the case is about.
    pub name: String,
    /// config.json; an inventory file brings its own.
    #[serde(default)]
    pub config: serde_json::Value,
    /// Names of tensors and their shapes. `{0..3}` in a name stands for each number from 0 to 3.
    #[serde(default)]
    pub tensors: IndexMap<String, Vec<u64>>,
    /// dtype of the tensors.
    #[serde(default = "bf16")]
    pub dtype: Dtype,
    /// An inventory file, relative to the test file, in place of `config` and `tensors`.
    pub inventory: Option<PathBuf>,
    /// Whether it is planned as a draft.
    #[serde(default)]
    pub role: Role,
    /// Requests whose every decision is kept in the snapshot.
    #[serde(default)]
    pub snapshot: Vec<String>,
    /// Request → tensor → format (`source` for source precision). Tensors that are not named may
    /// have any.
    #[serde(default)]
    pub expect: IndexMap<String, IndexMap<String, String>>,
    /// What the model is expected to be able to do.
    pub capabilities: Option<Vec<String>>,
    /// The parser that is expected for its answers.
    pub parser: Option<String>,
    /// The renderer that is expected for conversations.
    pub renderer: Option<String>,
    /// Whether lathe is expected to run a model of these tensors; a vocabulary is not asked for.
    pub runs: Option<bool>,
    /// The chat template.
    pub template: Option<String>,
}

fn bf16() -> Dtype {
    Dtype::BF16
}

/// How a test file fared.
#[derive(Debug, Default)]
pub struct Report {
    /// Decisions that were compared.
    pub compared: usize,
    /// What differs.
    pub failures: Vec<Failure>,
    /// Whether the snapshot was written anew.
    pub updated: bool,
}

/// One difference.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Failure {
    /// The case.
    pub case: String,
    /// The request.
    pub request: String,
    /// The tensor, when it is about one.
    pub tensor: Option<String>,
    /// What was expected.
    pub expected: String,
    /// What was decided, and by which rule.
    pub found: String,
}

/// The snapshot that belongs to a test file.
pub fn snapshot_path(test: &Path) -> PathBuf {
    test.with_extension("snap")
}

/// Runs the tests of a file. With `update`, snapshots are written instead of compared.
///
/// # Errors
/// A file that cannot be read, a policy or a case that makes no sense.
pub fn run(library: &Library, path: &Path, update: bool) -> Result<Report, Faults> {
    let body =
        std::fs::read_to_string(path).map_err(|error| Fault::io("read the test", path, &error))?;
    let document = Document::parse(path.display().to_string(), body)?;
    let tests: TestFile = document.decode()?;
    let mut report = Report::default();
    let mut snapshot = String::new();
    for case in &tests.cases {
        let of_case = |faults: Faults| {
            let file = path.display();
            let named = |fault: Fault| match fault.place {
                Some(_) => fault,
                None => Fault {
                    message: format!("{file}, case {:?}: {fault}", case.name),
                    file: None,
                    tensor: None,
                    ..fault
                },
            };
            Faults(faults.0.into_iter().map(named).collect())
        };
        let inventory = inventory(case, path)?;
        let prepared = prepare::with_policy(inventory, case.role, library, tests.policy.as_deref())
            .map_err(of_case)?;
        for (request, expected) in &case.expect {
            let plan = plan_for(&prepared, case.role, request).map_err(of_case)?;
            compare(case, request, expected, &plan, &mut report);
        }
        for request in &case.snapshot {
            let plan = plan_for(&prepared, case.role, request).map_err(of_case)?;
            snapshot.push_str(&listing(case, request, &plan));
        }
        if let Some(expected) = case.runs {
            compare_runs(case, expected, &prepared, &mut report);
        }
        if case.capabilities.is_some() || case.parser.is_some() || case.renderer.is_some() {
            let plan = plan_for(&prepared, case.role, "none").map_err(of_case)?;
            compare_facts(case, &plan.manifest, &mut report);
        }
    }
    compare_snapshot(path, &snapshot, update, &mut report)?;
    Ok(report)
}

/// Whether what is planned runs.
fn compare_runs(case: &Case, expected: bool, prepared: &prepare::Prepared, report: &mut Report) {
    report.compared += 1;
    let in_the_way = match plan_for(prepared, Role::Target, "none") {
        Err(faults) => faults.0,
        Ok(plan) => {
            let held = plan.tensors().filter(|tensor| !tensor.is_companion());
            let held = held.map(|tensor| (tensor.name.clone(), tensor.held()));
            let config = &prepared.inventory.config;
            prepared.policy.in_the_way(config, held, ["tokenizer.json"], None)
        }
    };
    if in_the_way.is_empty() != expected {
        let runs = |runs: bool| if runs { "runs" } else { "does not run" };
        let why: String = in_the_way.iter().map(|fault| format!(": {fault}")).collect();
        report.failures.push(Failure {
            case: case.name.clone(),
            request: "none".into(),
            tensor: None,
            expected: runs(expected).into(),
            found: format!("{}{why}", runs(!expected)),
        });
    }
}

fn plan_for(prepared: &prepare::Prepared, role: Role, request: &str) -> Result<Plan, Faults> {
    let format = (request != "none").then(|| request.to_string());
    let mut options = Options::default();
    if role == Role::Target {
        options.request = Request { format, ..Request::default() };
        return plan::plan(prepared.stock(), None, &options);
    }
    // A draft comes beside a target; here one without tensors.
    let empty = Inventory { config: prepared.inventory.config.clone(), ..Inventory::default() };
    let none = crate::classify::Classified::default();
    let target =
        plan::Stock { inventory: &empty, classified: &none, policy: prepared.stock().policy };
    options.request = Request { draft_format: format, ..Request::default() };
    plan::plan(target, Some(prepared.stock()), &options)
}

fn compare(
    case: &Case,
    request: &str,
    expected: &IndexMap<String, String>,
    plan: &Plan,
    report: &mut Report,
) {
    let decided: BTreeMap<&str, &plan::Tensor> =
        plan.tensors().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let prefix = if case.role == Role::Draft { plan::DRAFT_PREFIX } else { "" };
    for (name, format) in expected.iter().flat_map(|(name, format)| {
        expand(name).into_iter().map(move |name| (format!("{prefix}{name}"), format))
    }) {
        report.compared += 1;
        let found = match decided.get(name.as_str()) {
            None => "no such output tensor".to_string(),
            Some(tensor) => {
                let is = tensor.format.as_deref().unwrap_or(SOURCE);
                if is == format {
                    continue;
                }
                let rule = &tensor.rule;
                format!("{is}, by rule {} ({}:{})", rule.id, rule.file, rule.line)
            }
        };
        report.failures.push(Failure {
            case: case.name.clone(),
            request: request.into(),
            tensor: Some(name),
            expected: format.clone(),
            found,
        });
    }
}

fn compare_facts(case: &Case, manifest: &plan::Manifest, report: &mut Report) {
    let facts = [
        ("capabilities", case.capabilities.clone(), manifest.capabilities.clone()),
        ("parser", one(&case.parser), one(&manifest.parser).unwrap_or_default()),
        ("renderer", one(&case.renderer), one(&manifest.renderer).unwrap_or_default()),
    ];
    for (what, expected, found) in facts {
        let Some(expected) = expected else { continue };
        report.compared += 1;
        if expected != found {
            report.failures.push(Failure {
                case: case.name.clone(),
                request: "none".into(),
                tensor: None,
                expected: format!("{what} {}", expected.join(", ")),
                found: found.join(", "),
            });
        }
    }
}

fn one(text: &Option<String>) -> Option<Vec<String>> {
    text.clone().map(|text| vec![text])
}

/// Every decision of a plan, one a line.
fn listing(case: &Case, request: &str, plan: &Plan) -> String {
    let mut out = format!("[{} / {request}]\n", case.name);
    for tensor in plan.tensors() {
        let format = tensor.format.as_deref().unwrap_or(SOURCE);
        out.push_str(&format!("{} {format} {}\n", tensor.name, tensor.rule.id));
    }
    out.push('\n');
    out
}

fn compare_snapshot(
    test: &Path,
    now: &str,
    update: bool,
    report: &mut Report,
) -> Result<(), Fault> {
    let path = snapshot_path(test);
    let kept = match std::fs::read_to_string(&path) {
        Ok(kept) => kept,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Fault::io("read the snapshot", &path, &error)),
    };
    report.compared +=
        now.lines().filter(|line| !line.starts_with('[') && line.contains(' ')).count();
    if kept == now {
        return Ok(());
    }
    if update {
        let done = match now.is_empty() {
            true => std::fs::remove_file(&path),
            false => std::fs::write(&path, now),
        };
        done.map_err(|error| Fault::io("write the snapshot", &path, &error))?;
        report.updated = true;
        return Ok(());
    }
    if kept.is_empty() {
        report.failures.push(Failure {
            case: "snapshot".into(),
            request: "all".into(),
            tensor: None,
            expected: format!("{}", path.display()),
            found: "no such file yet: `lathe policy test --update` writes it".into(),
        });
        return Ok(());
    }
    let (old, new) = (sections(&kept), sections(now));
    for (section, lines) in &new {
        for (tensor, found) in lines {
            let expected = old.get(section).and_then(|lines| lines.get(tensor));
            if expected != Some(found) {
                let expected = expected.map_or("nothing: not in the snapshot", |text| text);
                report.failures.push(difference(section, tensor, expected, found));
            }
        }
    }
    for (section, lines) in &old {
        for (tensor, expected) in lines {
            if !new.get(section).is_some_and(|lines| lines.contains_key(tensor)) {
                report.failures.push(difference(
                    section,
                    tensor,
                    expected,
                    "no such tensor, case or request any more",
                ));
            }
        }
    }
    Ok(())
}

fn difference(section: &str, tensor: &str, expected: &str, found: &str) -> Failure {
    let (case, request) = section.rsplit_once(" / ").unwrap_or((section, ""));
    Failure {
        case: case.into(),
        request: request.into(),
        tensor: Some(tensor.into()),
        expected: expected.into(),
        found: found.into(),
    }
}

/// Section → tensor → decision.
fn sections(text: &str) -> BTreeMap<&str, BTreeMap<&str, &str>> {
    let mut out: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    let mut section = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if let Some((tensor, decision)) = line.split_once(' ') {
            out.entry(section).or_default().insert(tensor, decision);
        }
    }
    out
}

fn inventory(case: &Case, test: &Path) -> Result<Inventory, Faults> {
    if let Some(path) = &case.inventory {
        let path = test.parent().unwrap_or(Path::new(".")).join(path);
        return crate::read::source(&path);
    }
    if case.tensors.is_empty() {
        let message = format!("case `{}` has neither tensors nor an inventory", case.name);
        return Err(Fault::new(Code::PolicySyntax, message).in_file(test).into());
    }
    let mut at = 0;
    let mut tensors = Vec::new();
    for (name, shape) in &case.tensors {
        for name in expand(name) {
            let bytes = shape.iter().product::<u64>() * case.dtype.bytes();
            let (dtype, shape) = (case.dtype, shape.clone());
            tensors.push(TensorInfo { name, dtype, shape, shard: 0, range: at..at + bytes });
            at += bytes;
        }
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Inventory {
        dir: test.to_path_buf(),
        config: case.config.clone(),
        shards: vec![Shard { name: "model.safetensors".into(), size: at, modified: None }],
        tensors,
        chat_template: case.template.clone(),
        ..Inventory::default()
    })
}

/// Every name that `{a..b}` stands for.
fn expand(name: &str) -> Vec<String> {
    let range = name.find('{').and_then(|start| {
        let end = start + name[start..].find('}')?;
        let (from, to) = name[start + 1..end].split_once("..")?;
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        Some((start, end, from, to))
    });
    match range {
        None => vec![name.to_string()],
        Some((start, end, from, to)) => (from..=to)
            .flat_map(|n| expand(&format!("{}{n}{}", &name[..start], &name[end + 1..])))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_expand() {
        assert_eq!(expand("a.{0..2}.b"), ["a.0.b", "a.1.b", "a.2.b"]);
        assert_eq!(expand("a.{0..1}.b.{5..6}").len(), 4);
        assert_eq!(expand("a.{x}.b"), ["a.{x}.b"]);
    }

    #[test]
    fn failures_name_the_rule_and_snapshots_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.test.yaml");
        let case = "policy: llama\ncases:\n  - name: small\n    config: {architectures: [LlamaForCausalLM], num_hidden_layers: 2}\n    \
            tensors: {'model.layers.{0..1}.self_attn.v_proj.weight': [128, 128]}\n    \
            snapshot: [int4]\n    expect: {int4: {model.layers.1.self_attn.v_proj.weight: int4}}\n";
        std::fs::write(&path, case).unwrap();
        let library = Library::built_in();
        let report = run(&library, &path, true).unwrap();
        assert!(report.updated);
        assert_eq!(report.failures.len(), 1);
        assert!(report.failures[0].found.starts_with("int8, by rule sensitive"));
        let again = run(&library, &path, false).unwrap();
        assert_eq!((again.failures.len(), again.compared), (1, 3));
        let snap = snapshot_path(&path);
        let edited = std::fs::read_to_string(&snap).unwrap().replace("int8", "int4");
        std::fs::write(&snap, edited).unwrap();
        assert_eq!(run(&library, &path, false).unwrap().failures.len(), 3);
    }
}
