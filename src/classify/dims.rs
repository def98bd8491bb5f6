//! Shape patterns: `[*, out, in/16]` says what a tensor's axes must be, and tells what it learns.
//!
//! A pattern is a list of terms, one for each axis. A term is a number, a name, a product or
//! quotient of them (`in*bits/32`), or such a quotient rounded up (`ceil(out/rows)`). `*` at the
//! front stands for any leading axes; they must be the same in all patterns of a layout. Quotients
//! without `ceil` must come out even.

use std::collections::BTreeMap;

/// One axis: factors over divisors.
#[derive(Clone, Debug, PartialEq)]
struct Term {
    factors: Vec<Atom>,
    divisors: Vec<Atom>,
    ceil: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Atom {
    Number(u64),
    Name(String),
}

/// A pattern for one tensor's shape.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    /// Whether leading axes may come before the terms.
    leading: bool,
    terms: Vec<Term>,
}

/// What the names stand for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bindings {
    names: BTreeMap<String, u64>,
    /// The leading axes, once a pattern with `*` was seen.
    leading: Option<Vec<u64>>,
}

impl Bindings {
    /// Sets a name.
    pub fn set(&mut self, name: &str, value: u64) {
        self.names.insert(name.into(), value);
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// The leading axes.
    pub fn leading(&self) -> &[u64] {
        self.leading.as_deref().unwrap_or(&[])
    }

    fn describe(&self) -> String {
        let names: Vec<String> = self.names.iter().map(|(n, v)| format!("{n} = {v}")).collect();
        names.join(", ")
    }
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let inner = text
            .trim()
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'))
            .ok_or("a shape pattern is written `[out, in/2]`")?;
        let mut terms = Vec::new();
        let mut leading = false;
        for (n, part) in inner.split(',').map(str::trim).filter(|part| !part.is_empty()).enumerate()
        {
            match part {
                "*" if n == 0 => leading = true,
                "*" => return Err("`*` stands for leading axes and comes first".into()),
                _ => terms.push(Term::parse(part)?),
            }
        }
        Ok(Pattern { text: text.trim().into(), leading, terms })
    }

    /// Whether a tensor of so many axes can fit it.
    pub fn has_room(&self, axes: usize) -> bool {
        axes == self.terms.len() || (self.leading && axes > self.terms.len())
    }

    /// The names that it mentions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().flat_map(|term| term.factors.iter().chain(&term.divisors)).filter_map(
            |atom| match atom {
                Atom::Name(name) => Some(name.as_str()),
                Atom::Number(_) => None,
            },
        )
    }
}

/// Solves several patterns together: each tensor's shape against its pattern, names shared.
///
/// # Errors
/// The index of the tensor that does not fit, and why.
pub fn solve(
    pairs: &[(&Pattern, &[u64])],
    mut bindings: Bindings,
) -> Result<Bindings, (usize, String)> {
    let mut open: Vec<(usize, &Term, u64)> = Vec::new();
    for (n, (pattern, shape)) in pairs.iter().enumerate() {
        let misfit = |why: &str| (n, format!("is {shape:?}, which {why} {}", pattern.text));
        let Some(extra) = shape.len().checked_sub(pattern.terms.len()) else {
            return Err(misfit("has fewer axes than"));
        };
        if extra > 0 && !pattern.leading {
            return Err(misfit("has more axes than"));
        }
        let (leading, axes) = shape.split_at(extra);
        if pattern.leading {
            match &bindings.leading {
                Some(known) if known != leading => {
                    return Err(misfit("has other leading axes than its weight, against"));
                }
                _ => bindings.leading = Some(leading.to_vec()),
            }
        }
        open.extend(pattern.terms.iter().zip(axes).map(|(term, &axis)| (n, term, axis)));
    }
    // Each round learns at least one name, so there are few.
    loop {
        let before = open.len();
        let mut failed = None;
        open.retain(|&(n, term, axis)| match term.meet(axis, &mut bindings) {
            Met::Holds => false,
            Met::Unknown => true,
            Met::Fails => {
                failed.get_or_insert(n);
                true
            }
        });
        if let Some(n) = failed {
            let (pattern, shape) = pairs[n];
            let facts = bindings.describe();
            return Err((
                n,
                format!("is {shape:?}, which does not fit {} for {facts}", pattern.text),
            ));
        }
        if open.is_empty() {
            return Ok(bindings);
        }
        if open.len() == before {
            let (n, ..) = open[0];
            let (pattern, shape) = pairs[n];
            return Err((n, format!("is {shape:?}; that leaves {} open", pattern.text)));
        }
    }
}

enum Met {
    Holds,
    Fails,
    Unknown,
}

impl Term {
    fn parse(text: &str) -> Result<Term, String> {
        let (inner, ceil) = match text.strip_prefix("ceil(").and_then(|t| t.strip_suffix(')')) {
            Some(inner) => (inner, true),
            None => (text, false),
        };
        let mut term = Term { factors: Vec::new(), divisors: Vec::new(), ceil };
        let mut dividing = false;
        let mut rest = inner;
        loop {
            let end = rest.find(['*', '/']).unwrap_or(rest.len());
            let atom = Atom::parse(rest[..end].trim())?;
            if dividing { &mut term.divisors } else { &mut term.factors }.push(atom);
            let Some(sign) = rest[end..].chars().next() else { return Ok(term) };
            dividing = sign == '/';
            rest = &rest[end + 1..];
        }
    }

    /// Holds the term against an axis; learns a name when it is the only unknown one.
    fn meet(&self, axis: u64, bindings: &mut Bindings) -> Met {
        let (above, unknown_above) = known(&self.factors, bindings);
        let (below, unknown_below) = known(&self.divisors, bindings);
        let (Some(above), Some(below)) = (above, below) else { return Met::Fails };
        match (unknown_above.as_slice(), unknown_below.as_slice()) {
            ([], []) => {
                let fits = match self.ceil {
                    true => below > 0 && above.div_ceil(below) == axis,
                    false => below > 0 && axis.checked_mul(below) == Some(above),
                };
                if fits { Met::Holds } else { Met::Fails }
            }
            // A rounded quotient does not tell what was rounded.
            _ if self.ceil => Met::Unknown,
            ([name], []) => learn(name, axis.checked_mul(below), above, bindings),
            ([], [name]) => match axis.checked_mul(below) {
                Some(product) => learn(name, Some(above), product, bindings),
                None => Met::Fails,
            },
            _ => Met::Unknown,
        }
    }
}

/// name = above / below, when that comes out even.
fn learn(name: &str, above: Option<u64>, below: u64, bindings: &mut Bindings) -> Met {
    match above {
        Some(above) if below > 0 && above.is_multiple_of(below) => {
            bindings.set(name, above / below);
            Met::Holds
        }
        _ => Met::Fails,
    }
}

/// The product of what is known (`None` when it overflows), and the names that are not.
fn known<'a>(atoms: &'a [Atom], bindings: &Bindings) -> (Option<u64>, Vec<&'a str>) {
    let mut product = Some(1u64);
    let mut unknown = Vec::new();
    for atom in atoms {
        let value = match atom {
            Atom::Number(number) => Some(*number),
            Atom::Name(name) => bindings.get(name),
        };
        match (value, atom) {
            (Some(value), _) => product = product.and_then(|product| product.checked_mul(value)),
            (None, Atom::Name(name)) => unknown.push(name.as_str()),
            (None, Atom::Number(_)) => {}
        }
    }
    (product, unknown)
}

impl Atom {
    fn parse(text: &str) -> Result<Atom, String> {
        if let Ok(number) = text.parse() {
            return Ok(Atom::Number(number));
        }
        let plain = |c: char| c.is_ascii_lowercase() || c == '_';
        if !text.is_empty() && text.chars().all(plain) {
            return Ok(Atom::Name(text.into()));
        }
        Err(format!("`{text}` is neither a number nor a name of lower-case letters"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn solved(
        pairs: &[(&str, &[u64])],
        known: &[(&str, u64)],
    ) -> Result<Bindings, (usize, String)> {
        let patterns: Vec<Pattern> =
            pairs.iter().map(|(pattern, _)| Pattern::parse(pattern).unwrap()).collect();
        let pairs: Vec<(&Pattern, &[u64])> =
            patterns.iter().zip(pairs).map(|(pattern, (_, shape))| (pattern, *shape)).collect();
        let mut bindings = Bindings::default();
        for (name, value) in known {
            bindings.set(name, *value);
        }
        solve(&pairs, bindings)
    }

    #[test]
    fn packed_widths_tell_the_inputs() {
        let found = solved(&[("[*, out, in/2]", &[128, 64]), ("[*, out, in/16]", &[128, 8])], &[]);
        let found = found.unwrap();
        assert_eq!((found.get("out"), found.get("in")), (Some(128), Some(128)));
        assert!(found.leading().is_empty());
        let odd = solved(&[("[*, out, in/2]", &[128, 30]), ("[*, out, in/16]", &[128, 4])], &[]);
        assert_eq!(odd.unwrap_err().0, 1);
    }

    #[test]
    fn names_are_learnt_in_any_order() {
        // GPTQ: bits come from the zero points, then the inputs, then the group.
        let pairs: [(&str, &[u64]); 3] = [
            ("[in*bits/32, out]", &[40, 256]),
            ("[in/group, out*bits/32]", &[5, 32]),
            ("[in/group, out]", &[5, 256]),
        ];
        let found = solved(&pairs, &[]).unwrap();
        assert_eq!(found.get("bits"), Some(4));
        assert_eq!(found.get("in"), Some(320));
        assert_eq!(found.get("group"), Some(64));
    }

    #[test]
    fn leading_axes_agree_and_blocks_round_up() {
        let block = [("rows", 128), ("cols", 128)];
        let grid = "[*, ceil(out/rows), ceil(in/cols)]";
        let case = |weight: &'static [u64], scale: &'static [u64]| {
            solved(&[("[*, out, in]", weight), (grid, scale)], &block)
        };
        assert!(case(&[256, 320], &[2, 3]).is_ok());
        assert_eq!(case(&[8, 256, 320], &[8, 2, 3]).unwrap().leading(), [8]);
        assert!(case(&[8, 256, 320], &[7, 2, 3]).is_err());
        assert!(case(&[128, 128], &[4, 4]).is_err());
        assert!(case(&[128], &[1]).is_err());
        assert!(solved(&[("[*]", &[])], &[]).is_ok(), "no leading axes: a scalar");
    }

    #[test]
    fn nonsense_is_told() {
        for text in ["out", "[out, *]", "[out/]", "[Out]", "[ceil(out/rows]"] {
            assert!(Pattern::parse(text).is_err(), "{text}");
        }
        let open = solved(&[("[in*bits]", &[8])], &[]);
        assert!(open.unwrap_err().1.contains("open"));
        assert!(solved(&[("[in*2]", &[u64::MAX])], &[("in", u64::MAX)]).is_err());
    }
}
