//! The best that two unequal paths can do, and whether this machine is quiet enough to show it.
//!
//! # Contract
//! Figures of one path alone come from measurements, those of its shape from the configuration. The
//! best that a policy can do with N I/Os outstanding is to keep the fast path at its cap C with as
//! few of them as that takes (Little's law: C · t_fast ÷ block) and all the others on the slow
//! path:
//!
//! ```text
//! optimum = C + (N − C · t_fast ÷ block) · block ÷ t_slow
//! ```

/// A measurement may be so far from its model, as a part of it.
pub const TOLERANCE: f64 = 0.05;
const MIB: f64 = 1_048_576.0;

/// The paths that the demo has built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// I/Os outstanding: N.
    pub outstanding: u32,
    /// Bytes of each.
    pub block: u32,
    /// Cap of the fast path, bytes per second: C.
    pub fast_bytes_per_s: u64,
    /// Delay added on the slow path, ns.
    pub slow_delay_ns: u64,
}

/// Each path alone, for one operation: latencies of one I/O at a time, and MiB/s of all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alone {
    /// Of the transport and a target that has to wait, without the wait itself, ns.
    pub bare_ns: f64,
    /// Over the fast path, ns.
    pub fast_ns: f64,
    /// Over the slow path, ns.
    pub slow_ns: f64,
    /// Over the fast path.
    pub fast_mib_s: f64,
    /// Over the slow path.
    pub slow_mib_s: f64,
}

/// One measurement beside its model.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Path: fast or slow.
    pub path: &'static str,
    /// The measured quantity: qd1_us or full_mib_s.
    pub figure: Figure,
    /// As measured.
    pub measured: f64,
    /// As the model has it.
    pub model: f64,
}

/// A figure of one path alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Latency of one I/O at a time, µs.
    Latency,
    /// MiB/s at full load.
    Throughput,
}

impl Check {
    /// Measured against the model: 0.03 is 3 % above it.
    pub fn deviation(&self) -> f64 {
        self.measured / self.model - 1.0
    }

    /// Whether it lies within the [`TOLERANCE`].
    pub fn holds(&self) -> bool {
        self.deviation().abs() <= TOLERANCE
    }
}

impl Setup {
    /// Cap of the fast path, MiB/s.
    pub fn cap_mib_s(&self) -> f64 {
        self.fast_bytes_per_s as f64 / MIB
    }

    /// The time one I/O has the fast path for itself, ns.
    pub fn fast_service_ns(&self) -> f64 {
        f64::from(self.block) * 1e9 / self.fast_bytes_per_s as f64
    }

    /// I/Os that keep the fast path at its cap: C · t_fast ÷ block.
    pub fn needed_on_fast(&self, fast_ns: f64) -> f64 {
        fast_ns / self.fast_service_ns()
    }

    /// The optimum, MiB/s.
    pub fn optimum_mib_s(&self, alone: &Alone) -> f64 {
        let rest = f64::from(self.outstanding) - self.needed_on_fast(alone.fast_ns);
        self.cap_mib_s() + self.throughput_mib_s(rest, alone.slow_ns)
    }

    /// The formula with its figures.
    pub fn formula(&self, alone: &Alone) -> String {
        format!(
            "{:.0} + ({} − {:.0} × {:.1} µs ÷ {} KiB) × {} KiB ÷ {:.2} ms = {:.1} MiB/s",
            self.cap_mib_s(),
            self.outstanding,
            self.cap_mib_s(),
            alone.fast_ns / 1e3,
            self.block / 1024,
            self.block / 1024,
            alone.slow_ns / 1e6,
            self.optimum_mib_s(alone),
        )
    }

    /// Measurements of each path alone, beside its model.
    pub fn checks(&self, alone: &Alone) -> [Check; 4] {
        let latency = |path, measured_ns: f64, added_ns: f64| Check {
            path,
            figure: Figure::Latency,
            measured: measured_ns / 1e3,
            model: (alone.bare_ns + added_ns) / 1e3,
        };
        let throughput = |path, measured, model| Check {
            path,
            figure: Figure::Throughput,
            measured,
            model,
        };
        let slow_ns = alone.bare_ns + self.slow_delay_ns as f64;
        let slow_mib_s = self.throughput_mib_s(self.outstanding.into(), slow_ns);
        [
            latency("fast", alone.fast_ns, self.fast_service_ns()),
            latency("slow", alone.slow_ns, self.slow_delay_ns as f64),
            throughput("fast", alone.fast_mib_s, self.cap_mib_s()),
            throughput("slow", alone.slow_mib_s, slow_mib_s),
        ]
    }

    /// Little's law: `outstanding` I/Os of `latency_ns` each, MiB/s.
    pub fn throughput_mib_s(&self, outstanding: f64, latency_ns: f64) -> f64 {
        outstanding * f64::from(self.block) / MIB / (latency_ns / 1e9)
    }
}

impl Alone {
    /// Half reads, half writes.
    pub fn mean(read: &Self, write: &Self) -> Self {
        let mean = |of: fn(&Self) -> f64| f64::midpoint(of(read), of(write));
        Self {
            bare_ns: mean(|it| it.bare_ns),
            fast_ns: mean(|it| it.fast_ns),
            slow_ns: mean(|it| it.slow_ns),
            fast_mib_s: mean(|it| it.fast_mib_s),
            slow_mib_s: mean(|it| it.slow_mib_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: Setup = Setup {
        outstanding: 1024,
        block: 4096,
        fast_bytes_per_s: 300 << 20,
        slow_delay_ns: 30_000_000,
    };
    const ALONE: Alone = Alone {
        bare_ns: 60_000.0,
        fast_ns: 75_000.0,
        slow_ns: 30_000_000.0,
        fast_mib_s: 299.0,
        slow_mib_s: 120.0,
    };

    #[test]
    fn the_optimum_worked_by_hand() {
        // 300 MiB/s are 76 800 I/Os of 4 KiB per second; at 75 µs each 5.76 of them are under way.
        assert!((SETUP.needed_on_fast(75_000.0) - 5.76).abs() < 1e-9);
        // (1024 − 5.76) × 4096 B ÷ 30 ms = 139 023 701 B/s = 132.583 MiB/s
        let optimum = SETUP.optimum_mib_s(&ALONE);
        assert!((optimum - 432.583_333).abs() < 1e-4, "{optimum}");
    }

    #[test]
    fn the_formula_shows_its_figures() {
        assert_eq!(
            SETUP.formula(&ALONE),
            "300 + (1024 − 300 × 75.0 µs ÷ 4 KiB) × 4 KiB ÷ 30.00 ms = 432.6 MiB/s"
        );
    }

    #[test]
    fn each_path_alone_has_a_model() {
        let checks = SETUP.checks(&ALONE);
        // 60 µs and 4096 B at 300 MiB/s, 13.02 µs
        assert!(
            (checks[0].model - 73.0208).abs() < 1e-3,
            "{}",
            checks[0].model
        );
        assert!((checks[1].model - 30_060.0).abs() < 1e-6);
        assert_eq!(checks[2].model, 300.0);
        // 1024 × 4096 B ÷ 30.06 ms = 133.07 MiB/s
        assert!(
            (checks[3].model - 133.067_2).abs() < 1e-3,
            "{}",
            checks[3].model
        );
        let holds: Vec<bool> = checks.iter().map(Check::holds).collect();
        assert_eq!(holds, [true, true, true, false], "120 of 133 is 10 % below");
    }

    #[test]
    fn the_tolerance_is_five_percent_either_way() {
        let check = |measured| Check {
            path: "fast",
            figure: Figure::Latency,
            measured,
            model: 100.0,
        };
        assert!(check(104.9).holds() && check(95.1).holds());
        assert!(!check(105.1).holds() && !check(94.9).holds());
    }

    #[test]
    fn a_mix_is_between_reads_and_writes() {
        let write = Alone {
            bare_ns: 80_000.0,
            fast_ns: 95_000.0,
            slow_ns: 30_200_000.0,
            ..ALONE
        };
        let mixed = Alone::mean(&ALONE, &write);
        assert_eq!(
            (mixed.bare_ns, mixed.fast_ns, mixed.slow_ns),
            (70_000.0, 85_000.0, 30_100_000.0)
        );
    }
}
