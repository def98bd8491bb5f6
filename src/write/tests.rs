//! Plans executed over small folders made here; blobs read back with the safetensors crate.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use safetensors::SafeTensors;
use sha2::{Digest, Sha256};

use super::*;
use crate::dtype::Dtype;
use crate::format::Formats;
use crate::plan::{
    AffinePart, Blob, IntPacking, Manifest, Op, Packed, Request, RuleRef, Side, Sign, Source,
    SourceTensor, Tensor, Totals, View, Zero,
};
use crate::read::{Shard, TensorInfo};

mod integers;
mod watching;

/// Keeps blobs in memory, and fails after so many bytes.
struct InMemory {
    blobs: Mutex<BTreeMap<String, Vec<u8>>>,
    room: AtomicU64,
}

struct Growing<'a> {
    bytes: Vec<u8>,
    room: &'a AtomicU64,
}

impl Write for Growing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wanted = bytes.len() as u64;
        let less = |room: u64| room.checked_sub(wanted);
        match self.room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => self.bytes.write(bytes),
            Err(_) => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl InMemory {
    fn with_room(bytes: u64) -> Self {
        InMemory { blobs: Mutex::default(), room: AtomicU64::new(bytes) }
    }
}

impl Staging for InMemory {
    type Blob<'a> = Growing<'a>;

    fn stage(&self) -> Result<Growing<'_>, Fault> {
        Ok(Growing { bytes: Vec::new(), room: &self.room })
    }

    fn finish(&self, blob: Growing<'_>) -> Result<Made, Fault> {
        let hex: String =
            Sha256::digest(&blob.bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let (digest, size) = (format!("sha256:{hex}"), blob.bytes.len() as u64);
        let old = self.blobs.lock().unwrap().insert(digest.clone(), blob.bytes);
        Ok(Made { digest, size, new: old.is_none() })
    }

    fn failed(&self, error: &io::Error) -> Fault {
        Fault::new(Code::NoSpace, error.to_string())
    }
}

/// A tensor to put in a folder.
type Raw = (&'static str, Dtype, Vec<u64>, Vec<u8>);

/// A folder with one shard of these tensors.
fn folder(dir: &Path, tensors: &[Raw]) -> Inventory {
    let mut keys = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let value = serde_json::json!(
            {"dtype": dtype.as_str(), "shape": shape, "data_offsets": offsets});
        keys.insert(name.to_string(), value);
        data.extend_from_slice(bytes);
    }
    let header = serde_json::Value::Object(keys).to_string();
    let start = 8 + header.len() as u64;
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    let path = dir.join("model.safetensors");
    fs::write(&path, &bytes).unwrap();
    let mut at = start;
    let infos = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let range = at..at + bytes.len() as u64;
        at = range.end;
        TensorInfo { name: name.to_string(), dtype: *dtype, shape: shape.clone(), shard: 0, range }
    });
    Inventory {
        dir: dir.to_path_buf(),
        tensors: infos.collect(),
        shards: vec![Shard {
            name: "model.safetensors".into(),
            size: bytes.len() as u64,
            modified: fs::metadata(&path).unwrap().modified().ok(),
        }],
        ..Inventory::default()
    }
}

fn planned(from: &[&Raw], name: &str, ops: Vec<Op>, dtype: Dtype, shape: &[u64]) -> Tensor {
    let sources = from.iter().map(|(name, dtype, shape, _)| SourceTensor {
        name: name.to_string(),
        file: "model.safetensors".into(),
        dtype: *dtype,
        shape: shape.clone(),
        view: None,
        draft: false,
    });
    let format = ops.iter().find_map(Op::quantizes).map(String::from);
    let elements: u64 = shape.iter().product();
    let bytes = match &format {
        Some(format) => Formats::built_in().get(format).unwrap().bytes(shape, dtype),
        None => elements * dtype.bytes(),
    };
    Tensor {
        name: name.into(),
        sources: sources.collect(),
        ops,
        format,
        dtype,
        shape: shape.to_vec(),
        bytes,
        layout: "float".into(),
        producer: None,
        rule: Arc::new(RuleRef {
            id: "test".into(),
            file: "test".into(),
            line: 0,
            because: String::new(),
        }),
    }
}

fn plan(tensors: Vec<Tensor>) -> Plan {
    let blob = |tensor: Tensor| Blob {
        name: tensor.name.clone(),
        media_type: "application/vnd.ollama.image.tensor".into(),
        metadata: [("quant_type".to_string(), "int4".to_string())].into_iter().collect(),
        tensors: vec![tensor],
    };
    Plan {
        version: crate::plan::VERSION,
        source: Source {
            dir: String::new(),
            architecture: String::new(),
            policy: String::new(),
            digest: String::new(),
        },
        draft: None,
        request: Request::default(),
        blobs: tensors.into_iter().map(blob).collect(),
        files: Vec::new(),
        manifest: Manifest::default(),
        totals: Totals::default(),
        runs: true,
        warnings: Vec::new(),
        notes: Vec::new(),
    }
}

fn run_with(
    plan: &Plan,
    inventory: &Inventory,
    staging: &InMemory,
    jobs: usize,
    memory: u64,
) -> Result<Outcome, Faults> {
    run_by(&Native, plan, inventory, staging, jobs, memory)
}

fn run_by(
    quantizer: &dyn Quantizer,
    plan: &Plan,
    inventory: &Inventory,
    staging: &InMemory,
    jobs: usize,
    memory: u64,
) -> Result<Outcome, Faults> {
    let cancel = AtomicBool::new(false);
    let options = Options { jobs, memory, quantizer, progress: &Silent, cancel: &cancel };
    execute(plan, inventory, None, staging, &options)
}

/// Executes a plan of one tensor; its blob's tensors.
fn made(raws: &[Raw], tensor: Tensor) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let dir = tempfile::tempdir().unwrap();
    let inventory = folder(dir.path(), raws);
    let staging = InMemory::with_room(u64::MAX);
    let plan = plan(vec![tensor]);
    let outcome = run_with(&plan, &inventory, &staging, 2, 1 << 20).unwrap();
    let blobs = staging.blobs.lock().unwrap();
    let bytes = &blobs[&outcome.blobs[0].digest];
    assert_eq!(bytes.len() as u64, space(&plan).unwrap());
    let tensors = SafeTensors::deserialize(bytes).unwrap();
    tensors
        .iter()
        .map(|(name, view)| (name.to_string(), (view.shape().to_vec(), view.data().to_vec())))
        .collect()
}

/// Numbers that are all different and of all sizes.
fn f32s(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 % 10007) as f32 - 5000.0) / 977.0).collect()
}

fn bf16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect()
}

fn from_bf16(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
}

#[test]
fn bytes_are_copied_relabelled_and_stacked_as_they_are() {
    let raw = |name, first: u8| (name, Dtype::U8, vec![2, 8], (first..first + 16).collect());
    let raws: Vec<Raw> = vec![raw("a", 0), raw("b", 100)];
    let both: Vec<&Raw> = raws.iter().collect();
    let relabel = Op::Relabel { dtype: Dtype::U32, shape: vec![2, 2] };
    let tensor = planned(&both, "t", vec![relabel, Op::Stack { count: 2 }], Dtype::U32, &[2, 2, 2]);
    let made = made(&raws, tensor);
    let expected: Vec<u8> = (0..16).chain(100..116).collect();
    assert_eq!(made["t"], (vec![2, 2, 2], expected));
}

#[test]
fn axes_are_split_and_swapped() {
    // [2, 6, 4]: element (e, r, c) is e*24 + r*4 + c, one byte each.
    let raws: Vec<Raw> = vec![("w", Dtype::U8, vec![2, 6, 4], (0..48).collect())];
    let ops =
        vec![Op::Split { axis: 1, parts: 2, index: 1 }, Op::Transpose { axes: vec![0, 2, 1] }];
    let tensor = planned(&[&raws[0]], "t", ops, Dtype::U8, &[2, 4, 3]);
    let expected: Vec<u8> = (0..2u8)
        .flat_map(|e| (0..4u8).flat_map(move |c| (3..6u8).map(move |r| e * 24 + r * 4 + c)))
        .collect();
    assert_eq!(made(&raws, tensor)["t"], (vec![2, 4, 3], expected));
}

#[test]
fn scalars_become_f32_and_reciprocals_stack_to_a_vector() {
    let raws: Vec<Raw> = vec![
        ("a", Dtype::F32, vec![1], 8f32.to_le_bytes().to_vec()),
        ("b", Dtype::F32, vec![], 0.1f32.to_le_bytes().to_vec()),
    ];
    let ops = vec![Op::Scalar, Op::Reciprocal, Op::Stack { count: 2 }];
    let tensor = planned(&[&raws[0], &raws[1]], "g", ops, Dtype::F32, &[2]);
    let expected = [(1.0f32 / 8.0).to_le_bytes(), (1.0 / 0.1f32).to_le_bytes()].concat();
    assert_eq!(made(&raws, tensor)["g"], (vec![2], expected));
}

#[test]
fn fp8_is_multiplied_by_its_block_and_edges_may_be_partial() {
    let codes: Vec<u8> = (0..2 * 5 * 7).map(|i| (i * 13 % 120) as u8).collect();
    let scales = f32s(2 * 3 * 2);
    let raws: Vec<Raw> = vec![
        ("w", Dtype::F8E4M3, vec![2, 5, 7], codes.clone()),
        ("s", Dtype::F32, vec![2, 3, 2], scales.iter().flat_map(|s| s.to_le_bytes()).collect()),
    ];
    let ops = vec![Op::DecodeFp8 { block: [2, 4] }];
    let tensor = planned(&[&raws[0], &raws[1]], "w", ops, Dtype::BF16, &[2, 5, 7]);
    let (_, bytes) = &made(&raws, tensor)["w"];
    for (i, value) in from_bf16(bytes).into_iter().enumerate() {
        let (e, r, c) = (i / 35, i / 7 % 5, i % 7);
        let scale = scales[e * 6 + r / 2 * 2 + c / 4];
        let exact = kernels::e4m3_to_f32(codes[i]) * scale;
        assert_eq!(value, half::bf16::from_f32(exact).to_f32(), "({e}, {r}, {c})");
    }
}

#[test]
fn quantized_blobs_are_what_the_kernel_makes_of_the_whole_for_any_jobs_and_memory() {
    let values = f32s(96 * 640);
    let raws: Vec<Raw> = vec![
        ("a", Dtype::BF16, vec![96, 640], bf16(&values)),
        ("b", Dtype::F32, vec![96, 640], values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        ("e.0", Dtype::BF16, vec![48, 640], bf16(&values[..48 * 640])),
        ("e.1", Dtype::BF16, vec![48, 640], bf16(&values[48 * 640..])),
    ];
    let dir = tempfile::tempdir().unwrap();
    let inventory = folder(dir.path(), &raws);
    let mut tensors = Vec::new();
    for format in Formats::built_in().iter() {
        let quantize = Op::Quantize { format: format.name.clone() };
        for raw in &raws[..2] {
            let name = format!("{}.{}", raw.0, format.name);
            tensors.push(planned(&[raw], &name, vec![quantize.clone()], raw.1, &[96, 640]));
        }
        let ops = vec![Op::Stack { count: 2 }, quantize];
        let name = format!("e.{}", format.name);
        tensors.push(planned(&[&raws[2], &raws[3]], &name, ops, Dtype::BF16, &[2, 48, 640]));
    }
    let plan = plan(tensors);
    let staging = InMemory::with_room(u64::MAX);
    let first = run_with(&plan, &inventory, &staging, 1, 4 << 30).unwrap();
    let digests = |outcome: &Outcome| -> Vec<String> {
        outcome.blobs.iter().map(|made| made.digest.clone()).collect()
    };
    // What a GPU's pieces and workers would do, on whatever device MLX has here.
    #[cfg(feature = "mlx")]
    {
        let on_mlx = OnMlx::default();
        let again = run_by(&on_mlx, &plan, &inventory, &staging, 2, 4 << 30).unwrap();
        assert_eq!(digests(&first), digests(&again), "on MLX");
    }
    for (jobs, memory) in [(2, 1 << 20), (7, 1), (3, 1 << 30)] {
        let again = run_with(&plan, &inventory, &staging, jobs, memory).unwrap();
        assert_eq!(digests(&first), digests(&again), "{jobs} jobs, {memory} bytes");
        assert!(again.blobs.iter().all(|made| !made.new));
    }
    let blobs = staging.blobs.lock().unwrap();
    for (blob, made) in plan.blobs.iter().zip(&first.blobs) {
        let tensor = &blob.tensors[0];
        let format = Formats::built_in().get(tensor.format.as_ref().unwrap()).unwrap();
        let view = SafeTensors::deserialize(&blobs[&made.digest]).unwrap();
        let part = |suffix: &str| {
            view.tensor(&format!("{}{suffix}", tensor.name)).map_or(&[][..], |view| view.data())
        };
        let (dtype, input) = match tensor.dtype {
            Dtype::F32 => (kernels::Float::F32, raws[1].3.as_slice()),
            _ => (kernels::Float::BF16, raws[0].3.as_slice()),
        };
        let mut parts = ["", ".scale", ".bias"].map(|suffix| vec![0; part(suffix).len()]);
        let [weight, scales, biases] = &mut parts;
        kernels::quantize(format, dtype, input, kernels::Out { weight, scales, biases });
        for (suffix, made) in ["", ".scale", ".bias"].into_iter().zip(&parts) {
            assert!(part(suffix) == made.as_slice(), "{}{suffix}", tensor.name);
        }
    }
}

#[test]
fn the_headers_keys_are_sorted_the_data_keep_the_plans_order_and_it_is_padded() {
    let raws: Vec<Raw> = vec![
        ("a<z>", Dtype::U8, vec![3], vec![1, 2, 3]),
        ("A", Dtype::U8, vec![5], vec![4, 5, 6, 7, 8]),
    ];
    let mut plan = plan(vec![planned(&[&raws[0]], "a<z>", vec![Op::Copy], Dtype::U8, &[3])]);
    plan.blobs[0].metadata.insert("group_size".into(), "64".into());
    plan.blobs[0].tensors.push(planned(&[&raws[1]], "A", vec![Op::Copy], Dtype::U8, &[5]));
    let dir = tempfile::tempdir().unwrap();
    let staging = InMemory::with_room(u64::MAX);
    let outcome = run_with(&plan, &folder(dir.path(), &raws), &staging, 1, 1 << 20).unwrap();
    let blobs = staging.blobs.lock().unwrap();
    let bytes = &blobs[&outcome.blobs[0].digest];
    // What Go's encoding/json makes of the map.
    let header = r#"{"A":{"dtype":"U8","shape":[5],"data_offsets":[3,8]},"#.to_string()
        + r#""__metadata__":{"group_size":"64","quant_type":"int4"},"#
        + r#""a\u003cz\u003e":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
    let padded = header.len().next_multiple_of(8);
    let expected = [
        (padded as u64).to_le_bytes().as_slice(),
        format!("{header:padded$}").as_bytes(),
        &[1, 2, 3, 4, 5, 6, 7, 8],
    ]
    .concat();
    assert_eq!(bytes, &expected);
}

#[test]
fn a_full_disk_ends_the_work_with_the_stores_word_for_it() {
    let raws: Vec<Raw> = vec![("w", Dtype::U8, vec![4096], vec![7; 4096])];
    let dir = tempfile::tempdir().unwrap();
    let inventory = folder(dir.path(), &raws);
    let plan = plan(vec![planned(&[&raws[0]], "w", vec![Op::Copy], Dtype::U8, &[4096])]);
    let staging = InMemory::with_room(100);
    let faults = run_with(&plan, &inventory, &staging, 2, 1 << 20).unwrap_err();
    assert_eq!(faults.0[0].code, Code::NoSpace);
    assert!(staging.blobs.lock().unwrap().is_empty());
}

#[test]
fn a_source_that_changes_or_shrinks_is_noticed() {
    let raws: Vec<Raw> = vec![("w", Dtype::U8, vec![4096], vec![7; 4096])];
    let dir = tempfile::tempdir().unwrap();
    let inventory = folder(dir.path(), &raws);
    let plan = plan(vec![planned(&[&raws[0]], "w", vec![Op::Copy], Dtype::U8, &[4096])]);
    let path = dir.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();

    /// Cuts the file short when the first tensor begins.
    struct Cut<'a>(&'a Path);
    impl Progress for Cut<'_> {
        fn tensor(&self, _name: &str) {
            fs::OpenOptions::new().write(true).open(self.0).unwrap().set_len(64).unwrap();
        }
    }
    /// Writes other bytes over it, of the same number.
    struct Overwrite<'a>(&'a Path, Vec<u8>);
    impl Progress for Overwrite<'_> {
        fn tensor(&self, _name: &str) {
            std::thread::sleep(Duration::from_millis(20));
            fs::write(self.0, &self.1).unwrap();
        }
    }
    for progress in [&Cut(&path) as &dyn Progress, &Overwrite(&path, vec![0; whole.len()])] {
        fs::write(&path, &whole).unwrap();
        let mut inventory = inventory.clone();
        inventory.shards[0].modified = fs::metadata(&path).unwrap().modified().ok();
        let options = Options {
            jobs: 1,
            memory: 1 << 20,
            quantizer: &Native,
            progress,
            cancel: &AtomicBool::new(false),
        };
        let staging = InMemory::with_room(u64::MAX);
        let faults = execute(&plan, &inventory, None, &staging, &options).unwrap_err();
        assert_eq!(faults.0[0].code, Code::StalePlan);
        assert_eq!(faults.0[0].file.as_deref(), Some(path.as_path()));
    }
}

#[test]
fn cancelling_ends_it_as_interrupted() {
    let raws: Vec<Raw> = vec![("w", Dtype::U8, vec![4096], vec![7; 4096])];
    let dir = tempfile::tempdir().unwrap();
    let inventory = folder(dir.path(), &raws);
    let plan = plan(vec![planned(&[&raws[0]], "w", vec![Op::Copy], Dtype::U8, &[4096])]);
    let cancel = AtomicBool::new(true);
    let options = Options {
        jobs: 2,
        memory: 1 << 20,
        quantizer: &Native,
        progress: &Silent,
        cancel: &cancel,
    };
    let staging = InMemory::with_room(u64::MAX);
    let faults = execute(&plan, &inventory, None, &staging, &options).unwrap_err();
    assert_eq!(faults.0[0].code, Code::Interrupted);
}

#[test]
fn a_plan_that_its_operations_do_not_bear_out_is_refused_before_anything_is_written() {
    let raws: Vec<Raw> = vec![("w", Dtype::BF16, vec![4, 64], bf16(&f32s(256)))];
    let dir = tempfile::tempdir().unwrap();
    let inventory = folder(dir.path(), &raws);
    let quantize = |format: &str| Op::Quantize { format: format.into() };
    let good = planned(&[&raws[0]], "w", vec![quantize("int4")], Dtype::BF16, &[4, 64]);
    let mut wrong_shape = good.clone();
    wrong_shape.shape = vec![2, 128];
    let mut wrong_bytes = good.clone();
    wrong_bytes.bytes += 1;
    let mut not_last = good.clone();
    not_last.ops.push(Op::Copy);
    let mut gone = good.clone();
    gone.sources[0].name = "v".into();
    let mut other = good.clone();
    other.sources[0].shape = vec![8, 32];
    for bad in [wrong_shape, wrong_bytes, not_last, gone, other] {
        let staging = InMemory::with_room(u64::MAX);
        let faults = run_with(&plan(vec![bad]), &inventory, &staging, 1, 1 << 20).unwrap_err();
        assert_eq!(faults.0[0].code, Code::StalePlan, "{faults}");
        assert_eq!(faults.0[0].tensor.as_deref().map(|t| t == "w" || t == "v"), Some(true));
        assert!(staging.blobs.lock().unwrap().is_empty());
    }
}

/// A run of a tensor is read as a tensor of its own, and may not leave it.
#[test]
fn a_view_takes_a_run_of_a_tensor() {
    let raws: Vec<Raw> = vec![("w", Dtype::U8, vec![3, 2, 2], (0..12).collect())];
    let view = |start: u64| {
        let mut tensor = planned(&[&raws[0]], "t", vec![Op::Copy], Dtype::U8, &[2, 2]);
        tensor.sources[0].view = Some(View { start, shape: vec![2, 2] });
        tensor
    };
    assert_eq!(made(&raws, view(4))["t"].1, [4, 5, 6, 7]);
    let dir = tempfile::tempdir().unwrap();
    let inventory = folder(dir.path(), &raws);
    for start in [9, u64::MAX] {
        let staging = InMemory::with_room(u64::MAX);
        let faults = run_with(&plan(vec![view(start)]), &inventory, &staging, 1, 1 << 20);
        assert_eq!(faults.unwrap_err().0[0].code, Code::StalePlan);
    }
}
