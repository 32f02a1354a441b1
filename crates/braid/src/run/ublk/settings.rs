//! Settings of a node's queue that let the driver notice the death of the engine.
//!
//! # Contract
//! The driver notices it at once in a tag that has no request, so one stays free (`nr_requests`);
//! where none is, when it looks at a request that takes long (`io_timeout`). Both are set and read
//! back by a [child](super::helper): once the node is there, after each change of its scheduler,
//! which takes the first back, and from time to time.
use super::helper::Started;
use super::order::requests_max;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// After so long the driver looks at a request.
const IO_TIMEOUT_MS: u32 = 2_000;
/// A child that takes longer waits for I/O.
const PATIENCE: Duration = Duration::from_secs(5);
/// When settings are looked at again though nothing has changed, and where they are not in force.
const AGAIN: Duration = Duration::from_secs(60);
const SOON_AGAIN: Duration = Duration::from_secs(5);

/// Those of a node.
pub struct Settings {
    id: u32,
    depth: u16,
    child: Option<Started>,
    /// When a child was started last, and for which scheduler.
    begun: Option<(Instant, Scheduler)>,
    problem: Option<String>,
}

/// A scheduler, by the inode of its directory: each change makes a new one.
type Scheduler = Option<u64>;

impl Settings {
    /// Of a node that is there.
    pub fn new(id: u32, depth: u16) -> Self {
        Self {
            id,
            depth,
            child: None,
            begun: None,
            problem: None,
        }
    }

    /// Why they are not in force.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Whether a child is at work.
    pub fn is_under_way(&self) -> bool {
        self.child.is_some()
    }

    /// Does what is due. Whether the problem is another one than before.
    pub fn tend(&mut self) -> bool {
        let scheduler = || {
            let at = fs::metadata(format!("/sys/block/ublkb{}/queue/iosched", self.id));
            at.ok().map(|it| it.ino())
        };
        let before = self.problem.clone();
        if let Some(child) = &mut self.child {
            if let Some(ended) = child.ended() {
                self.child = None;
                self.problem = ended.err();
            } else if child.elapsed() > PATIENCE {
                let text = "nr_requests and io_timeout are not set yet: that waits for I/O";
                self.problem = Some(text.into());
            }
        } else if is_due(self.begun, scheduler(), self.problem.is_some()) {
            self.begun = Some((Instant::now(), scheduler()));
            let requests = requests_max(self.depth).into();
            match Started::settings(self.id, requests, IO_TIMEOUT_MS) {
                Ok(child) => self.child = Some(child),
                Err(why) => self.problem = Some(why),
            }
        }
        self.problem != before
    }
}

fn is_due(begun: Option<(Instant, Scheduler)>, now: Scheduler, has_problem: bool) -> bool {
    let again = if has_problem { SOON_AGAIN } else { AGAIN };
    begun.is_none_or(|(at, before)| before != now || at.elapsed() > again)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn error_of_a_child_is_a_problem_until_one_succeeds() {
        let mut it = Settings::new(u32::MAX, 128);
        it.begun = Some((Instant::now(), None));
        let mut ends = |script: &str| {
            let mut command = Command::new("sh");
            it.child = Some(Started::spawn(command.args(["-c", script])).unwrap());
            while !it.tend() {}
            it.problem().map(str::to_owned)
        };
        let problem = ends("echo 'nr_requests is 128' >&2; exit 1");
        assert_eq!(problem.as_deref(), Some("nr_requests is 128"));
        assert_eq!(ends("exit 0"), None);
    }

    #[test]
    fn settings_are_set_again_after_a_change_of_the_scheduler() {
        assert!(is_due(None, None, false));
        let now = Instant::now();
        assert!(!is_due(Some((now, Some(7))), Some(7), false));
        assert!(is_due(Some((now, Some(7))), Some(8), false));
        assert!(is_due(Some((now, Some(7))), None, false));
        let Some(before) = now.checked_sub(SOON_AGAIN * 2) else {
            return; // the machine has just started
        };
        assert!(is_due(Some((before, None)), None, true));
        assert!(!is_due(Some((before, None)), None, false));
    }
}
