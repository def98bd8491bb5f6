//! `lathe policy test`

use std::path::{Path, PathBuf};

use clap::Args;

use super::PolicyDir;
use crate::built_in::policy_files;
use crate::cli::args::OutputArg;
use crate::cli::ui;
use crate::fault::{Code, Fault, Faults};
use crate::policy_test::{self, Report};

/// Run the tests that stand beside policies (NAME.test.yaml)
///
/// A test names a config, tensors and their shapes, and the formats that are expected, or keeps
/// every decision in a snapshot. Exits with 1 when something differs.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe policy test my-policies/             every *.test.yaml of the folder, with its policies
  lathe policy test my.test.yaml --update    write the snapshot anew, then read its diff")]
pub struct Test {
    /// Test files, or folders of policies and tests
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Write snapshots anew instead of comparing them
    #[arg(short, long)]
    update: bool,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    policies: PolicyDir,
}

pub fn run(args: &Test) -> Result<(), ui::Failure> {
    let json = args.output.json();
    let reports = ui::failing(json, reports(args))?;
    let failed: usize = reports.iter().map(|(_, report)| report.failures.len()).sum();
    if json {
        let files: Vec<_> = reports
            .iter()
            .map(|(path, report)| {
                serde_json::json!({
                    "file": path, "compared": report.compared,
                    "updated": report.updated, "failures": report.failures,
                })
            })
            .collect();
        ui::print_json(&serde_json::json!({ "files": files, "failed": failed }));
    } else {
        for (path, report) in &reports {
            print(path, report);
        }
    }
    if failed == 0 { Ok(()) } else { Err(ui::Failure::shown(1)) }
}

fn reports(args: &Test) -> Result<Vec<(PathBuf, Report)>, Faults> {
    let mut library = args.policies.library()?;
    let mut tests = Vec::new();
    for path in &args.paths {
        if path.is_dir() {
            library.add_folder(path)?;
            tests.extend(test_files(path)?);
        } else {
            // The policies beside a test are those that it tests.
            let beside = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            for policy in policy_files(beside.unwrap_or(Path::new(".")))? {
                library.add_file(&policy)?;
            }
            tests.push(path.clone());
        }
    }
    if tests.is_empty() {
        return Err(Fault::new(Code::Usage, "no tests found")
            .help("a test stands beside its policy and is named NAME.test.yaml")
            .into());
    }
    let mut faults = Faults::default();
    let mut reports = Vec::new();
    for path in tests {
        if let Some(report) = faults.absorb(policy_test::run(&library, &path, args.update)) {
            reports.push((path, report));
        }
    }
    faults.or(reports)
}

fn test_files(dir: &Path) -> Result<Vec<PathBuf>, Fault> {
    let fault = |error: &std::io::Error| Fault::io("read the folder", dir, error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|error| fault(&error))? {
        let path = entry.map_err(|error| fault(&error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".test.yaml") || name.ends_with(".test.toml") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn print(path: &Path, report: &Report) {
    let mut out = String::new();
    for failure in &report.failures {
        let tensor = failure.tensor.as_deref().unwrap_or("the model");
        out.push_str(&format!(
            "  ✗ {} / {}: {tensor}\n      expected {}\n      found    {}\n",
            failure.case, failure.request, failure.expected, failure.found
        ));
    }
    let state = match (report.failures.len(), report.updated) {
        (0, true) => "snapshot written",
        (0, false) => "ok",
        _ => "FAILED",
    };
    let failed = match report.failures.len() {
        0 => String::new(),
        failed => format!("{failed} of "),
    };
    out.push_str(&format!("{state}: {}, {failed}{} decisions", path.display(), report.compared));
    ui::print(out);
}
