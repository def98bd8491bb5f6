//! What a config says of a rotation, read so that it has one meaning.

use indexmap::IndexMap;
use serde_json::Value as Json;

use super::description::Rope;
use super::{KINDS, Kind, ORIGINAL, WITHOUT_TYPE, powers};
use crate::decoder::values::{Expr, Scope};

/// Where a config gives the object when the description does not say: the first that is there.
pub(in crate::decoder) const USUAL: [&str; 2] = ["rope_scaling", "rope_parameters"];

/// Why what a config says cannot be taken as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Unclear {
    /// What it says, where, and how that can be read.
    pub what: String,
    /// What to do.
    pub help: String,
    /// Whether readers take it in different ways, rather than that it lacks or misstates something.
    pub ambiguous: bool,
}

/// What a config says of a rotation.
#[derive(Clone, Debug)]
pub struct Given {
    /// Where the object stands in config.json.
    pub path: String,
    /// The object; null when there is none.
    pub parameters: Json,
    /// What the config's class takes a `rope_type` for, where that is another kind.
    pub kinds: IndexMap<String, String>,
    /// The base, where the object does not give it.
    pub theta: Option<f64>,
    /// Which part of a head is rotated, where the object does not say. `None` for descriptions that
    /// do not speak of it: the plain rotation of their classes turns whole heads whatever the object
    /// says (a leftover of another class), as in transformers.
    pub partial: Option<f64>,
    /// Elements of a head.
    pub head_dim: usize,
    /// The length that the config gives the model, in tokens (`max_position_embeddings`).
    pub context: Option<f64>,
    /// The length trained first, where it stands beside the object. It then wins over the
    /// object's.
    pub original: Option<f64>,
}

/// What to do about a number that cannot be meant.
const MEND: &str = "correct config.json";

impl Given {
    /// What `scope`, where the description stands, says of the rotation of heads of `head_dim`
    /// elements.
    ///
    /// # Errors
    /// When an expression has no value of the right type.
    pub fn of(scope: &Scope, rope: &Rope, head_dim: usize) -> Result<Given, crate::expr::Reason> {
        let found = match &rope.parameters {
            None => scope.first_given(&USUAL),
            Some(expr) => scope.object(expr)?,
        };
        let (path, parameters) = found.unwrap_or_else(|| (USUAL[1].into(), Json::Null));
        let number = |expr: &Option<Expr>| match expr {
            Some(expr) => scope.float(expr),
            None => Ok(None),
        };
        let or = |expr: &Option<Expr>, usual: &str| match expr {
            Some(expr) => scope.float(expr),
            None => scope.float(&Expr::Text(usual.into())),
        };
        Ok(Given {
            path,
            parameters,
            kinds: rope.kinds.clone(),
            theta: number(&rope.theta)?,
            partial: match &rope.partial {
                Some(_) => Some(number(&rope.partial)?.unwrap_or(1.0)),
                None => None,
            },
            head_dim,
            context: or(&rope.context, "max_position_embeddings")?,
            original: or(&rope.original, ORIGINAL)?,
        })
    }

    pub(super) fn unclear(&self, what: impl std::fmt::Display, help: impl Into<String>) -> Unclear {
        let what = format!("{} of the config {what}", self.path);
        Unclear { what, help: help.into(), ambiguous: false }
    }

    pub(super) fn ambiguous(
        &self,
        what: impl std::fmt::Display,
        help: impl Into<String>,
    ) -> Unclear {
        Unclear { ambiguous: true, ..self.unclear(what, help) }
    }

    pub(super) fn value(&self, key: &str) -> Option<&Json> {
        self.parameters.get(key).filter(|value| !value.is_null())
    }

    /// A number that is there; what is there and no number is an error.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, Unclear> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let wrong = || {
            let what = format!("gives `{key}: {value}`, and it should be a number");
            self.unclear(what, "correct config.json")
        };
        value.as_f64().map(Some).ok_or_else(wrong)
    }

    pub(super) fn needed(&self, key: &str) -> Result<f64, Unclear> {
        self.number(key)?.ok_or_else(|| {
            let what = format!("says `rope_type: {}` and lacks `{key}`", self.kind_name());
            self.unclear(what, format!("add `{key}` to config.json: transformers needs it too"))
        })
    }

    /// A number above 0 that must be there.
    pub(super) fn positive(&self, key: &str) -> Result<f64, Unclear> {
        let value = self.needed(key)?;
        if value > 0.0 {
            return Ok(value);
        }
        Err(self.unclear(format!("gives `{key}: {value}`, and it should be above 0"), MEND))
    }

    fn kind_name(&self) -> &str {
        let name = self.value("rope_type").or_else(|| self.value("type"));
        let name = name.and_then(Json::as_str).unwrap_or("default");
        self.kinds.get(name).map_or(name, String::as_str)
    }

    /// Whether the object is one of several, by the kind of layer.
    pub(super) fn is_one_of_several(&self) -> bool {
        let ends = |key: &&str| self.path.ends_with(*key);
        USUAL.iter().any(|key| self.path.contains(key)) && !USUAL.iter().any(ends)
    }

    /// The kind, if the object names one in one way only.
    pub(super) fn kind(&self) -> Result<&'static Kind, Unclear> {
        let entries = match &self.parameters {
            Json::Object(entries) => entries,
            Json::Null => return Ok(&KINDS[0]),
            other => {
                let what = format!("is {other}, and it should be an object with `rope_type`");
                return Err(self.unclear(what, MEND));
            }
        };
        if let Some((inner, _)) = entries.iter().find(|(_, value)| value.is_object()) {
            return Err(self.ambiguous(
                format!(
                    "holds an object for a kind of layer (`{inner}`), and this decoder reads one \
                     for all layers: `{inner}` could be meant for all, or for none (transformers \
                     then takes the plain rotation)"
                ),
                "move what is in it one level up in config.json, or let the policy's \
                 `rope.parameters` ask by the kind of layer",
            ));
        }
        if let (Some(Json::Null), old) = (entries.get("rope_type"), self.value("type")) {
            let other = old.map_or("absent (the plain rotation)".into(), |old| format!("{old}"));
            return Err(self.ambiguous(
                format!(
                    "gives `rope_type: null`: it could be taken as {other}, and as null, on which \
                     transformers fails"
                ),
                "name one kind in `rope_type`, or leave it out of config.json",
            ));
        }
        let name = self.kind_name();
        if let (Some(new), Some(old)) = (self.value("rope_type"), self.value("type"))
            && new != old
            && Kind::named(new.as_str().unwrap_or("")).map(|kind| kind.names)
                != Kind::named(old.as_str().unwrap_or("")).map(|kind| kind.names)
        {
            return Err(self.ambiguous(
                format!(
                    "says `rope_type: {new}` and `type: {old}`: transformers takes the first, and \
                     others the second"
                ),
                "leave one of the two in config.json",
            ));
        }
        let untyped = self.value("rope_type").or_else(|| self.value("type")).is_none();
        let scales = KINDS
            .iter()
            .flat_map(|kind| kind.keys)
            .find(|key| untyped && !WITHOUT_TYPE.contains(key) && self.value(key).is_some());
        if let Some(key) = scales {
            return Err(self.ambiguous(
                format!(
                    "gives `{key}` and no `rope_type`: a kind that it belongs to could be meant, \
                     or the plain rotation, which transformers takes"
                ),
                format!(
                    "name the kind in config.json (known are {}), or leave `{key}` out",
                    Kind::all_names()
                ),
            ));
        }
        for key in ["rope_theta", "partial_rotary_factor"] {
            if entries.get(key).is_some_and(Json::is_null) {
                return Err(self.ambiguous(
                    format!(
                        "gives `{key}: null`: the value beside the object could be meant, or none, \
                         on which transformers fails"
                    ),
                    format!("give `{key}` a number in config.json, or leave it out"),
                ));
            }
        }
        Kind::named(name).ok_or_else(|| {
            self.unclear(
                format!("says `rope_type: {name}`, which is not known"),
                format!("known are {}", Kind::all_names()),
            )
        })
    }

    pub(super) fn theta(&self) -> Result<f64, Unclear> {
        match self.number("rope_theta")?.or(self.theta) {
            Some(theta) if theta > 0.0 => Ok(theta),
            Some(theta) => Err(self
                .unclear(format!("gives `rope_theta: {theta}`, and it should be above 0"), MEND)),
            None => Err(Unclear {
                what: "the config gives no base for rotary positions (`rope_theta`)".into(),
                help: "add it to config.json, or a default to `rope.theta` of the policy".into(),
                ambiguous: false,
            }),
        }
    }

    /// Elements of a head that are turned.
    pub(super) fn dims(&self) -> Result<f64, Unclear> {
        let said = self.number("partial_rotary_factor")?;
        // The first kind is the plain rotation.
        let said =
            said.filter(|_| self.partial.is_some() || !KINDS[0].names.contains(&self.kind_name()));
        let partial = said.or(self.partial).unwrap_or(1.0);
        if partial > 0.0 && partial <= 1.0 {
            return Ok((self.head_dim as f64 * partial).floor());
        }
        let what =
            format!("has {partial} of a head rotated, and it should be more than 0 and at most 1");
        Err(self.unclear(what, MEND))
    }

    pub(super) fn plain(&self) -> Result<Vec<f64>, Unclear> {
        let dims = self.dims()?;
        // An odd number of elements makes a last pair of its own, as in transformers.
        Ok(powers(self.theta()?, dims, (dims / 2.0).ceil() as usize))
    }

    pub(super) fn context(&self) -> Result<f64, Unclear> {
        self.context.filter(|&context| context > 0.0).ok_or_else(|| {
            let what = format!(
                "says `rope_type: {}`, and the config gives no length to go with it \
                 (`max_position_embeddings`)",
                self.kind_name()
            );
            self.unclear(what, "add it to config.json")
        })
    }

    /// The length trained first: beside the object, in it, or the only one that there is.
    pub(super) fn trained(&self) -> Result<f64, Unclear> {
        match self.original.filter(|&original| original > 0.0) {
            Some(beside) => Ok(beside),
            None => match self.number(ORIGINAL)? {
                Some(inside) if inside > 0.0 => Ok(inside),
                _ => self.context(),
            },
        }
    }

    /// `factor`, or what the lengths make it where it is absent or null.
    pub(super) fn factor_or_ratio(&self) -> Result<f64, Unclear> {
        match self.number("factor")? {
            Some(factor) => Ok(factor),
            None => Ok(self.context()? / self.trained()?),
        }
    }
}
