//! Plain loops, of which compilers make vectors for each set of instructions.

/// Functions that are compiled once for each set of instructions and call the chosen one. What they
/// call is compiled so too where it is `#[inline(always)]`. They compute alike with all sets:
/// nothing makes one rounding of a product and a sum.
macro_rules! vectorized {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident$(<$of:ident: $bound:path>)?($($given:ident: $type:ty),* $(,)?)
        $(-> $made:ty)? $body:block
    )+) => {$(
        $(#[$meta])*
        $vis fn $name$(<$of: $bound>)?($($given: $type),*) $(-> $made)? {
            #[inline(always)]
            fn plain$(<$of: $bound>)?($($given: $type),*) $(-> $made)? $body
            #[cfg(target_arch = "x86_64")]
            if $crate::Instructions::chosen() != $crate::Instructions::Portable {
                #[target_feature(enable = "avx2,fma")]
                fn wide$(<$of: $bound>)?($($given: $type),*) $(-> $made)? {
                    plain$(::<$of>)?($($given),*)
                }
                // SAFETY: whatever is chosen on x86 has these.
                return unsafe { wide$(::<$of>)?($($given),*) };
            }
            plain$(::<$of>)?($($given),*)
        }
    )+};
}
pub(crate) use vectorized;

/// x, and zero where its size is less. Compilers multiply before they choose where a factor is a
/// constant or the same choice, and meet what is subnormal: x × x is x × at_least(…, x).
#[inline(always)]
pub fn at_least(least: f32, x: f32) -> f32 {
    if x.abs() < least { 0.0 } else { x }
}

/// The sum of products, in 32 parts.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    const PARTS: usize = 32;
    let mut sums = [0.0; PARTS];
    let (a, b) = (a.chunks_exact(PARTS), b.chunks_exact(PARTS));
    for (sum, (a, b)) in sums.iter_mut().zip(a.remainder().iter().zip(b.remainder())) {
        *sum = a * b;
    }
    for (a, b) in a.zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let mut half = PARTS / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0]
}
