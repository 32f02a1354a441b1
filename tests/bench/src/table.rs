//! Cells of figures, as a table for people or as JSON for programs.
use serde_json::{Value, json};
use system::figures::{Format, load_average};
use terminal::output::Style;
use terminal::table::Table;

/// A column: a key of the cells, its heading, and digits behind the point of a number.
pub type Column = (&'static str, &'static str, usize);

/// Prints cells: a title, the table and the load average, or an object with `cells`.
pub fn print(format: Format, title: &str, columns: &[Column], cells: &[Value]) {
    match format {
        Format::Text => {
            print!("{title}\n{}", text(columns, cells));
            println!("load average of the machine: {}", load_average());
        }
        Format::Json => println!("{}", json!({ "cells": cells })),
    }
}

/// The table alone; words stand to the left of it. A figure that there is not is shown as `-`.
pub fn text(columns: &[Column], cells: &[Value]) -> String {
    let is_word = |column: &&Column| cells.iter().any(|cell| cell[column.0].is_string());
    let words = columns.iter().take_while(is_word).count();
    let heads: Vec<&str> = columns.iter().map(|(_, head, _)| *head).collect();
    let mut table = Table::new(words, &heads);
    for cell in cells {
        let shown = |&(key, _, digits): &Column| match (&cell[key], cell[key].as_f64()) {
            (Value::String(word), _) => word.clone(),
            (_, Some(figure)) => format!("{figure:.digits$}"),
            (Value::Array(figures), _) => {
                let figures = figures.iter().filter_map(Value::as_f64);
                let figures: Vec<String> = figures.map(|it| format!("{it:.digits$}")).collect();
                figures.join(" … ")
            }
            _ => "-".into(),
        };
        table.row(columns.iter().map(shown).collect());
    }
    table.render(Style::PLAIN, |_| String::new())
}

#[cfg(test)]
mod tests {
    use super::text;
    use serde_json::json;

    #[test]
    fn cells_are_shown_by_column() {
        let columns = [
            ("op", "op", 0),
            ("rate", "rate/s", 1),
            ("range", "range", 2),
        ];
        let cells = [
            json!({"op": "read", "rate": 12.25, "range": [0.5, 1.0]}),
            json!({"op": "write", "rate": null}),
        ];
        let shown = "op     rate/s        range\nread     12.2  0.50 … 1.00\n\
                     write       -            -\n";
        assert_eq!(text(&columns, &cells), shown);
    }
}
