//! What a model is made from: a Modelfile, or a path or name on the command line, in; a
//! [`Recipe`] whose places exist out.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fault::{Code, Fault, Faults, Text};
use crate::modelfile::{Modelfile, Spanned};
use crate::store::{Name, Store};

/// What to make a model from.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Where the weights come from.
    pub from: From,
    /// The folder of a draft.
    pub draft: Option<PathBuf>,
    /// What the Modelfile says besides.
    pub modelfile: Modelfile,
    /// The Modelfile's text, where there is one: faults point into it.
    pub text: Option<Arc<Text>>,
}

/// Where a model's weights come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// A Hugging Face folder (or, for a dry run, a file that describes one).
    Folder(PathBuf),
    /// A model in the store, whose blobs are used as they are.
    Model(Name),
}

impl std::fmt::Display for From {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            From::Folder(dir) => dir.display().fmt(f),
            From::Model(name) => name.fmt(f),
        }
    }
}

impl Recipe {
    /// The recipe of a Modelfile. Relative paths are relative to `dir`, the Modelfile's folder.
    pub fn from_modelfile(text: &Arc<Text>, dir: &Path, store: &Store) -> Result<Recipe, Faults> {
        let modelfile = Modelfile::parse(text)?;
        let mut faults = Faults::default();
        let from = resolve(&modelfile.from, dir, store)
            .map_err(|fault| fault.at(text, modelfile.from.span.clone()).into());
        let from = faults.absorb(from);
        let draft = modelfile.draft.as_ref().map(|draft| expand(&draft.value, dir));
        if let (Some(spanned), Some(path)) = (&modelfile.draft, &draft) {
            let fault = match &from {
                Some(From::Folder(from)) if same_place(from, path) => Some(same_draft()),
                _ if !path.exists() => Some(
                    Fault::new(Code::NoSuchFolder, format!("no folder {}", path.display()))
                        .help("DRAFT takes the folder of a draft model"),
                ),
                _ => None,
            };
            if let Some(fault) = fault {
                faults.push(fault.at(text, spanned.span.clone()));
            }
        }
        match from {
            Some(from) => {
                let text = Some(text.clone());
                faults.or(Recipe { from, draft, modelfile, text })
            }
            None => Err(faults),
        }
    }

    /// The recipe of a folder, or of a model in the store, without a Modelfile.
    pub fn from_source(given: &str, draft: Option<&Path>, store: &Store) -> Result<Recipe, Fault> {
        let from = resolve(&given.into(), Path::new(""), store)?;
        if let (From::Folder(from), Some(draft)) = (&from, draft)
            && same_place(from, draft)
        {
            return Err(same_draft());
        }
        Ok(Recipe {
            from,
            draft: draft.map(Path::to_path_buf),
            modelfile: Modelfile::default(),
            text: None,
        })
    }
}

/// A path that exists is a folder; else it is a model in the store.
fn resolve(given: &Spanned, dir: &Path, store: &Store) -> Result<From, Fault> {
    let path = expand(&given.value, dir);
    if path.exists() {
        return Ok(From::Folder(path));
    }
    let looks_like_path = given.value.starts_with(['.', '/', '~', '\\']);
    let no_folder = format!("no folder {}", path.display());
    if looks_like_path {
        return Err(Fault::new(Code::NoSuchFolder, no_folder)
            .help("give the folder of a model: one with config.json and *.safetensors"));
    }
    let Ok(name) = Name::parse(&given.value) else {
        return Err(Fault::new(Code::NoSuchFolder, no_folder)
            .help("give the folder of a model, or the name of one in `lathe list`"));
    };
    match store.manifest(&name) {
        Ok(_) => Ok(From::Model(name)),
        Err(fault) if fault.code == Code::NoSuchModel => {
            let what = format!("{no_folder}, and no model {name} in the store");
            let help = fault.help.unwrap_or_default();
            Err(Fault::new(Code::NoSuchFolder, what)
                .help(format!("give the folder of a model, or a model in the store: {help}")))
        }
        Err(fault) => Err(fault),
    }
}

/// The path that is meant, with `~` as the home folder.
fn expand(given: &str, dir: &Path) -> PathBuf {
    match given.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => match etcetera::home_dir() {
            Ok(home) => home.join(rest.trim_start_matches('/')),
            Err(_) => dir.join(given),
        },
        _ => dir.join(given),
    }
}

fn same_place(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

fn same_draft() -> Fault {
    Fault::new(Code::Usage, "the draft is the same folder as the model")
        .help("a draft is a smaller model; one inside the checkpoint (MTP) needs no DRAFT")
}
