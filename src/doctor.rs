//! What lathe finds on this machine, and what it would need beside that: the facts of
//! `lathe doctor`.
//!
//! Enters: the store's place. Leaves: a [`Report`], whose [`Need`]s name a command each.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::store::Store;

/// Everything `lathe doctor` tells.
#[derive(Debug, Serialize)]
pub struct Report {
    /// lathe's own version.
    pub version: &'static str,
    /// The MLX in use; nothing in a build without it.
    pub mlx: Option<Found>,
    /// What computes models here, unless --backend says otherwise; nothing without MLX.
    pub computes: Option<Computes>,
    /// The builds of MLX for this system, in order of preference.
    pub backends: Vec<Backend>,
    /// The C++ compiler with which MLX fuses operations while a model runs.
    pub compiler: Option<Tool>,
    /// Python, for the checks against other programs.
    pub python: Option<Python>,
    /// The store.
    pub store: Place,
    /// What is lacking, most important first.
    pub needs: Vec<Need>,
}

/// What computes models.
#[derive(Debug, Serialize)]
pub struct Computes {
    /// `cpu`, lathe's own kernels, or `graph`, MLX's operations alone.
    pub backend: &'static str,
    /// Why.
    pub because: String,
}

/// What became of asking MLX.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Found {
    /// It works.
    Works(Mlx),
    /// It does not.
    Fails {
        /// Why, in MLX's words.
        error: String,
    },
}

/// The MLX in use.
#[cfg(feature = "mlx")]
pub type Mlx = crate::mlx::Info;
/// The MLX in use: there is none in this build.
#[cfg(not(feature = "mlx"))]
#[derive(Debug, Serialize)]
pub enum Mlx {}

/// A build of MLX: a row of `policies/backends.toml`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Backend {
    /// Its name: the folder under `.mlx`, and the list of wheels under `mlx-sys/wheels`.
    pub name: String,
    /// The systems it runs on, as Rust spells them.
    #[serde(skip_serializing)]
    pub os: Vec<String>,
    /// What the machine must have.
    pub needs: String,
    /// Why it stands where it stands.
    pub because: String,
    /// `tested` or `untested`.
    pub status: String,
    /// Whether a build installs it without being asked.
    #[serde(default, skip_serializing)]
    pub fetch: bool,
    /// Whether it is installed in `.mlx` of the current folder.
    #[serde(default)]
    pub installed: bool,
}

#[derive(Deserialize)]
struct BackendsFile {
    backend: Vec<Backend>,
}

/// A program that was found.
#[derive(Debug, Serialize)]
pub struct Tool {
    /// Where.
    pub path: PathBuf,
    /// What it says of itself.
    pub version: String,
}

/// A Python and its packages.
#[derive(Debug, Serialize)]
pub struct Python {
    /// The interpreter.
    #[serde(flatten)]
    pub tool: Tool,
    /// The packages that the checks need, with their versions.
    pub packages: Vec<Package>,
}

/// A Python package.
#[derive(Debug, Serialize)]
pub struct Package {
    /// Its name.
    pub name: &'static str,
    /// Its version, if it is installed.
    pub version: Option<String>,
}

/// A folder on a disk.
#[derive(Debug, Serialize)]
pub struct Place {
    /// The folder.
    pub path: PathBuf,
    /// Whether it is there already.
    pub exists: bool,
    /// Bytes that are free on its disk.
    pub free: Option<u64>,
}

/// Something that is lacking.
#[derive(Debug, Serialize)]
pub struct Need {
    /// What, and what for.
    pub what: String,
    /// How to get it.
    pub command: String,
}

/// The packages that the checks against other programs import.
const PACKAGES: [&str; 6] = ["mlx", "mlx-lm", "numpy", "safetensors", "tokenizers", "transformers"];

/// Less free space than this is worth a word: a small model hardly fits.
const LITTLE_SPACE: u64 = 10_000_000_000;

/// Looks around.
pub fn examine(store: &Store) -> Report {
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        mlx: mlx(),
        computes: computes(),
        backends: backends(std::env::consts::OS, Path::new(".mlx")),
        compiler: ["c++", "g++", "clang++"].into_iter().find_map(|name| tool(Path::new(name))),
        python: python(),
        store: Place {
            path: store.dir().to_path_buf(),
            exists: store.dir().is_dir(),
            free: store.free_space(),
        },
        needs: Vec::new(),
    };
    report.needs = needs(&report);
    report
}

#[cfg(feature = "mlx")]
fn mlx() -> Option<Found> {
    let info = crate::mlx::info();
    Some(info.map_or_else(|error| Found::Fails { error: error.to_string() }, Found::Works))
}

#[cfg(not(feature = "mlx"))]
fn mlx() -> Option<Found> {
    None
}

#[cfg(feature = "mlx")]
fn computes() -> Option<Computes> {
    use crate::model::{Backend, Compute};

    let mlx = crate::mlx::info().ok()?;
    let backend = Compute::of(Backend::Auto).name();
    let because = match (mlx.lacks_gpu, mlx.device) {
        (true, _) => "MLX was built for a GPU, and there is none".into(),
        (false, device) => format!("MLX's default device is the {device:?}"),
    };
    Some(Computes { backend, because })
}

#[cfg(not(feature = "mlx"))]
fn computes() -> Option<Computes> {
    None
}

/// The backends for a system, and which are installed below a folder.
fn backends(os: &str, installed: &Path) -> Vec<Backend> {
    let file: BackendsFile = toml::from_str(include_str!("../policies/backends.toml"))
        .expect("tested: the built-in table");
    file.backend
        .into_iter()
        .filter(|backend| backend.os.iter().any(|name| name == os))
        .map(|backend| {
            let installed = installed.join(&backend.name).join("mlx/lib").is_dir();
            Backend { installed, ..backend }
        })
        .collect()
}

fn tool(program: &Path) -> Option<Tool> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.lines().next().filter(|_| output.status.success())?.to_string();
    Some(Tool { path: found_in_path(program), version })
}

/// Where a program is; its name alone when that cannot be told.
fn found_in_path(program: &Path) -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&folders).map(|folder| folder.join(program));
    candidates.find(|path| path.is_file()).unwrap_or_else(|| program.to_path_buf())
}

/// The Python of the checks' virtual environment, else the system's.
fn python() -> Option<Python> {
    let own = Path::new(".venv/bin/python");
    let program = if own.exists() { own } else { Path::new("python3") };
    let tool = tool(program)?;
    let code = "import importlib.metadata as m, sys\n\
                for name in sys.argv[1:]:\n\
                \x20   try: print(m.version(name))\n\
                \x20   except m.PackageNotFoundError: print()\n";
    let output = Command::new(program).args(["-c", code]).args(PACKAGES).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let versions = text.lines().map(|line| Some(line.trim().to_string()).filter(|v| !v.is_empty()));
    let versions = versions.chain(std::iter::repeat(None));
    let packages =
        PACKAGES.into_iter().zip(versions).map(|(name, version)| Package { name, version });
    Some(Python { tool, packages: packages.collect() })
}

fn needs(report: &Report) -> Vec<Need> {
    let mut needs = Vec::new();
    let mut need = |what: String, command: &str| needs.push(Need { what, command: command.into() });
    match &report.mlx {
        None => need(
            "MLX, to run models: this lathe was built without it".into(),
            "cargo build --release",
        ),
        Some(Found::Fails { error }) => {
            need(format!("an MLX that works: {error}"), "make setup, and build again");
        }
        #[cfg(feature = "mlx")]
        Some(Found::Works(info)) if info.blas == crate::mlx::Blas::Reference => need(
            "OpenBLAS: products of float32 matrices are about 20 times slower without it".into(),
            "make setup, and build again; or: apt-get install libopenblas0-pthread",
        ),
        Some(Found::Works(_)) => {}
    }
    if report.mlx.is_some() && report.compiler.is_none() {
        let command = match std::env::consts::OS {
            "macos" => "xcode-select --install",
            _ => "apt-get install g++",
        };
        need(
            "a C++ compiler: MLX fuses operations with it, and runs slower without".into(),
            command,
        );
    }
    let lacking: Vec<_> = report.python.iter().flat_map(|python| &python.packages).collect();
    let lacking: Vec<_> = lacking.iter().filter(|p| p.version.is_none()).map(|p| p.name).collect();
    if report.python.is_none() || !lacking.is_empty() {
        let what = match &report.python {
            None => "Python 3.10 or later".to_string(),
            Some(_) => format!("the Python packages {}", lacking.join(", ")),
        };
        need(format!("{what}: only for the checks against other programs"), "make setup");
    }
    if report.store.free.is_some_and(|free| free < LITTLE_SPACE) {
        need("space on the store's disk".into(), "lathe gc, lathe rm, or another --store");
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_reads_and_each_system_has_an_order() {
        let names = |os| {
            let all = backends(os, Path::new("nowhere"));
            all.into_iter().map(|backend| backend.name).collect::<Vec<_>>()
        };
        assert_eq!(names("macos"), ["metal"]);
        assert_eq!(names("linux"), ["cuda13", "cuda12", "rocm7", "rocm6", "cpu"]);
        assert_eq!(names("windows"), ["cuda13", "cuda12", "rocm6", "rocm7"]);
    }

    #[test]
    fn installed_backends_are_found() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("cpu/mlx/lib")).unwrap();
        let found = backends("linux", folder.path());
        let found: Vec<_> = found.iter().filter(|b| b.installed).map(|b| &b.name).collect();
        assert_eq!(found, ["cpu"]);
    }
}
