//! Which instructions products and attention are computed with: chosen once, when they are first
//! asked for, or by whoever knows better before that.

use std::sync::OnceLock;

/// Instructions that there are loops for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// What every processor has.
    Portable,
    /// Vectors of 256 bits on x86.
    Avx2,
    /// Vectors of 512 bits on x86 where they are faster.
    Avx512,
}

static CHOSEN: OnceLock<Instructions> = OnceLock::new();

impl Instructions {
    /// All of them, the fastest first.
    pub const ALL: [Instructions; 3] =
        [Instructions::Avx512, Instructions::Avx2, Instructions::Portable];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Instructions::Portable => "portable",
            Instructions::Avx2 => "avx2",
            Instructions::Avx512 => "avx512",
        }
    }

    /// What a processor must have.
    pub fn needs(self) -> &'static [&'static str] {
        match self {
            Instructions::Portable => &[],
            Instructions::Avx2 => &["AVX2", "FMA", "F16C"],
            Instructions::Avx512 => {
                &["AVX2", "FMA", "F16C", "AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL"]
            }
        }
    }

    /// Whether this processor has it.
    pub fn is_there(self) -> bool {
        match self {
            Instructions::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => super::x86::there(),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => super::x86::wide::there(),
            #[cfg(not(target_arch = "x86_64"))]
            Instructions::Avx2 | Instructions::Avx512 => false,
        }
    }

    /// Those that are used.
    pub fn chosen() -> Instructions {
        #[cfg(test)]
        if let Some(instructions) = super::tests::environment::instructions() {
            return instructions;
        }
        *CHOSEN.get_or_init(|| {
            let there = Instructions::ALL.into_iter().find(|known| known.is_there());
            there.unwrap_or(Instructions::Portable)
        })
    }
}
