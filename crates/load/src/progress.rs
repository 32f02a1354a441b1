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
    last: Moment,
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
            last: Moment::default(),
        }
    }

    /// Whether somebody sees it.
    pub fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// The next task begins; `done` is what came before it.
    pub fn begin(&mut self, label: &str, done: Duration) {
        (self.before, self.label, self.last) = (done, label.to_owned(), Moment::default());
        self.bar.set_position(done.as_millis() as u64);
        self.bar.set_message(self.label.clone());
    }

    /// How far the task has come.
    pub fn show(&mut self, moment: Moment) {
        let last = std::mem::replace(&mut self.last, moment);
        let seconds = (moment.elapsed - last.elapsed).as_secs_f64().max(1e-3);
        let iops = moment.ios.saturating_sub(last.ios) as f64 / seconds;
        let mib_s = moment.bytes.saturating_sub(last.bytes) as f64 / seconds / f64::from(1 << 20);
        let done = self.before + moment.elapsed;
        self.bar.set_position(done.as_millis() as u64);
        let (iops, mib_s) = (format_count(iops as u64), significant(mib_s));
        let rate = format!("{iops} IOPS  {mib_s} MiB/s");
        let gap = if self.label.is_empty() { "" } else { "  " };
        self.bar.set_message(format!("{}{gap}{rate}", self.label));
    }

    /// Takes the line away.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}
