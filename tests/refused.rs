//! Small folders that must be refused, or accepted, written to disk and read, classified and
//! planned as `create` does.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use lathe::fault::Faults;
use lathe::plan::{self, Options, Plan, Stock};
use lathe::policy::{Library, Role};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Case {
    name: String,
    verdict: String,
    why: String,
    config: Value,
    files: Vec<String>,
    index: Value,
    skip_files: Option<Vec<String>>,
    source: Vec<(String, String, Vec<i64>, usize)>,
}

fn cases() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::File::open(root.join("tests/data/conformance/refused/cases.json.gz"));
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(file.unwrap()).read_to_end(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn element(dtype: &str) -> i128 {
    match dtype {
        "F64" | "I64" | "U64" | "C64" => 8,
        "F32" | "I32" | "U32" => 4,
        "BF16" | "F16" | "I16" | "U16" => 2,
        _ => 1,
    }
}

/// Writes the folder. Data are holes in the files, as large as the header says.
fn write(case: &Case, dir: &Path) {
    if !case.config.is_null() {
        std::fs::write(dir.join("config.json"), case.config.to_string()).unwrap();
    }
    let skipped = case.skip_files.clone().unwrap_or_default();
    let mut weight_map = BTreeMap::new();
    for (number, file) in case.files.iter().enumerate() {
        let mut header = serde_json::Map::new();
        let mut end = 0i128;
        for (name, dtype, shape, shard) in &case.source {
            if *shard != number {
                continue;
            }
            weight_map.insert(name.clone(), file.clone());
            let elements: i128 = shape.iter().map(|&axis| i128::from(axis)).product();
            let from = end;
            end += (elements * element(dtype)).abs();
            let entry =
                json!({"dtype": dtype, "shape": shape, "data_offsets": [from as u64, end as u64]});
            header.insert(name.clone(), entry);
        }
        if skipped.contains(file) {
            continue;
        }
        let header = Value::Object(header).to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        let path = dir.join(file);
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(bytes.len() as u64 + end as u64).unwrap();
    }
    let index = match &case.index {
        Value::Null => return,
        Value::String(_) => json!({"weight_map": weight_map}),
        map => json!({"weight_map": map}),
    };
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

fn planned(library: &Library, dir: &Path) -> Result<Plan, Faults> {
    let inventory = lathe::read::folder(dir)?;
    let classified = lathe::classify::classify(&inventory)?;
    let architecture = lathe::checkpoint::architecture(&inventory.config)?;
    let policy = library.compile(library.find(&architecture, Role::Target)?)?;
    let stock = Stock { inventory: &inventory, classified: &classified, policy: &policy };
    plan::plan(stock, None, &Options::default())
}

#[test]
fn verdicts_agree() {
    let library = Library::built_in();
    let mut wrong = Vec::new();
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        write(&case, dir.path());
        match (case.verdict.as_str(), planned(&library, dir.path())) {
            ("refuse", Err(faults)) => {
                // A fault says what to do, or names the tensor or file that it is about.
                let told = faults.0.iter().all(|fault| {
                    fault.tensor.is_some() || fault.file.is_some() || fault.help.is_some()
                });
                if !told {
                    wrong.push(format!("{}: too little said: {faults}", case.name));
                }
            }
            ("accept", Ok(_)) => {}
            ("refuse", Ok(_)) => wrong.push(format!("{}: accepted ({})", case.name, case.why)),
            (_, Err(faults)) => wrong.push(format!("{}: refused: {faults}", case.name)),
            (verdict, _) => panic!("{verdict}"),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
