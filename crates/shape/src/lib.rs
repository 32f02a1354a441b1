//! Models of unequal ways: pure, integer, deterministic. The target shapes its ports with them and
//! the simulator builds its links and devices from them.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

/// How one port (or device) is slowed. All zero = not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Added once to every command.
    pub delay_ns: u64,
    /// Uniformly distributed extra, 0…jitter.
    pub jitter_ns: u64,
    /// Bytes of payload per second, both directions together, FIFO; 0 = unlimited.
    pub bytes_per_s: u64,
    /// Servers; 0 = unlimited.
    pub servers: u16,
    /// Service time of one command on one server.
    pub service_ns: u64,
    /// Extra delay for commands of at least `large_from` bytes.
    pub large_delay_ns: u64,
    /// See `large_delay_ns`.
    pub large_from: u32,
    /// Commands are not released before this time (stall), absolute; 0 = none.
    pub stall_until_ns: u64,
}

/// The state of one shaped port.
pub struct Shaper {
    _todo: (),
}

impl Shaper {
    /// `seed` drives the jitter.
    pub fn new(config: Config, seed: u64) -> Self {
        let _ = (config, seed);
        todo!()
    }
    /// New figures from now on; what was admitted keeps its time.
    pub fn configure(&mut self, config: Config) {
        let _ = config;
        todo!()
    }
    /// When a command of `bytes` that arrived now may be executed. ≥ now.
    pub fn admit(&mut self, bytes: u32, now_ns: u64) -> u64 {
        let _ = (bytes, now_ns);
        todo!()
    }
}
