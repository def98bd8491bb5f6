//! create: the whole way from a folder to a model in the store.
//!
//! [`Recipe`] says what to make; [`prepare`] reads, classifies and plans, and touches nothing;
//! [`Prepared::write`] executes the plan and puts the model into the store.

mod check;
mod overlay;
mod recipe;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::fault::{Code, Fault, Faults, Warning};
use crate::modelfile::{Modelfile, Spanned};
use crate::plan::{self, Plan, Request};
use crate::policy::{Library, Policy, Role, parsers, stored};
use crate::read::Inventory;
use crate::store::{Config, Layer, Manifest, Name, Origin, Store, Writer, media, policy_name};
use crate::{prepare, write};
use check::{check_request, check_words};
use overlay::overlay;
pub(crate) use overlay::replace;
pub use recipe::{From, Recipe};

/// What is asked for beside the recipe.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Formats, as the user named them.
    pub request: Request,
    /// A folder of policies that add to or replace the built-in ones.
    pub policy_dir: Option<PathBuf>,
    /// A plan that was printed before and perhaps edited.
    pub plan: Option<PathBuf>,
    /// Whether what the policy's author should know is a fault.
    pub strict: bool,
}

/// All that is needed to make the model; nothing has been written yet.
#[derive(Debug)]
pub struct Prepared {
    /// The plan; `None` when a stored model gets no draft, so that there is nothing to plan.
    pub plan: Option<Plan>,
    /// Whether lathe can run what is made, as far as headers and config tell.
    pub runs: bool,
    /// What keeps lathe from running the stored model that this one is built on.
    in_the_way: Vec<Warning>,
    base: Base,
    draft: Option<Inventory>,
    modelfile: Modelfile,
    /// The policies that the model is to carry, as text, where they are not the base's.
    policies: Vec<(Role, String)>,
}

/// What the model is built on.
#[derive(Debug)]
enum Base {
    Folder(Inventory),
    Stored { manifest: Manifest, config: Config },
}

/// Reads, classifies and plans. Writes nothing, and reads nothing but headers and small files.
///
/// # Errors
/// All faults of a stage at once; a later stage does not begin when an earlier one has faults.
pub fn prepare(recipe: Recipe, settings: &Settings, store: &Store) -> Result<Prepared, Faults> {
    check_request(&recipe, &settings.request)?;
    let library = Library::load(settings.policy_dir.as_deref())?;
    let mut faults = Faults::default();
    faults.absorb(check_words(&recipe, &library));
    let draft = recipe
        .draft
        .as_deref()
        .and_then(|dir| faults.absorb(prepare::prepare(dir, Role::Draft, &library)));
    let modelfile = recipe.modelfile;
    let mut options = plan::Options {
        request: settings.request.clone(),
        overrides: overrides(&modelfile),
        strict: settings.strict,
    };
    match recipe.from {
        From::Folder(dir) => {
            let target = faults.absorb(prepare::prepare(&dir, Role::Target, &library));
            let (Some(target), true) = (target, faults.0.is_empty()) else { return Err(faults) };
            if let Some(draft) = &draft {
                faults.absorb(draft.fits(&target.inventory.config));
            }
            let draft_stock = draft.as_ref().map(prepare::Prepared::stock);
            let given = settings.plan.as_deref().map(given_plan).transpose()?;
            if let Some(given) = &given {
                options.request = given.request.clone();
            }
            let fresh = plan::plan(target.stock(), draft_stock, &options);
            let plan = match (given, &settings.plan) {
                (Some(given), Some(file)) => {
                    fresh.and_then(|fresh| plan::check(given, fresh, &file.display().to_string()))
                }
                _ => fresh,
            };
            let (Some(plan), true) = (faults.absorb(plan), faults.0.is_empty()) else {
                return Err(faults);
            };
            let parser = plan.manifest.parser.as_deref();
            let mut policies = vec![policy_text(&target.policy, parser, &library)?];
            policies.extend(draft_policy(draft.as_ref(), &library)?);
            Ok(Prepared {
                runs: plan.runs,
                in_the_way: Vec::new(),
                plan: Some(plan),
                base: Base::Folder(target.inventory),
                draft: draft.map(|draft| draft.inventory),
                modelfile,
                policies,
            })
        }
        From::Model(name) => {
            let manifest = store.manifest(&name)?;
            let config = store.config(&manifest)?;
            let plan = match &draft {
                Some(draft) => {
                    faults.absorb(draft.fits(&store.model_config(&manifest)?));
                    faults.absorb(plan::plan_draft(draft.stock(), &options))
                }
                None => None,
            };
            let draft = faults.or(draft)?;
            // The base's own is kept; it is written anew where another parser is asked for, and
            // where there is none yet.
            let mut policies = Vec::new();
            if modelfile.parser.is_some() || manifest.policy(Role::Target).is_none() {
                let policy = store.policy(&name.to_string(), &manifest, Role::Target, None)?;
                let parser = modelfile.parser.as_ref().map(|parser| parser.value.as_str());
                let parser = parser.or(config.parser.as_deref());
                policies.push(policy_text(&policy, parser, &library)?);
            }
            policies.extend(draft_policy(draft.as_ref(), &library)?);
            let draft = draft.map(|draft| draft.inventory);
            let in_the_way = store.in_the_way(&name, &manifest).unwrap_or_else(|faults| faults.0);
            let in_the_way: Vec<Warning> = in_the_way.iter().map(plan::not_run).collect();
            Ok(Prepared {
                plan,
                runs: in_the_way.is_empty(),
                in_the_way,
                base: Base::Stored { manifest, config },
                draft,
                modelfile,
                policies,
            })
        }
    }
}

/// The text of a policy as a model carries it, with the parser that its answers go through.
fn policy_text(
    policy: &Policy,
    parser: Option<&str>,
    library: &Library,
) -> Result<(Role, String), Faults> {
    // A parser that only another program has is no part of the policy.
    let answers = library.answers_of(policy, parser.unwrap_or(parsers::DEFAULT)).ok();
    Ok((Role::Target, stored::text(&stored::merged(policy, answers.as_ref()))?))
}

/// The same of a draft, whose answers nobody reads. A policy for models may serve a draft too.
fn draft_policy(
    draft: Option<&prepare::Prepared>,
    library: &Library,
) -> Result<Option<(Role, String)>, Faults> {
    let text = draft.map(|draft| policy_text(&draft.policy, None, library)).transpose()?;
    Ok(text.map(|(_, text)| (Role::Draft, text)))
}

fn overrides(modelfile: &Modelfile) -> plan::Overrides {
    plan::Overrides {
        parser: modelfile.parser.as_ref().map(Spanned::text),
        renderer: modelfile.renderer.as_ref().map(Spanned::text),
        requires: modelfile.requires.clone(),
        template: modelfile.template.is_some(),
    }
}

/// A plan from a file; `-` is standard input.
fn given_plan(file: &Path) -> Result<Plan, Faults> {
    let text = match file == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(file),
    };
    let text = text.map_err(|error| Fault::io("read the plan", file, &error))?;
    Ok(plan::render::parse(&file.display().to_string(), &text)?)
}

/// A model that has been created.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Created {
    /// Its name.
    pub name: Name,
    /// Digest of its manifest.
    pub digest: crate::store::Digest,
    /// Bytes of all its blobs.
    pub size: u64,
    /// Blobs that the store did not have.
    pub new_blobs: u64,
    /// Bytes in them.
    pub new_bytes: u64,
    /// Whether the store had the same model under this name already.
    pub unchanged: bool,
    /// What was seen while writing that headers do not show.
    #[serde(skip)]
    pub warnings: Vec<Warning>,
}

impl Prepared {
    /// Everything that the user should know before anything is written.
    pub fn warnings(&self) -> impl Iterator<Item = &Warning> {
        let planned = self.plan.iter().flat_map(|plan| &plan.warnings);
        self.modelfile.warnings.iter().chain(&self.in_the_way).chain(planned)
    }

    /// Bytes of source tensors that will be read.
    pub fn bytes_in(&self) -> u64 {
        self.plan.as_ref().map_or(0, |plan| plan.totals.bytes_in)
    }

    /// Writes the blobs, then the manifest. What fails or is interrupted leaves nothing behind.
    /// Before the manifest `check` may refuse what was written; the name keeps what it had.
    ///
    /// # Errors
    /// Those of [`write::execute`], of the store and of `check`.
    pub fn write(
        &self,
        name: &Name,
        store: &Store,
        options: &write::Options,
        check: &dyn Fn(&Writer, &Manifest) -> Result<(), Faults>,
    ) -> Result<Created, Faults> {
        if let Some(plan) = &self.plan {
            self.require_space(plan, store, options.jobs)?;
        }
        let writer = store.writer()?;
        let mut warnings = Vec::new();
        let layers = self.layers(&writer, options, &mut warnings);
        let layers = layers.map_err(|faults| kept(faults, &writer))?;
        let config = writer.add(&json(&self.config())?)?.layer(media::CONFIG, None);
        let manifest = Manifest::new(config, layers);
        let size = manifest.size();
        check(&writer, &manifest).map_err(|faults| kept(explained(faults, &warnings), &writer))?;
        options.progress.phase(write::SYNCING);
        let done = writer.commit(name, &manifest)?;
        Ok(Created {
            name: name.clone(),
            digest: done.digest,
            size,
            new_blobs: done.new_blobs,
            new_bytes: done.new_bytes,
            unchanged: done.unchanged,
            warnings,
        })
    }

    /// A fault when the disk has no room for what the store has not got yet.
    fn require_space(&self, plan: &Plan, store: &Store, jobs: usize) -> Result<(), Faults> {
        let most = write::space(plan)?;
        if store.free_space().is_none_or(|free| free >= most) {
            return Ok(());
        }
        let (target, draft) = self.folders();
        let stored = store.blobs_by_size()?;
        Ok(store.require_space(write::space_beyond(plan, target, draft, &stored, jobs)?)?)
    }

    /// The folders that are read from: the model's (without anything when it is a stored one), and
    /// the draft's.
    fn folders(&self) -> (&Inventory, Option<&Inventory>) {
        static NOTHING: LazyLock<Inventory> = LazyLock::new(Inventory::default);
        let target = match &self.base {
            Base::Folder(inventory) => inventory,
            Base::Stored { .. } => &NOTHING,
        };
        (target, self.draft.as_ref())
    }

    /// All layers: the base's, the plan's, the Modelfile's.
    fn layers(
        &self,
        writer: &Writer,
        options: &write::Options,
        warnings: &mut Vec<Warning>,
    ) -> Result<Vec<Layer>, Faults> {
        let mut layers = match &self.base {
            Base::Folder(_) => Vec::new(),
            Base::Stored { manifest, .. } => manifest.layers.clone(),
        };
        if let Some(plan) = &self.plan {
            // A new draft takes the place of the old one.
            if plan.manifest.draft.is_some() {
                layers.retain(|layer| !is_of_draft(layer));
            }
            layers.extend(self.execute(plan, writer, options, warnings)?);
            let origin = writer.add(&json(&self.origin(plan, &layers, writer)?)?)?;
            replace(&mut layers, origin.layer(media::ORIGIN, None));
        }
        for (role, text) in &self.policies {
            let policy = writer.add(text.as_bytes())?;
            replace(&mut layers, policy.layer(media::POLICY, Some(policy_name(*role))));
        }
        overlay(&mut layers, &self.modelfile, writer)?;
        Ok(layers)
    }

    /// Where the tensors came from: those of the base that are still there, and the plan's.
    fn origin(&self, plan: &Plan, layers: &[Layer], writer: &Writer) -> Result<Origin, Fault> {
        let mut origin = Origin::default();
        for layer in layers.iter().filter(|layer| layer.media_type == media::ORIGIN) {
            origin = writer.store().origin_in(layer)?;
        }
        if plan.manifest.draft.is_some() {
            origin.tensors.retain(|name, _| !name.starts_with(plan::DRAFT_PREFIX));
        }
        origin.tensors.extend(Origin::of(plan).tensors);
        Ok(origin)
    }

    /// The layers of a plan: tensors, then files.
    fn execute(
        &self,
        plan: &Plan,
        writer: &Writer,
        options: &write::Options,
        warnings: &mut Vec<Warning>,
    ) -> Result<Vec<Layer>, Faults> {
        let (target, draft) = self.folders();
        let folders = [Some(target), draft];
        if let Some(described) = folders.into_iter().flatten().find(|folder| !folder.has_weights())
        {
            let what = format!("{} only describes a model", described.dir.display());
            return Err(Fault::new(Code::NoWeights, what)
                .help("it can be planned with --dry-run; to create a model, give its folder")
                .into());
        }
        let outcome = write::execute(plan, target, draft, writer, options)?;
        warnings.extend(outcome.warnings);
        let blobs = plan.blobs.iter().map(|blob| (&blob.media_type, &blob.name));
        let files = plan.files.iter().map(|file| (&file.media_type, &file.name));
        let made = outcome.blobs.iter().chain(&outcome.files);
        let layers = blobs.chain(files).zip(made).map(|((media_type, name), made)| {
            let digest = made.digest.parse().map_err(|why| Fault::new(Code::Internal, why))?;
            let (media_type, name) = (media_type.clone(), Some(name.clone()));
            Ok(Layer { media_type, digest, size: made.size, name })
        });
        layers.collect::<Result<_, Fault>>().map_err(Faults::from)
    }

    /// The config blob.
    fn config(&self) -> Config {
        match (&self.base, &self.plan) {
            (Base::Folder(_), Some(plan)) => Config::from(&plan.manifest),
            (Base::Folder(_), None) => Config::default(),
            (Base::Stored { config, .. }, plan) => {
                let mut config = config.clone();
                let Modelfile { parser, renderer, requires, .. } = &self.modelfile;
                config.parser = parser.as_ref().map(Spanned::text).or(config.parser);
                config.renderer = renderer.as_ref().map(Spanned::text).or(config.renderer);
                let least = || plan::LEAST_RUNTIME.to_string();
                let requires = requires.clone().or(config.requires);
                config.requires = Some(requires.unwrap_or_else(least));
                config.draft =
                    plan.as_ref().and_then(|plan| plan.manifest.draft.clone()).or(config.draft);
                config
            }
        }
    }
}

/// Says of work that was interrupted what the store has of it.
fn kept(mut faults: Faults, writer: &Writer) -> Faults {
    for fault in faults.0.iter_mut().filter(|fault| fault.code == Code::Interrupted) {
        fault.help = Some(match writer.kept() {
            (0, _) => "nothing of it was kept: the store is as it was".into(),
            (blobs, bytes) => format!(
                "{blobs} finished blobs ({bytes} bytes) were kept, and the next create finds \
                 them; `lathe gc` removes them"
            ),
        });
    }
    faults
}

/// What was seen while writing is the likelier reason of what the check found.
fn explained(mut faults: Faults, warnings: &[Warning]) -> Faults {
    if let (Some(fault), Some(seen)) = (faults.0.first_mut(), warnings.first()) {
        fault.help = Some(seen.message.clone());
    }
    faults
}

fn is_of_draft(layer: &Layer) -> bool {
    let name = layer.name.as_deref().unwrap_or_default();
    match layer.media_type.as_str() {
        media::TENSOR => name.starts_with(plan::DRAFT_PREFIX),
        media::JSON | media::FILE | media::POLICY => name.starts_with("draft/"),
        _ => false,
    }
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>, Fault> {
    serde_json::to_vec(value)
        .map_err(|error| Fault::new(Code::Internal, format!("it has no JSON form: {error}")))
}
