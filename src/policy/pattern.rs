//! Globs over dotted tensor names.
//!
//! `*` stays inside one segment, `**` crosses segments, `{a,b}` and `[0-9]` as usual. The globset
//! crate does the matching; its separator is `/`, so dots become slashes on both sides.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// The globs of a policy, all matched in one pass over a name.
#[derive(Debug, Default)]
pub struct Patterns {
    sources: Vec<String>,
    set: GlobSet,
}

/// The position of a glob among a policy's [`Patterns`].
pub type GlobId = usize;

/// Collects globs; equal ones are matched once.
pub struct PatternsBuilder {
    sources: Vec<String>,
    builder: GlobSetBuilder,
}

impl Default for PatternsBuilder {
    fn default() -> Self {
        PatternsBuilder { sources: Vec::new(), builder: GlobSetBuilder::new() }
    }
}

impl PatternsBuilder {
    /// Adds a glob, or says why it is none.
    pub fn add(&mut self, glob: &str) -> Result<GlobId, String> {
        if let Some(id) = self.sources.iter().position(|known| known == glob) {
            return Ok(id);
        }
        self.builder.add(compile(glob)?);
        self.sources.push(glob.to_string());
        Ok(self.sources.len() - 1)
    }

    /// The finished set.
    pub fn build(self) -> Result<Patterns, String> {
        let set = self.builder.build().map_err(|error| error.to_string())?;
        Ok(Patterns { sources: self.sources, set })
    }
}

/// Compiles one glob over dotted names.
pub fn compile(glob: &str) -> Result<globset::Glob, String> {
    if glob.is_empty() {
        return Err("an empty glob matches nothing".into());
    }
    if glob.contains('/') {
        return Err("tensor names are dotted: write `.` and not `/`".into());
    }
    GlobBuilder::new(&glob.replace('.', "/"))
        .literal_separator(true)
        .backslash_escape(false)
        .build()
        .map_err(|error| error.kind().to_string())
}

impl Patterns {
    /// The glob as written.
    pub fn source(&self, id: GlobId) -> &str {
        &self.sources[id]
    }

    /// Which globs match `name`: one flag for each.
    pub fn matches(&self, name: &str, hits: &mut Vec<bool>) {
        hits.clear();
        hits.resize(self.sources.len(), false);
        for id in self.set.matches(name.replace('.', "/")) {
            hits[id] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(glob: &str, name: &str) -> bool {
        compile(glob).unwrap().compile_matcher().is_match(name.replace('.', "/"))
    }

    #[test]
    fn stars_stay_in_a_segment_and_double_stars_cross() {
        assert!(hit("**.v_proj.weight", "model.layers.0.self_attn.v_proj.weight"));
        assert!(hit("**.v_proj.weight", "v_proj.weight"));
        assert!(!hit("**.v_proj.weight", "model.kv_proj.weight"));
        assert!(hit("model.*.weight", "model.norm.weight"));
        assert!(!hit("model.*.weight", "model.layers.norm.weight"));
        assert!(hit("**.{k,v}_proj.weight", "a.k_proj.weight"));
        assert!(hit("**.layers.[0-3].**", "m.layers.2.mlp.up.weight"));
        assert!(hit("**.vision*.**", "model.vision_tower.x.weight"));
        assert!(!hit("**.vision*.**", "model.supervision.x.weight"));
    }

    #[test]
    fn bad_globs_say_why() {
        assert!(compile("a.{b").is_err());
        assert!(compile("a/b").unwrap_err().contains("dotted"));
        assert!(compile("a.[0-").is_err());
    }
}
