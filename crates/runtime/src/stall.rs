//! Peers that connected and take nothing of what they are sent: they are looked at, and reset.
//!
//! # Contract
//! A look every `SEND_STALL_NS` while something is being sent to one that connected to us; whose
//! message has not moved since the last look is ended with ETIMEDOUT, after once to twice that
//! time. Connections that we opened have their machine's time-outs.
use crate::limits::SEND_STALL_NS;
use crate::reactor::Reactor;
use engine::Machine;
use engine::machine::{Closed, ConnId};
use sys::Errno;

impl<M: Machine> Reactor<M>
where
    M::Control: Send,
{
    /// A message is on its way.
    #[inline]
    pub(crate) fn watch_sending(&mut self, conn: ConnId) {
        let connection = &mut self.connections[conn.0 as usize];
        connection.moves = connection.moves.wrapping_add(1);
        if connection.accepted && self.look_ns == u64::MAX {
            self.look_ns = self.now_ns.saturating_add(SEND_STALL_NS);
        }
    }

    /// The time for a look may have come.
    pub(crate) fn expire_sending(&mut self) {
        if self.now_ns < self.look_ns {
            return;
        }
        self.look_ns = u64::MAX;
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if !connection.accepted || connection.sending.is_none() {
                connection.looked = None;
            } else if connection.looked.replace(connection.moves) == Some(connection.moves) {
                let timed_out = Closed::Error(Errno::TIMEDOUT.raw_os_error());
                self.end(ConnId(index as u32), timed_out);
            } else {
                self.look_ns = self.now_ns.saturating_add(SEND_STALL_NS);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReactorConfig;
    use crate::mailbox::Mailbox;
    use engine::machine::{DeviceError, Memory, Output, Place, Send};
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// Has always something to say, to one peer.
    #[derive(Default)]
    struct Talker {
        accepted: bool,
        kicked: bool,
        closed: Option<Closed>,
    }

    impl Machine for Talker {
        type Control = ();
        fn connections_max(&self) -> u32 {
            1
        }
        fn handle_accepted(&mut self, _: u32, _: u64) -> Option<ConnId> {
            self.accepted = true;
            Some(ConnId(0))
        }
        fn handle_connected(&mut self, _: ConnId, _: u64) {}
        fn handle_bytes(&mut self, _: ConnId, bytes: &[u8], _: u64) -> usize {
            bytes.len()
        }
        fn placement(&mut self, _: ConnId) -> Option<Place> {
            None
        }
        fn handle_payload(&mut self, _: ConnId, _: u32, _: u32, _: u64) {}
        fn poll_transmit(&mut self, _: ConnId, out: &mut Vec<u8>, _: u64) -> Option<Option<Send>> {
            out.extend_from_slice(&[7; 4096]);
            Some(None)
        }
        fn handle_sent(&mut self, _: ConnId, _: u32, _: u64) {}
        fn handle_closed(&mut self, _: ConnId, why: Closed, _: u64) {
            self.closed = Some(why);
        }
        fn handle_device(&mut self, _: u32, _: Result<(), DeviceError>, _: u64) {}
        fn handle_control(&mut self, (): (), _: u64) {}
        fn turn(&mut self, _: &mut dyn Memory, _: u64) {}
        fn poll_output(&mut self) -> Option<Output> {
            let begins = self.accepted && !std::mem::replace(&mut self.kicked, self.accepted);
            begins.then_some(Output::Transmit(ConnId(0)))
        }
        fn poll_timeout(&self) -> Option<u64> {
            None
        }
        fn handle_timeout(&mut self, _: u64) {}
    }

    /// Turns until nothing moves any more.
    fn settle(reactor: &mut Reactor<Talker>) {
        let mut before = None;
        while before != Some(reactor.connections[0].moves) {
            before = Some(reactor.connections[0].moves);
            for _ in 0..10 {
                reactor.step();
            }
        }
    }

    #[test]
    fn a_peer_that_takes_nothing_is_reset_and_one_that_takes_something_is_not() {
        let config = ReactorConfig {
            name: "talker".into(),
            cpu: None,
            polling: crate::Polling::Never,
            arena_bytes: 4096,
            per_peer_max: None,
            addresses: Vec::new(),
            listeners: Vec::new(),
            devices: Vec::new(),
        };
        let (_sender, mailbox) = Mailbox::new("talker").unwrap();
        let mut reactor = Reactor::new(config, Talker::default(), mailbox).unwrap();
        let (mine, mut peer) = UnixStream::pair().unwrap();
        peer.set_nonblocking(true).unwrap();
        reactor.adopt(0, mine.into(), None);
        settle(&mut reactor);
        assert!(
            reactor.connections[0].sending.is_some(),
            "it waits for room"
        );
        let first = reactor.now_ns + SEND_STALL_NS;
        for look in 0..3 {
            reactor.now_ns = reactor.look_ns;
            reactor.expire_sending();
            assert_eq!(reactor.machine.closed, None, "look {look}");
            let before = reactor.connections[0].moves;
            while reactor.connections[0].moves == before {
                // Nothing there is no error here.
                let _ = peer.read(&mut [0; 65536]);
                reactor.step();
            }
            settle(&mut reactor);
        }
        assert!(reactor.look_ns > first);
        for look in 0..2 {
            assert_eq!(reactor.machine.closed, None, "look {look}");
            reactor.now_ns = reactor.look_ns;
            reactor.expire_sending();
            (0..10).for_each(|_| reactor.step());
        }
        let timed_out = Closed::Error(Errno::TIMEDOUT.raw_os_error());
        assert_eq!(reactor.machine.closed, Some(timed_out));
        assert_eq!(
            reactor.next_timeout(),
            None,
            "no connection is watched any more"
        );
    }
}
