//! Whether a model's files make a vocabulary that lathe reads.

use crate::fault::{Code, Fault};

/// A kind of vocabulary, by its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// `tokenizer.json`: all that is to be known.
    TokenizerJson,
    /// Mistral's `tekken.json`.
    Tekken,
    /// SentencePiece's `tokenizer.model`.
    SentencePiece,
    /// `vocab.json` and `merges.txt`: byte-level pairs, as GPT-2's.
    Merges,
}

/// Each kind and its files; the first that is whole is the model's.
const KINDS: [(Vocabulary, &[&str]); 4] = [
    (Vocabulary::TokenizerJson, &["tokenizer.json"]),
    (Vocabulary::Tekken, &["tekken.json"]),
    (Vocabulary::SentencePiece, &["tokenizer.model"]),
    (Vocabulary::Merges, &["vocab.json", "merges.txt"]),
];

/// Forms that occur and are not read, by the end of a file's name, and what each is.
const OTHERS: [(&str, &str); 8] = [
    (".tiktoken", "is ranked byte strings, which do not say how text is cut"),
    ("tiktoken.model", "is ranked byte strings, which do not say how text is cut"),
    ("vocab.txt", "is a WordPiece vocabulary"),
    (".spm", "is a SentencePiece vocabulary under another name"),
    ("spiece.model", "is a SentencePiece vocabulary under another name"),
    ("bpe.model", "is a SentencePiece vocabulary under another name"),
    ("vocab.json", "lacks its merges.txt"),
    ("merges.txt", "lacks its vocab.json"),
];

/// Of these file names, the vocabulary that they make; `None` when they make none.
pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Vocabulary> {
    let names: Vec<&str> = names.into_iter().collect();
    let whole = |files: &[&str]| files.iter().all(|file| names.contains(file));
    KINDS.iter().find(|(_, files)| whole(files)).map(|(kind, _)| *kind)
}

/// What is to be said of files that make no vocabulary: what is there instead, and what to do.
pub fn none_in<'a>(names: impl IntoIterator<Item = &'a str>) -> Fault {
    let instead = names.into_iter().find_map(|name| {
        let (_, what) = OTHERS.iter().find(|(end, _)| name.ends_with(end))?;
        Some(format!(": {name} {what}"))
    });
    let what = format!("the model carries no vocabulary{}", instead.unwrap_or_default());
    Fault::new(Code::Tokenizer, what).help(
        "put the model's tokenizer.json (transformers writes one), or tekken.json, tokenizer.model, \
         or vocab.json and merges.txt into its folder and create the model again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_vocabulary_are_told_from_others() {
        assert_eq!(of(["config.json"]), None);
        assert_eq!(of(["vocab.json", "tokenizer_config.json"]), None);
        assert_eq!(of(["vocab.json", "merges.txt"]), Some(Vocabulary::Merges));
        let all = ["vocab.json", "merges.txt", "tokenizer.model", "tokenizer.json"];
        assert_eq!(of(all), Some(Vocabulary::TokenizerJson));
        assert_eq!(of(all[..3].iter().copied()), Some(Vocabulary::SentencePiece));
    }

    #[test]
    fn what_is_there_instead_is_named() {
        let said = |names: &[&str]| none_in(names.iter().copied()).message;
        assert_eq!(said(&["config.json"]), "the model carries no vocabulary");
        assert!(said(&["qwen.tiktoken"]).contains("qwen.tiktoken is ranked byte strings"));
        assert!(said(&["vocab.txt"]).contains("WordPiece"));
        assert!(said(&["vocab.json"]).contains("lacks its merges.txt"));
    }
}
