//! `a ?? b`, which CEL lacks: each group of alternatives becomes a call of a function that works
//! them out one after the other.

use std::sync::Arc;

use cel::objects::Opaque;
use cel::{Context, ExecutionError, FunctionContext, Program, Value};

use super::names::Used;
use super::{BadExpr, first_of, words};

/// The function that stands for a group; its argument is the group's index.
pub const FUNCTION: &str = "__first_of";

/// The variable that holds the groups. No expression can name it.
const VARIABLE: &str = "@alternatives";

/// One of several.
#[derive(Debug)]
pub struct Alternative {
    /// As it is written.
    pub text: String,
    /// The expression, with calls for the groups in it.
    pub program: Program,
    /// What it looks up, without what the groups in it look up.
    pub used: Used,
}

/// Groups of alternatives.
pub type Groups = Vec<Vec<Alternative>>;

/// The groups as a value of CEL.
#[derive(Debug)]
struct Bound(Arc<Groups>);

impl PartialEq for Bound {
    fn eq(&self, other: &Bound) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Bound {}

impl Opaque for Bound {
    fn runtime_type_name(&self) -> &str {
        "lathe.Alternatives"
    }
}

/// Lets the calls in expressions of `context` find their groups.
pub fn bind(groups: &Arc<Groups>, context: &mut Context) {
    let bound: Arc<dyn Opaque> = Arc::new(Bound(groups.clone()));
    context.add_variable_from_value(VARIABLE, Value::Opaque(bound));
}

/// The first alternative of a group that has a value, else null: the function.
pub fn call(of: &FunctionContext, group: i64) -> Result<Value, ExecutionError> {
    let Some(Value::Opaque(bound)) =
        of.ptx.get_variable(VARIABLE).and_then(|value| Value::try_from(value.as_ref()).ok())
    else {
        return Ok(Value::Null);
    };
    let groups = bound.downcast_ref::<Bound>().map(|bound| &bound.0);
    let group = groups.zip(usize::try_from(group).ok()).and_then(|(groups, at)| groups.get(at));
    let found = first_of(group.map_or(&[], Vec::as_slice), of.ptx)?;
    Ok(found.map_or(Value::Null, |(_, value)| value))
}

/// The alternatives of a whole expression, and the groups inside them.
pub fn compile(source: &str) -> Result<(Vec<Alternative>, Groups), BadExpr> {
    let mut reader = Reader { source, groups: Groups::new() };
    let alternatives = reader.alternatives(0, source.len())?;
    Ok((alternatives, reader.groups))
}

struct Reader<'s> {
    source: &'s str,
    groups: Groups,
}

/// Text for CEL, and where its parts stood in the source.
#[derive(Default)]
struct Written {
    text: String,
    /// Offset in `text`, offset in the source; in order.
    marks: Vec<(usize, usize)>,
}

impl Written {
    fn copy(&mut self, source: &str, from: usize, to: usize) {
        self.marks.push((self.text.len(), from));
        self.text.push_str(&source[from..to]);
    }

    /// The offset in the source of an offset in the text.
    fn offset(&self, at: usize) -> usize {
        let mark = self.marks.iter().rev().find(|(mark, _)| *mark <= at);
        mark.map_or(at, |(mark, source)| source + (at - mark))
    }
}

/// What the reader makes of a place in an expression.
#[derive(Clone, Copy, PartialEq)]
enum Mark {
    /// A bracket that opens, or the `?` of a condition.
    Open,
    /// What ends the part of a bracket that it stands in: `,` and `:`.
    Between,
    /// A bracket that closes, or the `:` that belongs to a `?`.
    Close,
    /// `??`.
    Or,
}

impl Reader<'_> {
    /// Compiles what stands between two offsets: one alternative, or several.
    fn alternatives(&mut self, from: usize, to: usize) -> Result<Vec<Alternative>, BadExpr> {
        let marks = marks(self.source, from, to);
        let mut starts = vec![from];
        let mut ends = Vec::new();
        for &(at, mark, depth) in &marks {
            if mark == Mark::Or && depth == 0 {
                ends.push(at);
                starts.push(at + 2);
            }
        }
        ends.push(to);
        let ranges: Vec<(usize, usize)> = starts.into_iter().zip(ends).collect();
        ranges.into_iter().map(|(from, to)| self.alternative(from, to)).collect()
    }

    fn alternative(&mut self, from: usize, to: usize) -> Result<Alternative, BadExpr> {
        if self.source[from..to].trim().is_empty() {
            let message = match self.source[to..].trim().is_empty() {
                true => words::ENDS.into(),
                false => "a value is expected here".into(),
            };
            return Err(BadExpr { message, offset: Some(to) });
        }
        let mut written = Written::default();
        self.write(from, to, &mut written)?;
        let program = Program::compile(&written.text).map_err(|errors| {
            let at = words::position(&written.text, &errors).map(|at| written.offset(at));
            let at = at.map(|at| at.min(to));
            BadExpr { message: words::of_parser(self.source, at), offset: at }
        })?;
        let used = Used::of(program.expression());
        Ok(Alternative { text: self.source[from..to].trim().into(), program, used })
    }

    /// Writes what stands between two offsets and is one alternative.
    fn write(&mut self, from: usize, to: usize, written: &mut Written) -> Result<(), BadExpr> {
        let mut copied = from;
        let mut part = None;
        for (at, mark, depth) in marks(self.source, from, to) {
            match (mark, depth) {
                (Mark::Open, 0) => part = Some(at + 1),
                (Mark::Between | Mark::Close, 1) => {
                    let Some(start) = part else { continue };
                    written.copy(self.source, copied, start);
                    self.part(start, at, written)?;
                    copied = at;
                    part = (mark == Mark::Between).then_some(at + 1);
                }
                _ => {}
            }
        }
        written.copy(self.source, copied, to);
        Ok(())
    }

    /// Writes a part of a bracket, which is an expression of its own.
    fn part(&mut self, from: usize, to: usize, written: &mut Written) -> Result<(), BadExpr> {
        let several = |&(_, mark, depth): &(usize, Mark, usize)| mark == Mark::Or && depth == 0;
        if !marks(self.source, from, to).iter().any(several) {
            return self.write(from, to, written);
        }
        let group = self.alternatives(from, to)?;
        written.marks.push((written.text.len(), from));
        written.text.push_str(&format!(" {FUNCTION}({}) ", self.groups.len()));
        self.groups.push(group);
        Ok(())
    }
}

/// Brackets, commas, colons and `??` outside quotes between two offsets, each with the number of
/// brackets that are open around it.
fn marks(source: &str, from: usize, to: usize) -> Vec<(usize, Mark, usize)> {
    let bytes = source.as_bytes();
    let mut marks = Vec::new();
    let mut open: Vec<u8> = Vec::new();
    let mut at = from;
    while at < to {
        let byte = bytes[at];
        match byte {
            b'"' | b'\'' => at = after_quoted(bytes, at, to) - 1,
            b'(' | b'[' | b'{' => {
                marks.push((at, Mark::Open, open.len()));
                open.push(byte);
            }
            b')' | b']' | b'}' => {
                marks.push((at, Mark::Close, open.len()));
                open.pop();
            }
            b'?' if bytes.get(at + 1) == Some(&b'?') => {
                marks.push((at, Mark::Or, open.len()));
                at += 1;
            }
            b'?' => {
                marks.push((at, Mark::Open, open.len()));
                open.push(byte);
            }
            b':' if open.last() == Some(&b'?') => {
                marks.push((at, Mark::Close, open.len()));
                open.pop();
            }
            b',' | b':' => marks.push((at, Mark::Between, open.len())),
            _ => {}
        }
        at += 1;
    }
    marks
}

/// The offset after a quoted text that begins at `at`.
fn after_quoted(bytes: &[u8], at: usize, to: usize) -> usize {
    let quote = bytes[at];
    let raw = at > 0 && matches!(bytes[at - 1], b'r' | b'R');
    let triple = bytes[at..to].starts_with(&[quote; 3]);
    let width = if triple { 3 } else { 1 };
    let mut end = at + width;
    while end < to {
        match bytes[end] {
            b'\\' if !raw => end += 1,
            _ if bytes[end..to].starts_with(&[quote; 3][..width]) => return end + width,
            _ => {}
        }
        end += 1;
    }
    to
}
