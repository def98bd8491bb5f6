//! Prompt lookup: the tokens of a sequence in, what followed their longest repeated end out. No
//! weights: it pays where a text is quoted, edited or goes round in circles.
//!
//! A suffix automaton (Blumer et al. 1985), built token by token, has a state for each set of
//! places where parts of the text end. The suffix link of the whole text's state is its longest
//! end that stood in it before. Per token a constant number of states and transitions is made or
//! changed (amortized), so that the cost does not depend on the length of the text and memory is
//! linear in it. What each token changed is remembered, and undone when tokens are cut off.

use std::collections::HashMap;

use super::accept::Proposal;
use super::drafter::{Committed, Drafter, Draw, Needs};
use crate::fault::Fault;

/// How many states, from the longest repeated end down to shorter ones, learn their latest place
/// with each token. Shorter ends than that know an earlier one.
const REFRESHED: usize = 64;

/// No state: the link of the empty text.
const NONE: u32 = u32::MAX;

/// A set of places where the same parts of the text end.
#[derive(Clone, Debug)]
struct State {
    /// Tokens of its longest part.
    length: u32,
    /// The state of the longest end of its parts that ends in more places.
    link: u32,
    /// The first and a late place: the index of a part's last token.
    first: u32,
    latest: u32,
    /// Tokens that follow its parts.
    labels: Vec<u32>,
}

/// The longest end of the text that stood in it before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Its tokens.
    pub length: usize,
    /// The index after it, where it stood before.
    pub end: usize,
}

/// One change of the automaton.
#[derive(Clone, Copy, Debug)]
enum Change {
    Linked { state: u32, before: u32 },
    Led { state: u32, token: u32, before: Option<u32> },
}

/// What a token changed, to undo it.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// States, changes and the state of the whole text before it.
    states: u32,
    changes: u32,
    last: u32,
    /// The match after it.
    found: Match,
}

/// Finds repetitions in a text that grows.
#[derive(Clone, Debug)]
pub struct Repetitions {
    text: Vec<u32>,
    states: Vec<State>,
    next: HashMap<(u32, u32), u32>,
    changes: Vec<Change>,
    steps: Vec<Step>,
    last: u32,
}

impl Default for Repetitions {
    fn default() -> Self {
        let root = State { length: 0, link: NONE, first: 0, latest: 0, labels: Vec::new() };
        Repetitions {
            text: Vec::new(),
            states: vec![root],
            next: HashMap::new(),
            changes: Vec::new(),
            steps: Vec::new(),
            last: 0,
        }
    }
}

impl Repetitions {
    /// The text.
    pub fn text(&self) -> &[u32] {
        &self.text
    }

    /// The longest end of the text that stood in it before, at the latest place known.
    pub fn longest(&self) -> Match {
        self.steps.last().map_or(Match::default(), |step| step.found)
    }

    /// Adds a token.
    pub fn push(&mut self, token: u32) {
        let (states, changes) = (self.states.len() as u32, self.changes.len() as u32);
        let before = self.last;
        let at = self.text.len() as u32;
        self.text.push(token);
        let new =
            self.add(State { length: at + 1, link: 0, first: at, latest: at, labels: Vec::new() });
        let mut from = before;
        while from != NONE && !self.next.contains_key(&(from, token)) {
            self.lead(from, token, new);
            from = self.states[from as usize].link;
        }
        if from != NONE {
            let link = self.split(from, token);
            self.link(new, link);
        }
        self.last = new;
        let link = self.states[new as usize].link;
        let found = match &self.states[link as usize] {
            State { length: 0, .. } => Match::default(),
            state => Match { length: state.length as usize, end: state.latest as usize + 1 },
        };
        self.steps.push(Step { states, changes, last: before, found });
        self.refresh(link, at);
    }

    /// The state of what `from` leads to by `token`, made apart from longer parts that end in
    /// fewer places.
    fn split(&mut self, from: u32, token: u32) -> u32 {
        let to = self.next[&(from, token)];
        let length = self.states[from as usize].length + 1;
        if self.states[to as usize].length == length {
            return to;
        }
        let State { link, first, latest, labels, .. } = self.states[to as usize].clone();
        let apart = self.add(State { length, link, first, latest, labels: Vec::new() });
        for label in labels {
            self.lead(apart, label, self.next[&(to, label)]);
        }
        self.link(to, apart);
        let mut from = from;
        while from != NONE && self.next.get(&(from, token)) == Some(&to) {
            self.lead(from, token, apart);
            from = self.states[from as usize].link;
        }
        apart
    }

    fn refresh(&mut self, mut state: u32, at: u32) {
        for _ in 0..REFRESHED {
            if state == 0 {
                return;
            }
            let refreshed = &mut self.states[state as usize];
            refreshed.latest = at;
            state = refreshed.link;
        }
    }

    fn add(&mut self, state: State) -> u32 {
        self.states.push(state);
        self.states.len() as u32 - 1
    }

    fn link(&mut self, state: u32, to: u32) {
        let before = std::mem::replace(&mut self.states[state as usize].link, to);
        self.changes.push(Change::Linked { state, before });
    }

    fn lead(&mut self, state: u32, token: u32, to: u32) {
        let before = self.next.insert((state, token), to);
        if before.is_none() {
            self.states[state as usize].labels.push(token);
        }
        self.changes.push(Change::Led { state, token, before });
    }

    /// Cuts the text to its first `length` tokens. Takes time for what is cut off, and a moment
    /// for each state.
    pub fn truncate(&mut self, length: usize) {
        if length >= self.text.len() {
            return;
        }
        while self.text.len() > length {
            self.text.pop();
            let Some(step) = self.steps.pop() else { return };
            for change in self.changes.drain(step.changes as usize..).rev() {
                match change {
                    Change::Linked { state, before } => self.states[state as usize].link = before,
                    Change::Led { state, token, before: Some(before) } => {
                        self.next.insert((state, token), before);
                    }
                    Change::Led { state, token, before: None } => {
                        self.next.remove(&(state, token));
                        self.states[state as usize].labels.pop();
                    }
                }
            }
            self.states.truncate(step.states as usize);
            self.last = step.last;
        }
        for state in self.states.iter_mut().filter(|state| state.latest as usize >= length) {
            state.latest = state.first;
        }
    }

    /// What followed the longest repeated end, `count` tokens where there are so many; a text that
    /// repeats up to its end goes on repeating.
    pub fn continuation(&self, count: usize) -> Vec<u32> {
        let Match { length, end } = self.longest();
        let mut out: Vec<u32> = Vec::with_capacity(count);
        if length == 0 {
            return out;
        }
        for i in end..end + count {
            let token = match self.text.get(i) {
                Some(&token) => token,
                None => out[i - self.text.len()],
            };
            out.push(token);
        }
        out
    }
}

/// The drafter that looks up.
#[derive(Clone, Debug)]
pub struct Lookup {
    repetitions: Repetitions,
    least: usize,
}

impl Lookup {
    /// Proposes only after at least `least` repeated tokens; 2 is a good number.
    pub fn new(least: usize) -> Self {
        Lookup { repetitions: Repetitions::default(), least: least.max(1) }
    }
}

impl Drafter for Lookup {
    fn needs(&self) -> Needs {
        Needs { deepest: usize::MAX, taps: Vec::new(), keys: Vec::new(), prompt: true }
    }

    fn propose(&mut self, depth: usize, _draw: &mut Draw<'_>) -> Result<Vec<Proposal>, Fault> {
        if self.repetitions.longest().length < self.least {
            return Ok(Vec::new());
        }
        let tokens = self.repetitions.continuation(depth);
        Ok(tokens.into_iter().map(Proposal::certain).collect())
    }

    fn committed(&mut self, run: &Committed<'_>) -> Result<(), Fault> {
        run.check_follows(self.repetitions.text().len())?;
        run.tokens.iter().for_each(|&token| self.repetitions.push(token));
        Ok(())
    }

    fn settle(&mut self, length: usize) -> Result<(), Fault> {
        self.repetitions.truncate(length);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest end that stood before, and the index after each place where it did.
    fn searched(text: &[u32]) -> (usize, Vec<usize>) {
        for length in (1..text.len()).rev() {
            let end = &text[text.len() - length..];
            let places: Vec<usize> =
                (length..text.len()).filter(|&i| &text[i - length..i] == end).collect();
            if !places.is_empty() {
                return (length, places);
            }
        }
        (0, Vec::new())
    }

    struct Stream(u64);

    impl Stream {
        fn below(&mut self, most: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % most
        }
    }

    #[test]
    fn it_finds_what_a_search_through_the_whole_text_finds() {
        for alphabet in [1, 2, 3, 5] {
            for seed in 0..6 {
                let mut stream = Stream(seed * 10 + alphabet);
                let mut repetitions = Repetitions::default();
                for _ in 0..150 {
                    repetitions.push(stream.below(alphabet) as u32);
                    let (length, places) = searched(repetitions.text());
                    let latest = places.last().copied().unwrap_or(0);
                    assert_eq!(repetitions.longest(), Match { length, end: latest });
                }
            }
        }
    }

    #[test]
    fn cutting_off_tokens_leaves_what_was_before_them() {
        for alphabet in [1, 2, 3] {
            let mut stream = Stream(alphabet + 77);
            let mut repetitions = Repetitions::default();
            for _ in 0..120 {
                for _ in 0..stream.below(12) {
                    repetitions.push(stream.below(alphabet) as u32);
                }
                let length = repetitions.text().len();
                repetitions.truncate(length - stream.below(9).min(length as u64) as usize);
                let mut rebuilt = Repetitions::default();
                repetitions.text().iter().for_each(|&token| rebuilt.push(token));
                let (length, places) = searched(repetitions.text());
                let found = repetitions.longest();
                assert_eq!(found.length, length);
                assert!(length == 0 || places.contains(&found.end), "{found:?} {places:?}");
                assert_eq!(repetitions.states.len(), rebuilt.states.len());
                assert_eq!(repetitions.next.len(), rebuilt.next.len());
            }
        }
    }

    #[test]
    fn memory_is_linear_and_no_token_does_much() {
        // The worst kinds: one token over and over, and Fibonacci's words.
        let mut word = (vec![0], vec![0, 1]);
        while word.1.len() < 4000 {
            word = (word.1.clone(), [word.1, word.0].concat());
        }
        for text in [vec![7; 4000], word.1, (0..4000).collect()] {
            let mut repetitions = Repetitions::default();
            text.iter().for_each(|&token| repetitions.push(token));
            assert!(repetitions.states.len() <= 2 * text.len());
            assert!(repetitions.next.len() <= 3 * text.len());
            assert!(repetitions.changes.len() <= 8 * text.len(), "{}", repetitions.changes.len());
        }
    }

    #[test]
    fn a_text_that_goes_round_goes_on_and_little_repetition_is_no_draft() {
        let mut lookup = Lookup::new(2);
        let settings = crate::sample::Settings::default();
        let mut uniform = || 0.5;
        let mut draw = Draw { settings: &settings, uniform: &mut uniform };
        let commit = |lookup: &mut Lookup, start, tokens: &[u32]| {
            lookup.committed(&Committed::plain(start, tokens)).unwrap();
        };
        commit(&mut lookup, 0, &[1, 2, 3, 9, 8, 1]);
        assert_eq!(lookup.propose(4, &mut draw).unwrap(), []);
        commit(&mut lookup, 6, &[2]);
        let ids = |proposals: Vec<Proposal>| proposals.iter().map(|p| p.id).collect::<Vec<_>>();
        assert_eq!(ids(lookup.propose(3, &mut draw).unwrap()), [3, 9, 8]);
        // 1 2 is what follows itself from here on.
        assert_eq!(ids(lookup.propose(7, &mut draw).unwrap()), [3, 9, 8, 1, 2, 3, 9]);
        assert!(lookup.committed(&Committed::plain(3, &[5])).is_err());
        lookup.settle(3).unwrap();
        commit(&mut lookup, 3, &[1, 2]);
        assert_eq!(ids(lookup.propose(2, &mut draw).unwrap()), [3, 1]);
    }
}
