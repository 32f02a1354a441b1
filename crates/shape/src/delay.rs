//! A longer line: a fixed time once per command, and more from a given size on.

/// The fixed parts of a command's delay.
pub(crate) struct Delay {
    delay_ns: u64,
    large_from: u32,
    large_delay_ns: u64,
}

impl Delay {
    pub(crate) fn new(delay_ns: u64, large_from: u32, large_delay_ns: u64) -> Self {
        Delay {
            delay_ns,
            large_from,
            large_delay_ns,
        }
    }

    /// Returns the delay of a command of `bytes`, ns.
    pub(crate) fn of(&self, bytes: u32) -> u64 {
        let large = if bytes >= self.large_from {
            self.large_delay_ns
        } else {
            0
        };
        self.delay_ns.saturating_add(large)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_commands_wait_longer_from_the_size_on() {
        let delay = Delay::new(30, 65_536, 5);
        assert_eq!(
            [delay.of(0), delay.of(65_535), delay.of(65_536)],
            [30, 30, 35]
        );
        assert_eq!(Delay::new(u64::MAX, 0, 1).of(0), u64::MAX);
    }
}
