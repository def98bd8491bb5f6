//! The policies that a model carries: layers of its manifest, one for the model and one for its
//! draft.

use std::path::Path;
use std::sync::Arc;

use super::{Layer, Manifest, Name, Store, media};
use crate::decoder::parts::TensorSpec;
use crate::fault::{Fault, Faults};
use crate::plan::DRAFT_PREFIX;
use crate::policy::library::Entry;
use crate::policy::{Policy, Role, stored};

/// The layer's name.
pub const fn policy_name(role: Role) -> &'static str {
    match role {
        Role::Target => "policy.yaml",
        Role::Draft => "draft/policy.yaml",
    }
}

impl Manifest {
    /// The layer of the policy for the model, or for its draft; `None` for a model that was stored
    /// before models carried theirs, or by another program.
    pub fn policy(&self, role: Role) -> Option<&Layer> {
        self.of_type(media::POLICY).find(|layer| layer.name.as_deref() == Some(policy_name(role)))
    }

    /// That policy; `of` names the model, `read` reads its blobs.
    ///
    /// # Errors
    /// When the blob is missing, or of a later version, or cannot be understood.
    pub fn read_policy(
        &self,
        role: Role,
        of: &str,
        read: impl Fn(&Layer) -> Result<Vec<u8>, Fault>,
    ) -> Result<Option<Arc<Entry>>, Fault> {
        self.policy(role).map(|layer| stored::read(of, &read(layer)?)).transpose()
    }
}

impl Store {
    /// The policy of a model (which `of` names), or of its draft: of `policy_dir` when that is given, else the one that
    /// it carries, else that of its architecture.
    ///
    /// # Errors
    /// When its config or a policy cannot be read.
    pub fn policy(
        &self,
        of: &str,
        manifest: &Manifest,
        role: Role,
        policy_dir: Option<&Path>,
    ) -> Result<Policy, Faults> {
        let own = match policy_dir {
            Some(_) => None,
            None => manifest.read_policy(role, of, |layer| self.read_blob(layer))?,
        };
        let config = self.config_of(manifest, role)?;
        stored::policy_of(own.as_ref(), &config, role, policy_dir)
    }

    /// What keeps lathe from running a model; nothing when it runs. Only headers are read.
    ///
    /// # Errors
    /// When its config, its policy or a header cannot be read.
    pub fn in_the_way(&self, name: &Name, manifest: &Manifest) -> Result<Vec<Fault>, Faults> {
        let policy = self.policy(&name.to_string(), manifest, Role::Target, None)?;
        let config = self.config_of(manifest, Role::Target)?;
        let weights = self.weights(manifest)?;
        let own = weights.into_iter().filter(|weight| !weight.name.starts_with(DRAFT_PREFIX));
        let held = own.map(|weight| {
            (weight.name, TensorSpec { shape: weight.shape, quantized: weight.format.is_some() })
        });
        let layers = manifest.layers.iter();
        let files = layers.filter_map(|layer| layer.name.as_deref());
        Ok(policy.in_the_way(&config, held, files, None))
    }
}
