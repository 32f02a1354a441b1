//! Notifications to a service manager (systemd's sd_notify protocol): READY, STOPPING, watchdog.
//!
//! Every program of braid that serves others reports the same way. Without `NOTIFY_SOCKET` nothing
//! is sent. With `WatchdogSec=` in the unit a thread pings at half that time, and stops as long as
//! a reactor stands still in a system call: the service manager then ends the process.
use sd_notify::NotifyState;
use std::time::Duration;

/// Whether a service manager is told anything.
pub fn is_there() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Reports that clients are served from now on, and starts the watchdog's pings if the unit has a
/// watchdog.
pub fn ready() {
    let mut limit_us = 0;
    let watched = sd_notify::watchdog_enabled(false, &mut limit_us);
    if watched && limit_us > 0 {
        let pause = Duration::from_micros(limit_us / 2);
        let ping = move || loop {
            if runtime::watchdog::stuck().is_none() {
                send(NotifyState::Watchdog);
            }
            std::thread::sleep(pause);
        };
        let builder = std::thread::Builder::new().name("watchdog-ping".into());
        if let Err(error) = builder.spawn(ping) {
            tracing::warn!("no watchdog pings, the service manager will restart braid: {error}");
        }
    }
    send(NotifyState::Ready);
}

/// Reports that an orderly end has begun.
pub fn stopping() {
    send(NotifyState::Stopping);
}

fn send(state: NotifyState<'_>) {
    // A service manager that cannot be reached changes nothing about the service.
    let _ = sd_notify::notify(false, &[state]);
}
