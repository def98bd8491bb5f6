//! Element types, under the names that safetensors gives them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! dtypes {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal, $bytes:literal, $class:ident;)+) => {
        /// The dtype of a tensor in a safetensors file.
        #[allow(missing_docs, reason = "most names say all of it")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
        pub enum Dtype { $($(#[doc = $doc])* #[serde(rename = $text)] $name,)+ }

        impl Dtype {
            /// The name in a safetensors header.
            pub const fn as_str(self) -> &'static str {
                match self { $(Dtype::$name => $text,)+ }
            }

            /// Bytes of one element.
            pub const fn bytes(self) -> u64 {
                match self { $(Dtype::$name => $bytes,)+ }
            }

            /// What kind of number it is.
            pub const fn class(self) -> DtypeClass {
                match self { $(Dtype::$name => DtypeClass::$class,)+ }
            }
        }

        impl FromStr for Dtype {
            type Err = ();

            fn from_str(text: &str) -> Result<Self, ()> {
                match text { $($text => Ok(Dtype::$name),)+ _ => Err(()) }
            }
        }
    };
}

/// What kind of number a dtype holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DtypeClass {
    /// 16 bits and more: what a policy may quantize.
    Float,
    /// 8-bit floats, which need a scale beside them.
    Float8,
    /// Integers and booleans: packed weights, indices, masks.
    Integer,
}

dtypes! {
    Bool = "BOOL", 1, Integer;
    U8 = "U8", 1, Integer;
    I8 = "I8", 1, Integer;
    /// OCP 8-bit float: 4 exponent bits, 3 mantissa bits, no infinities.
    F8E4M3 = "F8_E4M3", 1, Float8;
    /// OCP 8-bit float: 5 exponent bits, 2 mantissa bits.
    F8E5M2 = "F8_E5M2", 1, Float8;
    F8E4M3Fnuz = "F8_E4M3FNUZ", 1, Float8;
    F8E5M2Fnuz = "F8_E5M2FNUZ", 1, Float8;
    /// A power of two, 2^(b-127): the scale of the MX formats.
    F8E8M0 = "F8_E8M0", 1, Float8;
    I16 = "I16", 2, Integer;
    U16 = "U16", 2, Integer;
    F16 = "F16", 2, Float;
    BF16 = "BF16", 2, Float;
    I32 = "I32", 4, Integer;
    U32 = "U32", 4, Integer;
    F32 = "F32", 4, Float;
    I64 = "I64", 8, Integer;
    U64 = "U64", 8, Integer;
    F64 = "F64", 8, Float;
}

impl Dtype {
    /// What its values are cast to before they are quantized: formats have no scales of F64.
    pub fn quantized_from(self) -> Dtype {
        if self == Dtype::F64 { Dtype::F32 } else { self }
    }

    /// Whether it is a float of 16 bits or more.
    pub fn is_float(self) -> bool {
        self.class() == DtypeClass::Float
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
