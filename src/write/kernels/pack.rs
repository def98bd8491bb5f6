//! Small integers, one a byte, packed into a little-endian stream of bits.
//!
//! MLX's packed words are such a stream for every width: u32 words for 2, 4 and 8 bits, runs of 3
//! bytes for 3 and 6 bits, of 5 bytes for 5 bits.

/// Packs `codes` (each below 2^BITS, a multiple of 8 of them) into `out`.
#[inline(always)]
pub fn pack<const BITS: usize>(codes: &[u8], out: &mut [u8]) {
    if BITS == 8 {
        out.copy_from_slice(codes);
        return;
    }
    let (codes, _) = codes.as_chunks::<8>();
    let (out, _) = out.as_chunks_mut::<BITS>();
    for (codes, out) in codes.iter().zip(out) {
        let packed = pack_eight(u64::from_le_bytes(*codes), BITS as u32).to_le_bytes();
        *out = packed[..BITS].try_into().expect("BITS bytes");
    }
}

/// Packs by a width that is known at run time: 2 to 6 or 8.
#[inline(always)]
pub fn pack_any(bits: u32, codes: &[u8], out: &mut [u8]) {
    match bits {
        2 => pack::<2>(codes, out),
        3 => pack::<3>(codes, out),
        4 => pack::<4>(codes, out),
        5 => pack::<5>(codes, out),
        6 => pack::<6>(codes, out),
        8 => pack::<8>(codes, out),
        _ => unreachable!("no format has {bits} bits"),
    }
}

/// Eight codes in eight bytes to `bits` bytes: pairs, then pairs of pairs, then both halves close
/// the gaps between them.
#[inline(always)]
fn pack_eight(codes: u64, bits: u32) -> u64 {
    let pairs = (codes & 0x00ff_00ff_00ff_00ff) | ((codes & 0xff00_ff00_ff00_ff00) >> (8 - bits));
    let quads =
        (pairs & 0x0000_ffff_0000_ffff) | ((pairs & 0xffff_0000_ffff_0000) >> (16 - 2 * bits));
    (quads & 0xffff_ffff) | ((quads >> 32) << (4 * bits))
}

/// Undoes [`pack`]: `bits` bits a code, `out.len()` codes, a multiple of 8.
pub fn unpack(bits: u32, packed: &[u8], out: &mut [u8]) {
    if bits == 8 {
        out.copy_from_slice(packed);
        return;
    }
    let mask = (1u64 << bits) - 1;
    for (packed, out) in packed.chunks_exact(bits as usize).zip(out.chunks_exact_mut(8)) {
        let mut word = [0; 8];
        word[..packed.len()].copy_from_slice(packed);
        let word = u64::from_le_bytes(word);
        for (i, code) in out.iter_mut().enumerate() {
            *code = ((word >> (bits * i as u32)) & mask) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_a_little_endian_stream_of_bits() {
        for bits in [2u32, 3, 4, 5, 6, 8] {
            let codes: Vec<u8> = (0..64u32).map(|i| ((i * 37 + 11) % (1 << bits)) as u8).collect();
            let mut packed = vec![0; 64 * bits as usize / 8];
            pack_any(bits, &codes, &mut packed);
            for (i, &code) in codes.iter().enumerate() {
                for bit in 0..bits as usize {
                    let at = i * bits as usize + bit;
                    assert_eq!((packed[at / 8] >> (at % 8)) & 1, (code >> bit) & 1);
                }
            }
            let mut back = vec![0; 64];
            unpack(bits, &packed, &mut back);
            assert_eq!(back, codes);
        }
    }
}
