//! Line of a test that can't run without io_uring.
use std::io::Write;

/// Skips the test of this thread because of what the program said; any other reason is a failure.
pub fn skip(said: &str) {
    assert!(said.contains("io_uring"), "{said}");
    let thread = std::thread::current();
    let test = thread.name().and_then(|it| it.rsplit("::").next()); // without its module
    let test = test.unwrap_or("no-io-uring");
    let line = format!("SKIP {test}: {}\n", said.trim().replace('\n', "; "));
    // Not through the harness, which would capture it.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
