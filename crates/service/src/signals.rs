//! Signals, and an end that a signal asked for and that does not come.
use runtime::watchdog::STUCK_GRACE;
use std::time::Duration;
use terminal::output;
pub use terminal::signals::{Interrupt, catch};

/// Ends the process if, so long after an orderly end was asked for, a reactor or a file stands
/// still in a system call: what they serve can't end in order, and may never.
pub fn end_when_stuck(after: Duration) {
    let wait = move || {
        std::thread::sleep(after);
        loop {
            if let Some(path) = stuck_file() {
                output::note(&format!(
                    "{path} does not answer: ended without it; what was being written to it may \
                     be executed yet"
                ));
                std::process::exit(1);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    // Without a thread the end waits for the reactor.
    let _ = std::thread::Builder::new()
        .name("last-resort".into())
        .spawn(wait);
}

/// A file that stands still in a system call.
pub fn stuck_file() -> Option<String> {
    let hung = runtime::workers::hung(STUCK_GRACE);
    let hung = hung.map(|path| path.display().to_string());
    hung.or_else(|| runtime::watchdog::stuck().map(|(_, path)| path))
}
