//! Attention as one step: projections, heads and their norms and rotations, the writing of keys and
//! values into their cache, scores, gate, and the last projection.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use lathe_kernels::{Gate, Heads, RowNorm, Sight, Strided, attend};
use mlx_rs::Array;

use super::super::ops::Result;
use super::scores::lined_up;
use super::steps::{Buffers, Held, Step};
use super::{BLAS, Floats, Native, RmsNorm, expect, multiply, normalized};

/// A rotation by the angles of each token.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Cosines `[tokens, pairs]`.
    pub cos: Floats,
    /// Sines `[tokens, pairs]`.
    pub sin: Floats,
    /// See [`lathe_kernels::Turn`].
    pub interleaved: bool,
}

impl Turn {
    pub(super) fn expect(&self, tokens: usize, width: usize) -> Result<()> {
        let pairs = self.cos.len() / tokens.max(1);
        let fits = 2 * pairs <= width && self.sin.len() == self.cos.len();
        expect("what is turned of a head", &[self.cos.len(), 1], &[tokens * pairs, fits.into()])
    }

    pub(super) fn of(&self) -> lathe_kernels::Turn<'_> {
        let Turn { cos, sin, interleaved } = self;
        lathe_kernels::Turn { cos, sin, interleaved: *interleaved }
    }
}

/// Heads that are made of what a projection gives.
#[derive(Debug)]
pub struct Part {
    /// Rows for all heads.
    pub projection: Arc<Native>,
    /// Over each head, or over all of them.
    pub norm: Option<RmsNorm>,
}

impl Part {
    /// Its norm, unless that is over `all` heads.
    fn norm_of_head(&self, all: bool) -> Option<&RmsNorm> {
        self.norm.as_ref().filter(|_| !all)
    }
}

/// What the mixed values are multiplied by.
#[derive(Debug)]
pub struct GateOf {
    /// Of the gate's elements.
    pub function: Gate,
    /// Where they come from; `None` says that the queries' projection gives each head's query and
    /// then its gate.
    pub projection: Option<Arc<Native>>,
}

/// Attention: what does not change from pass to pass.
#[derive(Debug)]
pub struct Attention {
    /// Queries.
    pub queries: Part,
    /// This layer's own keys; without them those of another layer are read.
    pub keys: Option<Part>,
    /// Values; `None` where they are what the keys' projection gives.
    pub values: Option<Arc<Native>>,
    /// A norm of values over each head.
    pub value_norm: Option<RmsNorm>,
    /// The last projection.
    pub o: Arc<Native>,
    /// A gate.
    pub gate: Option<GateOf>,
    /// Whether norms of queries and keys are over all heads together.
    pub norm_all_heads: bool,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Multiplies scores.
    pub scale: f32,
    /// Bends scores to less than this.
    pub cap: Option<f32>,
    /// A token sees so many, itself included.
    pub window: Option<usize>,
    /// A score for each head.
    pub sinks: Option<Floats>,
}

/// One sequence of a batch.
#[derive(Debug)]
pub struct Line {
    /// How many of the batch's tokens are its own.
    pub tokens: usize,
    /// How queries and keys are turned.
    pub turn: Option<Turn>,
    /// A factor of each token's queries.
    pub factors: Option<Floats>,
    /// Keys and values `[1, heads, room, dim]`.
    pub held: [Array; 2],
    /// Where this layer's own are written in them.
    pub at: usize,
    /// Those of them that the tokens can see.
    pub seen: Range<usize>,
    /// Query i sees those up to `seen.start + first + i`.
    pub first: usize,
}

/// What a step needs to know of a [`Line`].
#[derive(Debug)]
struct Row {
    tokens: usize,
    turn: Option<Turn>,
    factors: Option<Floats>,
    at: usize,
    seen: Range<usize>,
    first: usize,
    /// Tokens that the arrays of keys and of values have room for.
    rooms: [usize; 2],
}

/// The lines of a batch, as a step knows them.
#[derive(Debug)]
pub struct Lines {
    rows: Vec<Row>,
    /// Tokens of the longest.
    longest: usize,
    /// Which of the operation's arrays are theirs: keys and values of one line after the other.
    held: Range<usize>,
}

impl Lines {
    /// That they are of a batch of so many rows, with so many tokens in all.
    pub(super) fn check(&self, rows: usize, tokens: usize) -> Result<()> {
        let lines = self.rows.len();
        expect("the lines of a batch", &[lines, lines * self.longest], &[rows, tokens])
    }
}

impl Attention {
    /// Elements that are projected for a head of queries: its query, and its gate where that comes
    /// with it.
    fn of_head(&self) -> usize {
        match &self.gate {
            Some(GateOf { projection: None, .. }) => 2 * self.dim,
            _ => self.dim,
        }
    }

    /// That sizes fit each other.
    pub fn check(&self) -> Result<()> {
        let Attention { heads, kv_heads, dim, .. } = *self;
        let width = self.queries.projection.columns;
        let rows = heads * self.of_head();
        let projection = |what: &str, native: &Native, rows: &[usize]| {
            let found = [native.columns, native.rows];
            let fits = rows.iter().any(|&rows| found == [width, rows]);
            expect(what, &found, &[width, if fits { native.rows } else { rows[0] }])
        };
        let norm = |norm: &Option<RmsNorm>, heads: usize| {
            let width = if self.norm_all_heads { heads * dim } else { dim };
            norm.iter().try_for_each(|norm| norm.expect(width))
        };
        projection("the projection to queries", &self.queries.projection, &[rows])?;
        norm(&self.queries.norm, heads)?;
        if let Some(keys) = &self.keys {
            projection("the projection to keys", &keys.projection, &[kv_heads * dim])?;
            norm(&keys.norm, kv_heads)?;
        }
        if let Some(values) = &self.values {
            projection("the projection to values", values, &[kv_heads * dim])?;
        }
        if let Some(gate) = self.gate.as_ref().and_then(|gate| gate.projection.as_ref()) {
            projection("the projection to a gate", gate, &[heads * dim, heads])?;
        }
        self.value_norm.iter().try_for_each(|norm| norm.expect(dim))?;
        let sinks = self.sinks.as_ref().map_or(heads, |sinks| sinks.len());
        expect("the sinks of attention", &[sinks], &[heads])?;
        expect("the columns after attention", &[self.o.columns], &[heads * dim])
    }

    /// Elements of a token that enter and that leave.
    pub(super) fn widths(&self) -> [usize; 2] {
        [self.queries.projection.columns, self.o.rows]
    }

    /// The step for the lines of a batch, of which the longest has so many tokens. Their arrays are
    /// given to `held`, from which those with this layer's own keys and values written come back
    /// if it has some.
    pub fn step(
        self: &Arc<Self>,
        lines: Vec<Line>,
        longest: usize,
        held: &mut Held,
    ) -> Result<Step> {
        let first = held.len();
        let mut rows = Vec::with_capacity(lines.len());
        for line in lines {
            self.check_line(&line, longest)?;
            let Line { tokens, turn, factors, held: arrays, at, seen, first } = line;
            let rooms = arrays.each_ref().map(|array| array.dim(2) as usize);
            rows.push(Row { tokens, turn, factors, at, seen, first, rooms });
            held.take(arrays, self.keys.is_some());
        }
        let lines = Lines { rows, longest, held: first..held.len() };
        Ok(Step::Attention(self.clone(), lines))
    }

    /// `[rows × longest, in]` to `[rows × longest, out]`.
    pub(super) fn run(&self, x: &[f32], lines: &Lines, buffers: &mut Buffers) -> Vec<f32> {
        let mixed = self.mixed(x, lines, buffers);
        let mut out = vec![0.0; mixed.len() / self.o.columns * self.o.rows];
        multiply(&[&self.o], &mixed, &mut [&mut out]);
        out
    }

    fn check_line(&self, line: &Line, longest: usize) -> Result<()> {
        let Line { tokens, turn, factors, held, at, seen, first } = line;
        if let Some(turn) = turn {
            turn.expect(*tokens, self.dim)?;
        }
        let room = held[0].dim(2) as usize;
        for held in held {
            let wanted = [1, self.kv_heads as i32, room as i32, self.dim as i32];
            expect("what a cache holds", held.shape(), &wanted)?;
        }
        let own = self.keys.is_some();
        let fits = *tokens <= longest
            && factors.as_ref().is_none_or(|factors| factors.len() == *tokens)
            && seen.start <= seen.end
            && seen.end <= room
            && first + tokens <= seen.len()
            && (!own || at + tokens <= room);
        expect("that a line's tokens fit its cache", &[fits], &[true])
    }

    /// What is mixed of the values and gated, `[rows × longest, heads × dim]`.
    fn mixed(&self, x: &[f32], lines: &Lines, buffers: &mut Buffers) -> Vec<f32> {
        let Attention { heads, kv_heads, dim, .. } = *self;
        let Lines { rows, longest, held } = lines;
        let keys = self.keys.as_ref();
        let gate = self.gate.as_ref().and_then(|gate| gate.projection.as_deref());
        let values = self.values.as_deref().filter(|_| keys.is_some());
        let natives =
            [Some(&*self.queries.projection), keys.map(|keys| &*keys.projection), values, gate];
        let count = x.len() / self.queries.projection.columns;
        let mut projected = natives.map(|native| vec![0.0; count * native.map_or(0, |n| n.rows)]);
        let given: Vec<&Native> = natives.iter().flatten().copied().collect();
        let mut outs: Vec<&mut [f32]> = projected
            .iter_mut()
            .zip(&natives)
            .filter_map(|(out, native)| native.map(|_| &mut out[..]))
            .collect();
        multiply(&given, x, &mut outs);
        if self.norm_all_heads {
            for (part, rows) in [Some(&self.queries), keys].into_iter().zip(&mut projected) {
                if let Some(Part { projection, norm: Some(norm) }) = part {
                    *rows = normalized(Some(norm), rows, projection.rows).into_owned();
                }
            }
        }
        let [queries, own_keys, own_values, gate] = projected;
        let own_values = if values.is_some() { &own_values } else { &own_keys };

        let of_head = self.of_head();
        let mut mixed = vec![0.0; count * heads * dim];
        for (index, row) in rows.iter().enumerate() {
            let (tokens, from) = (row.tokens, index * longest);
            let array = |part: usize| held.start + 2 * index + part;
            // Some heads of this row's tokens: normalized, turned, `[heads, tokens, dim]`.
            let heads_of =
                |data: &[f32], heads: usize, step: usize, norm: Option<&RmsNorm>, turned| {
                    let width = heads * step;
                    let strided = Strided {
                        data: &data[from * width..(from + tokens) * width],
                        shape: [heads, tokens, dim],
                        strides: [step, width, 1],
                    };
                    let norm =
                        norm.map(|norm| RowNorm { weight: norm.weight.as_deref(), eps: norm.eps });
                    let turn = row.turn.as_ref().filter(|_| turned).map(Turn::of);
                    let mut made = vec![0.0; heads * tokens * dim];
                    lathe_kernels::heads(&strided, norm, turn, &mut made);
                    made
                };
            let of_queries = self.queries.norm_of_head(self.norm_all_heads);
            let mut made = heads_of(&queries, heads, of_head, of_queries, true);
            if let Some(factors) = &row.factors {
                for (at, row) in made.chunks_exact_mut(dim).enumerate() {
                    row.iter_mut().for_each(|x| *x *= factors[at % tokens]);
                }
            }
            if let Some(keys) = keys {
                let new = [
                    heads_of(
                        &own_keys,
                        kv_heads,
                        dim,
                        keys.norm_of_head(self.norm_all_heads),
                        true,
                    ),
                    heads_of(own_values, kv_heads, dim, self.value_norm.as_ref(), false),
                ];
                for (part, new) in new.iter().enumerate() {
                    let room = row.rooms[part] * dim;
                    let to: &mut [f32] = cast_slice_mut(buffers.written(array(part)));
                    for (to, new) in to.chunks_exact_mut(room).zip(new.chunks_exact(tokens * dim)) {
                        to[row.at * dim..(row.at + tokens) * dim].copy_from_slice(new);
                    }
                }
            }
            let seen = [0, 1].map(|part| match buffers.held(array(part)) {
                Ok(written) => (Cow::Borrowed(cast_slice(written)), row.rooms[part] * dim),
                Err(view) => lined_up(view),
            });
            let [keys, values] = seen.each_ref().map(|(data, stride)| Heads {
                data: &data[row.seen.start * dim..],
                heads: kv_heads,
                rows: row.seen.len(),
                width: dim,
                stride: *stride,
            });
            let queries =
                Heads { data: &made, heads, rows: tokens, width: dim, stride: tokens * dim };
            let sight = Sight {
                scale: self.scale,
                cap: self.cap,
                first: row.first,
                causal: true,
                window: self.window,
                sinks: self.sinks.as_deref(),
            };
            let to = &mut mixed[from * heads * dim..(from + tokens) * heads * dim];
            if tokens == 1 {
                attend(queries, &[keys], &[values], &sight, to, BLAS);
                continue;
            }
            let mut out = vec![0.0; made.len()];
            attend(queries, &[keys], &[values], &sight, &mut out, BLAS);
            for (at, out) in out.chunks_exact(dim).enumerate() {
                let place = (at % tokens * heads + at / tokens) * dim;
                to[place..place + dim].copy_from_slice(out);
            }
        }
        let Some(GateOf { function, projection }) = &self.gate else { return mixed };
        let mut opened: Vec<f32> = match projection {
            None => queries.chunks_exact(of_head).flat_map(|head| &head[dim..]).copied().collect(),
            Some(projection) if projection.rows == heads => {
                gate.iter().flat_map(|&gate| std::iter::repeat_n(gate, dim)).collect()
            }
            Some(_) => gate,
        };
        function.apply(&mut opened, &mixed);
        opened
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::Dtype;

    use super::super::{floats, rotate, steps};
    use super::*;
    use crate::dtype::Dtype as Stored;
    use crate::model::source::Tensor;

    fn matrix(rows: usize, columns: usize) -> Arc<Native> {
        let numbers = (0..rows * columns).map(|i| ((i * 7919) % 101) as f32 / 101.0 - 0.5);
        let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        let shape = vec![rows as i32, columns as i32];
        Arc::new(
            Native::of_floats(&Tensor { dtype: Stored::F32, shape, bytes: bytes.into() }).unwrap(),
        )
    }

    fn ones(shape: &[i32]) -> Array {
        mlx_rs::ops::ones_dtype(shape, Dtype::Float32).unwrap()
    }

    fn part(rows: usize) -> Part {
        Part { projection: matrix(rows, 6), norm: None }
    }

    /// Two heads of four elements that share one of keys.
    fn small() -> Attention {
        Attention {
            queries: part(8),
            keys: Some(part(4)),
            values: Some(matrix(4, 6)),
            value_norm: None,
            o: matrix(6, 8),
            gate: None,
            norm_all_heads: false,
            heads: 2,
            kv_heads: 1,
            dim: 4,
            scale: 0.5,
            cap: None,
            window: None,
            sinks: None,
        }
    }

    fn line(tokens: usize, room: i32, at: usize) -> Line {
        Line {
            tokens,
            turn: None,
            factors: None,
            held: [ones(&[1, 1, room, 4]), ones(&[1, 1, room, 4])],
            at,
            seen: 0..at + tokens,
            first: at,
        }
    }

    fn forward(x: &Array, lines: Vec<Line>) -> Result<(Array, Vec<[Array; 2]>)> {
        let mut held = Held::default();
        let step = Arc::new(small()).step(lines, x.dim(1) as usize, &mut held)?;
        steps::run(vec![step], held, x)
    }

    /// An error from each, where the kernels would end the process.
    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        assert!(small().check().is_ok());
        let norm = |width: i32| {
            Some(RmsNorm { weight: Some(floats(&ones(&[width])).unwrap()), eps: 1e-6 })
        };
        let wrong: [fn(&mut Attention); 6] = [
            |attention| attention.queries = part(7),
            |attention| attention.keys = Some(part(8)),
            |attention| attention.values = Some(matrix(4, 5)),
            |attention| attention.o = matrix(6, 7),
            |attention| attention.sinks = Some(Arc::from([0.0])),
            |attention| {
                let gate = GateOf { function: Gate::Sigmoid, projection: Some(matrix(3, 6)) };
                attention.gate = Some(gate);
            },
        ];
        for (index, wrong) in wrong.into_iter().enumerate() {
            let mut attention = small();
            wrong(&mut attention);
            assert!(attention.check().is_err(), "{index}");
        }
        for (width, fits) in [(4, true), (5, false)] {
            let mut attention = small();
            attention.value_norm = norm(width);
            assert_eq!(attention.check().is_ok(), fits);
        }

        let x = ones(&[1, 3, 6]);
        let run = |line: Line| forward(&x, vec![line]);
        assert!(run(line(3, 8, 2)).is_ok());
        assert!(run(line(4, 8, 2)).is_err(), "more tokens than there are");
        assert!(run(line(3, 4, 2)).is_err(), "no room");
        assert!(run(Line { seen: 0..9, ..line(3, 8, 2) }).is_err(), "beyond the room");
        assert!(run(Line { first: 3, ..line(3, 8, 2) }).is_err(), "keys that are not there");
        assert!(run(Line { factors: Some(Arc::from([1.0])), ..line(3, 8, 2) }).is_err());
        let turn = |cos: usize| Turn {
            cos: vec![1.0; cos].into(),
            sin: vec![0.0; cos].into(),
            interleaved: false,
        };
        assert!(run(Line { turn: Some(turn(6)), ..line(3, 8, 2) }).is_ok());
        assert!(run(Line { turn: Some(turn(9)), ..line(3, 8, 2) }).is_err());
        assert!(forward(&ones(&[1, 3, 5]), vec![line(3, 8, 2)]).is_err());
        assert!(forward(&x, Vec::new()).is_err());
        assert!(rotate(&ones(&[1, 2, 3, 8]), &turn(12)).is_ok());
        assert!(rotate(&ones(&[1, 2, 3, 8]), &turn(15)).is_err());
    }

    /// Keys and values are written where they belong and nowhere else.
    #[test]
    fn a_line_is_written_in_its_place() {
        let (_, written) = forward(&ones(&[1, 2, 6]), vec![line(2, 5, 1)]).unwrap();
        for held in &written[0] {
            let held = floats(held).unwrap();
            assert!(held[..4].iter().chain(&held[12..]).all(|&x| x == 1.0));
            assert!(held[4..12].iter().all(|&x| x != 1.0));
            assert_eq!(held[4..8], held[8..12]);
        }
    }
}
