//! Out of descriptors: clear errors, and no spinning. A process of its own, because the limit is.
#![allow(clippy::unwrap_used, missing_docs)]
#[path = "it/recorder.rs"]
#[allow(dead_code)]
mod recorder;

use engine::machine::{ConnId, Output};
use recorder::{Event, Options, Recording, span};
use runtime::RuntimeError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::TcpStream;
use sys::os::tcp_socket;

/// Opens files until there can be no more.
fn exhaust() -> Vec<std::fs::File> {
    let open = |_| std::fs::File::open("/dev/null").ok();
    (0..).map_while(open).collect()
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn descriptors() {
    every_ending_leaves_none_behind();
    without_any_nothing_spins_and_errors_are_clear();
}

fn every_ending_leaves_none_behind() {
    let (recording, address) = Recording::listening(Options::default());
    recording.data(span(0, 1));
    let before = open_files();
    for round in 0..30 {
        let peer = TcpStream::connect(address).unwrap();
        recording.expect(Event::Accepted(0, ConnId(0)));
        if round % 2 == 0 {
            let conn = ConnId(0);
            recording.output(Output::Close { conn, abort: true });
        } else {
            drop(peer);
        }
        assert!(matches!(recording.next(), Event::Closed(..)));
    }
    assert_eq!(open_files(), before);
    recording.stop();
}

fn without_any_nothing_spins_and_errors_are_clear() {
    // The kernel notes the limit when accepting begins.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(64),
            ..limit
        },
    )
    .unwrap();
    let (recording, address) = Recording::listening(Options::default());
    let first = TcpStream::connect(address).unwrap();
    recording.expect(Event::Accepted(0, ConnId(0)));

    let waiting = tcp_socket(&address).unwrap();
    let mut files = exhaust();
    let error = Recording::try_start(Options::default())
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, RuntimeError::Descriptor { .. }), "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
    // Enough for the mailbox, but not for a ring.
    files.pop();
    let error = Recording::try_start(Options::default())
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, RuntimeError::Ring { .. }), "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");

    files.extend(exhaust());
    rustix::net::connect(&waiting, &address).unwrap();
    for _ in 0..10 {
        recording.data(span(0, 1));
    }
    drop(files);
    recording.expect(Event::Accepted(0, ConnId(1)));
    drop((first, waiting));
    assert!(matches!(recording.next(), Event::Closed(..)));
    assert!(matches!(recording.next(), Event::Closed(..)));
    let (_, stats) = recording.stop();
    assert!(stats.turns < 60, "it must not spin: {stats:?}");
}
