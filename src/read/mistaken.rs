//! What was given in a model's place: a path and its first bytes in, the fault that names it out.
//!
//! Nothing here decides how a model is read. A file that is not an inventory, a folder that is not
//! a model's, and files that were not downloaded are told from each other, for what to do differs.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{CONFIG, side};
use crate::fault::{Code, Fault};

/// Bytes of a file that are looked at.
const START: usize = 128;
/// No file that stands for another one is larger.
const LARGEST_POINTER: u64 = 1024;
/// Files of a folder that a message names before it counts the others.
const NAMED: usize = 3;

const FROM_PICKLE: &str = "save the model as safetensors first: \
     `AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OTHER)` of transformers does";
const FROM_ORIGINAL: &str =
    "lathe starts from safetensors: take the model that it was made from, as its publisher has it";
const DOWNLOAD: &str = "download the file itself, perhaps after `hf auth login`";

/// A form of file that is known by its name or by how it begins.
struct Form {
    ends: &'static [&'static str],
    begins: &'static [&'static [u8]],
    what: &'static str,
    help: &'static str,
}

static FORMS: [Form; 7] = [
    Form {
        ends: &[".gguf", ".ggml"],
        begins: &[b"GGUF"],
        what: "a GGUF file, which lathe does not read",
        help: FROM_ORIGINAL,
    },
    Form {
        ends: &[".bin", ".pt", ".pth", ".ckpt", ".pkl"],
        // A zip archive is what PyTorch saves; before it was a bare pickle of protocol 2.
        begins: &[b"PK\x03\x04", b"\x80\x02\x8a"],
        what: "PyTorch's pickled weights, which are a program and which lathe does not run",
        help: FROM_PICKLE,
    },
    Form {
        ends: &[".h5", ".msgpack", ".onnx", ".npz", ".npy", ".tflite", ".mlmodel", ".engine"],
        begins: &[b"\x89HDF", b"\x93NUMPY"],
        what: "weights of another framework, which lathe does not read",
        help: FROM_ORIGINAL,
    },
    Form {
        ends: &[".zip", ".tar", ".gz", ".tgz", ".xz", ".zst", ".7z"],
        begins: &[b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"],
        what: "an archive",
        help: "unpack it, and give the folder that holds config.json",
    },
    Form {
        ends: &[],
        begins: &[b"<!DOCTYPE", b"<!doctype", b"<html", b"<HTML", b"<?xml"],
        what: "a web page in place of the file",
        help: DOWNLOAD,
    },
    Form {
        ends: &[],
        begins: &[b"Invalid ", b"Entry not found", b"Repository not found", b"Access to model"],
        what: "an answer of the server in place of the file",
        help: DOWNLOAD,
    },
    Form {
        ends: &[],
        begins: &[
            b"version https://git-lfs.github.com/spec/",
            b"version https://hawser.github.com/spec/",
            b"# xet version ",
        ],
        what: "a Git LFS pointer: it stands for a file that was not downloaded",
        help: "`git lfs install && git lfs pull` in the folder fetches it, or download it from the \
               model's page",
    },
];

/// The last of [`FORMS`].
const POINTER: usize = 6;

/// What begins so; `None` for what may be anything.
fn begins(start: &[u8]) -> Option<&'static Form> {
    FORMS.iter().find(|form| form.begins.iter().any(|begin| start.starts_with(begin)))
}

/// What a file that is no safetensors file is by its first bytes, and what to do.
pub fn content(path: &Path) -> Option<(&'static str, &'static str)> {
    begins(&start(path)).map(|form| (form.what, form.help))
}

/// The file of a folder that holds its weights in a form that is not read, what it is and what to do.
pub fn other_weights(names: &BTreeSet<String>) -> Option<(&str, (&'static str, &'static str))> {
    // What trainers leave behind are no weights.
    let noise = ["training_args", "optimizer", "scheduler", "rng_state"];
    let weights = |name: &&String| !noise.iter().any(|noise| name.starts_with(noise));
    FORMS.iter().find_map(|form| {
        let has = |name: &&String| form.ends.iter().any(|end| name.ends_with(end));
        let name = names.iter().filter(weights).find(has)?;
        Some((name.as_str(), (form.what, form.help)))
    })
}

/// The first bytes of a file; none of one that cannot be read.
fn start(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(path) {
        let _ = file.take(START as u64).read_to_end(&mut bytes);
    }
    bytes
}

fn fault(what: impl Into<String>, path: &Path, help: impl Into<String>) -> Fault {
    Fault::new(Code::NotAModel, what).in_file(path).help(help)
}

/// A file that was given where a folder (or an inventory file) is wanted.
pub fn file(path: &Path) -> Option<Fault> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let start = start(path);
    let by_name = || FORMS.iter().find(|form| form.ends.iter().any(|end| name.ends_with(end)));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let give = match folder.join(CONFIG).is_file() {
        true => format!("give the folder: {}", folder.display()),
        false => format!(
            "give the folder of the whole model: beside its weights it has {CONFIG} and the files \
             of its tokenizer"
        ),
    };
    if name.ends_with(".safetensors") {
        return Some(match begins(&start) {
            Some(form) => fault(form.what, path, form.help),
            None => fault("one file of a model's weights, and not the model", path, give),
        });
    }
    if let Some(form) = begins(&start).or_else(by_name) {
        return Some(fault(form.what, path, form.help));
    }
    if name == CONFIG || name.ends_with(".safetensors.index.json") || side::travels(&name) {
        // An inventory may be called anything; it says its version.
        let text = fs::read_to_string(path).unwrap_or_default();
        let told: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        let is_inventory =
            told.is_some_and(|told| told.get("tensors").is_some() && told.get("shards").is_some());
        let belongs = name != "inventory.json" && !name.ends_with(".inventory.json");
        if belongs && !is_inventory && folder.join(CONFIG).is_file() {
            return Some(fault("one file of a model's folder, and not the model", path, give));
        }
    }
    None
}

/// A folder without a config, told by what is in it and in the folders below.
pub fn folder(dir: &Path, names: &BTreeSet<String>) -> Fault {
    if let Some(fault) = cache(dir).or_else(|| adapter(dir, names)) {
        return fault;
    }
    let no_config = |help: String| {
        Fault::new(Code::NoConfig, format!("the folder has no {CONFIG}")).in_file(dir).help(help)
    };
    let below = folders(dir);
    if names.is_empty() && below.is_empty() {
        return fault(
            "the folder is empty",
            dir,
            "download a model into it: config.json, *.safetensors, tokenizer files",
        );
    }
    let models: Vec<PathBuf> =
        below.into_iter().filter(|below| below.join(CONFIG).is_file()).collect();
    if !models.is_empty() {
        return no_config(format!("give one of the folders in it: {}", listed(&models)));
    }
    let gguf = names.iter().find(|name| name.ends_with(".gguf"));
    match gguf.and_then(|name| file(&dir.join(name))) {
        Some(fault) => fault,
        None if names.contains("params.json") => no_config(
            "its params.json is of the publisher's own code: take the model in the form that \
             transformers reads"
                .into(),
        ),
        None => {
            no_config("give the folder of a Hugging Face model; download its config.json".into())
        }
    }
}

/// A folder of the Hugging Face cache: one model's, or the cache itself.
fn cache(dir: &Path) -> Option<Fault> {
    let cached = |dir: &Path| {
        let name = dir.file_name()?.to_str()?.strip_prefix("models--")?.replace("--", "/");
        dir.join("snapshots").is_dir().then_some(name)
    };
    // `.` has no name of its own.
    let whole = fs::canonicalize(dir).ok()?;
    if let Some(model) = cached(&whole) {
        let what =
            format!("the folder of {model} in the cache of Hugging Face, which holds revisions");
        let help = match snapshots(dir).as_slice() {
            [] => format!(
                "no revision of it is whole: download the model again (`hf download {model}`)"
            ),
            [one] => format!("give the revision: {}", one.display()),
            several => format!("give one of its revisions, the newest first: {}", listed(several)),
        };
        return Some(fault(what, dir, help));
    }
    if dir.ends_with("snapshots") && cached(whole.parent()?).is_some() {
        return Some(fault(
            "the revisions of a model in the cache of Hugging Face",
            dir,
            format!("give one of them: {}", listed(&snapshots(dir.parent()?))),
        ));
    }
    let roots = [dir.to_path_buf(), dir.join("hub")];
    let models = roots.iter().flat_map(|root| folders(root)).filter(|dir| cached(dir).is_some());
    let models: Vec<PathBuf> = models.collect();
    if models.is_empty() {
        return None;
    }
    let whole: Vec<PathBuf> =
        models.iter().filter_map(|model| snapshots(model).into_iter().next()).collect();
    let help = match whole.is_empty() {
        true => "no model in it is whole: download one again".into(),
        false => format!("give a revision of a model: {}", listed(&whole)),
    };
    let what = format!("a cache of Hugging Face, which holds {} models", models.len());
    Some(fault(what.replace("holds 1 models", "holds 1 model"), dir, help))
}

/// The revisions of a cached model that have a config, the one of `main` first, then the newest.
fn snapshots(dir: &Path) -> Vec<PathBuf> {
    let main = fs::read_to_string(dir.join("refs/main")).unwrap_or_default();
    let mut found = folders(&dir.join("snapshots"));
    found.retain(|revision| revision.join(CONFIG).is_file());
    found.sort_by_key(|revision| {
        let is_main = revision.file_name().is_some_and(|name| *name == *main.trim());
        let modified = fs::metadata(revision).and_then(|found| found.modified()).ok();
        std::cmp::Reverse((is_main, modified))
    });
    found
}

/// An adapter changes another model and is none itself.
pub fn adapter(dir: &Path, names: &BTreeSet<String>) -> Option<Fault> {
    if !names.contains("adapter_config.json") {
        return None;
    }
    let text = fs::read_to_string(dir.join("adapter_config.json")).unwrap_or_default();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let of = config.get("base_model_name_or_path").and_then(|base| base.as_str());
    let of = of.map_or("another model".to_string(), str::to_string);
    let kind = config.get("peft_type").and_then(|kind| kind.as_str());
    let kind = kind.map_or(String::new(), |kind| format!(" ({kind})"));
    Some(fault(
        format!("an adapter{kind}: it changes {of} and is no model by itself"),
        dir,
        format!(
            "merge it into {of} first: `PeftModel.from_pretrained(model, ADAPTER)\
             .merge_and_unload().save_pretrained(OTHER)` of peft does, or `mlx_lm.fuse`"
        ),
    ))
}

/// Files that a model needs and that are not there in earnest: pointers to them, links that lead
/// nowhere. They are told before all else, for what else is said of such a folder follows from them.
pub fn not_downloaded(dir: &Path, names: &BTreeSet<String>) -> Option<Fault> {
    let needed = |name: &str| {
        side::travels(name)
            || name.ends_with(".safetensors.index.json")
            || name.ends_with(".safetensors")
    };
    let is_pointer = |name: &&String| {
        let path = dir.join(name);
        let small = fs::metadata(&path).is_ok_and(|found| found.len() <= LARGEST_POINTER);
        small && begins(&start(&path)).is_some_and(|form| std::ptr::eq(form, &FORMS[POINTER]))
    };
    let pointers: Vec<&str> =
        names.iter().filter(|name| needed(name)).filter(is_pointer).map(String::as_str).collect();
    if let Some(first) = pointers.first() {
        let what = match pointers.len() {
            1 => format!("{first} is {}", FORMS[POINTER].what),
            _ => format!(
                "{} are Git LFS pointers: they stand for files that were not downloaded",
                counted(&pointers)
            ),
        };
        let fault = Fault::new(Code::NotDownloaded, what).in_file(first);
        return Some(fault.help(FORMS[POINTER].help));
    }
    let broken = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        (needed(&name) && entry.path().is_symlink() && !entry.path().exists()).then_some(name)
    };
    let mut broken: Vec<String> = fs::read_dir(dir).ok()?.flatten().filter_map(broken).collect();
    broken.sort();
    let first = broken.first()?;
    let named: Vec<&str> = broken.iter().map(String::as_str).collect();
    let what = match named.len() {
        1 => format!("{first} is a link that leads nowhere"),
        _ => format!("{} are links that lead nowhere", counted(&named)),
    };
    let fault = Fault::new(Code::NotDownloaded, what).in_file(first);
    Some(fault.help("what it leads to was removed, or was not downloaded: download it again"))
}

/// The first names, and how many more there are.
fn counted(names: &[&str]) -> String {
    let (shown, rest) = names.split_at(names.len().min(NAMED));
    match (shown, rest.len()) {
        ([init @ .., last], 0) if !init.is_empty() => format!("{} and {last}", init.join(", ")),
        (_, 0) => shown.join(", "),
        (_, more) => format!("{} and {more} more", shown.join(", ")),
    }
}

fn listed(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    counted(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The folders in a folder, sorted.
fn folders(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}
