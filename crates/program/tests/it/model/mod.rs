//! A module that is anything, as the program of a selector: it is refused, or no choice, count or
//! bound of fuel is other than it should be. A test and a fuzz target play it.
use policy::{Ana, Completion, Ended, Group, PathIndex, PathView, Policy, Request, Selector};
use program::limits::{CALL_FUEL, FAULTS_MAX, WINDOW};
use program::{Options, Program};

/// Plays one input.
pub type Body = fn(&[u8]);

/// The target by the name of its corpus.
#[allow(dead_code, reason = "for the test that replays")]
pub const TARGETS: [(&str, Body); 1] = [("program", run)];

/// Modules that are mutated; the last imports calls of WASI.
pub const MODULES: [&[u8]; 5] = [
    include_bytes!("../../../../../sdk/modules/near_small.wasm"),
    include_bytes!("../../../../../sdk/modules/queue_depth.wasm"),
    include_bytes!("../../../../../sdk/modules/round_robin.wasm"),
    include_bytes!("../../../../../sdk/modules/weighted_latency.wasm"),
    include_bytes!("wasi.wasm"),
];

/// First byte of a whole module that may import calls of WASI.
const WHOLE_WASI: u8 = u8::MAX - 1;

/// Result of one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Played {
    /// No program.
    Refused,
    /// Every choice was good.
    Chose,
    /// Some were not.
    Failed,
}

const PATHS: usize = 5;
const CHOICES: u64 = 100;
const DEPTH: usize = 8;

/// As [`play`].
pub fn run(data: &[u8]) {
    let _ = play(data);
}

/// The first byte says which of [`MODULES`] it is; then come edits of three bytes: a place and its
/// value. With another first byte the rest is the module; [`WHOLE_WASI`] gives it WASI.
///
/// # Panics
/// Something is wrong.
pub fn play(data: &[u8]) -> Played {
    let Some((base, rest)) = data.split_first() else {
        return Played::Refused;
    };
    let has_wasi = usize::from(*base) + 1 == MODULES.len() || *base == WHOLE_WASI;
    let options = Options { wasi: has_wasi };
    let module = match MODULES.get(usize::from(*base)) {
        Some(module) => edited(module, rest),
        None => rest.to_vec(),
    };
    let Ok(program) = Program::new("mutated", &module, options) else {
        return Played::Refused;
    };
    let Ok(runner) = program.runner(None) else {
        panic!("it has started before");
    };
    let mut selector = Selector::new(PATHS, Policy::QueueDepth);
    selector.set_program(program.id(), Box::new(runner));
    choose(&mut selector);
    drop(selector);
    assert_eq!(program.runners(), 0, "the runner is left");
    let state = program.state();
    assert!(state.counts.fuel_max <= CALL_FUEL, "{state:?}");
    assert!(CHOICES < u64::from(WINDOW));
    let faults: u64 = state.counts.faults.iter().sum();
    assert_eq!(state.is_out, faults > u64::from(FAULTS_MAX), "{state:?}");
    if state.is_out {
        assert!(state.counts.choices < CHOICES, "{state:?}");
    } else {
        assert_eq!(state.counts.choices, CHOICES);
    }
    match faults {
        0 => Played::Chose,
        _ => Played::Failed,
    }
}

fn edited(module: &[u8], edits: &[u8]) -> Vec<u8> {
    let mut module = module.to_vec();
    for edit in edits.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % module.len();
        module[at] = edit[2];
    }
    module
}

/// Each I/O gets a usable path, and each ends; paths are lost, come back, and are forgotten.
fn choose(selector: &mut Selector) {
    let mut in_flight = std::collections::VecDeque::new();
    for turn in 0..CHOICES {
        let view = |path: usize| PathView {
            // At least one.
            enabled: path as u64 == turn % PATHS as u64 || (turn >> path) & 4 == 0,
            ana: [Ana::Optimized, Ana::NonOptimized][path % 2],
            distance: 10 * path as u32,
            in_flight_elsewhere: turn as u32 % 3,
            throughput: 1,
        };
        let views: [PathView; PATHS] = std::array::from_fn(view);
        let request = Request {
            source: turn % 3,
            group: Group::ALL[turn as usize % 3],
            length: 512 << (turn % 12),
            address: turn << 20,
            now_ns: turn * 3_000_000,
        };
        let Some(path) = selector.select(&request, &views) else {
            panic!("a path is usable");
        };
        assert!(views[usize::from(path.0)].usable());
        in_flight.push_back((path, request, selector.ticket()));
        if turn % 16 == 15 {
            selector.reset_path(PathIndex(turn as u8 % PATHS as u8));
        }
        while in_flight.len() > if turn + 1 < CHOICES { DEPTH } else { 0 } {
            let Some((path, request, ticket)) = in_flight.pop_front() else {
                break;
            };
            let ended = [Ended::Good, Ended::Good, Ended::Failed, Ended::Dropped];
            let _ = selector.complete(&Completion {
                path,
                group: request.group,
                latency_ns: turn * 1000,
                ended: ended[turn as usize % 4],
                now_ns: request.now_ns,
                ticket,
                gap_ns: 0,
            });
        }
    }
    for path in 0..PATHS {
        assert_eq!(selector.in_flight(PathIndex(path as u8)), 0);
    }
}

/// Every seed: target, name, input.
#[allow(dead_code, reason = "for the test that compares them")]
pub fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut all = Vec::new();
    for (number, module) in MODULES.iter().enumerate() {
        assert_eq!(play(&[number as u8]), Played::Chose);
        all.push(("program", format!("module-{number}"), vec![number as u8]));
        let is_wasi = number + 1 == MODULES.len();
        let first = if is_wasi { WHOLE_WASI } else { u8::MAX };
        let whole = [&[first], *module].concat();
        assert_eq!(play(&whole), Played::Chose);
        all.push(("program", format!("whole-{number}"), whole));
    }
    all
}
