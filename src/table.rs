//! Tables for people: cells in, lines of text out, never wider than they need to be.
//!
//! A table has its natural width where that fits. Where it does not, the widest columns are wrapped
//! between words; and where the words themselves do not fit side by side, each row becomes a block:
//! its first cell, and the others under it. Words are not broken: a name that is copied is whole.

use unicode_width::UnicodeWidthStr;

/// Spaces between columns, and before the lines of a block.
const GAP: usize = 2;
/// A column is not made narrower than this by wrapping.
const NARROWEST: usize = 12;

/// Rows of cells under a header, which may be empty.
#[derive(Clone, Debug, Default)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Columns of numbers, which end together.
    right: Vec<usize>,
}

impl Table {
    /// An empty table.
    pub fn new(header: &[&str]) -> Table {
        Table { header: header.iter().map(|&cell| cell.into()).collect(), ..Table::default() }
    }

    /// Aligns these columns (from 0) to the right.
    pub fn right(mut self, columns: &[usize]) -> Table {
        self.right = columns.to_vec();
        self
    }

    /// Adds a row. Line breaks in a cell are spaces.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines, for a terminal of so many columns; as wide as they are for `None`.
    pub fn text(&self, width: Option<usize>) -> String {
        match self.columns(width) {
            Some(columns) => self.side_by_side(&columns),
            None => self.blocks(width.unwrap_or(usize::MAX)),
        }
    }

    fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.header).filter(|header| !header.is_empty()).chain(&self.rows)
    }

    /// The width of each column; `None` when they do not fit side by side.
    fn columns(&self, width: Option<usize>) -> Option<Vec<usize>> {
        let count = self.lines().map(Vec::len).max().unwrap_or(0);
        let widest = |of: &dyn Fn(&str) -> usize| -> Vec<usize> {
            let of_column = |n: usize| {
                let cells = self.lines().filter_map(|line| line.get(n));
                cells.map(|cell| of(cell.as_str())).max().unwrap_or(0)
            };
            (0..count).map(of_column).collect()
        };
        let mut columns = widest(&|cell| cell.width());
        let Some(width) = width else { return Some(columns) };
        let room = width.saturating_sub(GAP * count.saturating_sub(1));
        let words =
            widest(&|cell| cell.split_whitespace().map(UnicodeWidthStr::width).max().unwrap_or(0));
        let least: Vec<usize> =
            columns.iter().zip(&words).map(|(&all, &word)| word.max(all.min(NARROWEST))).collect();
        if least.iter().sum::<usize>() > room {
            return None;
        }
        while columns.iter().sum::<usize>() > room {
            let wide = (0..count).filter(|&n| columns[n] > least[n]).max_by_key(|&n| columns[n])?;
            columns[wide] -= 1;
        }
        Some(columns)
    }

    fn side_by_side(&self, columns: &[usize]) -> String {
        let mut out = String::new();
        for line in self.lines() {
            let cells: Vec<Vec<String>> =
                line.iter().zip(columns).map(|(cell, &width)| wrap(cell, width)).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for at in 0..height {
                let mut text = String::new();
                for (n, (cell, width)) in cells.iter().zip(columns).enumerate() {
                    let cell = cell.get(at).map_or("", String::as_str);
                    let space = " ".repeat(width.saturating_sub(cell.width()));
                    let (before, after) = if self.right.contains(&n) {
                        (space, String::new())
                    } else {
                        (String::new(), space)
                    };
                    let gap = " ".repeat(if n == 0 { 0 } else { GAP });
                    text.extend([gap, before, cell.to_string(), after]);
                }
                out.push_str(text.trim_end());
                out.push('\n');
            }
        }
        out.truncate(out.trim_end_matches('\n').len());
        out
    }

    /// The first cell of a row, and indented under it the others, each after its column's name, as
    /// many on a line as fit.
    fn blocks(&self, width: usize) -> String {
        let room = width.saturating_sub(GAP).max(1);
        let mut lines: Vec<String> = Vec::new();
        for row in &self.rows {
            let Some((first, rest)) = row.split_first() else { continue };
            lines.extend(Some(first.clone()).filter(|first| !first.is_empty()));
            let mut line = String::new();
            let named = rest.iter().enumerate().filter(|(_, cell)| !cell.is_empty());
            let named = named.map(|(n, cell)| match self.header.get(n + 1).map(String::as_str) {
                None | Some("") => cell.clone(),
                Some(name) => format!("{name} {cell}"),
            });
            for cell in named {
                if !line.is_empty() && line.width() + GAP + cell.width() <= room {
                    line.push_str(&format!("{:GAP$}{cell}", ""));
                    continue;
                }
                lines.extend(indented(&line, room));
                line = cell;
            }
            lines.extend(indented(&line, room));
        }
        lines.join("\n")
    }
}

/// A line of a block, wrapped where it is a cell that does not fit.
fn indented(line: &str, room: usize) -> Vec<String> {
    let wrapped = if line.is_empty() { Vec::new() } else { wrap(line, room) };
    wrapped.into_iter().map(|line| format!("{:GAP$}{line}", "")).collect()
}

/// The text in lines of this width, as far as its words are not longer. What fits stays as it is.
fn wrap(text: &str, width: usize) -> Vec<String> {
    if text.width() <= width && !text.contains('\n') {
        return vec![text.to_string()];
    }
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        match line.is_empty() {
            true => line.push_str(word),
            false if line.width() + 1 + word.width() <= width => line.extend([" ", word]),
            false => lines.push(word.to_string()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["NAME", "SIZE", "WHY"]).right(&[1]);
        table.row(["model.embed_tokens.weight", "7 kB", "it doubles as the output head"]);
        table.row(["model.norm.weight", "128 B", "-"]);
        table
    }

    #[test]
    fn a_table_has_its_natural_width_where_that_fits() {
        let expected = "\
NAME                        SIZE  WHY
model.embed_tokens.weight   7 kB  it doubles as the output head
model.norm.weight          128 B  -";
        assert_eq!(table().text(None), expected);
        assert_eq!(table().text(Some(63)), expected);
    }

    #[test]
    fn words_are_never_broken() {
        let wrapped = "\
NAME                        SIZE  WHY
model.embed_tokens.weight   7 kB  it doubles as
                                  the output
                                  head
model.norm.weight          128 B  -";
        assert_eq!(table().text(Some(48)), wrapped);
        let blocks = "\
model.embed_tokens.weight
  SIZE 7 kB
  WHY it doubles as the
  output head
model.norm.weight
  SIZE 128 B  WHY -";
        assert_eq!(table().text(Some(24)), blocks);
        let words = |text: &str| {
            let mut words: Vec<String> = text.split_whitespace().map(str::to_string).collect();
            words.sort();
            words.dedup();
            words
        };
        let whole = words(&table().text(None));
        for width in 1..80 {
            let narrow = words(&table().text(Some(width)));
            assert!(narrow.iter().all(|word| whole.contains(word)), "{width}: {narrow:?}");
        }
    }

    #[test]
    fn labels_without_a_header_are_followed_by_their_values() {
        let mut table = Table::new(&[]);
        table.row(["architecture", "LlamaForCausalLM"]);
        assert_eq!(table.text(Some(20)), "architecture\n  LlamaForCausalLM");
        assert_eq!(Table::new(&["A"]).text(Some(1)), "A");
    }
}
