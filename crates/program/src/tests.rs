//! Modules written by hand: what is refused, what is survived, and how.
use super::*;
use crate::limits::{FAULTS_MAX, FILE_BYTES_MAX, VALUES_MAX, WINDOW};
use policy::{
    Ana, Choice, Completion, Ended, Group, PathIndex, PathView, Policy, Program as _, Request,
    Selector, Ticket,
};
use std::time::{Duration, Instant};

mod bad;

const REQUEST: Request = Request {
    source: 7,
    group: Group::Write,
    length: 8192,
    address: 1 << 40,
    now_ns: 1,
};

const VIEW: PathView = PathView {
    enabled: true,
    ana: Ana::Optimized,
    distance: 20,
    in_flight_elsewhere: 5,
    throughput: 9,
};

const DEAD: PathView = PathView {
    enabled: false,
    ..VIEW
};

/// A module with a context at 1,024 and these parts.
fn module(parts: &str) -> Vec<u8> {
    let text = format!(
        "(module (memory (export \"memory\") 1)
           (global (export \"braid_context\") i32 (i32.const 1024)) {parts})"
    );
    wat::parse_str(text).unwrap()
}

/// A module whose choice is this body, with the addresses `$r` and `$p`.
fn choosing(body: &str) -> Vec<u8> {
    module(&format!(
        "(func (export \"braid_select\") (param $r i32) (param $p i32) (result i32) {body})"
    ))
}

fn load(bytes: &[u8]) -> Result<Program, LoadError> {
    Program::new("test", bytes, Options::default())
}

fn runner(bytes: &[u8]) -> (Program, Runner) {
    let program = load(bytes).unwrap();
    let runner = program.runner(None).unwrap();
    (program, runner)
}

fn fault(program: &Program, fault: Fault) -> u64 {
    program.state().counts.faults[fault as usize]
}

/// The layout, field by field: `braid_select` returns what lies at an offset.
#[test]
fn context_is_laid_out_as_documented() {
    let in_flight: Vec<u32> = (0..16).map(|it| 100 + it).collect();
    let views: Vec<PathView> = (0..16)
        .map(|it| PathView {
            distance: 20 + it,
            ana: if it == 3 {
                Ana::NonOptimized
            } else {
                Ana::Optimized
            },
            ..VIEW
        })
        .collect();
    let third = abi::PATHS_AT + 3 * abi::PATH_BYTES;
    for (at, value) in [
        (0, 1),
        (4, 0),
        (8, 1),
        (16, 7),
        (24, 0),
        (28, 1 << 8),
        (32, 8192),
        (36, 1),
        (40, 16),
        (third, 1),
        (third - 64, 3),
        (third + 4, 1),
        (third + 8, 23),
        (third + 12, 103),
        (third + 16, 5),
        (third + 20, 9),
    ] {
        // Path 15 if it is that, else path 14.
        let body = format!(
            "(select (i32.const 15) (i32.const 14)
               (i32.eq (i32.load offset={at} (local.get $r)) (i32.const {value})))"
        );
        let (_, mut it) = runner(&choosing(&body));
        let choice = it.select(&REQUEST, &views, &in_flight);
        assert_eq!(choice, Choice::Path(15), "at {at}");
    }
    let (_, mut it) = runner(&choosing("(i32.sub (local.get $p) (local.get $r))"));
    let views = vec![VIEW; 64];
    assert_eq!(it.select(&REQUEST, &views, &[0; 64]), Choice::FallBack);
    assert_eq!(abi::PATHS_AT, 128);
}

/// Counts its choices in a word of the volume, the ends in one of the path, and traps in between.
const COUNTING: &str = "
    (func (export \"braid_select\") (param $r i32) (param $p i32) (result i32)
      (i64.store offset=64 (local.get $r)
        (i64.add (i64.load offset=64 (local.get $r)) (i64.const 1)))
      (if (i64.eq (i64.load offset=64 (local.get $r)) (i64.const 2)) (then
        (i64.store offset=64 (local.get $r) (i64.const 1000)) unreachable))
      (i32.and (i32.const 1) (i32.wrap_i64 (i64.load offset=32 (local.get $p)))))
    (func (export \"braid_complete\") (param i32 i64 i32) (param $r i32)
      (i64.store offset=160 (local.get $r)
        (i64.add (i64.load offset=160 (local.get $r)) (i64.const 1))))";

fn done(path: u8) -> Completion {
    Completion {
        path: PathIndex(path),
        group: Group::Read,
        latency_ns: 1000,
        ended: Ended::Good,
        now_ns: 2,
        ticket: Ticket::default(),
        gap_ns: 0,
    }
}

/// Words are those of the last call that ended well, and are the next instance's.
#[test]
fn words_outlive_a_trap_and_end_with_a_reset() {
    let (program, mut it) = runner(&module(COUNTING));
    let select = |it: &mut Runner| it.select(&REQUEST, &[VIEW; 2], &[0; 2]);
    // The count of the warm-up is forgotten.
    assert_eq!(select(&mut it), Choice::Path(0));
    it.complete(&done(0), 4096);
    assert_eq!(fault(&program, Fault::Trap), 0);
    // This is the second: it traps, each time anew, since the count that the host has is 1.
    assert_eq!(select(&mut it), Choice::FallBack);
    assert_eq!(select(&mut it), Choice::FallBack);
    assert_eq!(fault(&program, Fault::Trap), 2);
    it.complete(&done(0), 4096);
    let words = |it: &Runner| format!("{:?}", it.words());
    let before = words(&it);
    it.reset(PathIndex(0));
    assert_ne!(words(&it), before);
}

/// Called once where it is exported: C++ else runs its constructors at every call.
#[test]
fn constructors_run_once_before_the_first_call() {
    for name in ["_initialize", "__wasm_call_ctors"] {
        let parts = format!(
            "(global $n (mut i32) (i32.const 0))
             (func (export \"{name}\") (global.set $n (i32.add (global.get $n) (i32.const 1))))
             (func (export \"braid_select\") (param i32 i32) (result i32) (global.get $n))"
        );
        let (_, mut it) = runner(&module(&parts));
        for _ in 0..3 {
            assert_eq!(
                it.select(&REQUEST, &[VIEW; 2], &[0; 2]),
                Choice::Path(1),
                "{name}"
            );
        }
    }
}

#[test]
fn ticks_come_at_most_every_ten_milliseconds() {
    let (_, mut it) = runner(&module(
        "(global $n (mut i32) (i32.const 0))
         (func (export \"braid_tick\") (param i64)
           (global.set $n (i32.add (global.get $n) (i32.const 1))))
         (func (export \"braid_select\") (param i32 i32) (result i32) (global.get $n))",
    ));
    let mut at = |now_ns| {
        let request = Request { now_ns, ..REQUEST };
        it.select(&request, &[VIEW; 4], &[0; 4])
    };
    assert_eq!(at(1), Choice::Path(0));
    assert_eq!(at(10_000_000), Choice::Path(1));
    assert_eq!(at(19_999_999), Choice::Path(1));
    assert_eq!(at(20_000_000), Choice::Path(2));
}

/// With a workshop `queue-depth` chooses until the new instance is there; nothing waits.
#[test]
fn new_instance_comes_from_the_workshop() {
    let workshop = Workshop::start().unwrap();
    let program = load(&choosing(
        "(if (i32.eq (i32.load offset=32 (local.get $r)) (i32.const 1)) (then unreachable))
         (i32.const 1)",
    ))
    .unwrap();
    let mut it = program.runner(Some(&workshop)).unwrap();
    let bad = Request {
        length: 1,
        ..REQUEST
    };
    assert_eq!(it.select(&bad, &[VIEW; 2], &[0; 2]), Choice::FallBack);
    let until = Instant::now() + Duration::from_secs(30);
    while it.select(&REQUEST, &[VIEW; 2], &[0; 2]) != Choice::Path(1) {
        assert!(Instant::now() < until, "no new instance");
        std::thread::yield_now();
    }
    assert_eq!(fault(&program, Fault::Trap), 1);
    assert!(!program.state().is_out);
}

/// However slowly new instances come, one that always traps is taken out.
#[test]
fn slow_workshop_does_not_keep_a_bad_program() {
    let (workshop, work) = Workshop::by_hand();
    let body = "(if (i32.eqz (i32.load offset=4 (local.get $r))) (then unreachable)) (i32.const 1)";
    let program = load(&choosing(body)).unwrap();
    let mut it = program.runner(Some(&workshop)).unwrap();
    for _ in 0..FAULTS_MAX {
        for _ in 0..WINDOW {
            let choice = it.select(&REQUEST, &[VIEW; 2], &[0; 2]);
            assert_eq!(choice, Choice::FallBack);
        }
        workshop::perform(work.try_recv().unwrap());
    }
    let choice = it.select(&REQUEST, &[VIEW; 2], &[0; 2]);
    assert_eq!(choice, Choice::TakenOut);
}

#[test]
fn identity_is_the_name_and_the_hash() {
    let bytes = choosing("(i32.const 0)");
    let program = load(&bytes).unwrap();
    assert_eq!(id("test", &bytes), program.id());
    let shown = program.id().to_string();
    assert!(shown.starts_with("program:test@"), "{shown}");
    assert!(
        program
            .sha256()
            .starts_with(&shown["program:test@".len()..])
    );
    assert_eq!(program.sha256().len(), 64);
}

/// 1,000 loads and replacements under a selector with I/O in flight: counts balance (T41).
#[test]
fn t41_loads_under_load_keep_counts() {
    let bytes = [choosing("(i32.const 0)"), choosing("(i32.const 1)")];
    let mut selector = Selector::new(2, Policy::QueueDepth);
    let mut in_flight = Vec::new();
    for round in 0..1000 {
        let program = load(&bytes[round % 2]).unwrap();
        selector.set_program(program.id(), Box::new(program.runner(None).unwrap()));
        for _ in 0..3 {
            let path = selector.select(&REQUEST, &[VIEW; 2]).unwrap();
            assert_eq!(usize::from(path.0), round % 2);
            in_flight.push((path, selector.ticket()));
        }
        if round % 7 == 0 {
            selector.set_policy(Policy::Soonest);
        }
        while in_flight.len() > 8 {
            let (path, ticket) = in_flight.remove(0);
            let _ = selector.complete(&Completion {
                path,
                ticket,
                ..done(0)
            });
        }
    }
    let count = |path| selector.in_flight(PathIndex(path));
    assert_eq!((count(0) + count(1)) as usize, in_flight.len());
}
