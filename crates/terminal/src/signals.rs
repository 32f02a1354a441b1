//! Ctrl-C, SIGTERM and a terminal that hangs up: the first asks for an orderly end, the second ends
//! at once.
use crate::output;
use anyhow::Context;
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Whether the user wants to stop.
#[derive(Clone, Default)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    wake: Arc<Mutex<Option<Wake>>>,
}

type Wake = Box<dyn Fn() + Send>;

impl Interrupt {
    /// Listens for the signals.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn install() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let mut signals = vec![SIGINT, SIGTERM];
        if !is_ignored(SIGHUP) {
            signals.push(SIGHUP);
        }
        for &signal in &signals {
            // In this order: the shutdown applies only once the flag below was set.
            let flag = Arc::clone(&interrupt.flag);
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag)
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupt.flag)))
                .context("cannot listen for signals")?;
        }
        let mut signals = catch(&signals)?;
        let told = interrupt.clone();
        let wait = move || signals.forever().for_each(|_| told.wake());
        let builder = std::thread::Builder::new().name("signals".into());
        builder.spawn(wait).context("cannot start a thread")?;
        Ok(interrupt)
    }

    /// As after a signal, for tests.
    pub fn raised() -> Self {
        let interrupt = Self::default();
        interrupt.wake();
        interrupt
    }

    /// Whether a signal has come.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Sets the action at a signal, executed in another thread; it replaces the one before. Look at
    /// [`Interrupt::is_set`] afterwards: one may have come earlier.
    pub fn on_signal(&self, wake: impl Fn() + Send + 'static) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(wake));
    }

    fn wake(&self) {
        self.flag.store(true, Ordering::Relaxed);
        if let Some(wake) = &*self.wake.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }
}

/// A write behind a limit of this process on the size of files (`ulimit -f`) is then an error of
/// that write (EFBIG), as behind the end of a full disk, and not the end of all that it serves.
///
/// # Errors
/// The operating system refuses.
pub fn survive_file_limits() -> std::io::Result<()> {
    signal_hook::flag::register(Signal::XFSZ.as_raw(), Arc::default()).map(drop)
}

/// Signals, one after the other.
///
/// # Errors
/// The operating system refuses.
pub fn catch(signals: &[i32]) -> anyhow::Result<signal_hook::iterator::Signals> {
    signal_hook::iterator::Signals::new(signals).map_err(|error| {
        let advice = output::advice(&error);
        anyhow::Error::new(error).context(format!("cannot listen for signals{advice}"))
    })
}

/// Whether this process was started to ignore a signal, as nohup does with SIGHUP.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored(&status) >> (signal - 1) & 1 == 1
}

/// The mask of ignored signals (proc(5), SigIgn).
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_ignores_is_found() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert_eq!(ignored(status), 0x1001);
        assert_eq!(ignored("Name:\tbraid\n"), 0);
    }
}
