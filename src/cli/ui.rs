//! How results and faults are shown: one place for colours, widths, JSON and exit codes.

use std::io::Write;
use std::process::ExitCode;

use clap::ValueEnum;
use serde::Serialize;

use crate::fault::{self, Fault, Faults};

/// The forms in which a command can print its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For scripts
    Json,
}

/// Faults, and how they are to be shown.
pub struct Failure {
    faults: Faults,
    json: bool,
}

impl From<Faults> for Failure {
    fn from(faults: Faults) -> Self {
        Failure { faults, json: false }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Faults::from(fault).into()
    }
}

/// Makes any result's faults print as JSON when `json`.
pub fn failing<T>(json: bool, result: Result<T, Faults>) -> Result<T, Failure> {
    result.map_err(|faults| Failure { faults, json })
}

/// Shows a failure and gives its exit code.
pub fn fail(failure: &Failure) -> ExitCode {
    let faults = &failure.faults;
    if failure.json {
        print_json(&ErrorDocument::new(faults));
    } else {
        for fault in &faults.0 {
            let mut err = anstream::stderr().lock();
            let _ = writeln!(err, "{:?}", fault::report(fault.clone()));
        }
    }
    ExitCode::from(super::exit_code(faults))
}

/// `{error: {code, message, details}}`, what `--output json` prints of a failure.
#[derive(Serialize)]
struct ErrorDocument<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: fault::Code,
    message: String,
    details: &'a [Fault],
}

impl<'a> ErrorDocument<'a> {
    fn new(faults: &'a Faults) -> Self {
        let first = faults.0.first();
        let message = match faults.0.len() {
            0 | 1 => first.map(Fault::to_string).unwrap_or_default(),
            n => format!("{n} faults, the first: {}", faults.0[0]),
        };
        let code = first.map_or(fault::Code::Internal, |fault| fault.code);
        ErrorDocument { error: ErrorBody { code, message, details: &faults.0 } }
    }
}

/// Prints a value as JSON on standard output. A closed pipe ends quietly.
pub fn print_json(value: &impl Serialize) {
    let mut out = std::io::stdout().lock();
    let done = serde_json::to_writer_pretty(&mut out, value);
    if done.is_ok() {
        let _ = writeln!(out);
    }
}
