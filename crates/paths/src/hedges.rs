//! Second copies of late reads, in figures and in words.
use crate::units::{format_count, format_ns, significant};
use engine::host::HedgeStats;
use serde_json::{Value, json};

/// Counters of second copies beside so many reads.
pub fn json(stats: &HedgeStats, reads: u64) -> Value {
    json!({
        "looked": stats.looked,
        "sent": stats.sent,
        "won": stats.won,
        "lost": stats.lost,
        "failed": stats.failed,
        "rescued": stats.rescued,
        "no_room": stats.no_room,
        "gained_ns": stats.gained_ns,
        "extra_percent": stats.sent as f64 * 100.0 / reads.max(1) as f64,
    })
}

/// The same for people; `None`: there were none.
pub fn words(of: &Value) -> Option<String> {
    let count = |key: &str| of[key].as_u64().unwrap_or(0);
    let shown = |key: &str| format_count(count(key));
    let extra = of["extra_percent"].as_f64().unwrap_or(0.0);
    if count("sent") == 0 && count("no_room") == 0 {
        return None;
    }
    let mut facts = vec![
        format!("{} of late reads ({} %)", shown("sent"), significant(extra)),
        format!("{} came first", shown("won")),
    ];
    if count("gained_ns") > 0 {
        let gained = format_ns(count("gained_ns") as f64);
        facts.push(format!("together {gained} before the others"));
    }
    if count("lost") > 0 {
        facts.push(format!("{} came second", shown("lost")));
    }
    if count("rescued") > 0 {
        let rescued = shown("rescued");
        facts.push(format!(
            "{rescued} carried the read when the first had failed"
        ));
    }
    if count("failed") > 0 {
        facts.push(format!("{} failed", shown("failed")));
    }
    if count("no_room") > 0 {
        facts.push(format!("{} not sent for want of room", shown("no_room")));
    }
    if count("looked") > 0 {
        facts.push(format!("{} reads looked at", shown("looked")));
    }
    Some(facts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_there_was_and_nothing_of_nothing() {
        assert_eq!(words(&json(&HedgeStats::default(), 1000)), None);
        let stats = HedgeStats {
            looked: 90,
            sent: 14,
            won: 9,
            lost: 2,
            failed: 1,
            rescued: 2,
            no_room: 3,
            gained_ns: 81_000_000,
        };
        let value = json(&stats, 10_000);
        assert_eq!(
            words(&value).unwrap(),
            "14 of late reads (0.14 %), 9 came first, together 81.0 ms before the others, 2 came \
             second, 2 carried the read when the first had failed, 1 failed, 3 not sent for want \
             of room, 90 reads looked at"
        );
        let none = HedgeStats {
            sent: 1,
            ..HedgeStats::default()
        };
        let words = words(&json(&none, 0)).unwrap();
        assert_eq!(words, "1 of late reads (100 %), 0 came first");
    }
}
