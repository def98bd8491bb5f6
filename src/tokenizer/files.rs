//! The small files of a model, by name, as they were in its folder.

use std::path::Path;

use indexmap::IndexMap;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::checkpoint::SmallFiles;
use crate::fault::{Code, Fault};

/// A model's files other than weights: configs, vocabularies, templates.
#[derive(Clone, Debug, Default)]
pub struct Files(IndexMap<String, Vec<u8>>);

impl Files {
    /// Adds a file, in place of an earlier one of that name.
    pub fn insert(&mut self, name: impl Into<String>, bytes: Vec<u8>) {
        self.0.insert(name.into(), bytes);
    }

    /// The files of a folder that a tokenizer or a chat may need.
    ///
    /// # Errors
    /// When the folder or one of its files cannot be read.
    pub fn of_folder(folder: &Path) -> Result<Self, Fault> {
        let mut files = Files::default();
        let entries =
            std::fs::read_dir(folder).map_err(|error| Fault::io("list", folder, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| Fault::io("list", folder, &error))?;
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let wanted = [".json", ".jinja", ".model", ".tiktoken", "merges.txt"];
            if !path.is_file() || !wanted.iter().any(|ending| name.ends_with(ending)) {
                continue;
            }
            let bytes = std::fs::read(&path).map_err(|error| Fault::io("read", &path, &error))?;
            files.insert(name, bytes);
        }
        Ok(files)
    }

    /// A file's bytes.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// A file as text.
    ///
    /// # Errors
    /// When it is not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<&str>, Fault> {
        self.get(name)
            .map(|bytes| {
                std::str::from_utf8(bytes).map_err(|error| {
                    Fault::new(Code::BadConfig, format!("{name} is not UTF-8: {error}"))
                        .in_file(name)
                })
            })
            .transpose()
    }

    /// A JSON file, read leniently as model folders need it (NaN, comments, trailing commas).
    ///
    /// # Errors
    /// When it is not even that.
    pub fn json(&self, name: &str) -> Result<Option<Value>, Fault> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        // Plain JSON is by far the commonest, and parses faster.
        let parsed = serde_json::from_str(text).or_else(|_| json5::from_str(text));
        parsed.map(Some).map_err(|error| {
            Fault::new(Code::BadConfig, format!("{name} is not valid JSON: {error}")).in_file(name)
        })
    }

    /// The names of all files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl SmallFiles for &Files {
    fn text(&mut self, name: &str) -> Result<Option<String>, Fault> {
        Ok(Files::text(self, name)?.map(str::to_owned))
    }

    fn json<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Fault> {
        let Some(value) = Files::json(self, name)? else { return Ok(None) };
        let read = serde_json::from_value(value);
        read.map(Some).map_err(|error| Fault::new(Code::BadConfig, error.to_string()).in_file(name))
    }
}
