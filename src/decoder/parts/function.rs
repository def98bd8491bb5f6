//! The functions of an element that descriptions can name.

macro_rules! functions {
    ($($(#[doc = $doc:literal])+ $name:ident: $($text:literal)|+;)+) => {
        /// A function of an element.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Function { $($(#[doc = $doc])+ $name,)+ }

        impl Function {
            /// All names that [`Function::named`] knows.
            pub const NAMES: &'static [&'static str] = &[$($($text,)+)+];

            /// The function of a name: ours, or one that configs use.
            pub fn named(name: &str) -> Option<Function> {
                match name { $($($text)|+ => Some(Function::$name),)+ _ => None }
            }
        }
    };
}

functions! {
    /// x × sigmoid(x) (Elfwing et al. 2017).
    Silu: "silu" | "swish";
    /// x × Φ(x) (Hendrycks and Gimpel 2016).
    Gelu: "gelu";
    /// Its approximation by tanh.
    GeluTanh: "gelu_tanh" | "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast";
    /// max(x, 0).
    Relu: "relu";
    /// max(x, 0)² (So et al. 2021).
    Relu2: "relu2";
    /// 1 / (1 + e^-x).
    Sigmoid: "sigmoid";
    /// ln(1 + e^x).
    Softplus: "softplus";
}
