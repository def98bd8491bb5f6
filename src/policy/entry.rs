//! One policy file, read.

use super::file::PolicyFile;
use crate::document::Document;
use crate::fault::{Code, Fault};
use crate::path;

/// A policy file that has been read.
#[derive(Debug)]
pub struct Entry {
    /// The text and its tree.
    pub document: Document,
    /// What it says.
    pub file: PolicyFile,
    /// Whether it is compiled into the binary.
    pub built_in: bool,
}

impl Entry {
    pub(super) fn read(name: &str, body: String, built_in: bool) -> Result<Entry, Fault> {
        Entry::of(Document::parse(name, body)?, built_in)
    }

    pub(super) fn of(document: Document, built_in: bool) -> Result<Entry, Fault> {
        let file: PolicyFile = document.decode()?;
        if file.name.is_empty() {
            return Err(document.fault(Code::PolicyName, path!["name"], "a policy needs a name"));
        }
        Ok(Entry { document, file, built_in })
    }
}
