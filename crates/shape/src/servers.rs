//! A device with k servers: each takes one command at a time and needs the service time for it.
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

/// Times at which each server becomes free; the next command goes to the earliest.
#[derive(Clone, Debug)]
pub struct Servers {
    free_ns: BinaryHeap<Reverse<u64>>,
    service_ns: u64,
}

impl Servers {
    /// `servers` idle servers; 0 = as many as there are commands, so that nothing queues.
    pub fn new(servers: u16, service_ns: u64) -> Self {
        Servers {
            free_ns: (0..servers).map(|_| Reverse(0)).collect(),
            service_ns,
        }
    }

    /// Returns the earliest time at which a command could begin.
    pub fn free_ns(&self) -> u64 {
        self.free_ns.peek().map_or(0, |earliest| earliest.0)
    }

    /// Admits a command that arrived now. Returns when it has been served.
    pub fn admit(&mut self, now_ns: u64) -> u64 {
        self.serve(self.service_ns, now_ns)
    }

    /// As [`Servers::admit`], for a command that needs `service_ns`.
    pub fn serve(&mut self, service_ns: u64, now_ns: u64) -> u64 {
        let Some(mut earliest) = self.free_ns.peek_mut() else {
            return now_ns.saturating_add(service_ns);
        };
        let done = earliest.0.max(now_ns).saturating_add(service_ns);
        *earliest = Reverse(done);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_servers_take_two_commands_at_once() {
        let mut servers = Servers::new(2, 10);
        let done: [u64; 5] = core::array::from_fn(|_| servers.admit(100));
        assert_eq!(done, [110, 110, 120, 120, 130]);
        assert_eq!(servers.free_ns(), 120);
        assert_eq!(
            servers.admit(125),
            135,
            "one has been free since 120, the other until 130"
        );
    }

    #[test]
    fn unlimited_servers_only_take_time() {
        let mut servers = Servers::new(0, 10);
        assert_eq!([servers.admit(0), servers.admit(0)], [10, 10]);
    }
}
