//! Whether a model is a copy whose values a converter changed, told by the layout of its tensors.

use globset::GlobBuilder;

use super::description::{Converted, Expr};
use super::values::Scope;
use crate::expr::Reason;

/// What the tensors tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The values are the publisher's.
    Original,
    /// The values are the converter's.
    Converted,
    /// There is no tensor that could tell.
    Nothing,
}

impl Converted {
    /// What a model's tensors, names and shapes, tell.
    ///
    /// # Errors
    /// Why they do not tell it: expressions that fail, shapes that are neither, tensors that
    /// disagree.
    pub fn told<'t>(
        &self,
        scope: &Scope,
        tensors: impl Iterator<Item = (&'t str, Vec<u64>)>,
    ) -> Result<Told, Reason> {
        let glob = self.tensor.replace('.', "/");
        let glob = GlobBuilder::new(&glob).literal_separator(true).build();
        let glob = glob.map_err(|error| format!("`{}` is no glob: {error}", self.tensor))?;
        let glob = glob.compile_matcher();
        let [original, converted] = [axes(scope, &self.original)?, axes(scope, &self.shape)?];
        let mut told = Told::Nothing;
        for (name, shape) in tensors.filter(|(name, _)| glob.is_match(name.replace('.', "/"))) {
            let this = match (fits(&shape, &original), fits(&shape, &converted)) {
                (true, false) => Told::Original,
                (false, true) => Told::Converted,
                _ => {
                    return Err(format!(
                        "{name} is {shape:?}: that does not tell whether {} changed the values",
                        self.by
                    ));
                }
            };
            if told != Told::Nothing && told != this {
                return Err(format!(
                    "{name} is {shape:?} and others are not: a mixture of the original and of what \
                     {} made of it",
                    self.by
                ));
            }
            told = this;
        }
        Ok(told)
    }
}

fn axes(scope: &Scope, shape: &[Option<Expr>]) -> Result<Vec<Option<u64>>, Reason> {
    let axis = |axis: &Option<Expr>| match axis {
        None => Ok(None),
        Some(expr) => match scope.int(expr)?.map(u64::try_from) {
            Some(Ok(size)) => Ok(Some(size)),
            _ => Err(format!("the config does not give {expr:?}, which tells a conversion")),
        },
    };
    shape.iter().map(axis).collect()
}

fn fits(shape: &[u64], wanted: &[Option<u64>]) -> bool {
    shape.len() == wanted.len()
        && shape.iter().zip(wanted).all(|(axis, wanted)| wanted.is_none_or(|size| size == *axis))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(shapes: &[&[u64]]) -> Result<Told, Reason> {
        let text = |text: &str| Some(Expr::Text(text.into()));
        let converted = Converted {
            by: "mlx-lm".into(),
            tensor: "**.conv1d.weight".into(),
            original: vec![None, Some(Expr::Int(1)), text("kernel")],
            shape: vec![None, text("kernel"), Some(Expr::Int(1))],
            format: "mlx".into(),
            key: "quantization".into(),
        };
        let scope = Scope::of_object(&json!({"kernel": 4}), &[]);
        let tensors = shapes.iter().map(|shape| ("model.layers.0.conv1d.weight", shape.to_vec()));
        let other = [("model.norm.weight", vec![8])];
        converted.told(&scope, tensors.chain(other))
    }

    #[test]
    fn a_layout_tells_and_what_does_not_tell_is_refused() {
        assert_eq!(told(&[&[8, 1, 4], &[8, 1, 4]]), Ok(Told::Original));
        assert_eq!(told(&[&[8, 4, 1]]), Ok(Told::Converted));
        assert_eq!(told(&[]), Ok(Told::Nothing));
        assert!(told(&[&[8, 4, 1], &[8, 1, 4]]).unwrap_err().contains("mixture"));
        assert!(told(&[&[8, 4]]).unwrap_err().contains("does not tell whether mlx-lm"));
    }
}
