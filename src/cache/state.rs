//! The recurrent state of one sequence in one layer.
//!
//! A state is two arrays: the last inputs of a convolution, `[1, kernel - 1, channels]`, and the
//! state proper in 32-bit floats. It cannot be cut off like keys, so a pass stores a copy at each
//! offset for which the batch schedules a snapshot.

use mlx_rs::Array;

use super::Remembers;

/// A state at one offset.
#[derive(Clone, Debug)]
pub struct State {
    /// Last inputs of the convolution, `[1, kernel - 1, channels]`.
    pub conv: Array,
    /// The state proper, f32.
    pub state: Array,
}

/// The recurrent state of one sequence in one layer.
#[derive(Clone, Debug, Default)]
pub struct StateCache {
    current: Option<State>,
    offset: usize,
    /// Earlier states, by ascending offset.
    marks: Vec<(usize, State)>,
}

impl StateCache {
    /// The state after all tokens written; `None` before the first.
    pub fn current(&self) -> Option<&State> {
        self.current.as_ref()
    }

    /// Tokens written.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Stores the state after a pass over `tokens` tokens, and the states at the offsets for
    /// which the pass scheduled snapshots.
    pub fn write(&mut self, tokens: usize, state: State, marks: Vec<(usize, State)>) {
        self.current = Some(state);
        self.offset += tokens;
        self.marks = marks;
    }
}

impl Remembers for StateCache {
    fn forgets(&self) -> bool {
        true
    }

    fn reaches(&self, offset: usize) -> bool {
        offset == self.offset
            || offset == 0
            || self.marks.iter().any(|(marked, _)| *marked == offset)
    }

    fn rollback(&mut self, offset: usize) {
        if offset == self.offset {
            return;
        }
        self.marks.retain(|(marked, _)| *marked <= offset);
        // An offset of 0 has no mark: the state before the first token is none.
        self.current = match self.marks.last() {
            Some((marked, state)) if *marked == offset => Some(state.clone()),
            _ => None,
        };
        self.offset = offset;
    }

    fn arrays(&self) -> Vec<&Array> {
        let marks = self.marks.iter().map(|(_, state)| state);
        self.current.iter().chain(marks).flat_map(|state| [&state.conv, &state.state]).collect()
    }
}
