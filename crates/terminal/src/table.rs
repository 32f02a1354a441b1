//! Tables in plain text: words to the left, figures to the right.
use crate::output::{Ink, Style};

/// Rows of cells under a heading.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    /// The first columns, which hold words.
    words: usize,
}

impl Table {
    /// A table with these headings. The first `words` columns hold words, the others figures.
    pub fn new(words: usize, headings: &[&str]) -> Self {
        let headings = headings.iter().map(|&heading| heading.to_owned()).collect();
        Self {
            rows: vec![headings],
            words,
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table, each line ending in a newline. `tail` adds to a row's line (0 = headings)
    /// something that needs no alignment, such as a bar.
    pub fn render(&self, style: Style, tail: impl Fn(usize) -> String) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                line.push_str(&match column < self.words {
                    true => format!("{gap}{cell:<width$}"),
                    false => format!("{gap}{cell:>width$}"),
                });
            }
            let line = if number == 0 {
                style.paint(Ink::Bold, &line)
            } else {
                line
            };
            let tail = tail(number);
            let gap = if tail.is_empty() { "" } else { "  " };
            text.push_str(format!("{line}{gap}{tail}").trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(1, &["path", "share", "p50"]);
        table.row(vec!["fast".into(), "97.5 %".into(), "61 µs".into()]);
        table.row(vec![
            "a longer one".into(),
            "2.5 %".into(),
            "30.1 ms".into(),
        ]);
        let bar = |row: usize| {
            if row == 1 {
                "###".to_owned()
            } else {
                String::new()
            }
        };
        assert_eq!(
            table.render(Style::PLAIN, bar),
            "path           share      p50\n\
             fast          97.5 %    61 µs  ###\n\
             a longer one   2.5 %  30.1 ms\n"
        );
    }
}
