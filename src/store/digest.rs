//! SHA-256 digests, which are the names of blobs.

use std::fmt;
use std::io::Read;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of a blob. Shown as `sha256:<64 hexadecimal digits>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of bytes in memory.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// The digest of all that a reader gives, and its length in bytes.
    pub fn of_reader(mut reader: impl Read) -> std::io::Result<(Digest, u64)> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        let mut length = 0;
        loop {
            match reader.read(&mut buffer)? {
                0 => return Ok((Digest::from(hasher), length)),
                n => {
                    hasher.update(&buffer[..n]);
                    length += n as u64;
                }
            }
        }
    }

    /// The file's name in `blobs/`: `sha256-<hex>`.
    pub fn file_name(&self) -> String {
        format!("sha256-{}", self.hex())
    }

    /// The 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl From<Sha256> for Digest {
    fn from(hasher: Sha256) -> Digest {
        Digest(hasher.finalize().into())
    }
}

impl From<[u8; 32]> for Digest {
    fn from(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }
}

/// Accepts both spellings, `sha256:…` and `sha256-…`.
impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Digest, String> {
        let bad = || format!("\"{text}\" is not a digest (sha256: and 64 hexadecimal digits)");
        let hex = text
            .strip_prefix("sha256:")
            .or_else(|| text.strip_prefix("sha256-"))
            .filter(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
            .ok_or_else(bad)?;
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).map_err(|_| bad())?;
        }
        Ok(Digest(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of FIPS 180-4.
    #[test]
    fn digests_are_sha256() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").hex(), abc);
        assert_eq!(Digest::of_reader(&b"abc"[..]).unwrap(), (Digest::of(b"abc"), 3));
        assert_eq!(Digest::of(b"abc").to_string().parse(), Ok(Digest::of(b"abc")));
        assert_eq!(Digest::of(b"abc").file_name().parse(), Ok(Digest::of(b"abc")));
    }

    #[test]
    fn other_texts_are_not_digests() {
        for bad in ["", "sha256:", "sha256:12", "md5:00", &format!("sha256:{}g", "0".repeat(63))] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
