//! Quantizing on MLX's default device. Only the CPU has been tried.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::kernels::{Float, Out};
use super::quantizer::{Native, Quantizer, made};
use crate::dtype::Dtype;
use crate::fault::{Code, Fault};
use crate::format::Format;
use crate::mlx::{Host, Quantized, from_bytes};

/// MLX, as long as it gives our kernels' bytes: devices round as they like, and a model must
/// not depend on the machine that made it.
#[derive(Default)]
pub struct OnMlx {
    /// Formats and dtypes that have been tried, and whether the bytes were the same.
    tried: Mutex<HashMap<(String, Float), bool>>,
}

/// MLX's float formats take only whole multiples of so many elements.
const MULTIPLE: u64 = 32;

impl Quantizer for OnMlx {
    /// A GPU wants much at a time.
    fn piece(&self) -> u64 {
        32 << 20
    }

    fn quantize(
        &self,
        format: &Format,
        dtype: Float,
        input: &[u8],
        out: Out<'_>,
    ) -> Result<(), Fault> {
        let elements = input.len() as u64 / Dtype::from(dtype).bytes();
        if elements.is_multiple_of(MULTIPLE) && self.agrees(format, dtype)? {
            quantize(format, dtype, input, out)
        } else {
            Native.quantize(format, dtype, input, out)
        }
    }
}

impl OnMlx {
    /// Whether MLX gives our bytes for some numbers of many sizes.
    fn agrees(&self, format: &Format, dtype: Float) -> Result<bool, Fault> {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (format.name.clone(), dtype);
        if let Some(&agrees) = tried.get(&key) {
            return Ok(agrees);
        }
        let width = Dtype::from(dtype).bytes();
        let mut input: Vec<u8> = (0..64 * format.group * width)
            .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        // No exponent of all ones: finite.
        input.iter_mut().skip(width as usize - 1).step_by(width as usize).for_each(|b| *b &= 0xbf);
        let agrees = made(&Native, format, dtype, &input)? == made(&Mlx, format, dtype, &input)?;
        tried.insert(key, agrees);
        Ok(agrees)
    }
}

/// MLX without doubts.
struct Mlx;

impl Quantizer for Mlx {
    fn piece(&self) -> u64 {
        OnMlx::default().piece()
    }

    fn quantize(
        &self,
        format: &Format,
        dtype: Float,
        input: &[u8],
        out: Out<'_>,
    ) -> Result<(), Fault> {
        quantize(format, dtype, input, out)
    }
}

fn quantize(format: &Format, dtype: Float, input: &[u8], out: Out<'_>) -> Result<(), Fault> {
    let dtype = Dtype::from(dtype);
    let groups = input.len() as u64 / (format.group * dtype.bytes());
    let values = from_bytes(input, dtype, &[groups, format.group])?;
    let made = Quantized::quantize(&values, format.into(), None)?;
    let parts = [
        (Some(&made.weight), out.weight),
        (Some(&made.scales), out.scales),
        (made.biases.as_ref(), out.biases),
    ];
    for (array, out) in parts {
        let Some(array) = array else { continue };
        let host = Host::new(array)?;
        if host.bytes().len() != out.len() {
            let (found, wanted) = (host.bytes().len(), out.len());
            let what = format!("MLX gave {found} bytes of {}, not {wanted}", format.name);
            return Err(Fault::new(Code::Compute, what));
        }
        out.copy_from_slice(host.bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::Formats;

    /// What the numbers of a group are.
    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Random,
        Near,
        Constant,
        Tiny,
        Huge,
        Denormal,
        Zero,
        Infinite,
        NotANumber,
    }

    const KINDS: [Kind; 9] = [
        Kind::Random,
        Kind::Near,
        Kind::Constant,
        Kind::Tiny,
        Kind::Huge,
        Kind::Denormal,
        Kind::Zero,
        Kind::Infinite,
        Kind::NotANumber,
    ];

    /// A group of a kind out of random bits, `raw[0]` deciding for all of it.
    fn group(kind: Kind, dtype: Float, raw: &[u32]) -> Vec<u8> {
        let (width, mantissa) = match dtype {
            Float::F32 => (32, 23),
            Float::F16 => (16, 10),
            Float::BF16 => (16, 7),
        };
        let sign = 1u32 << (width - 1);
        let infinity = sign - (1 << mantissa);
        let top = infinity >> mantissa;
        let fraction = (1 << mantissa) - 1;
        // An exponent near that of the group, and never that of infinities.
        let near = |bits: u32, exponent: u32, span: u32| {
            let exponent = (exponent % top).saturating_sub((bits >> 9) % span);
            (bits & (sign | fraction)) | exponent << mantissa
        };
        let one = |(i, &bits): (usize, &u32)| match kind {
            Kind::Random => bits,
            Kind::Near => near(bits, raw[0], 4),
            Kind::Constant => near(raw[0], raw[0] >> 8, 1),
            Kind::Tiny => near(bits, 3, 4),
            Kind::Huge => near(bits, top - 1, 2),
            Kind::Denormal => bits & (sign | fraction),
            Kind::Zero => bits & sign,
            Kind::Infinite if i == raw[0] as usize % raw.len() => infinity | (bits & sign),
            Kind::NotANumber if i == raw[0] as usize % raw.len() => {
                infinity | (bits & (sign | fraction)) | 1 << (mantissa - 1)
            }
            Kind::Infinite | Kind::NotANumber => near(bits, raw[0], 8),
        };
        raw.iter()
            .enumerate()
            .map(one)
            .flat_map(|x| x.to_le_bytes().into_iter().take(width / 8))
            .collect()
    }

    fn cases() -> impl Strategy<Value = (&'static Format, Float, Vec<(Kind, Vec<u32>)>)> {
        let formats: Vec<&'static Format> = Formats::built_in().iter().collect();
        let dtypes = vec![Float::F32, Float::F16, Float::BF16];
        (proptest::sample::select(formats), proptest::sample::select(dtypes)).prop_flat_map(
            |(format, dtype)| {
                let numbers = proptest::collection::vec(any::<u32>(), format.group as usize);
                let group = (proptest::sample::select(&KINDS[..]), numbers);
                proptest::collection::vec(group, 2..12).prop_map(move |mut groups| {
                    // MLX wants whole multiples of 32 elements.
                    groups.truncate(groups.len() / 2 * 2);
                    (format, dtype, groups)
                })
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// Every format and group size, every dtype, numbers of every kind.
        #[test]
        fn our_kernels_give_the_bytes_of_mlx((format, dtype, groups) in cases()) {
            let input: Vec<u8> =
                groups.iter().flat_map(|(kind, raw)| group(*kind, dtype, raw)).collect();
            let [ours, mlx] = [&Native as &dyn Quantizer, &Mlx]
                .map(|quantizer| made(quantizer, format, dtype, &input).unwrap());
            prop_assert_eq!(ours, mlx, "{} {:?}", format.name, dtype);
        }
    }

    #[test]
    fn mlx_is_believed_where_it_gives_our_bytes() {
        let on_mlx = OnMlx::default();
        for format in Formats::built_in().iter() {
            for dtype in [Float::F32, Float::F16, Float::BF16] {
                assert!(on_mlx.agrees(format, dtype).unwrap(), "{} {dtype:?}", format.name);
            }
        }
    }
}
