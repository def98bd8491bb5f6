//! The files beside the weights: what travels with a model, its chat template, its producer's
//! claims.

use std::path::Path;
use std::sync::LazyLock;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::lenient;
use crate::checkpoint::{self, ChatTemplate, GENERATION_CONFIG, SmallFiles, generation};
use crate::fault::{Code, Fault, Faults, Warning};

/// What files are, by their names: `policies/known/files.yaml`.
struct Known {
    travel: GlobSet,
    stay: GlobSet,
    claims: Vec<String>,
}

static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        travel: Vec<String>,
        stay: Vec<String>,
        claims: Vec<String>,
    }
    let text = include_str!("../../policies/known/files.yaml");
    let File { travel, stay, claims } = serde_yaml::from_str(text).expect("tested: it reads");
    let set = |globs: &[String]| {
        let mut set = GlobSetBuilder::new();
        for glob in globs {
            set.add(GlobBuilder::new(glob).case_insensitive(true).build().expect("tested: globs"));
        }
        set.build().expect("tested: globs")
    };
    Known { travel: set(&travel), stay: set(&stay), claims }
});

/// Whether a file travels with the model.
pub fn travels(name: &str) -> bool {
    KNOWN.travel.is_match(name) && !KNOWN.stay.is_match(name)
}

/// What the side files say.
#[derive(Default)]
pub struct Side {
    /// The chat template.
    pub chat_template: Option<String>,
    /// The producer's claims.
    pub quant_config: Option<Value>,
}

/// Reads the side files that planning needs.
///
/// # Errors
/// Files that are there and cannot be understood.
pub fn read(dir: &Path, warnings: &mut Vec<Warning>) -> Result<Side, Faults> {
    let mut faults = Faults::default();
    let template = checkpoint::chat_template(&mut Folder { dir, warnings }, checkpoint::DEFAULT);
    let template = faults.absorb(template.map_err(Faults::from)).flatten();
    let chat_template = template.map(|found| found.text);
    let recommended = lenient::file::<Value>(dir, GENERATION_CONFIG, warnings);
    let recommended = faults.absorb(recommended.map_err(Faults::from)).flatten();
    let remarks = recommended.map(|config| generation(&config).remarks).unwrap_or_default();
    warnings.extend(remarks.into_iter().map(|remark| Warning::new(Code::BadConfig, remark)));
    let quant_config = KNOWN.claims.iter().find_map(|name| {
        let read = lenient::file::<Value>(dir, name, warnings).map(|claims| claims.map(Some));
        match read {
            Ok(claims) => claims.flatten(),
            Err(fault) => {
                faults.push(fault);
                None
            }
        }
    });
    faults.or(Side { chat_template, quant_config })
}

/// The chat templates of a folder: that for conversations, and that for those with tools where it is
/// another.
///
/// # Errors
/// When a file is there and cannot be read.
pub fn chat_templates(dir: &Path) -> Result<Vec<ChatTemplate>, Fault> {
    let mut files = Folder { dir, warnings: &mut Vec::new() };
    let mut found = Vec::new();
    for named in [checkpoint::DEFAULT, checkpoint::TOOL_USE] {
        let template = checkpoint::chat_template(&mut files, named)?;
        found.extend(template.filter(|template| !found.contains(template)));
    }
    Ok(found)
}

/// The files of a folder, and what is said of those that are no strict JSON.
struct Folder<'a> {
    dir: &'a Path,
    warnings: &'a mut Vec<Warning>,
}

impl SmallFiles for Folder<'_> {
    fn text(&mut self, name: &str) -> Result<Option<String>, Fault> {
        lenient::text(self.dir, name)
    }

    fn json<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Fault> {
        lenient::file(self.dir, name, self.warnings)
    }
}
