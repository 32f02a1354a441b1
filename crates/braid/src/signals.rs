//! Ctrl-C, SIGTERM and a terminal that hangs up: the first asks for an orderly end, the second ends
//! at once.
use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the user wants to stop.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for the signals.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn install() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
            // In this order: the shutdown applies only once the flag below was set.
            let flag = Arc::clone(&interrupt.0);
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag)
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupt.0)))
                .context("cannot listen for signals")?;
        }
        Ok(interrupt)
    }

    /// Whether a signal has come.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
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
