//! Random numbers of the controller: SplitMix64 (Steele, Lea and Flood 2014), so that what it does
//! is a function of its state and the same everywhere.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Gamma with scale 1 (Marsaglia and Tsang 2000); a shape below 1 through the one above.
    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let uniform = 1.0 - self.uniform();
            return self.gamma(shape + 1.0) * uniform.powf(1.0 / shape);
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let normal = self.normal();
            let v = (1.0 + c * normal).powi(3);
            let uniform = 1.0 - self.uniform();
            if v > 0.0 && uniform.ln() < 0.5 * normal * normal + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }

    /// A rate, of which `hits` and `misses` (both above 0) were seen.
    pub fn beta(&mut self, hits: f64, misses: f64) -> f64 {
        let (a, b) = (self.gamma(hits), self.gamma(misses));
        // Both may be too small for a number where both counts are.
        if a + b > 0.0 { a / (a + b) } else { hits / (hits + misses) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_the_mean_and_the_variance_of_a_beta_distribution() {
        for (a, b) in [(0.3, 0.7), (2.0, 5.0), (40.0, 3.0)] {
            let mut random = Random::new(1);
            let draws: Vec<f64> = (0..20_000).map(|_| random.beta(a, b)).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance =
                draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            let expected = a * b / ((a + b).powi(2) * (a + b + 1.0));
            assert!((mean - a / (a + b)).abs() < 4.0 * (expected / 20_000.0).sqrt(), "{a} {b}");
            assert!((variance / expected - 1.0).abs() < 0.05, "{a} {b}: {variance} {expected}");
        }
    }
}
