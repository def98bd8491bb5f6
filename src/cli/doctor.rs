//! `lathe doctor`

use clap::Args;

use super::args::{OutputArg, StoreArg};
use super::ui;
use crate::doctor::{self, Report};
use crate::fault::Faults;

/// Say what lathe finds on this machine, and what it would need
#[derive(Args)]
#[command(after_help = "\
Exits with 0 also when something is lacking.

Examples:
  lathe doctor
  lathe doctor --output json | jq .mlx.library")]
pub struct Doctor {
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    store: StoreArg,
}

pub fn run(args: &Doctor) -> Result<(), ui::Failure> {
    let json = args.output.json();
    let store = ui::failing(json, args.store.open().map_err(Faults::from))?;
    let report = doctor::examine(&store);
    if json {
        ui::print_json(&report);
    } else {
        ui::print(text(&report, ui::width()).trim_end());
    }
    Ok(())
}

/// The report for people.
fn text(report: &Report, width: Option<usize>) -> String {
    let mut lines = vec![line("lathe", report.version)];
    lines.extend(mlx(report));
    for (i, backend) in report.backends.iter().enumerate() {
        let name =
            format!("{}{}", backend.name, if backend.installed { ", installed" } else { "" });
        let title = if i == 0 { "builds of MLX, best first" } else { "" };
        lines.push(line(title, &format!("{name} ({}): {}", backend.status, backend.because)));
    }
    let tool = |tool: &doctor::Tool| format!("{} ({})", tool.version, tool.path.display());
    let compiler = report.compiler.as_ref().map_or("none".into(), tool);
    lines.push(line("C++ compiler", &compiler));
    match &report.python {
        None => lines.push(line("Python", "none")),
        Some(python) => {
            lines.push(line("Python", &tool(&python.tool)));
            let version = |p: &doctor::Package| p.version.clone().unwrap_or("none".into());
            let packages = python.packages.iter().map(|p| format!("{} {}", p.name, version(p)));
            lines.push(line("packages for the checks", &packages.collect::<Vec<_>>().join(", ")));
        }
    }
    let free = report.store.free.map_or(String::new(), |n| format!(", {} free", ui::bytes(n)));
    let there = if report.store.exists { "" } else { " (not there yet)" };
    lines.push(line("store", &format!("{}{there}{free}", report.store.path.display())));
    let mut table = ui::Table::new(&[]);
    lines.into_iter().for_each(|line| table.row(line));
    let mut out = table.text(width);
    out.push_str("\n\n");
    if report.needs.is_empty() {
        out.push_str("Nothing is lacking.");
    }
    for need in &report.needs {
        out.push_str(&format!("Lacking: {}\n  to get it: {}\n", need.what, need.command));
    }
    out
}

fn line(name: &str, value: &str) -> [String; 2] {
    [name.into(), value.into()]
}

#[cfg(feature = "mlx")]
fn mlx(report: &Report) -> Vec<[String; 2]> {
    use crate::doctor::Found;
    use crate::mlx::Blas;

    match &report.mlx {
        None => Vec::new(),
        Some(Found::Fails { error }) => vec![line("MLX", error)],
        Some(Found::Works(info)) => {
            let blas = match &info.blas {
                Blas::OpenBlas { library, threads } => {
                    format!("OpenBLAS, {threads} threads ({})", library.display())
                }
                Blas::Reference => "the reference BLAS of the wheel: slow".into(),
                Blas::Accelerate => "Accelerate".into(),
            };
            let mut lines = vec![
                line("MLX", &format!("{} ({})", info.version, info.library.display())),
                line("device", &format!("{:?}", info.device).to_lowercase()),
                line("matrix products", &blas),
            ];
            if let Some(doctor::Computes { backend, because }) = &report.computes {
                lines.push(line("backend", &format!("{backend}: {because}")));
            }
            lines
        }
    }
}

#[cfg(not(feature = "mlx"))]
fn mlx(_report: &Report) -> Vec<[String; 2]> {
    vec![line("MLX", "not built in")]
}
