//! Ctrl-C and SIGTERM: the first asks for an orderly end, the second ends at once.
use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
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
        for signal in [SIGINT, SIGTERM] {
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
