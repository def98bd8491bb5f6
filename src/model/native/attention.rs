//! Attention as one operation: norm, projections, heads and their norms and rotations, the writing
//! of keys and values into their cache, scores, gate, and the last projection.
//!
//! Scores by themselves and rotations by themselves are here too, for latent attention.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use lathe_kernels::{Gate, Heads, RowNorm, Sight, Strided, attend};
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::super::ops::Result;
use super::{BLAS, Floats, Inputs, Native, RmsNorm, add_to, expect, multiply, normalized};
use crate::mlx::host::{Out, View, host_operation, host_operations};

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
    fn expect(&self, tokens: usize, width: usize) -> Result<()> {
        let pairs = self.cos.len() / tokens.max(1);
        let fits = 2 * pairs <= width && self.sin.len() == self.cos.len();
        expect("what is turned of a head", &[self.cos.len(), 1], &[tokens * pairs, fits.into()])
    }

    fn of(&self) -> lathe_kernels::Turn<'_> {
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

/// What an operation needs to know of a [`Line`].
struct Row {
    tokens: usize,
    turn: Option<Turn>,
    factors: Option<Floats>,
    at: usize,
    seen: Range<usize>,
    first: usize,
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

    /// `x` `[rows, tokens, in]`, normalized if there is a norm, to `[rows, tokens, out]` in f32,
    /// added to `onto` if that is given; and the keys and values of each line with this layer's
    /// own written, where it has some.
    pub fn forward(
        self: &Arc<Self>,
        x: &Array,
        norm: Option<RmsNorm>,
        onto: Option<&Array>,
        lines: Vec<Line>,
    ) -> Result<(Array, Vec<[Array; 2]>)> {
        let (width, longest) = (self.queries.projection.columns, x.dim(1) as usize);
        let entering = Inputs::new(x, width, onto, self.o.rows)?;
        norm.iter().try_for_each(|norm| norm.expect(width))?;
        expect("the lines of a batch", &[lines.len()], &[x.dim(0) as usize])?;
        let mut inputs = entering.arrays();
        let first_held = inputs.len();
        let mut outs = vec![Out::new(&entering.shape)];
        for line in &lines {
            self.check_line(line, longest)?;
            for held in &line.held {
                if self.keys.is_some() {
                    outs.push(Out { shape: held.shape(), over: Some(inputs.len()) });
                }
                inputs.push(held);
            }
        }
        let rows = lines.iter().map(|line| Row {
            tokens: line.tokens,
            turn: line.turn.clone(),
            factors: line.factors.clone(),
            at: line.at,
            seen: line.seen.clone(),
            first: line.first,
        });
        let rows: Vec<Row> = rows.collect();
        let shapes: Vec<[usize; 2]> = lines
            .iter()
            .map(|line| line.held.each_ref().map(|held| held.dim(2) as usize))
            .collect();
        let attention = self.clone();
        let made = host_operations(&inputs, &outs, Dtype::Float32, move |views, outs| {
            let entering: Vec<Cow<[u8]>> =
                views[..first_held].iter().map(View::row_major).collect();
            let x = normalized(norm.as_ref(), cast_slice(&entering[0]), width);
            let Some((out, written)) = outs.split_first_mut() else { return };
            let mixed = attention.mixed(&x, longest, &rows, &shapes, &views[first_held..], written);
            multiply(&[&attention.o], &mixed, &mut [cast_slice_mut(out)]);
            add_to(out, entering.get(1));
        });
        let mut made = made?.into_iter();
        let out = made.next().ok_or_else(|| Exception::custom("attention gave nothing"))?;
        let mut written = Vec::with_capacity(lines.len());
        while let (Some(keys), Some(values)) = (made.next(), made.next()) {
            written.push([keys, values]);
        }
        Ok((out, written))
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
    fn mixed(
        &self,
        x: &[f32],
        longest: usize,
        rows: &[Row],
        rooms: &[[usize; 2]],
        held: &[View],
        written: &mut [&mut [u8]],
    ) -> Vec<f32> {
        let Attention { heads, kv_heads, dim, .. } = *self;
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
                    let room = rooms[index][part] * dim;
                    let to: &mut [f32] = cast_slice_mut(&mut *written[2 * index + part]);
                    for (to, new) in to.chunks_exact_mut(room).zip(new.chunks_exact(tokens * dim)) {
                        to[row.at * dim..(row.at + tokens) * dim].copy_from_slice(new);
                    }
                }
            }
            let seen = [0, 1].map(|part| match keys {
                Some(_) => {
                    let room = rooms[index][part] * dim;
                    (Cow::Borrowed(cast_slice::<u8, f32>(&*written[2 * index + part])), room)
                }
                None => lined_up(&held[2 * index + part]),
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
                window: self.window,
                sinks: self.sinks.as_deref(),
            };
            let to = &mut mixed[from * heads * dim..(from + tokens) * heads * dim];
            if tokens == 1 {
                attend(queries, keys, values, &sight, to, BLAS);
                continue;
            }
            let mut out = vec![0.0; made.len()];
            attend(queries, keys, values, &sight, &mut out, BLAS);
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

/// Turns `[1, heads, tokens, width]` in f32.
pub fn rotate(x: &Array, turn: &Turn) -> Result<Array> {
    turn.expect(x.dim(-2) as usize, x.dim(-1) as usize)?;
    let turn = turn.clone();
    let made = host_operation(&[x], x.shape(), Dtype::Float32, move |views, out| {
        let [_, of_head, of_row, of_element] =
            std::array::from_fn(|axis| views[0].strides[axis] as usize);
        let [_, heads, rows, width] = axes(&views[0]);
        let x = Strided {
            data: cast_slice(views[0].bytes),
            shape: [heads, rows, width],
            strides: [of_head, of_row, of_element],
        };
        lathe_kernels::heads(&x, None, Some(turn.of()), cast_slice_mut(out));
    });
    Ok(made?)
}

/// How queries see keys.
#[derive(Clone, Copy, Debug)]
pub struct Seeing {
    /// Multiplies scores.
    pub scale: f32,
    /// Query i sees key j up to `first + i`.
    pub first: usize,
    /// At most so many keys, the last ones.
    pub window: Option<usize>,
}

/// Attention of queries over keys and values, `[1, heads, tokens, width]` each in f32.
pub fn attention([queries, keys, values]: [&Array; 3], seeing: Seeing) -> Result<Array> {
    let shape = [1, queries.dim(1), queries.dim(2), values.dim(3)];
    let inputs = [queries, keys, values];
    let Seeing { scale, first, window } = seeing;
    let made = host_operation(&inputs, &shape, Dtype::Float32, move |views, out| {
        let [q, k, v] = [0, 1, 2].map(|i| lined_up(&views[i]));
        let sight = Sight { scale, cap: None, first, window, sinks: None };
        attend(
            heads_of(&views[0], &q),
            heads_of(&views[1], &k),
            heads_of(&views[2], &v),
            &sight,
            cast_slice_mut(out),
            BLAS,
        );
    });
    Ok(made?)
}

/// The four axes of a view.
fn axes(view: &View) -> [usize; 4] {
    std::array::from_fn(|axis| view.shape[axis] as usize)
}

/// The elements of a view `[1, heads, rows, width]` whose rows follow each other, and the elements
/// from a head to the next; a copy if they lie otherwise.
fn lined_up<'a>(view: &View<'a>) -> (Cow<'a, [f32]>, usize) {
    let floats: &[f32] = cast_slice(view.bytes);
    let [_, heads, rows, width] = axes(view);
    let [_, of_head, of_row, of_element] = std::array::from_fn(|axis| view.strides[axis] as usize);
    let tight = (width == 1 || of_element == 1) && (rows == 1 || of_row == width);
    if tight {
        return (Cow::Borrowed(floats), of_head);
    }
    let mut copy = Vec::with_capacity(heads * rows * width);
    for row in (0..heads).flat_map(|head| (0..rows).map(move |row| head * of_head + row * of_row)) {
        copy.extend((0..width).map(|element| floats[row + element * of_element]));
    }
    (Cow::Owned(copy), rows * width)
}

fn heads_of<'a>(view: &View, (data, stride): &'a (Cow<[f32]>, usize)) -> Heads<'a> {
    let [_, heads, rows, width] = axes(view);
    Heads { data, heads, rows, width, stride: *stride }
}

#[cfg(test)]
mod tests {
    use super::super::floats;
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

        let attention = Arc::new(small());
        let x = ones(&[1, 3, 6]);
        let run = |line: Line| attention.forward(&x, None, None, vec![line]);
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
        assert!(attention.forward(&x, norm(5), None, vec![line(3, 8, 2)]).is_err());
        assert!(attention.forward(&x, None, Some(&ones(&[1, 3, 5])), vec![line(3, 8, 2)]).is_err());
        assert!(attention.forward(&x, None, None, Vec::new()).is_err());
        assert!(rotate(&ones(&[1, 2, 3, 8]), &turn(12)).is_ok());
        assert!(rotate(&ones(&[1, 2, 3, 8]), &turn(15)).is_err());
    }

    /// Keys and values are written where they belong and nowhere else.
    #[test]
    fn a_line_is_written_in_its_place() {
        let attention = Arc::new(small());
        let (_, written) =
            attention.forward(&ones(&[1, 2, 6]), None, None, vec![line(2, 5, 1)]).unwrap();
        for held in &written[0] {
            let held = floats(held).unwrap();
            assert!(held[..4].iter().chain(&held[12..]).all(|&x| x == 1.0));
            assert!(held[4..12].iter().all(|&x| x != 1.0));
            assert_eq!(held[4..8], held[8..12]);
        }
    }
}
