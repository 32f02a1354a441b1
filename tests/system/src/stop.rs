//! Waiting that ends when somebody presses Ctrl-C.
//!
//! # Contract
//! A signal only raises a flag; whoever waits returns an error, and what was made is undone by the
//! drops on the way out.
use anyhow::{Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// How often is looked.
const POLL: Duration = Duration::from_millis(2);

/// From now on SIGINT and SIGTERM only raise the flag.
///
/// # Errors
/// The signals can't be caught.
pub fn watch() -> Result<()> {
    let flag = ASKED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    Ok(())
}

/// # Errors
/// Somebody asked to stop.
pub fn check() -> Result<()> {
    let asked = ASKED.get();
    if asked.is_some_and(|flag| flag.load(Ordering::Relaxed)) {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps.
///
/// # Errors
/// Somebody asked to stop.
pub fn pause(time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    loop {
        check()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        sleep(left.min(POLL));
    }
}

/// Asks again and again until there is an answer.
///
/// # Errors
/// None within `limit`, the question failed, or somebody asked to stop.
pub fn wait<T>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if begun.elapsed() > limit {
            bail!("waited {} s in vain: {what}", limit.as_secs());
        }
        pause(POLL)?;
    }
}

/// As if nobody had asked: for tests, whose process goes on.
#[cfg(test)]
pub fn forget() {
    if let Some(asked) = ASKED.get() {
        asked.store(false, Ordering::Relaxed);
    }
}
