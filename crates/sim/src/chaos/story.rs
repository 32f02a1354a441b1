//! Events in a world, as lines of text; and which of them a finding rests on.
//!
//! # Contract
//! A line is [key](Line::key) if it tells of what the finding names: the operations of a block that
//! do not fit together and who executed them, the flush that was to make one durable and the losses
//! of caches, or the request that failed or waits. They are few, and may lie far from the end.
use super::START_NS;
use super::prelude::*;
use super::programs::Programs;
use super::run::play;
use alloc::rc::Rc;
use core::cell::RefCell;
use nbd::Kind;

/// Most key lines.
const KEYS_MAX: usize = 40;
/// Beginning of lines about a lost cache.
pub(super) const LOSS: &str = "caches are lost: ";

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// When, ns.
    pub at_ns: u64,
    /// The text.
    pub text: String,
    /// The finding rests on it.
    pub key: bool,
}

impl Line {
    /// A line that no finding rests on yet.
    pub fn new(at_ns: u64, text: String) -> Self {
        let key = false;
        Self { at_ns, text, key }
    }
}

/// Lines of a story. The listener keeps them, and has them too when the world ends in a panic; then
/// none of them is key.
pub type Lines = Rc<RefCell<Vec<Line>>>;

/// A time in seconds from the beginning of the world on.
pub(super) struct At(pub u64);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.saturating_sub(START_NS) / 1000;
        write!(f, "{}.{:06}", us / 1_000_000, us % 1_000_000)
    }
}

/// A request of an application, from when on, and its end if it had one.
pub(super) struct Asked<'a> {
    pub host: usize,
    pub core: usize,
    pub request: &'a Request,
    /// Bytes of what applications call a block.
    pub unit: u64,
    pub start_ns: u64,
}

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.request;
        let (first, count) = (
            request.offset / self.unit,
            u64::from(request.length) / self.unit,
        );
        write!(f, "host {} core {}: ", self.host, self.core)?;
        match request.kind {
            Kind::Flush => f.write_str("flush")?,
            _ => {
                let what = match request.kind {
                    Kind::Write => "write",
                    Kind::WriteZeroes => "zeroing",
                    Kind::Trim => "deallocation",
                    _ => "read",
                };
                let last = first + count.max(1) - 1;
                write!(f, "{what} of blocks {first} to {last}")?;
            }
        }
        write!(f, " from {}", At(self.start_ns))
    }
}

/// The story of the world of a plan and of one block in it: what was done, where, and when, in
/// order.
///
/// # Panics
/// As [`run`](super::run::run).
pub fn story(plan: &Plan, programs: &dyn Programs, block: Option<u64>, lines: &Lines) {
    let mut course = play(plan, programs, Some((block, Lines::clone(lines))));
    let mut lines = lines.borrow_mut();
    if let Some(block) = block {
        let told = course.history.story(block);
        lines.extend(told.into_iter().map(|(at_ns, text)| Line::new(at_ns, text)));
    }
    lines.extend(course.requests(block));
    lines.sort();
    let keys = &course.report.keys;
    let is_key = |line: &&mut Line| keys.iter().any(|key| line.text.contains(key.as_str()));
    let key = lines.iter_mut().filter(is_key);
    key.take(KEYS_MAX).for_each(|line| line.key = true);
}

impl Course<'_> {
    /// A request of a host's applications, in words.
    pub(super) fn asked<'a>(
        &self,
        host: usize,
        home: u32,
        start_ns: u64,
        request: &'a Request,
    ) -> Asked<'a> {
        Asked {
            host,
            core: self.plan.layout.first_home() + home as usize,
            request,
            unit: self.plan.layout.habit.unit,
            start_ns,
        }
    }

    /// The requests that failed or have no end, of a block, and all such flushes: the history has
    /// nothing of most of them.
    fn requests(&mut self, block: Option<u64>) -> Vec<Line> {
        let unit = self.plan.layout.habit.unit;
        let concerns = |request: &Request| {
            let range = request.offset..request.offset + u64::from(request.length);
            request.kind == Kind::Flush || block.is_some_and(|it| range.contains(&(it * unit)))
        };
        let mut lines = Vec::new();
        for host in 0..self.rig.hosts.len() {
            let (failed, open) = {
                let client = self.rig.client(host);
                (client.failed.clone(), client.open())
            };
            for it in failed.iter().filter(|it| concerns(&it.request)) {
                let asked = self.asked(host, it.home, it.start_ns, &it.request);
                let (begins, ends) = (format!("{asked} begins"), format!("{asked}: {}", it.error));
                lines.push(Line::new(it.start_ns, begins));
                lines.push(Line::new(it.end_ns, ends));
            }
            for (home, start_ns, request) in open.iter().filter(|it| concerns(&it.2)) {
                let asked = self.asked(host, *home, *start_ns, request);
                lines.push(Line::new(
                    *start_ns,
                    format!("{asked} begins, and has no end"),
                ));
            }
        }
        lines
    }
}
