//! One line of progress on a terminal; nothing anywhere else.
use crate::host::Moment;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;
use terminal::units::{format_count, significant};

/// Progress of one or several tasks in a row.
pub struct Progress {
    bar: ProgressBar,
    /// Of the tasks before this one.
    before: Duration,
    label: String,
    last: Option<Moment>,
}

impl Progress {
    /// Progress towards `total`; without one only what happens is shown.
    pub fn new(total: Option<Duration>) -> Self {
        let (bar, template) = match total {
            Some(total) => {
                let bar = ProgressBar::new(total.as_millis() as u64);
                (bar, "{wide_bar:.cyan} {percent:>3} %  {msg}")
            }
            None => (ProgressBar::new_spinner(), "{spinner} {elapsed}  {msg}"),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self {
            bar,
            before: Duration::ZERO,
            label: String::new(),
            last: None,
        }
    }

    /// Whether somebody sees it.
    pub fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// The next task begins; `done` is what came before it.
    pub fn begin(&mut self, label: &str, done: Duration) {
        (self.before, self.label, self.last) = (done, label.to_owned(), None);
        self.bar.set_position(done.as_millis() as u64);
        self.bar.set_message(self.label.clone());
    }

    /// How far the task has come.
    pub fn show(&mut self, moment: Moment) {
        let last = self.last.replace(moment);
        let (ios, bytes, elapsed) =
            last.map_or((0, 0, Duration::ZERO), |m| (m.ios, m.bytes, m.elapsed));
        let seconds = (moment.elapsed - elapsed).as_secs_f64().max(1e-3);
        let iops = moment.ios.saturating_sub(ios) as f64 / seconds;
        let mib_s = moment.bytes.saturating_sub(bytes) as f64 / seconds / f64::from(1 << 20);
        self.bar
            .set_position((self.before + moment.elapsed).as_millis() as u64);
        let rate = format!(
            "{} IOPS  {} MiB/s",
            format_count(iops as u64),
            significant(mib_s)
        );
        let gap = if self.label.is_empty() { "" } else { "  " };
        self.bar.set_message(format!("{}{gap}{rate}", self.label));
    }

    /// Takes the line away.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}
