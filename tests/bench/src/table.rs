//! Cells of figures, as tables for people or as JSON for programs.
use serde_json::{Map, Value};
use system::figures::{Format, load_average};
use terminal::output::Style;
use terminal::table::Table;

/// A column: a key of the cells, its heading, and digits behind the point of a number.
pub type Column = (&'static str, &'static str, usize);

/// A table: its key in JSON, its title, its columns and its cells.
pub type Part<'a> = (&'static str, String, &'a [Column], Vec<Value>);

/// Prints tables that have cells: title and text of each, then the load average; or an object.
pub fn print(format: Format, parts: &[Part<'_>]) {
    if format == Format::Json {
        let cells = |(key, _, _, cells): &Part<'_>| ((*key).to_owned(), cells.clone().into());
        let shown: Map<String, Value> = parts.iter().map(cells).collect();
        return println!("{}", Value::Object(shown));
    }
    for (_, title, columns, cells) in parts.iter().filter(|(.., cells)| !cells.is_empty()) {
        println!("{title}\n{}", text(columns, cells));
    }
    println!("load average of the machine: {}", load_average());
}

/// The table alone; words stand to the left of it. A figure that there is not is shown as `-`.
fn text(columns: &[Column], cells: &[Value]) -> String {
    let is_word = |column: &&Column| cells.iter().any(|cell| cell[column.0].is_string());
    let words = columns.iter().take_while(is_word).count();
    let heads: Vec<&str> = columns.iter().map(|(_, head, _)| *head).collect();
    let mut table = Table::new(words, &heads);
    for cell in cells {
        let row = columns
            .iter()
            .map(|&(key, _, digits)| shown(&cell[key], digits));
        table.row(row.collect());
    }
    table.render(Style::PLAIN, |_| String::new())
}

fn shown(value: &Value, digits: usize) -> String {
    match (value, value.as_f64()) {
        (Value::String(word), _) => word.clone(),
        (_, Some(figure)) => format!("{figure:.digits$}"),
        (Value::Array(figures), _) => {
            let figures: Vec<String> = figures.iter().map(|it| shown(it, digits)).collect();
            figures.join(" … ")
        }
        _ => "-".into(),
    }
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
