//! Tables in plain text: words to the left, figures to the right.
use crate::output::{Ink, Style};
use crate::page::{escaped, wide};
use comfy_table::CellAlignment::{Left, Right};
use comfy_table::presets::NOTHING;

/// Rows of cells under a heading.
#[derive(Clone, Debug)]
pub struct Table {
    table: comfy_table::Table,
    /// The first columns, which hold words.
    words: usize,
    /// Numbers of rows that have fewer cells than there are headings (0 = headings).
    short: Vec<usize>,
}

impl Table {
    /// A table with these headings. The first `words` columns hold words, the others figures.
    pub fn new(words: usize, headings: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING).set_header(headings);
        Self {
            table,
            words,
            short: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        if cells.len() < self.table.column_count() {
            self.short.push(self.table.row_count() + 1);
        }
        self.table.add_row(cells);
    }

    /// The table, each line ending in a newline. `tail` adds to a row's line (0 = headings)
    /// something that needs no alignment, such as a bar: behind its last cell.
    pub fn render(mut self, style: Style, tail: impl Fn(usize) -> String) -> String {
        for (number, column) in self.table.column_iter_mut().enumerate() {
            column.set_padding((if number == 0 { 0 } else { 2 }, 0));
            column.set_cell_alignment(if number < self.words { Left } else { Right });
        }
        let line = |(number, mut line): (usize, String)| {
            if number == 0 {
                line = style.paint(Ink::Bold, &line);
            }
            if self.short.contains(&number) {
                line.truncate(line.trim_end().len());
            }
            let line = format!("{line}  {}", tail(number));
            line.trim_end().to_owned() + "\n"
        };
        self.table.lines().enumerate().map(line).collect()
    }

    /// The table in HTML. `before` stands before the first cell of a row (0 = headings), `tail` are
    /// whole cells behind its last.
    pub fn html(&self, before: impl Fn(usize) -> String, tail: impl Fn(usize) -> String) -> String {
        let rows = self.table.header().into_iter().chain(self.table.row_iter());
        let row = |(number, row): (usize, &comfy_table::Row)| {
            let tag = if number == 0 { "th" } else { "td" };
            let cell = |(at, cell): (usize, &comfy_table::Cell)| {
                let class = if at < self.words { " class=\"w\"" } else { "" };
                let before = if at == 0 {
                    before(number)
                } else {
                    String::new()
                };
                format!("<{tag}{class}>{before}{}</{tag}>", escaped(&cell.content()))
            };
            let cells: String = row.cell_iter().enumerate().map(cell).collect();
            format!("<tr>{cells}{}</tr>\n", tail(number))
        };
        let rows: String = rows.enumerate().map(row).collect();
        wide(&format!("<table>\n{rows}</table>"))
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
        table.row(vec!["lost".into()]);
        let bar = |row: usize| ["", "###", "", "why"][row].to_owned();
        assert_eq!(
            table.render(Style::PLAIN, bar),
            "path           share      p50\n\
             fast          97.5 %    61 µs  ###\n\
             a longer one   2.5 %  30.1 ms\n\
             lost  why\n"
        );
    }

    #[test]
    fn html_escapes_cells_and_keeps_what_stands_around_them() {
        let mut table = Table::new(1, &["path", "share"]);
        table.row(vec!["<fast>".into(), "97.5 %".into()]);
        let html = table.html(|_| String::new(), |row| format!("<td>{row}</td>"));
        assert!(
            html.contains("<th class=\"w\">path</th><th>share</th><td>0</td>"),
            "{html}"
        );
        assert!(html.contains("<td class=\"w\">&lt;fast&gt;</td><td>97.5 %</td><td>1</td>"));
    }
}
