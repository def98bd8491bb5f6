//! How results and faults are shown: one place for colours, widths, JSON and exit codes.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::fault::{self, Fault, Faults};
pub use crate::plan::render::bytes;
pub use crate::table::Table;

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
    /// The exit code of a failure that has been shown already.
    shown: Option<u8>,
}

impl Failure {
    /// A failure that has been shown already.
    pub fn shown(exit_code: u8) -> Failure {
        Failure { faults: Faults::default(), json: false, shown: Some(exit_code) }
    }
}

impl From<Faults> for Failure {
    fn from(faults: Faults) -> Self {
        Failure { faults, json: false, shown: None }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Faults::from(fault).into()
    }
}

/// Makes any result's faults print as JSON when `json`.
pub fn failing<T>(json: bool, result: Result<T, Faults>) -> Result<T, Failure> {
    result.map_err(|faults| Failure { faults, json, shown: None })
}

/// Shows a failure and gives its exit code.
pub fn fail(failure: &Failure) -> ExitCode {
    if let Some(code) = failure.shown {
        return ExitCode::from(code);
    }
    let faults = &failure.faults.clone().grouped();
    if failure.json {
        // One line, so that it can be the last of a stream of events.
        print_json_line(&ErrorDocument::new(faults));
    } else {
        for fault in &faults.0 {
            let mut err = anstream::stderr().lock();
            let _ = writeln!(err, "{:?}", fault::report(fault.clone()));
        }
    }
    ExitCode::from(super::exit_code(faults))
}

/// Whether the arguments ask for JSON, as far as can be told of arguments that are wrong.
pub fn wants_json() -> bool {
    let args: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let asks = |arg: &str| matches!(arg, "--output=json" | "-o=json" | "-ojson");
    args.iter().any(|arg| asks(arg))
        || args
            .windows(2)
            .any(|pair| matches!(pair[0].as_str(), "-o" | "--output") && pair[1] == "json")
}

/// Prints wrong usage as JSON.
pub fn print_usage(error: &clap::Error) {
    let text = error.to_string();
    let (message, help) = text.trim().split_once("\n\n").unwrap_or((text.trim(), ""));
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let help = help.split("\n\nFor more information").next().unwrap_or_default().trim();
    let fault = Fault::new(fault::Code::Usage, message).help(help);
    print_json(&ErrorDocument::new(&fault.into()));
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
    let done = serde_json::to_writer_pretty(&mut out, value).map_err(std::io::Error::from);
    finish(done.and_then(|()| writeln!(out)).and_then(|()| out.flush()));
}

/// Prints a result on standard output. A closed pipe ends quietly.
pub fn print(what: impl Display) {
    let mut out = anstream::stdout().lock();
    finish(writeln!(out, "{what}").and_then(|()| out.flush()));
}

/// Prints a value as one line of JSON on standard output. A closed pipe ends quietly.
pub fn print_json_line(value: &impl Serialize) {
    let mut out = std::io::stdout().lock();
    let done = serde_json::to_writer(&mut out, value).map_err(std::io::Error::from);
    // `create` prints events: it must not end in the middle because nobody listens any more.
    let _ = done.and_then(|()| writeln!(out)).and_then(|()| out.flush());
}

/// A result that cannot be written is lost: the program ends, and says so unless the reader left.
fn finish(written: std::io::Result<()>) {
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "cannot write to standard output: {error}");
            std::process::exit(1);
        }
    }
}

/// Says something in passing, on standard error, so that scripts need not see it.
pub fn note(what: impl Display) {
    let _ = writeln!(anstream::stderr().lock(), "{what}");
}

/// Warns, on standard error.
pub fn warn(what: impl Display) {
    let _ = writeln!(anstream::stderr().lock(), "\x1b[33mwarning:\x1b[0m {what}");
}

/// Prints a table that fits the terminal.
pub fn print_table(table: &Table) {
    print(table.text(width()));
}

/// Reads a number of bytes as people write it: `4GB`, `512 MiB`, `1.5g`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = text[digits..].trim().to_lowercase();
    let (prefix, base) = match unit.strip_suffix("ib") {
        Some(prefix) => (prefix, 1024_f64),
        None => (unit.strip_suffix('b').unwrap_or(&unit), 1000.0),
    };
    let power = match prefix {
        "" => Some(0),
        "k" => Some(1),
        "m" => Some(2),
        "g" => Some(3),
        "t" => Some(4),
        _ => None,
    };
    match (text[..digits].parse::<f64>(), power) {
        (Ok(number), Some(power)) => Ok((number * base.powi(power)) as u64),
        _ => Err("give a size such as 800MB, 4GB or 4GiB".into()),
    }
}

/// Columns of the terminal, or those that COLUMNS names; `None` when the output goes elsewhere.
pub fn width() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    let terminal = || {
        let out = std::io::stdout();
        terminal_size::terminal_size_of(&out).map(|(columns, _)| columns.0.into())
    };
    told.filter(|&columns| columns > 0).or_else(terminal)
}

/// How long ago, for people.
pub fn ago(time: SystemTime) -> String {
    let seconds = time.elapsed().unwrap_or(Duration::ZERO).as_secs();
    const UNITS: [(u64, &str); 6] = [
        (365 * 86400, "year"),
        (30 * 86400, "month"),
        (7 * 86400, "week"),
        (86400, "day"),
        (3600, "hour"),
        (60, "minute"),
    ];
    match UNITS.iter().find(|(length, _)| seconds >= *length) {
        None => "just now".into(),
        Some((length, unit)) => {
            let n = seconds / length;
            format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" })
        }
    }
}

/// A time for scripts: RFC 3339, UTC.
pub fn timestamp(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// A bar that counts bytes, on a terminal only.
pub fn byte_bar(doing: &str, total: u64, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(
        "{msg} {wide_bar:.cyan/dim} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
    );
    let bar = ProgressBar::new(total).with_message(doing.to_string());
    if let Ok(style) = style { bar.with_style(style) } else { bar }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        let shown = [0, 999, 1000, 9_994, 9_995, 99_949, 99_950, 999_499, 999_500, 269_060_552];
        let shown: Vec<_> = shown.into_iter().map(bytes).collect();
        assert_eq!(
            shown,
            [
                "0 B", "999 B", "1.00 kB", "9.99 kB", "10.0 kB", "99.9 kB", "100 kB", "999 kB",
                "1.00 MB", "269 MB"
            ]
        );
        assert_eq!(bytes(u64::MAX), "18.4 EB");
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("12", 12),
            ("2GB", 2_000_000_000),
            ("2GiB", 1 << 31),
            ("1.5 k", 1500),
            ("4g", 4_000_000_000),
            ("512 MiB", 1 << 29),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GB", "-1", "2XB", "1.2.3", "4 GBB", "ib"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ages_are_rounded_down() {
        let shown = |seconds| ago(SystemTime::now() - Duration::from_secs(seconds));
        assert_eq!(shown(59), "just now");
        assert_eq!(shown(60), "1 minute ago");
        assert_eq!(shown(7300), "2 hours ago");
        assert_eq!(ago(SystemTime::now() + Duration::from_secs(99)), "just now");
        assert_eq!(timestamp(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00Z");
    }
}
