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
        let head = self.columns.iter().map(|it| it.replace('_', " ")).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(cell).collect());
        let lines: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
        let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max();
        let widths: Vec<usize> = (0..self.columns.len()).filter_map(width).collect();
        let is_number = |at: usize| self.rows.iter().all(|row| !row[at].is_string());
        let mut text = String::new();
        for line in &lines {
            let mut shown = String::new();
            for (at, word) in line.iter().enumerate() {
                let width = widths[at];
                match is_number(at) {
                    true => shown.push_str(&format!("{word:>width$}  ")),
                    false => shown.push_str(&format!("{word:width$}  ")),
                }
            }
            text.push_str(shown.trim_end());
            text.push('\n');
        }
        text
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
