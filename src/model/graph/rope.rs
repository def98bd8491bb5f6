//! Rotary positions in a pass: turning the heads of all its tokens at once.
//!
//! What a config says of them and the frequencies are [`crate::decoder::rope`]'s. Pairs are
//! (i, i + n), or neighbours when `interleaved`.

use std::ops::Range;

use mlx_rs::{Array, fast};

use super::ops::{Result, join, last_axis, part, times_exactly};
use crate::decoder::parts::Rope;
use crate::model::pass::Stretch;

/// How spans that follow each other are turned, whose sequences turn alike.
#[derive(Clone, Debug)]
pub struct Angles {
    /// Their rows among all.
    rows: Range<usize>,
    /// The position of each row, i32 `[rows]`.
    positions: Array,
    /// 1 / frequency of each pair, as MLX takes them.
    periods: Array,
    /// On cosines and sines, f32 `[]`, if it is not 1.
    factor: Option<Array>,
    /// Elements of a head that are turned.
    dims: i32,
    interleaved: bool,
}

impl Angles {
    /// How a pass's spans are turned.
    pub fn new(rope: &Rope, spans: &[Stretch]) -> Vec<Angles> {
        let whole = |span: &Stretch| span.place.whole;
        let alike = spans.chunk_by(|a, b| rope.rotation.is_same_of(whole(a), whole(b)));
        let turns = alike.map(|spans| {
            let (frequencies, factor) = rope.rotation.of_length(spans.first().map_or(0, whole));
            let periods: Vec<f32> = frequencies.iter().map(|frequency| 1.0 / frequency).collect();
            let places = spans.iter().map(|span| span.place);
            let positions = places.flat_map(|place| place.position..place.position + place.tokens);
            let positions: Vec<i32> = positions.map(|position| position as i32).collect();
            let from = spans.first().map_or(0, |span| span.rows.start);
            Angles {
                rows: from..from + positions.len(),
                positions: Array::from_slice(&positions, &[positions.len() as i32]),
                periods: Array::from_slice(&periods, &[periods.len() as i32]),
                factor: (factor != 1.0).then(|| Array::from_f32(factor)),
                dims: 2 * periods.len() as i32,
                interleaved: rope.interleaved,
            }
        });
        turns.collect()
    }

    /// Turns the heads of all rows, `[tokens, heads, 1, dim]`.
    pub fn apply(turns: &[Angles], x: &Array) -> Result<Array> {
        let turned = turns.iter().map(|turns| turns.rotate(&part(x, 0, &turns.rows)?));
        join(turned.collect::<Result<_>>()?, 0)
    }

    fn rotate(&self, x: &Array) -> Result<Array> {
        let scaled = match &self.factor {
            Some(factor) if self.dims == x.dim(-1) => times_exactly(x, factor)?,
            Some(factor) => {
                let first = times_exactly(&last_axis(x, 0, self.dims)?, factor)?;
                join(vec![first, last_axis(x, self.dims, x.dim(-1))?], -1)?
            }
            None => x.clone(),
        };
        let Angles { positions, periods, dims, interleaved, .. } = self;
        fast::rope_dynamic(scaled, *dims, *interleaved, None, 1.0, positions, periods)
    }
}
