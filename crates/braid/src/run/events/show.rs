//! `braid events`: the verb.
use super::super::call::EngineCall;
use super::super::client::Common;
use super::super::stat::paragraph_at;
use super::{EventsParams, WAIT_MAX};
use crate::output::{self, Format};
use clap::Args;
use serde_json::{Value, json};
use terminal::answer::{items, number, word};

/// Options of `events`.
#[derive(Clone, Debug, Args)]
pub struct EventsArgs {
    /// Go on with what happens from now on, until the engine ends
    #[arg(short, long)]
    follow: bool,
    /// Only events behind the one of this number, `seq` in JSON; lost ones are counted
    #[arg(long, value_name = "SEQ")]
    since: Option<u64>,
    /// Only events of this volume or mirror
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Shows events.
///
/// # Errors
/// No engine answers, or it ends.
pub fn show(args: &EventsArgs) -> anyhow::Result<()> {
    let mut reading = Reading::new(args.since, args.follow);
    loop {
        let call = EngineCall::Events(reading.next_params());
        let answer = args.common.call(&call)?;
        let is_wanted = |event: &&Value| {
            let volume = args.volume.as_deref();
            volume.is_none_or(|name| event["volume"] == name || event["kind"] == "lost")
        };
        let lost = lost(&answer);
        let events = lost.iter().chain(items(&answer["events"]));
        let mut text = String::new();
        for event in events.filter(is_wanted) {
            match args.common.output {
                Format::Json => text.push_str(&format!("{event}\n")),
                Format::Text => in_words(&mut text, event)?,
            }
        }
        output::print(&text)?;
        if !reading.goes_on(&answer) {
            return Ok(());
        }
    }
}

/// Progress of a reader through the answers of an engine.
struct Reading {
    since: Option<u64>,
    follows: bool,
    /// Number of the newest event when the first answer was given.
    newest: Option<u64>,
}

impl Reading {
    fn new(since: Option<u64>, follows: bool) -> Self {
        Self {
            since,
            follows,
            newest: None,
        }
    }

    /// The next question. Events that are kept are shown at once; only a reader that follows waits
    /// for others, behind them.
    fn next_params(&self) -> EventsParams {
        let waits = self.follows && self.newest.is_some();
        EventsParams {
            since: self.since,
            wait_ns: if waits { WAIT_MAX.as_nanos() as u64 } else { 0 },
        }
    }

    /// Takes note of an answer. Returns whether there is another question: without `--follow` until
    /// all is shown that was there at the first, however many come meanwhile.
    fn goes_on(&mut self, answer: &Value) -> bool {
        let last = number(&answer["last"]);
        self.since = Some(last);
        let newest = *self.newest.get_or_insert(number(&answer["newest"]));
        self.follows || last < newest
    }
}

/// Events that a reader cannot have any more, as a line among the others.
fn lost(answer: &Value) -> Option<Value> {
    let count = number(&answer["lost"]);
    let reason = match answer["other_run"] == true {
        true => "the engine was started anew: what was not read of its last run is lost".to_owned(),
        false if count > 0 => format!("{count} events are lost: the engine does not keep so many"),
        false => return None,
    };
    Some(json!({"kind": "lost", "count": count, "reason": reason}))
}

/// One event for people.
fn in_words(text: &mut String, event: &Value) -> std::fmt::Result {
    let reason = event["reason"].as_str();
    if event["kind"] == "lost" {
        return paragraph_at(text, "  ", &format!("({})", reason.unwrap_or_default()));
    }
    let time = word(&event["time"]).replace('T', " ");
    let time = time.split('.').next().unwrap_or_default();
    let of = ["volume", "kind", "path", "client"];
    let of = of.iter().filter_map(|key| event[*key].as_str());
    // A path has a name, an engine has none.
    let of: Vec<&str> = of.collect();
    let from = event["from"].as_str();
    let from = from.map_or(String::new(), |it| format!("{it} -> "));
    let reason = reason.map_or(String::new(), |it| format!(" ({it})"));
    let line = format!("{}: {from}{}{reason}", of.join(" "), word(&event["to"]));
    paragraph_at(text, &format!("{time}  "), &line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_that_follows_waits_and_goes_on() {
        let answer = |last, newest| json!({"last": last, "newest": newest});
        let next = |it: &Reading| (it.next_params().since, it.next_params().wait_ns > 0);
        let mut once = Reading::new(None, false);
        assert_eq!(next(&once), (None, false));
        assert!(once.goes_on(&answer(256, 300)));
        assert_eq!(next(&once), (Some(256), false));
        assert!(!once.goes_on(&answer(512, 900)), "what came meanwhile");
        assert!(!Reading::new(Some(7), false).goes_on(&answer(7, 7)));
        let mut follows = Reading::new(Some(7), true);
        assert_eq!(next(&follows), (Some(7), false), "what is kept is shown");
        assert!(follows.goes_on(&answer(7, 7)));
        assert_eq!(next(&follows), (Some(7), true));
    }

    #[test]
    fn events_fit_a_terminal_and_losses_are_said() {
        let mut text = String::new();
        let event = json!({
            "seq": 7, "time": "2026-09-21T14:13:20.007Z", "kind": "path", "volume": "v0",
            "path": "10.0.0.1", "client": null, "from": "live", "to": "reconnecting",
            "reason": "the connection was closed by the target, and is opened again",
        });
        in_words(&mut text, &event).unwrap();
        let lost = lost(&json!({"lost": 3, "other_run": false})).unwrap();
        in_words(&mut text, &lost).unwrap();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        let first = "2026-09-21 14:13:20  v0 path 10.0.0.1: live -> reconnecting (the connection";
        assert!(text.starts_with(first), "{text}");
        assert!(text.ends_with("  (3 events are lost: the engine does not keep so many)\n"));
        assert_eq!(super::lost(&json!({"lost": 0, "other_run": false})), None);
    }
}
