//! States of the engine while things go wrong, and so why a request waited.
//!
//! # Contract
//! A thread asks the control socket for `stat` and reads what was appended to the log, every
//! [`PERIOD`]. A request's time is divided by what `stat` showed meanwhile of requests of its kind:
//! held, without a path, waiting for a busy one, or none of it: then it was with a path that didn't
//! answer, and what the log says next of a path is why that ended.
//!
//! # Limits
//! `stat` is of the volume, not of the request: where several wait for different reasons, the
//! reason of most of the time is right, not each part of it.
use super::engine::stat;
use super::probe::{Op, Slow};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(20);
/// A line about a path this long after a request was answered may be its reason.
const LATER: Duration = Duration::from_millis(60);

/// One look.
struct Sample {
    at: Duration,
    held: u64,
    queued: u64,
    delayed: u64,
    flushes: u64,
    quiescing: bool,
    proved_total: u64,
    bounded_total: u64,
}

#[derive(Default)]
struct Seen {
    samples: Vec<Sample>,
    lines: Vec<(Duration, String)>,
}

/// The watching thread.
pub struct Watch {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Begins; times count from `epoch`.
    pub fn start(socket: PathBuf, log: PathBuf, epoch: Instant) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (seen2, stop2) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut read = 0;
            while !stop2.load(Ordering::Relaxed) {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let sample = stat(&socket)
                    .ok()
                    .map(|stat| sample(&stat, epoch.elapsed()));
                let mut seen = seen2.lock().unwrap_or_else(PoisonError::into_inner);
                seen.samples.extend(sample);
                let whole = text.rfind('\n').map_or(read, |end| end + 1);
                let fresh = text.get(read..whole).unwrap_or_default().lines();
                let now = epoch.elapsed();
                seen.lines.extend(fresh.map(|line| (now, line.to_owned())));
                read = whole;
                drop(seen);
                sleep(PERIOD);
            }
        });
        Self {
            seen,
            stop,
            thread: Some(thread),
        }
    }

    /// Forgets what it saw before.
    pub fn forget(&self, before: Duration) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.samples.retain(|sample| sample.at >= before);
        seen.lines.retain(|(at, _)| *at >= before);
    }

    /// Why a request took its time.
    pub fn cause(&self, slow: &Slow) -> String {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.cause(slow)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn sample(stat: &Value, at: Duration) -> Sample {
    let number = |part: &str, key: &str| stat[part][key].as_u64().unwrap_or(0);
    Sample {
        at,
        held: number("waiting", "held") + number("waiting", "behind"),
        queued: number("waiting", "queued"),
        delayed: number("waiting", "delayed"),
        flushes: number("waiting", "flushes"),
        quiescing: stat["waiting"]["held_reason"] == "quiescing",
        proved_total: number("failover", "held_proved_total"),
        bounded_total: number("failover", "held_bounded_total"),
    }
}

impl Seen {
    fn cause(&self, slow: &Slow) -> String {
        let within = |at: Duration| at >= slow.begun && at <= slow.ended + LATER;
        let samples: Vec<&Sample> = self.samples.iter().filter(|it| within(it.at)).collect();
        let mut parts = [0_u32; 5];
        for sample in samples.iter().filter(|it| it.at <= slow.ended) {
            let at = match slow.op {
                Op::Write if sample.held > 0 => 0,
                Op::Flush if sample.flushes > 0 => 1,
                _ if sample.queued > 0 => 2,
                _ if sample.delayed > 0 => 3,
                _ => 4,
            };
            parts[at] += 1;
        }
        let total: u32 = parts.iter().sum();
        let words = [
            self.released(&samples),
            "held for a lost controller's flush".to_owned(),
            "no path".to_owned(),
            "busy, repeated".to_owned(),
            self.silence(slow),
        ];
        if total == 0 {
            let [.., silence] = words;
            return silence;
        }
        // In the order in which they happen: silence first.
        let order = [4, 3, 2, 0, 1];
        let part = |at: usize| f64::from(parts[at]) / f64::from(total);
        let seconds = slow.took().as_secs_f64();
        let shown = order.into_iter().filter(|at| part(*at) >= 0.1);
        let shown = shown.map(|at| format!("{} {:.2} s", words[at], part(at) * seconds));
        shown.collect::<Vec<_>>().join(", then ")
    }

    /// Reasons that released held writes meanwhile.
    fn released(&self, samples: &[&Sample]) -> String {
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
            return "held".into();
        };
        let bounded = last.bounded_total > first.bounded_total;
        let proved = last.proved_total > first.proved_total;
        let by = match (bounded, proved) {
            (true, true) => "held until proof or the bound",
            (true, false) => "held until the bound",
            (false, true) if samples.iter().any(|it| it.quiescing) => {
                "held until quiesce_time after proof"
            }
            (false, true) => "held until proof",
            (false, false) => "held",
        };
        by.into()
    }

    /// Reason that ended a path's silence.
    fn silence(&self, slow: &Slow) -> String {
        let within = |at: Duration| at >= slow.begun && at <= slow.ended + LATER;
        let lines = self.lines.iter().filter(|(at, _)| within(*at));
        let known = [
            ("keep-alive missed", "silence until keep-alive"),
            ("no answer to an I/O", "silence until io_timeout"),
            ("can't connect", "reconnecting"),
            ("connection lost", "until the connection broke"),
        ];
        let reason = lines.filter_map(|(_, line)| {
            let known = known.iter().find(|(part, _)| line.contains(part))?;
            Some(known.1)
        });
        reason
            .into_iter()
            .next()
            .unwrap_or("the path is slow")
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_taken_apart_by_what_was_seen_meanwhile() {
        let ms = Duration::from_millis;
        let sample = |at: u64| Sample {
            at: ms(at),
            held: (at >= 1000).into(),
            queued: 0,
            delayed: 0,
            flushes: 0,
            quiescing: false,
            proved_total: 0,
            bounded_total: (at >= 3000).into(),
        };
        let seen = Seen {
            samples: (0..200).map(|at| sample(at * 20)).collect(),
            lines: vec![(ms(1000), "v0: path x: keep-alive missed: …".into())],
        };
        let slow = |op| Slow {
            op,
            begun: ms(10),
            ended: ms(3010),
        };
        let expected = "silence until keep-alive 0.98 s, then held until the bound 2.02 s";
        assert_eq!(seen.cause(&slow(Op::Write)), expected);
        assert_eq!(
            seen.cause(&slow(Op::Read)),
            "silence until keep-alive 3.00 s"
        );
    }
}
