//! Preparing a model for planning: a path in, its inventory, weights and policy out.

mod zeros;

use std::path::Path;

use crate::checkpoint::architecture;
use crate::classify::{self, Classified, Layouts};
use crate::decoder::Decoder;
use crate::fault::{Code, Fault, Faults, Warning};
use crate::plan::Stock;
use crate::policy::{Library, Policy, Role, fit};
use crate::read::{self, Inventory, Values};

/// A model folder, or an inventory file, that has been read and classified.
pub struct Prepared {
    /// What the headers say.
    pub inventory: Inventory,
    /// The weights.
    pub classified: Classified,
    /// The policy that decides about them.
    pub policy: Policy,
}

impl Prepared {
    /// Whether it fits, as a draft, a target of this config.
    ///
    /// # Errors
    /// As [`fit::check`], each naming the draft's config; a whole model that lacks its embedding.
    pub fn fits(&self, target: &serde_json::Value) -> Result<(), Faults> {
        if let Some(name) = self.lacks_embedding() {
            let message = format!(
                "the draft is a whole model (policy {}) and has no {name}",
                self.policy.name
            );
            return Err(Fault::new(Code::DraftMisfit, message)
                .in_file(&self.inventory.dir)
                .help(
                    "take the draft's whole folder; a head that borrows the model's embedding has a \
                     policy with `role: draft`",
                )
                .into());
        }
        let tensors = self.inventory.tensors.iter();
        let tensors: Vec<_> = tensors.map(|t| (t.name.as_str(), t.shape.as_slice())).collect();
        let draft = fit::Draft { config: &self.inventory.config, tensors: &tensors };
        fit::check(&self.policy, draft, target).map_err(|faults| {
            let of_config = |fault: Fault| fault.in_file(self.inventory.dir.join(read::CONFIG));
            Faults(faults.0.into_iter().map(of_config).collect())
        })
    }

    /// The name of the embedding that it should have and has not: only a draft by its policy
    /// borrows its target's.
    fn lacks_embedding(&self) -> Option<String> {
        let decoder = self.policy.decoder.as_ref()?;
        if self.policy.chain.first()?.file.role == Role::Draft {
            return None;
        }
        let names = decoder.embed.tensor.list();
        let is = |weight: &str, name: &String| {
            let module = weight.strip_suffix(".weight").unwrap_or(weight);
            module
                .strip_suffix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let has = |name| self.classified.weights.iter().any(|weight| is(&weight.name, name));
        (!names.iter().any(has)).then(|| format!("{}.weight", names.join(" or ")))
    }

    /// What planning takes.
    pub fn stock(&self) -> Stock<'_> {
        Stock { inventory: &self.inventory, classified: &self.classified, policy: &self.policy }
    }
}

/// Reads and classifies `path` and finds its policy in `library`.
///
/// # Errors
/// Everything that is wrong with the folder, its layouts, or the policy; those of one room at
/// once.
pub fn prepare(path: &Path, role: Role, library: &Library) -> Result<Prepared, Faults> {
    let inventory = read::source(path)?;
    with_policy(inventory, role, library, None)
}

/// As [`prepare`], for an inventory that has been read; `policy` names a policy to use in place
/// of the one that the architecture finds.
///
/// # Errors
/// As [`prepare`].
pub fn with_policy(
    inventory: Inventory,
    role: Role,
    library: &Library,
    policy: Option<&str>,
) -> Result<Prepared, Faults> {
    let entry = match policy {
        None => library.find(&architecture(&inventory.config)?, role),
        Some(name) => library.get(name).ok_or_else(|| {
            let near = crate::format::nearest(name, library.names());
            let fault = Fault::new(Code::NoPolicy, format!("no policy is named `{name}`"));
            match near {
                Some(near) => fault.help(format!("did you mean `{near}`?")),
                None => fault.help("`lathe policy list` shows all"),
            }
        }),
    };
    // What is wrong with the folder and with the policy is told together.
    let mut faults = Faults::default();
    let layouts = Layouts::with_folders(&library.dirs());
    let classified = layouts.and_then(|own| {
        classify::classify_by(own.as_ref().unwrap_or(Layouts::built_in()), &inventory)
    });
    let classified = faults.absorb(classified);
    let policy =
        faults.absorb(entry.map_err(Faults::from).and_then(|entry| library.compile(entry)));
    match (classified, policy) {
        (Some(mut classified), Some(policy)) => {
            if let (Role::Target, Some(decoder)) = (role, &policy.decoder) {
                classified.warnings.extend(other_head(&inventory, decoder)?);
                zeros::leave_out(&inventory, &mut classified, &policy)?;
            }
            Ok(Prepared { inventory, classified, policy })
        }
        _ => Err(faults),
    }
}

/// A warning when the config makes the embedding the head, and there is a head of other numbers.
/// As `transformers` 5 does, that head is used.
fn other_head(inventory: &Inventory, decoder: &Decoder) -> Result<Option<Warning>, Fault> {
    let tensors = &inventory.tensors;
    let find = |name: &str| {
        let index = tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok()?;
        Some(&tensors[index])
    };
    let has = |name: &str| find(name).is_some();
    let (Some(tied), Some((_, embedding)), Some(head)) =
        (&decoder.head.tied, decoder.embedding(has), decoder.own_head(has))
    else {
        return Ok(None);
    };
    let (Some(embedding), Some(head)) = (find(&embedding), find(&head)) else { return Ok(None) };
    // What the condition cannot be told of, running it tells.
    let tied = decoder.scope(&inventory.config).holds(tied).unwrap_or(false);
    if !tied || Values::new(inventory).same(embedding, head)? != Some(false) {
        return Ok(None);
    }
    let message = format!(
        "the config makes the embedding the head (tie_word_embeddings), and {} is there and \
         differs from {}: it is used, as transformers does",
        head.name, embedding.name
    );
    Ok(Some(Warning::new(Code::TiedHead, message).on_tensor(head.name.clone())))
}
