//! Figures of several rounds, in each of which everything that is compared runs in turn.
//!
//! # Contract
//! A run has facts: an object of words and figures. Ratios are facts too, to another run of the
//! same round, so that what the machine does besides hits both. The summary of a row has the median
//! of each figure over rounds.
use crate::prelude::*;

/// Measures each row once per round. Cells of `columns`, one per row.
///
/// # Errors
/// That of a run.
pub fn interleaved<R>(
    rounds: u16,
    rows: &[R],
    columns: &[Column],
    mut measure: impl FnMut(&R) -> Result<Value>,
) -> Result<Vec<Value>> {
    let mut facts = vec![Vec::new(); rows.len()];
    for _ in 0..rounds {
        for (row, facts) in rows.iter().zip(&mut facts) {
            facts.push(measure(row)?);
        }
    }
    Ok(facts.iter().map(|it| summary(it, columns)).collect())
}

/// The cells of `columns` from the facts of all rounds. Of figures the median (of an even number
/// the upper of the middle two), for `KEY_range` the least and the greatest; of all else the last.
pub fn summary(rounds: &[Value], columns: &[Column]) -> Value {
    let cell = |&(key, ..): &Column| {
        let of = key.strip_suffix("_range").unwrap_or(key);
        let value = match sorted(rounds, of)[..] {
            [] => rounds.last().map_or(Value::Null, |it| it[of].clone()),
            [least, .., most] if of != key => json!([least, most]),
            [only] if of != key => json!([only, only]),
            ref figures => figures[figures.len() / 2].clone(),
        };
        (key, value)
    };
    columns.iter().map(cell).collect()
}

/// The figures of all rounds, ascending.
pub fn sorted<'a>(rounds: &'a [Value], key: &str) -> Vec<&'a Value> {
    let facts = rounds.iter().map(|it| &it[key]);
    let mut figures: Vec<&Value> = facts.filter(|it| it.is_number()).collect();
    figures.sort_by(|a, b| figure(a).total_cmp(&figure(b)));
    figures
}

fn figure(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// A figure of a run as a part of the same one of another; none where either has none.
pub fn ratio(facts: &Value, to: &Value, key: &str) -> Value {
    json!(figure(&facts[key]) / figure(&to[key]))
}

/// The facts, and more of them.
pub fn with(mut facts: Value, more: Value) -> Value {
    if let (Value::Object(facts), Value::Object(more)) = (&mut facts, more) {
        facts.extend(more);
    }
    facts
}

/// Every pair of them.
pub fn product<A: Clone, B: Clone>(all: &[A], with: &[B]) -> Vec<(A, B)> {
    let pairs = |a: &A| {
        with.iter()
            .map(|b| (a.clone(), b.clone()))
            .collect::<Vec<_>>()
    };
    all.iter().flat_map(pairs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_that_of_its_round() {
        let columns = ["op", "iops", "iops_range", "ratio", "left_out"].map(|key| (key, "", 0));
        let mut rates = [10.0, 20.0, 20.0, 20.0, 40.0, 80.0].into_iter();
        let mut first = Value::Null;
        let cells = interleaved(3, &["one", "other"], &columns, |op| {
            let facts = json!({"op": op, "iops": rates.next(), "unasked": 1});
            if *op == "one" {
                first = facts.clone();
            }
            Ok(with(
                facts.clone(),
                json!({"ratio": ratio(&facts, &first, "iops")}),
            ))
        });
        let cells = cells.unwrap();
        let one = json!({"op": "one", "iops": 20.0, "iops_range": [10.0, 40.0], "ratio": 1.0,
                         "left_out": null});
        assert_eq!(cells[0], one);
        assert_eq!([&cells[1]["iops"], &cells[1]["ratio"]], [20.0, 2.0]);
        assert_eq!(ratio(&cells[0], &Value::Null, "iops"), Value::Null);
    }

    #[test]
    fn every_pair_has_its_row() {
        assert_eq!(product(&[1, 2], &["a"]), [(1, "a"), (2, "a")]);
    }
}
