//! JSON as it occurs in model folders: with NaN, Infinity, comments, trailing commas or a byte
//! order mark, none of which strict JSON has.

use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::fault::{Code, Fault, Text, Warning};

/// The largest file that is read as a whole; tokenizers of real models stay far below.
const LARGEST: u64 = 256 << 20;
/// How deep brackets may nest: what serde_json allows, for the lenient reader has no limit.
const DEEPEST: usize = 128;

/// Reads a JSON file of the folder. `None` when there is none.
///
/// # Errors
/// Not readable, too large, or not JSON even leniently: then with line and column.
pub fn file<T: DeserializeOwned>(
    dir: &Path,
    name: &str,
    warnings: &mut Vec<Warning>,
) -> Result<Option<T>, Fault> {
    let Some(body) = text(dir, name)? else { return Ok(None) };
    parse(name, body, warnings).map(Some)
}

/// Reads a text file of the folder. `None` when there is none.
///
/// # Errors
/// Not readable, too large, or not UTF-8.
pub fn text(dir: &Path, name: &str) -> Result<Option<String>, Fault> {
    let path = dir.join(name);
    let bytes = match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::io("read", path, &error)),
        Ok(found) if found.len() > LARGEST => {
            let message = format!("{} bytes long; lathe reads up to {LARGEST}", found.len());
            return Err(Fault::new(Code::BadConfig, message).in_file(name));
        }
        Ok(_) => std::fs::read(&path).map_err(|error| Fault::io("read", &path, &error))?,
    };
    String::from_utf8(bytes).map(Some).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Fault::new(Code::BadConfig, format!("not UTF-8 at byte {at}")).in_file(name)
    })
}

/// Reads JSON, strictly first and then leniently with a warning.
///
/// # Errors
/// Not JSON even leniently: the fault points at the place that the strict reader stopped at.
pub fn parse<T: DeserializeOwned>(
    name: &str,
    body: String,
    warnings: &mut Vec<Warning>,
) -> Result<T, Fault> {
    let json = body.strip_prefix('\u{feff}').unwrap_or(&body);
    let strict = match serde_json::from_str(json) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    if strict.is_data() {
        let at = byte_at(json, &strict);
        return Err(unreadable(name, body, at, strict.to_string()));
    }
    if depth(json) > DEEPEST {
        let at = byte_at(json, &strict);
        return Err(unreadable(name, body, at, format!("nested more than {DEEPEST} deep")));
    }
    let value: Value = match json5::from_str(json) {
        Ok(value) => value,
        // The lenient reader got at least as far as the strict one: its word is the better one.
        Err(error) => {
            // What ends too early has no place but the end.
            let at = error.position().map_or(json.len(), |place| char_at(json, place));
            return Err(unreadable(name, body, at, format!("it is not JSON: {error}")));
        }
    };
    let value = serde_json::from_value(value)
        .map_err(|error| Fault::new(Code::BadConfig, error.to_string()).in_file(name))?;
    warnings.push(Warning::new(
        Code::BadConfig,
        format!(
            "{name} is not strict JSON ({strict}); it was read leniently, NaN and Infinity as null"
        ),
    ));
    Ok(value)
}

/// The fault at a byte of the JSON, which is `body` without its byte order mark.
fn unreadable(name: &str, body: String, at: usize, message: String) -> Fault {
    let mark = body.len() - body.strip_prefix('\u{feff}').unwrap_or(&body).len();
    let at = mark + at;
    let end = at + body[at..].chars().next().map_or(0, char::len_utf8);
    let text = Arc::new(Text { name: name.into(), body });
    Fault::new(Code::BadConfig, message)
        .in_file(name)
        .at(&text, at..end)
        .help("mend the file, or download it again")
}

/// Byte offset of a place that serde_json tells: line and column from 1, in bytes.
fn byte_at(text: &str, error: &serde_json::Error) -> usize {
    let mut at =
        (line_start(text, error.line()) + error.column().saturating_sub(1)).min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Byte offset of a place that json5 tells: line and column from 0, in characters.
fn char_at(text: &str, place: json5::Position) -> usize {
    let start = line_start(text, place.line + 1);
    let rest = &text[start..];
    start + rest.char_indices().nth(place.column).map_or(rest.len(), |(at, _)| at)
}

/// Byte offset of a line, from 1.
fn line_start(text: &str, line: usize) -> usize {
    text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum()
}

/// How deep brackets nest, outside of strings and comments.
fn depth(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut now, mut most, mut at) = (0usize, 0, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'[' | b'{' => now += 1,
            b']' | b'}' => now = now.saturating_sub(1),
            b'"' | b'\'' => at = string_end(bytes, at),
            b'/' => at = comment_end(bytes, at),
            _ => {}
        }
        most = most.max(now);
        at += 1;
    }
    most
}

/// Index of the quote that ends the string which begins at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 1,
            _ if byte == bytes[start] => break,
            _ => {}
        }
        at += 1;
    }
    at
}

/// Index of the last byte of the comment that begins at `start`, or `start` if none does.
fn comment_end(bytes: &[u8], start: usize) -> usize {
    let rest = &bytes[start..];
    let end = if rest.starts_with(b"//") {
        rest.iter().position(|&byte| byte == b'\n')
    } else if rest.starts_with(b"/*") {
        rest[2..].windows(2).position(|pair| pair == b"*/").map(|at| at + 3)
    } else {
        return start;
    };
    end.map_or(bytes.len(), |end| start + end)
}
