//! A short, repeatable stand-in for the fuzzer: its corpus, changed in ways that a fixed seed
//! chooses. `fuzz/` holds the real one.

use std::path::Path;

use lathe::classify::hostile;

/// Numbers that look random and are the same every time (Marsaglia's xorshift64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

const WORDS: [&[u8]; 12] = [
    b"-1",
    b"18446744073709551615",
    b"1e999",
    b"[",
    b"{",
    b"\"",
    b"F8_E4M3",
    b"U8",
    b"null",
    b".weight_scale",
    b"\xff",
    hostile::SEPARATOR,
];

fn changed(bytes: &[u8], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=chance.below(4) {
        let at = chance.below(bytes.len());
        match chance.below(5) {
            0 if !bytes.is_empty() => bytes[at] = chance.below(256) as u8,
            1 => bytes.truncate(at),
            2 => {
                let word = WORDS[chance.below(WORDS.len())];
                bytes.splice(at..at, word.iter().copied());
            }
            3 => {
                let word = WORDS[chance.below(WORDS.len())];
                let end = (at + word.len()).min(bytes.len());
                bytes.splice(at..end, word.iter().copied());
            }
            _ => {
                let end = (at + chance.below(64)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
    bytes
}

#[test]
fn no_folder_makes_it_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/folder");
    let mut paths: Vec<_> =
        std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 10);
    let dir = tempfile::tempdir().unwrap();
    let mut chance = Chance(0x1a7e);
    for path in paths {
        let seed = std::fs::read(&path).unwrap();
        hostile::folder(dir.path(), &seed);
        for _ in 0..100 {
            hostile::folder(dir.path(), &changed(&seed, &mut chance));
        }
    }
}
