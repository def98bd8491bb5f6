//! Functions of each element, by themselves and as gates of others.

use super::by_parts;
use super::functions::{gelu, gelu_tanh, sigmoid, silu, softplus, tanh};
use crate::vectorized::{at_least, vectorized};

/// What leaves and is less is zero: it is nothing beside others, and its products with the smallest
/// weights and their scales would be subnormal. About 1e-24.
const LEAST: f32 = 1.0 / (1_u128 << 80) as f32;

/// A function of one number, by a type, so that loops are made for each.
trait Function: Copy + Sync {
    fn of(self, x: f32) -> f32;
}

macro_rules! functions {
    ($($(#[$doc:meta])+ $name:ident = $function:expr;)+) => {
        /// A function of an element, mostly of a gate.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Gate { $($(#[$doc])+ $name,)+ }

        $(
            #[derive(Clone, Copy)]
            struct $name;

            impl Function for $name {
                #[inline(always)]
                fn of(self, x: f32) -> f32 {
                    $function(x)
                }
            }
        )+

        impl Gate {
            /// All there are.
            pub const ALL: &'static [Gate] = &[$(Gate::$name,)+];

            /// The function of each `gate`, times `by`, in its place.
            ///
            /// # Panics
            /// When lengths do not fit each other.
            pub fn apply(self, gate: &mut [f32], by: &[f32]) {
                assert_eq!(gate.len(), by.len(), "lengths");
                match self {
                    $(Gate::$name => by_parts(gate, &|from, gate| {
                        gated(gate, &by[from..from + gate.len()], $name);
                    }),)+
                }
            }

            /// The function of each, in its place.
            pub fn of(self, x: &mut [f32]) {
                match self {
                    $(Gate::$name => by_parts(x, &|_, x| of_each(x, $name)),)+
                }
            }
        }
    };
}

functions! {
    /// x × sigmoid(x) (Elfwing et al. 2017).
    Silu = silu;
    /// x × Φ(x) (Hendrycks and Gimpel 2016).
    Gelu = gelu;
    /// x × Φ(x), by tanh.
    GeluTanh = gelu_tanh;
    /// sigmoid(x).
    Sigmoid = sigmoid;
    /// tanh(x).
    Tanh = tanh;
    /// max(x, 0).
    Relu = positive;
    /// max(x, 0)² (So et al. 2021).
    Relu2 = square_of_positive;
    /// ln(1 + e^x).
    Softplus = softplus;
}

#[inline(always)]
fn positive(x: f32) -> f32 {
    x.max(0.0)
}

#[inline(always)]
fn square_of_positive(x: f32) -> f32 {
    let x = x.max(0.0);
    x * at_least(1.0 / (1_u64 << 51) as f32, x)
}

vectorized! {
    fn gated<F: Function>(gate: &mut [f32], by: &[f32], function: F) {
        for (gate, by) in gate.iter_mut().zip(by) {
            *gate = at_least(LEAST, function.of(*gate) * by);
        }
    }

    fn of_each<F: Function>(x: &mut [f32], function: F) {
        x.iter_mut().for_each(|x| *x = at_least(LEAST, function.of(*x)));
    }

    fn clamped(gate: &mut [f32], up: &[f32], limits: [f32; 2]) {
        let [limit, alpha] = limits;
        for (gate, up) in gate.iter_mut().zip(up) {
            let open = if *gate > limit { limit } else { *gate };
            let up = if *up > limit { limit } else { *up };
            let up = if up < -limit { -limit } else { up };
            *gate = at_least(LEAST, open * sigmoid(alpha * open) * (up + 1.0));
        }
    }

    fn bent(x: &mut [f32], cap: f32) {
        let scale = 1.0 / cap;
        x.iter_mut().for_each(|x| *x = at_least(LEAST, cap * tanh(*x * scale)));
    }
}

/// g × sigmoid(alpha × g) × (u + 1) in the place of each `gate`, where g is the gate but at most
/// `limit`, and u the `up` but at most that in size (OpenAI 2025, gpt-oss).
///
/// # Panics
/// When lengths do not fit each other.
pub fn clamped_gate(gate: &mut [f32], up: &[f32], limit: f32, alpha: f32) {
    assert_eq!(gate.len(), up.len(), "lengths");
    by_parts(gate, &|from, gate| clamped(gate, &up[from..from + gate.len()], [limit, alpha]));
}

/// cap × tanh(x / cap) of each, in its place (Gemma 2).
pub fn soft_cap(x: &mut [f32], cap: f32) {
    by_parts(x, &|_, x| bent(x, cap));
}

#[cfg(test)]
mod tests {
    use super::super::MANY;
    use super::*;
    use crate::Instructions;
    use crate::tests::environment::Environment;

    /// Φ by its series, and where that loses everything by its continued fraction.
    fn normal_distribution(x: f64) -> f64 {
        let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        if x.abs() < 3.0 {
            let (mut sum, mut term) = (x, x);
            for i in 1..80 {
                term *= x * x / f64::from(2 * i + 1);
                sum += term;
            }
            return 0.5 + density * sum;
        }
        let mut below = x.abs();
        for i in (1..200).rev() {
            below = x.abs() + f64::from(i) / below;
        }
        if x < 0.0 { density / below } else { 1.0 - density / below }
    }

    fn wanted(gate: Gate, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match gate {
            Gate::Silu => x * sigmoid(x),
            Gate::Gelu => x * normal_distribution(x),
            Gate::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }
            Gate::Sigmoid => sigmoid(x),
            Gate::Tanh => x.tanh(),
            Gate::Relu => x.max(0.0),
            Gate::Relu2 => x.max(0.0).powi(2),
            Gate::Softplus => x.exp().ln_1p(),
        }
    }

    /// Each by its definition in f64, with all instructions, by itself and as a gate.
    #[test]
    fn gates_are_what_they_are_defined_to_be() {
        assert!((normal_distribution(-3.1) - 9.676_032_132_183_5e-4).abs() < 1e-15);
        let x: Vec<f32> = (-4000..=4000).map(|i| i as f32 / 200.0).collect();
        let by: Vec<f32> = x.iter().map(|x| 0.5 - x / 10.0).collect();
        let close = |found: f32, wanted: f64| {
            (f64::from(found) - wanted).abs() <= 2e-6 * wanted.abs().max(1e-3)
        };
        for instructions in Instructions::ALL.into_iter().filter(|known| known.is_there()) {
            Environment::run(instructions, false, || {
                for &gate in Gate::ALL {
                    let (mut plain, mut gated) = (x.clone(), x.clone());
                    gate.of(&mut plain);
                    gate.apply(&mut gated, &by);
                    for (i, &x) in x.iter().enumerate() {
                        let wanted = wanted(gate, x.into());
                        assert!(close(plain[i], wanted), "{gate:?} of {x}: {}", plain[i]);
                        let wanted = wanted * f64::from(by[i]);
                        assert!(close(gated[i], wanted), "{gate:?} of {x}: {}", gated[i]);
                    }
                }
                let mut found = x.clone();
                clamped_gate(&mut found, &by, 1.3, 1.702);
                for ((&found, &x), &by) in found.iter().zip(&x).zip(&by) {
                    let (open, up) = (f64::from(x.min(1.3)), f64::from(by.clamp(-1.3, 1.3)) + 1.0);
                    let wanted = wanted(Gate::Sigmoid, f64::from(1.702_f32) * open) * open * up;
                    assert!(close(found, wanted), "{x} and {by}: {found}, not {wanted}");
                }
                let mut found = x.clone();
                soft_cap(&mut found, 3.0);
                for (&found, &x) in found.iter().zip(&x) {
                    let wanted = 3.0 * (f64::from(x) / 3.0).tanh();
                    assert!(close(found, wanted), "{x} with a cap: {found}, not {wanted}");
                }
            });
        }
        // So many that threads share them; NaN stays what it is.
        let many: Vec<f32> = (0..MANY * 3 + 5).map(|i| (i % 17) as f32 - 8.0).collect();
        let mut out = many.clone();
        Gate::Relu.apply(&mut out, &many);
        assert!(many.iter().zip(&out).all(|(&x, &y)| y == x.max(0.0) * x));
        let mut out = [f32::NAN];
        Gate::Silu.apply(&mut out, &[1.0]);
        assert!(out[0].is_nan());
    }
}
