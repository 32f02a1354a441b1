//! Child processes that can't outlive their time.
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often a child is looked after.
const POLL: Duration = Duration::from_millis(20);

/// How long a group has to end when it is asked to.
const GRACE: Duration = Duration::from_secs(20);

/// A child and all its descendants, killed when this is dropped.
pub struct Group {
    child: Child,
    name: String,
}

impl Group {
    /// Starts `command` at the head of a process group of its own.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self { child, name })
    }

    /// The child itself.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end of the child; past `limit` it is killed and that is the error.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let status = self.poll_while(|elapsed| Ok(elapsed <= limit))?;
        if status.is_none() {
            self.kill();
        }
        status.with_context(|| self.late(limit))
    }

    /// The same; past `limit`, or once `check` fails, all of the group is asked to end by SIGTERM,
    /// and has [`GRACE`] to undo what it did.
    fn wait_while(
        &mut self,
        limit: Duration,
        check: impl Fn() -> Result<()>,
    ) -> Result<ExitStatus> {
        let status = self.poll_while(|elapsed| check().map(|()| elapsed <= limit));
        if !matches!(status, Ok(Some(_))) {
            self.end();
        }
        status?.with_context(|| self.late(limit))
    }

    fn late(&self, limit: Duration) -> String {
        let (name, seconds) = (&self.name, limit.as_secs());
        format!("{name} did not end within {seconds} s; killed")
    }

    /// The child's status; `None`: `goes_on` said no before there was one.
    fn poll_while(
        &mut self,
        goes_on: impl Fn(Duration) -> Result<bool>,
    ) -> Result<Option<ExitStatus>> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if !goes_on(begun.elapsed())? {
                return Ok(None);
            }
            thread::sleep(POLL);
        }
    }

    /// In order where the group does so in time: a shell may end before what it has started.
    fn end(&mut self) {
        let group = Pid::from_child(&self.child);
        // Failing means that nothing is left.
        let _ = kill_process_group(group, Signal::TERM);
        let asked = Instant::now();
        while asked.elapsed() < GRACE && test_kill_process_group(group).is_ok() {
            let _ = self.child.try_wait();
            thread::sleep(POLL);
        }
        self.kill();
    }

    fn kill(&mut self) {
        // Failing means that nobody is left.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs `command` with both outputs into the file `log`; past `limit`, or once `go_on` fails, it is
/// ended.
///
/// # Errors
/// It could not be started, or was ended.
pub fn run_logged(
    command: &mut Command,
    log: &Path,
    limit: Duration,
    go_on: impl Fn() -> Result<()>,
) -> Result<ExitStatus> {
    let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    Group::spawn(command)?.wait_while(limit, go_on)
}

/// Calls `work` with each of `items`, in their order, on so many threads. After an error none is
/// begun.
///
/// # Errors
/// The first one of `work`.
pub fn at_a_time<'a, T: Sync>(
    jobs: usize,
    items: &'a [T],
    work: impl Fn(&'a T) -> Result<()> + Sync,
) -> Result<()> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let lock = || failed.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while lock().is_none()
                    && let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    if let Err(error) = work(item) {
                        lock().get_or_insert(error);
                    }
                }
            });
        }
    });
    let error = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    error.map_or(Ok(()), Err)
}

/// Whether a program of this name is on the PATH.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::{Group, at_a_time};
    use anyhow::{bail, ensure};
    use std::process::{Command, Stdio};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn stopped_group_ends_in_order_with_what_its_shell_started() {
        let name = format!("braid-group-{}", std::process::id());
        let [ready, undone] = ["ready", "undone"].map(|it| {
            let path = std::env::temp_dir().join(format!("{name}-{it}"));
            let _ = std::fs::remove_file(&path);
            path
        });
        // The outer shell ends at the signal; the inner one undoes something first.
        let script = "sh -c 'trap \"touch $1; exit\" TERM; touch $0; \
                      while :; do sleep 0.01; done' $0 $1; true";
        let mut command = Command::new("sh");
        command.args(["-c", script]).args([&ready, &undone]);
        let mut group = Group::spawn(command.stderr(Stdio::null())).unwrap();
        let check = || {
            ensure!(!ready.exists(), "interrupted");
            Ok(())
        };
        let error = group.wait_while(std::time::Duration::MAX, check);
        assert_eq!(error.unwrap_err().to_string(), "interrupted");
        assert!(undone.exists(), "it was killed before it could undo that");
        for path in [ready, undone] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn items_are_worked_on_at_a_time_until_one_fails() {
        // Each waits for another: one thread alone would never end.
        let (pair, sum) = (Barrier::new(2), AtomicU64::new(0));
        let work = |item: &u64| {
            pair.wait();
            sum.fetch_add(*item, Ordering::Relaxed);
            Ok(())
        };
        at_a_time(2, &[1, 2, 3, 4], work).unwrap();
        assert_eq!(sum.into_inner(), 10);
        let work = |item: &u64| {
            ensure!(*item < 3, "begun after an error");
            bail!("item {item}")
        };
        let error = at_a_time(1, &[2, 3], work).unwrap_err();
        assert_eq!(error.to_string(), "item 2");
    }
}
