//! Plans of real models, from their headers alone, against the decisions known for each request.

use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use lathe::classify::Classified;
use lathe::dtype::Dtype;
use lathe::plan::{self, Op, Options, Plan, Request, Stock};
use lathe::policy::{Library, Role};
use lathe::read::{Inventory, Shard, TensorInfo};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    name: String,
    role: String,
    config: serde_json::Value,
    files: Vec<String>,
    source: Vec<(String, String, Vec<u64>, u32)>,
    outputs: Vec<(String, String, usize, String, Vec<u64>)>,
    expected: BTreeMap<String, Expected>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Expected {
    formats: BTreeMap<String, String>,
    blob_of: BTreeMap<String, String>,
    metadata: BTreeMap<String, BTreeMap<String, String>>,
    file_type: String,
    rejected_at: Option<String>,
}

fn cases(folder: &str) -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/conformance").join(folder);
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    let load = |path: &PathBuf| {
        let mut text = Vec::new();
        let file = std::fs::File::open(path).unwrap();
        flate2::read::GzDecoder::new(file).read_to_end(&mut text).unwrap();
        serde_json::from_slice(&text).unwrap()
    };
    paths.iter().map(load).collect()
}

fn inventory(case: &Case) -> Inventory {
    let mut ends = vec![0u64; case.files.len()];
    let mut tensors: Vec<TensorInfo> = case
        .source
        .iter()
        .map(|(name, dtype, shape, shard)| {
            let dtype: Dtype = dtype.parse().unwrap();
            let bytes = shape.iter().product::<u64>() * dtype.bytes();
            let start = ends[*shard as usize];
            ends[*shard as usize] += bytes;
            let (name, shape) = (name.clone(), shape.clone());
            TensorInfo { name, dtype, shape, shard: *shard, range: start..start + bytes }
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let shard = |(name, size): (&String, &u64)| Shard {
        name: name.as_str().into(),
        size: *size,
        modified: None,
    };
    Inventory {
        dir: PathBuf::from(&case.name),
        config: case.config.clone(),
        shards: case.files.iter().zip(&ends).map(shard).collect(),
        tensors,
        ..Inventory::default()
    }
}

fn plan_case(library: &Library, case: &Case, request: &str) -> Result<Plan, lathe::fault::Faults> {
    let inventory = inventory(case);
    let classified = lathe::classify::classify(&inventory)?;
    let role = if case.role == "draft" { Role::Draft } else { Role::Target };
    let architecture = lathe::checkpoint::architecture(&inventory.config)?;
    let policy = library.compile(library.find(&architecture, role)?)?;
    let stock = Stock { inventory: &inventory, classified: &classified, policy: &policy };
    let format = (request != "none").then(|| request.to_string());
    if role == Role::Target {
        let request = Request { format, ..Request::default() };
        return plan::plan(stock, None, &Options { request, ..Options::default() });
    }
    // A draft is planned beside a target, here one without tensors.
    let config = serde_json::json!({"architectures": ["LlamaForCausalLM"]});
    let empty = Inventory { config, ..Inventory::default() };
    let none = Classified::default();
    let base = library.compile(library.find("LlamaForCausalLM", Role::Target)?)?;
    let target = Stock { inventory: &empty, classified: &none, policy: &base };
    let request = Request { draft_format: format, ..Request::default() };
    plan::plan(target, Some(stock), &Options { request, ..Options::default() })
}

/// What an operation is called in the cases.
fn operation(ops: &[Op]) -> &'static str {
    let stacks = ops.iter().any(|op| matches!(op, Op::Stack { .. }));
    let decodes = ops.iter().any(|op| matches!(op, Op::DecodeFp8 { .. }));
    match (stacks, decodes) {
        (true, true) => "decode_stack_fp8",
        (true, false) => "stack_experts",
        (false, true) => "decode_fp8",
        (false, false) => ops
            .iter()
            .find_map(|op| match op {
                Op::Relabel { dtype: Dtype::U32, .. } => Some("repack_fp4"),
                Op::Relabel { .. } => Some("relabel_u8"),
                Op::Reciprocal => Some("reciprocal_f32"),
                Op::Scalar => Some("scalar_f32"),
                _ => None,
            })
            .unwrap_or(""),
    }
}

fn differences(case: &Case, request: &str, expected: &Expected, plan: &Plan) -> Vec<String> {
    let mut out = Vec::new();
    let label = |text: String| format!("{} {request}: {text}", case.name);
    let names: Vec<&str> = plan.tensors().map(|tensor| tensor.name.as_str()).collect();
    let wanted: Vec<&str> = case.outputs.iter().map(|output| output.0.as_str()).collect();
    if names != wanted {
        let at = names.iter().zip(&wanted).position(|(a, b)| a != b);
        let at = at.unwrap_or(names.len().min(wanted.len()));
        out.push(label(format!(
            "order differs at {at}: {:?}, not {:?}",
            names.get(at),
            wanted.get(at)
        )));
        return out;
    }
    let kept: HashSet<&str> = expected.metadata.keys().map(String::as_str).collect();
    for (blob, tensor) in plan.blobs.iter().flat_map(|b| b.tensors.iter().map(move |t| (b, t))) {
        let (name, op, sources, dtype, shape) =
            case.outputs.iter().find(|output| output.0 == tensor.name).unwrap();
        if operation(&tensor.ops) != op {
            out.push(label(format!("{name}: {} and not {op}", operation(&tensor.ops))));
        }
        if tensor.sources.len() != *sources {
            out.push(label(format!("{name}: {} sources, not {sources}", tensor.sources.len())));
        }
        // The cases name the packed dtype of a stack that is decoded; a plan the decoded one.
        if tensor.dtype.as_str() != dtype && op != "decode_stack_fp8" {
            out.push(label(format!("{name}: {} and not {dtype}", tensor.dtype)));
        }
        if tensor.shape != *shape {
            out.push(label(format!("{name}: {:?} and not {shape:?}", tensor.shape)));
        }
        let format = tensor.format.as_deref();
        let want = expected.formats.get(name).map(String::as_str);
        let blob_name = expected.blob_of.get(name).unwrap_or(name);
        if format != want && !kept.contains(blob_name.as_str()) {
            out.push(label(format!(
                "{name}: format {format:?} by {} and not {want:?}",
                tensor.rule.id
            )));
        }
        if blob.name != *blob_name {
            out.push(label(format!("{name}: in blob {} and not {blob_name}", blob.name)));
        }
        if let Some(metadata) = expected.metadata.get(&blob.name)
            && blob.metadata.iter().ne(metadata)
        {
            let is = &blob.metadata;
            out.push(label(format!("{}: {is:?} and not {metadata:?}", blob.name)));
        }
    }
    if case.role == "target" && plan.manifest.file_type != expected.file_type {
        let (is, want) = (&plan.manifest.file_type, &expected.file_type);
        out.push(label(format!("file_type {is:?} and not {want:?}")));
    }
    out
}

/// Every request of every case of a folder agrees.
fn agree(folder: &str) {
    let library = Library::built_in();
    let mut wrong = Vec::new();
    let mut compared = 0;
    for case in cases(folder) {
        for (request, expected) in &case.expected {
            // A refusal of --quantize on FP8 sources is superseded, others are tested elsewhere.
            if expected.rejected_at.is_some() {
                continue;
            }
            match plan_case(&library, &case, request) {
                Ok(plan) => wrong.extend(differences(&case, request, expected, &plan)),
                Err(faults) => wrong.push(format!("{} {request}: {faults}", case.name)),
            }
            compared += 1;
        }
    }
    let shown: Vec<&str> = wrong.iter().take(40).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} differences in {folder}:\n{}", wrong.len(), shown.join("\n"));
    assert!(compared > 0);
}

#[test]
fn families_agree() {
    agree("families");
}

#[test]
fn drafts_agree() {
    agree("drafts");
}

#[test]
fn schedules_agree() {
    agree("schedules");
}

#[test]
fn sources_agree() {
    agree("sources");
}

/// What is already quantized is quantized again only on demand; FP8 is decoded, so any format may
/// be asked for.
#[test]
fn requests_on_quantized_sources() {
    let library = Library::built_in();
    for case in cases("sources") {
        for (request, expected) in &case.expected {
            if expected.rejected_at.is_none() {
                continue;
            }
            let fp8 = case.source.iter().any(|(_, dtype, ..)| dtype == "F8_E4M3")
                && !case.source.iter().any(|(_, dtype, ..)| dtype == "U8");
            match plan_case(&library, &case, request) {
                Ok(plan) => {
                    assert!(fp8, "{} {request}: planned", case.name);
                    let quantized = plan.tensors().filter(|tensor| tensor.format.is_some());
                    assert!(quantized.count() > 0, "{} {request}: nothing quantized", case.name);
                }
                Err(faults) => {
                    assert!(!fp8, "{} {request}: {faults}", case.name);
                    assert_eq!(faults.0[0].code, lathe::fault::Code::AlreadyQuantized);
                }
            }
        }
    }
}
