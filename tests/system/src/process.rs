//! Child processes that can't outlive their time.
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
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
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if begun.elapsed() > limit {
                self.kill();
                bail!(
                    "{} did not end within {} s; killed",
                    self.name,
                    limit.as_secs()
                );
            }
            thread::sleep(POLL);
        }
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

/// Runs `command` with both outputs into the file `log`; past `limit` it is killed.
pub fn run_logged(command: &mut Command, log: &Path, limit: Duration) -> Result<ExitStatus> {
    let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    Group::spawn(command)?.wait(limit)
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
    use super::at_a_time;
    use anyhow::{bail, ensure};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering};

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
