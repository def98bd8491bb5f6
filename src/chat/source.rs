//! A template's text as minijinja is given it, so that it means there what it means to jinja2.
//!
//! Line ends of any kind are one newline; the line end after `{% raw %}` stays; `{% generation %}`
//! (which marks the model's own words for training) says nothing; `\a` and `\v` are Python's; `%`, comparisons and loops, which
//! minijinja takes otherwise, go through filters; and macros that speak of `varargs` or `kwargs` get
//! them. [`Source`] knows what stood at a place before.

mod edits;
mod macros;
mod tokens;

use std::ops::Range;

use regex::{Captures, Regex};

use edits::{Edit, comparisons, escapes, loops, percents};
use macros::Macros;
use tokens::tokens;

/// A template's text, and what minijinja is given in its place.
pub(super) struct Source {
    /// As it was written, with one newline at each line's end.
    pub own: String,
    /// In minijinja's words.
    pub given: String,
    edits: Vec<Edit>,
}

impl Source {
    /// Puts what minijinja would read otherwise in its words.
    pub fn new(written: &str) -> Source {
        let own = written.replace("\r\n", "\n").replace('\r', "\n");
        let mut edits =
            replaced(r"\{%[-+]?\s*raw\s*%\}\n", &own, |found| format!("{}\n", &found[0]));
        edits.extend(replaced(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}", &own, |found| {
            let block = if found.get(2).is_some() { "endif" } else { "if true" };
            format!("{{%{} {block} {}%}}", &found[1], &found[3])
        }));
        edits.extend(of_blocks(&own));
        edits.sort_by_key(|(range, _)| (range.start, range.end));
        // Of what is no template two edits may take the same place: the first has it.
        let mut taken = 0;
        edits.retain(|(range, _)| {
            let free = range.start >= taken;
            taken = taken.max(range.end);
            free
        });
        let mut given = String::with_capacity(own.len());
        let mut from = 0;
        for (range, by) in &edits {
            given.push_str(&own[from..range.start]);
            given.push_str(by);
            from = range.end;
        }
        given.push_str(&own[from..]);
        Source { own, given, edits }
    }

    /// Where in the text as it was written a range of the given one stands.
    pub fn place(&self, given: Range<usize>) -> Range<usize> {
        let start = self.offset(given.start, |range| range.start);
        let end = self.offset(given.end, |range| range.end);
        start..end.max(start)
    }

    /// The offset before the edits; `inside` tells it of what stands in one.
    fn offset(&self, given: usize, inside: fn(&Range<usize>) -> usize) -> usize {
        // Bytes more in the given text than in the own one.
        let mut more = 0_isize;
        for (range, by) in &self.edits {
            let start = range.start.saturating_add_signed(more);
            if given < start {
                break;
            }
            if given < start + by.len() {
                return inside(range);
            }
            more += by.len() as isize - range.len() as isize;
        }
        given.saturating_add_signed(-more).min(self.own.len())
    }
}

fn replaced(pattern: &str, text: &str, by: impl Fn(&Captures) -> String) -> Vec<Edit> {
    let Ok(pattern) = Regex::new(pattern) else { return Vec::new() };
    pattern.captures_iter(text).map(|found| (found.get_match().range(), by(&found))).collect()
}

/// The edits of all expressions and statements.
fn of_blocks(text: &str) -> Vec<Edit> {
    let mut found: Vec<Edit> = Vec::new();
    let mut macros = Macros::default();
    let mut at = 0;
    while let Some(next) = text[at..].find('{') {
        let begin = at + next;
        let rest = &text[begin..];
        at = begin + 1;
        if rest.starts_with("{#") {
            at = rest.find("#}").map_or(text.len(), |end| begin + end + 2);
        } else if rest.starts_with("{{") || rest.starts_with("{%") {
            let (tokens, end) = tokens(text, begin + 2);
            let is_statement = rest.starts_with("{%");
            at = end;
            if is_statement
                && tokens.first().is_some_and(|first| &text[first.range.clone()] == "raw")
            {
                at = text[end..].find("endraw").map_or(text.len(), |raw| end + raw);
                continue;
            }
            found.extend(escapes(text, &tokens));
            found.extend(percents(text, &tokens));
            found.extend(comparisons(text, &tokens, is_statement));
            // Last: what it puts behind an expression stands behind what others do.
            if is_statement {
                found.extend(loops(text, &tokens));
            }
            found.extend(macros.block(text, &tokens, is_statement, end));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::python::PERCENT;

    #[test]
    fn percent_becomes_a_filter_where_it_may_format() {
        for (given, expected) in [
            ("{{ 'a%s' % x }}", "{{ 'a%s' |P( x) }}"),
            ("{{ 'a%s' % (x, y)|z ~ 1 }}", "{{ 'a%s' |P( (x, y)|z) ~ 1 }}"),
            ("{{ f.g('%')[0]|t % -x.y }}", "{{ f.g('%')[0]|t |P( -x.y) }}"),
            ("{% if loop.index0 % 2 == 0 %}", "{% if loop.index0 % 2 == 0 %}"),
            ("{{ a * b % c }}", "{{ a * b % c }}"),
            ("{{ a % b % c }}", "{{ a |P( b) % c }}"),
            ("{% if (x % y) != 0 %}%d % x{% endif %}", "{% if (x |P( y)) != 0 %}%d % x{% endif %}"),
            (
                "{# 'a' % b #}{% raw %}{{ 'a' % b }}{% endraw %}{{ 'c' % d }}",
                "{# 'a' % b #}{% raw %}{{ 'a' % b }}{% endraw %}{{ 'c' |P( d) }}",
            ),
            ("{{ {'a': '%s' % b}['a'] }} 5 % 3", "{{ {'a': '%s' |P( b)}['a'] }} 5 % 3"),
            ("{{ 'a' % ", "{{ 'a' % "),
            ("{{ ) % ( }} {{ % }}", "{{ ) % ( }} {{ % }}"),
        ] {
            assert_eq!(Source::new(given).given, expected.replace("|P(", &format!("|{PERCENT}(")));
        }
    }

    #[test]
    fn comparisons_and_loops_become_filters() {
        for (given, expected) in [
            ("{% if a < 1 %}", "{% if (a )|C('<', 1) %}"),
            (
                "{%- if x and not a.b|length >= 2 * (c - 1) or d -%}",
                "{%- if x and not (a.b|length )|C('>=', 2 * (c - 1)) or d -%}",
            ),
            (
                "{{ f(a=b > c, d=[e < 1]) if g <= h else i }}",
                "{{ f(a=(b )|C('>', c), d=[(e )|C('<', 1)]) if (g )|C('<=', h) else i }}",
            ),
            (
                "{{ a < b < c }}{{ a < b == c }}{{ a in b < c }}",
                "{{ a < b < c }}{{ a < b == c }}{{ a in b < c }}",
            ),
            ("{{ '<' }} a < b {# a < b #}", "{{ '<' }} a < b {# a < b #}"),
            ("{% set x = m.in > 1 %}", "{% set x = (m.in )|C('>', 1) %}"),
            ("{{ < }}{{ a < }}{% if > 1 %}", "{{ < }}{{ a < }}{% if > 1 %}"),
            (
                "{% for a, b in c.d() | e if a > 1 %}",
                "{% for a, b in (c.d() | e)|E if (a )|C('>', 1) %}",
            ),
            ("{%- for x in [1, 2] recursive -%}", "{%- for x in ([1, 2])|E recursive -%}"),
            ("{% for x in 'a' % b %}", "{% for x in ('a' |P( b))|E %}"),
            ("{% for x %}{% for x in %}", "{% for x %}{% for x in %}"),
        ] {
            let expected = expected
                .replace("|P(", &format!("|{PERCENT}("))
                .replace("|C(", &format!("|{}(", crate::chat::python::COMPARE))
                .replace(")|E", &format!(")|{}", crate::chat::python::EACH));
            assert_eq!(Source::new(given).given, expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(
            written in "(\\{[{%#]-?|[-+]?[}%#]\\}|for x in |macro f\\(|endmacro|varargs|generation|raw|[a-z<>=%'\"\\\\()\\[\\]{}|.,é \n]){0,30}"
        ) {
            let source = Source::new(&written);
            for at in [0, 1, source.given.len() / 2, source.given.len()] {
                proptest::prop_assert!(source.place(at..at + 1).end <= source.own.len());
            }
        }
    }

    #[test]
    fn places_are_those_of_the_text_as_it_was_written() {
        let source = Source::new("{% generation %}\r\n{% for x in y %}{{ x < z }}{{ last }}");
        for word in ["for x", "x < z", " z }}", "{{ last }}", "last"] {
            let given = source.given.find(word).or(source.given.find(&word.replace('<', ")|")));
            let Some(given) = given else { continue };
            let own = source.own.find(word).unwrap();
            assert_eq!(source.place(given..given + 1).start, own, "{word}");
        }
        let end = source.given.len();
        assert_eq!(source.place(end..end), source.own.len()..source.own.len());
        assert_eq!(source.place(0..3), 0..16);
    }
}
