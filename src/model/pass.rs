//! The one value that a forward pass takes, and what it gives.
//!
//! A pass holds tokens of any number of sequences, one after the other and without padding: a chunk
//! of a prompt and the next tokens of others are rows of the same products.

use std::ops::Range;

use mlx_rs::Array;

use crate::fault::{Code, Fault};

/// The input of a forward pass: spans of tokens, of a sequence each.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// The spans, in the order of the caches that come with them.
    pub spans: Vec<Span>,
    /// Hidden states that are wanted too: what drafts are conditioned on.
    pub taps: Vec<Tap>,
}

/// One sequence's part of a pass.
#[derive(Clone, Debug, Default)]
pub struct Span {
    /// Its next tokens, at least one.
    pub tokens: Vec<u32>,
    /// Position of the first: the settled tokens of the sequence's cache.
    pub position: usize,
    /// Tokens that its sequence has once the whole prompt has been run that these are a part of:
    /// rotations that depend on the length go by it. Less than there are after this pass means
    /// just those.
    pub whole: usize,
    /// What its tokens see of each other.
    pub sees: Sees,
    /// Which logits are wanted.
    pub logits: Logits,
}

/// What the tokens of a span see of each other; of those before all see the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sees {
    /// Each itself and those before it.
    #[default]
    Causal,
    /// All of them.
    Block,
}

/// Which tokens' logits a pass works out: the head is the largest product of a small model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Logits {
    /// Those of the last token.
    #[default]
    Last,
    /// Of all tokens.
    All,
    /// None: a chunk of a prompt that only fills the cache.
    None,
}

/// A place between layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tap {
    /// What leaves a layer, by its number from 0.
    Layer(usize),
    /// What leaves the last norm and enters the head.
    Last,
}

/// Where a span's tokens stand in their sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Position of the first.
    pub position: usize,
    /// How many there are.
    pub tokens: usize,
    /// How many the whole sequence has, at least up to the end of these.
    pub whole: usize,
}

/// A span among the rows of its pass.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// Which span.
    pub index: usize,
    /// Its rows among all.
    pub rows: Range<usize>,
    /// Where they stand in their sequence.
    pub place: Place,
    /// What they see of each other.
    pub sees: Sees,
}

impl Span {
    /// Tokens at a position, that see those before them.
    pub fn new(tokens: &[u32], position: usize, logits: Logits) -> Span {
        Span { tokens: tokens.to_vec(), position, logits, ..Span::default() }
    }

    /// Where its tokens stand.
    pub fn place(&self) -> Place {
        let (position, tokens) = (self.position, self.tokens.len());
        Place { position, tokens, whole: self.whole.max(position + tokens) }
    }

    /// Which of its tokens' logits are wanted.
    pub fn wanted(&self) -> Range<usize> {
        let tokens = self.tokens.len();
        match self.logits {
            Logits::Last => tokens.saturating_sub(1)..tokens,
            Logits::All => 0..tokens,
            Logits::None => 0..0,
        }
    }
}

impl Pass {
    /// A pass of one span.
    pub fn one(tokens: &[u32], position: usize, logits: Logits) -> Pass {
        Pass { spans: vec![Span::new(tokens, position, logits)], taps: Vec::new() }
    }

    /// Tokens of all spans.
    pub fn tokens(&self) -> usize {
        self.spans.iter().map(|span| span.tokens.len()).sum()
    }

    /// Each span with its rows among those of the pass.
    pub fn rows(&self) -> impl Iterator<Item = (&Span, Range<usize>)> {
        let mut end = 0;
        self.spans.iter().map(move |span| {
            let from = end;
            end += span.tokens.len();
            (span, from..end)
        })
    }

    /// Where each span's tokens are.
    pub fn stretches(&self) -> Vec<Stretch> {
        let rows = self.rows().enumerate();
        let of = |(index, (span, rows)): (usize, (&Span, Range<usize>))| {
            let (place, sees) = (span.place(), span.sees);
            Stretch { index, rows, place, sees }
        };
        rows.map(of).collect()
    }

    /// The rows of the pass whose logits are wanted, in order.
    pub fn wanted(&self) -> Vec<usize> {
        let rows = self.rows();
        rows.flat_map(|(span, rows)| span.wanted().map(move |at| rows.start + at)).collect()
    }
}

/// What a forward pass gives.
#[derive(Clone, Debug)]
pub struct Output {
    /// Logits in f32 of the wanted tokens, span after span, `[wanted, vocabulary]`.
    pub logits: Rows,
    /// What was tapped, in the order asked for, `[tokens, hidden]` each.
    pub taps: Vec<Rows>,
}

/// Rows of numbers: there, or on a device and perhaps under way.
#[derive(Clone, Debug)]
pub enum Rows {
    /// There.
    Host {
        /// Row after row.
        data: Vec<f32>,
        /// Elements of a row.
        width: usize,
    },
    /// An array `[rows, width]` of MLX, which need not be evaluated.
    Device(Array),
}

impl Rows {
    /// Elements of a row.
    pub fn width(&self) -> usize {
        match self {
            Rows::Host { width, .. } => *width,
            Rows::Device(array) => array.shape().last().map_or(0, |&width| width as usize),
        }
    }

    /// All elements in f32, waited for if need be.
    ///
    /// # Errors
    /// When MLX fails.
    pub fn into_host(self) -> Result<Vec<f32>, Fault> {
        let array = match self {
            Rows::Host { data, .. } => return Ok(data),
            Rows::Device(array) => array,
        };
        let copy = || {
            let array = array.as_dtype(mlx_rs::Dtype::Float32)?.contiguous()?;
            array.eval()?;
            Ok::<Array, mlx_rs::error::Exception>(array)
        };
        let array = copy().map_err(crate::mlx::Error::from)?;
        let data: &[f32] = array.try_as_slice().map_err(|error| {
            Fault::new(Code::Compute, format!("numbers of a pass cannot be read: {error}"))
        })?;
        Ok(data.to_vec())
    }
}
