//! Where a description's names meet a model's: the embedding and the head.

use super::description::Decoder;

impl Decoder {
    /// The root under which the embedding is, and the embedding's whole name, for a model that
    /// `has` tensors.
    pub fn embedding(&self, has: impl Fn(&str) -> bool) -> Option<(&str, String)> {
        let roots: Vec<&str> = match self.root.list() {
            [] => vec![""],
            roots => roots.iter().map(String::as_str).collect(),
        };
        roots.into_iter().find_map(|root| {
            let full = |name: &String| match root {
                "" => name.clone(),
                root => format!("{root}.{name}"),
            };
            let found = self.embed.tensor.list().iter().find_map(|name| weight(&full(name), &has));
            Some((root, found?))
        })
    }

    /// The head's whole name, where the model has one of its own.
    pub fn own_head(&self, has: impl Fn(&str) -> bool) -> Option<String> {
        self.head.tensor.list().iter().find_map(|name| weight(name, &has))
    }
}

/// The whole name of a weight, with or without `.weight`, if the model has it.
fn weight(name: &str, has: impl Fn(&str) -> bool) -> Option<String> {
    [format!("{name}.weight"), name.to_owned()].into_iter().find(|name| has(name))
}
