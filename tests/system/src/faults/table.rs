//! Tables for people, and the same facts for programs.
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Rows under named columns.
pub struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<Value>>,
}

impl Table {
    /// An empty one. Names of columns are keys in JSON.
    pub fn new(columns: &[&'static str]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// How often each fault was.
    pub fn of_faults(faults: &BTreeMap<String, u64>) -> Self {
        let mut table = Self::new(&["fault", "count"]);
        for (name, count) in faults {
            table.row(vec![name.as_str().into(), (*count).into()]);
        }
        table
    }

    /// Adds a row, as long as there are columns.
    pub fn row(&mut self, cells: Vec<Value>) {
        self.rows.push(cells);
    }

    /// For people: numbers to the right, words to the left.
    pub fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(self.columns.iter().map(|it| it.replace('_', " ")));
        table.add_rows(self.rows.iter().map(|row| row.iter().map(cell)));
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if self.rows.iter().all(|row| !row[at].is_string()) {
                column.set_cell_alignment(comfy_table::CellAlignment::Right);
            }
        }
        table.trim_fmt() + "\n"
    }

    /// For programs: a list of objects.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let pairs = self.columns.iter().zip(row);
            let object: Map<String, Value> = pairs
                .map(|(key, value)| ((*key).to_owned(), value.clone()))
                .collect();
            Value::Object(object)
        });
        Value::Array(rows.collect())
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64() {
            Some(whole) => whole.to_string(),
            None => format!("{:.2}", number.as_f64().unwrap_or(f64::NAN)),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::Table;
    use serde_json::json;

    #[test]
    fn words_stand_left_and_numbers_right() {
        let mut table = Table::new(&["kind", "longest_s"]);
        table.row(vec!["cut".into(), json!(12.5)]);
        table.row(vec!["kill -9".into(), json!(null)]);
        let expected = "kind     longest s\ncut          12.50\nkill -9          -\n";
        assert_eq!(table.text(), expected);
        assert_eq!(table.json()[0]["longest_s"], 12.5);
    }
}
