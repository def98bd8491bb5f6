//! `lathe policy lint`

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use miette::MietteDiagnostic;

use super::PolicyDir;
use crate::built_in::policy_files;
use crate::cli::ui;
use crate::fault::{Code, Fault, Faults};
use crate::policy::lint::{self, Finding, Severity};

/// Find what a policy probably does not mean: shadowed rules, dead names, unreachable steps
///
/// Without files the policies of --policy-dir and of the user's folder are linted, and with
/// --built-in those in the binary too. Exits with 1 when there are findings.
#[derive(Args)]
pub struct Lint {
    /// Policy files, or folders of them
    files: Vec<PathBuf>,
    /// Lint the built-in policies too
    #[arg(long)]
    built_in: bool,
    /// How to print the findings
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    policies: PolicyDir,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    Text,
    /// For scripts
    Json,
    /// For code review (SARIF 2.1.0)
    Sarif,
}

pub fn run(args: &Lint) -> Result<(), ui::Failure> {
    let (findings, faults) = ui::failing(args.output != Form::Text, findings(args))?;
    let clean = findings.is_empty() && faults.0.is_empty();
    // SARIF has a place for what could not be linted.
    if args.output != Form::Sarif {
        ui::failing(args.output == Form::Json, faults.clone().or(()))?;
    }
    match args.output {
        Form::Json => {
            let findings: Vec<_> = findings.iter().map(Finding::json).collect();
            ui::print_json(&serde_json::json!({ "findings": findings }));
        }
        Form::Sarif => ui::print_json(&lint::sarif(&findings, &faults)),
        Form::Text => {
            for finding in &findings {
                ui::print(format!("{:?}", diagnostic(finding)));
            }
            ui::note(match findings.len() {
                0 => "nothing found".to_string(),
                1 => "1 finding".to_string(),
                n => format!("{n} findings"),
            });
        }
    }
    if clean { Ok(()) } else { Err(ui::Failure::shown(1)) }
}

/// What is found in the files that can be read, and what is wrong with the others.
fn findings(args: &Lint) -> Result<(Vec<Finding>, Faults), Faults> {
    let mut library = args.policies.library()?;
    let mut faults = Faults::default();
    let mut names = Vec::new();
    let mut files = Vec::new();
    for given in &args.files {
        match given.is_dir() {
            true => files.extend(policy_files(given)?),
            false => files.push(given.clone()),
        }
    }
    for file in &files {
        names.extend(faults.absorb(library.add_file(file).map_err(Faults::from)));
    }
    if args.files.is_empty() {
        let chosen = library.iter().filter(|entry| args.built_in || !entry.built_in);
        names.extend(chosen.map(|entry| entry.file.name.clone()));
    }
    if names.is_empty() && faults.0.is_empty() {
        return Err(Fault::new(Code::Usage, "there is nothing to lint")
            .help("name policy files, or give --policy-dir or --built-in")
            .into());
    }
    let mut findings = Vec::new();
    for name in names {
        if let Some(entry) = library.get(&name) {
            findings.extend(faults.absorb(lint::lint(&library, entry)).unwrap_or_default());
        }
    }
    Ok((findings, faults))
}

fn diagnostic(finding: &Finding) -> miette::Report {
    let severity = match finding.lint.severity() {
        Severity::Error => miette::Severity::Error,
        Severity::Warning => miette::Severity::Warning,
    };
    let span = finding.place.span.clone();
    let label = miette::LabeledSpan::new_with_span(
        Some("here".into()),
        miette::SourceSpan::new(span.start.into(), span.end - span.start),
    );
    let diagnostic = MietteDiagnostic::new(finding.message.clone())
        .with_code(finding.lint.code())
        .with_severity(severity)
        .with_help(finding.help.clone())
        .with_label(label);
    let text = &finding.place.text;
    miette::Report::new(diagnostic)
        .with_source_code(miette::NamedSource::new(text.name.clone(), text.body.clone()))
}
