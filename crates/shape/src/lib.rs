//! Models of unequal paths: the delay of a command on a slower port, link or device.
//!
//! From a command's size and the time it arrived each model works out when it may be executed. The
//! target shapes its ports with them; a simulator builds its links and devices from the same.
//! Integers only, deterministic: the same calls give the same times. The parts that queue
//! ([`Servers`], [`Bandwidth`]) and that stop ([`Stall`]) can be used alone.
//!
//! # Contract
//! A command passes the stages in this order, each beginning when the one before is done:
//!
//! ```text
//!  arrival → servers → bandwidth → delay + jitter + large delay + tail → due
//!            k at once  one FIFO     side by side, no queue
//! ```
//!
//! Servers and bandwidth are queues in virtual time: a command's place is fixed when it is
//! admitted, so the rate over a run is exact even if the caller polls late or in batches. The
//! delays are added once per command and queue nothing; with jitter, a tail or a large delay a
//! later command may therefore overtake an earlier one.
//!
//! A stall stops the port's clock ([`PortTime`]): nothing is due while it lasts, and afterwards all
//! commands go on with the waiting time they had left. So the rate holds across a stall as well.
//!
//! # Limits
//! Arithmetic saturates at 2⁶⁴ ns, some 584 years. See [`limits`].
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod bandwidth;
mod delay;
mod draw;
mod jitter;
pub mod limits;
mod random;
mod servers;
mod stall;
mod tail;

pub use bandwidth::Bandwidth;
pub use draw::{exponential, pareto_ns, scale};
pub use random::Random;
pub use servers::Servers;
pub use stall::{PortTime, Stall};

use delay::Delay;
use jitter::Jitter;
use tail::Tail;

/// Figures that slow one port or device. All zero: it is not slowed.
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
    /// Number of late commands in a million.
    pub tail_per_million: u32,
    /// Least lateness of a late command, ns: it is drawn from a Pareto distribution (exponent 3/2),
    /// at most 2^16 times this.
    pub tail_ns: u64,
}

/// The state of one shaped port.
pub struct Shaper {
    config: Config,
    /// It has no figures, but for a stall.
    is_plain: bool,
    stall: Stall,
    servers: Servers,
    bandwidth: Bandwidth,
    delay: Delay,
    jitter: Jitter,
    tail: Tail,
}

impl Config {
    /// Whether it delays nothing, but for a stall.
    fn is_plain(self) -> bool {
        let stall_until_ns = self.stall_until_ns;
        let plain = Self {
            stall_until_ns,
            ..Self::default()
        };
        self == plain
    }
}

impl Shaper {
    /// A port on which nothing waits. `seed` drives jitter and tail.
    pub fn new(config: Config, seed: u64) -> Self {
        Shaper {
            config,
            is_plain: config.is_plain(),
            stall: Stall::new(config.stall_until_ns),
            servers: Servers::new(config.servers, config.service_ns),
            bandwidth: Bandwidth::new(config.bytes_per_s),
            delay: Delay::new(config.delay_ns, config.large_from, config.large_delay_ns),
            jitter: Jitter::new(config.jitter_ns, seed),
            tail: Tail::new(config.tail_per_million, config.tail_ns, seed),
        }
    }

    /// The figures in force.
    pub fn config(&self) -> Config {
        self.config
    }

    /// Sets new figures from now on; admitted commands keep their [`PortTime`]. A queue whose
    /// figures change starts anew, idle, so that a mistaken rate can be corrected; one whose
    /// figures stay keeps its state. A `stall_until_ns` in the past lifts a stall.
    pub fn configure(&mut self, config: Config, now_ns: u64) {
        let old = self.config;
        if config.stall_until_ns != old.stall_until_ns {
            self.stall.set(config.stall_until_ns, now_ns);
        }
        if (config.servers, config.service_ns) != (old.servers, old.service_ns) {
            self.servers = Servers::new(config.servers, config.service_ns);
        }
        if config.bytes_per_s != old.bytes_per_s {
            self.bandwidth = Bandwidth::new(config.bytes_per_s);
        }
        self.delay = Delay::new(config.delay_ns, config.large_from, config.large_delay_ns);
        self.jitter.configure(config.jitter_ns);
        self.tail.configure(config.tail_per_million, config.tail_ns);
        self.config = config;
        self.is_plain = config.is_plain();
    }

    /// Whether a command that arrives now may be executed at once, whatever it is: the port has no
    /// figures, and stands still no more. Such commands need not be admitted.
    #[inline]
    pub fn is_open(&self, now_ns: u64) -> bool {
        self.is_plain && self.stall.is_over(now_ns)
    }

    /// Admits a command of `bytes` that arrived now. Returns when it may be executed on the port's
    /// own clock; [`Shaper::due_ns`] converts that to the caller's clock.
    pub fn admit(&mut self, bytes: u32, now_ns: u64) -> PortTime {
        let arrived = self.stall.port_time(now_ns).0;
        let served = self.servers.admit(arrived);
        let passed = self.bandwidth.admit(bytes, served);
        let late = self.delay.of(bytes).saturating_add(self.jitter.draw());
        let late = late.saturating_add(self.tail.draw());
        PortTime(passed.saturating_add(late))
    }

    /// Returns when an admitted command may be executed, ns; not before it was admitted. A stall
    /// that begins, grows or is lifted moves that time, but never changes the order of two
    /// commands.
    pub fn due_ns(&self, admitted: PortTime) -> u64 {
        self.stall.due_ns(admitted)
    }
}
