//! Where a description's names meet a model's: the embedding and the head.

use super::description::Decoder;

impl Decoder {
    /// The roots that names may hang on.
    pub fn roots(&self) -> impl Iterator<Item = &str> {
        let roots = self.root.list();
        let top = roots.is_empty().then_some("");
        roots.iter().map(String::as_str).chain(top)
    }

    /// The root under which the embedding is, and the embedding's whole name, for a model that
    /// `has` tensors.
    pub fn embedding(&self, has: impl Fn(&str) -> bool) -> Option<(&str, String)> {
        self.roots().find_map(|root| {
            let names = self.embed.tensor.list().iter();
            let found = names.map(|name| under(root, name)).find_map(|name| weight(&name, &has));
            Some((root, found?))
        })
    }

    /// For a model that has a head and no embedding: the root under which its first layer is, what
    /// the embedding would be called, and the head's whole name. A tied model may be stored so, and
    /// its head is its embedding, as in transformers.
    pub fn head_alone<'n>(
        &self,
        names: impl Iterator<Item = &'n String> + Clone,
    ) -> Option<(&str, String, String)> {
        let has = |name: &str| names.clone().any(|known| known == name);
        if self.embedding(has).is_some() {
            return None;
        }
        let head = self.own_head(has)?;
        let first = format!("{}.", self.layers.tensor.replace("{i}", "0"));
        let holds_layers = |root: &&str| {
            let first = under(root, &first);
            names.clone().any(|name| name.starts_with(&first))
        };
        let root = self.roots().find(holds_layers)?;
        let embedding = format!("{}.weight", under(root, self.embed.tensor.list().first()?));
        Some((root, embedding, head))
    }

    /// The head's whole name, where the model has one of its own.
    pub fn own_head(&self, has: impl Fn(&str) -> bool) -> Option<String> {
        self.head.tensor.list().iter().find_map(|name| weight(name, &has))
    }
}

fn under(root: &str, name: &str) -> String {
    if root.is_empty() { name.to_owned() } else { format!("{root}.{name}") }
}

/// The whole name of a weight, with or without `.weight`, if the model has it.
fn weight(name: &str, has: impl Fn(&str) -> bool) -> Option<String> {
    [format!("{name}.weight"), name.to_owned()].into_iter().find(|name| has(name))
}
