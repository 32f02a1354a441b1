//! Sending: all that a machine has to say on a connection goes out in one operation.
//!
//! # Contract
//! One send per connection is in flight; what comes up meanwhile stays in the machine and is
//! composed when the send has ended, so a busy connection coalesces by itself. Headers and small
//! payload are staged in the message (`handle_sent` at once); larger payload is sent from the arena
//! (`handle_sent` when the kernel has taken it, or before `handle_closed`).
//!
//! The end of a send that nothing waits for does not end a sleep (`Ring::send_unreported`): a
//! message without payload of the arena, behind which the machine has nothing more to say. Should
//! it say more in a later round of that turn, the reactor does not sleep.
//!
//! # Limits
//! `STAGED_MAX`, `MESSAGE_MAX`, `EXTENTS_MAX` per message, less where many are held
//! (`messages`): the
//! rest waits in the machine. A peer that takes nothing is given up (`stall`).
use crate::connection::Phase;
use crate::limits::DIRECT_MIN;
use crate::messages::has_room;
use crate::reactor::{Reactor, Tag};
use engine::Machine;
use engine::machine::{Closed, ConnId, LentRead, Send};
use nvme::crc32c;
use std::sync::Arc;
use sys::{Completion, Errno, Message, Returned};

impl<M: Machine> Reactor<M>
where
    M::Control: std::marker::Send,
{
    /// The machine has something to send.
    pub(crate) fn mark_dirty(&mut self, conn: ConnId) {
        let connection = &mut self.connections[conn.0 as usize];
        if matches!(connection.phase, Phase::Free | Phase::Ending(_)) {
            return;
        }
        connection.dirty = true;
        self.wants_send_end |= connection.sending.is_some();
        if connection.can_send() && !connection.queued {
            connection.queued = true;
            self.dirty.push(conn);
        }
    }

    /// Composes and starts the sends of all connections that have something.
    pub(crate) fn transmit_dirty(&mut self) {
        let mut at = 0;
        while let Some(&conn) = self.dirty.get(at) {
            at += 1;
            let connection = self.connection_mut(conn);
            connection.queued = false;
            if connection.dirty && connection.can_send() {
                self.transmit(conn);
            }
        }
        self.dirty.clear();
    }

    fn transmit(&mut self, conn: ConnId) {
        let mut message = self.messages.take();
        let drained = self.compose(conn, &mut message);
        let connection = &mut self.connections[conn.0 as usize];
        connection.dirty = !drained;
        let is_awaited = !drained || message.extents() > 0 || connection.phase != Phase::Open;
        match &connection.socket {
            Some(socket) if !message.is_empty() => {
                let tag = Tag::Send(conn).bits();
                self.waits.handle_sent();
                connection.sending = Some(if is_awaited {
                    self.ring.send(socket, message, tag)
                } else {
                    self.ring.send_unreported(socket, message, tag)
                });
                self.watch_sending(conn);
            }
            _ => {
                self.messages.put(message);
                if self.connection(conn).phase == Phase::Closing {
                    self.finish_sending(conn);
                }
            }
        }
    }

    /// Fills a message; whether the machine has nothing more.
    fn compose(&mut self, conn: ConnId, message: &mut Message) -> bool {
        while has_room(message) {
            match self
                .machine
                .poll_transmit(conn, message.staging(), self.now_ns)
            {
                None => return true,
                Some(None) => {}
                Some(Some(send)) => self.append(conn, message, send),
            }
        }
        false
    }

    /// Puts payload behind its header, and its digest behind it.
    fn append(&mut self, conn: ConnId, message: &mut Message, send: Send) {
        if let Some(read) = send.read
            && self.append_lent(message, send, read)
        {
            self.connection_mut(conn).cookies.push(send.cookie);
            return;
        }
        let extent = self.extent(send.span);
        let payload = self.ring.arena().bytes(extent);
        let digest = send.digest.then(|| crc32c(0, payload).to_le_bytes());
        let staged = extent.len < DIRECT_MIN;
        if staged {
            message.staging().extend_from_slice(payload);
            self.stats.bytes_copied_out += u64::from(extent.len);
        } else {
            message.push(extent);
            self.stats.bytes_direct_out += u64::from(extent.len);
        }
        message
            .staging()
            .extend_from_slice(digest.as_ref().map_or(&[], |crc| &crc[..]));
        if staged {
            self.machine.handle_sent(conn, send.cookie, self.now_ns);
            self.again = true;
        } else {
            self.connection_mut(conn).cookies.push(send.cookie);
        }
    }

    /// The same for payload that its device has lent; whether it has.
    fn append_lent(&mut self, message: &mut Message, send: Send, read: LentRead) -> bool {
        let range = read.at as usize..read.at as usize + send.span.len as usize;
        let mut crc = 0;
        let is_lent = self.devices.lent.take(read.id, range, |stripe, range| {
            if send.digest {
                crc = crc32c(crc, &stripe[range.clone()]);
            }
            message.push_stripe(Arc::clone(stripe), range);
        });
        if is_lent {
            self.stats.bytes_direct_out += u64::from(send.span.len);
            if send.digest {
                message.staging().extend_from_slice(&crc.to_le_bytes());
            }
        }
        is_lent
    }

    /// A send ended.
    pub(crate) fn handle_send(&mut self, conn: ConnId, completion: Completion) {
        self.stats.sends += 1;
        let Returned::Message(message) = completion.returned else {
            unreachable!("a send returns its message");
        };
        let connection = &mut self.connections[conn.0 as usize];
        connection.sending = None;
        let open = matches!(connection.phase, Phase::Open | Phase::Closing);
        let goes_on = match completion.result {
            Ok(count) => count > 0 && message.sent() < message.len(),
            Err(error) => matches!(error, Errno::INTR | Errno::AGAIN),
        };
        if let Some(socket) = connection.socket.as_ref().filter(|_| open && goes_on) {
            let tag = Tag::Send(conn).bits();
            connection.sending = Some(self.ring.send(socket, message, tag));
            if completion.result.is_ok() {
                self.watch_sending(conn);
            }
            return;
        }
        let sent = message.sent() == message.len();
        self.messages.put(message);
        match (connection.phase, completion.result) {
            (Phase::Open | Phase::Closing, Ok(_)) if sent => self.go_on_sending(conn),
            (Phase::Open, Err(error)) => self.end(conn, Closed::Error(error.raw_os_error())),
            (Phase::Open, Ok(_)) => self.end(conn, Closed::Error(Errno::PIPE.raw_os_error())),
            (Phase::Closing, _) => self.end(conn, Closed::ByUs),
            _ => self.conclude_if_quiet(conn),
        }
    }

    fn go_on_sending(&mut self, conn: ConnId) {
        self.deliver_sent(conn);
        let connection = self.connection(conn);
        if connection.dirty || connection.phase == Phase::Closing {
            self.mark_dirty(conn);
        }
    }

    /// Nothing refers to the payloads of the last message any more.
    pub(crate) fn deliver_sent(&mut self, conn: ConnId) {
        let mut cookies = std::mem::take(&mut self.connection_mut(conn).cookies);
        for &cookie in &cookies {
            self.machine.handle_sent(conn, cookie, self.now_ns);
        }
        cookies.clear();
        self.connection_mut(conn).cookies = cookies;
    }
}

#[cfg(test)]
mod tests {
    use crate::mailbox::Mailbox;
    use crate::{Polling, ReactorConfig, spawn_with};
    use engine::Machine;
    use engine::machine::{Closed, ConnId, DeviceError, Memory, Output, Place, Send, Span};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    const CONN: ConnId = ConnId(0);

    /// Says the next part in the round after the one before was staged.
    #[derive(Default)]
    struct Talker {
        parts: u32,
        outputs: Vec<Output>,
    }

    impl Machine for Talker {
        type Control = ();
        fn connections_max(&self) -> u32 {
            1
        }
        fn handle_accepted(&mut self, _: u32, _: u64) -> Option<ConnId> {
            self.outputs.push(Output::Transmit(CONN));
            Some(CONN)
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
            if !self.outputs.is_empty() || self.parts == 3 {
                return None;
            }
            out.push(b'a' + self.parts as u8);
            self.parts += 1;
            let span = Span { at: 0, len: 1 };
            Some(Some(Send {
                span,
                digest: false,
                cookie: 0,
                read: None,
            }))
        }
        fn handle_sent(&mut self, _: ConnId, _: u32, _: u64) {
            let next = match self.parts {
                ..3 => Output::Transmit(CONN),
                _ => Output::Close {
                    conn: CONN,
                    abort: false,
                },
            };
            self.outputs.push(next);
        }
        fn handle_closed(&mut self, _: ConnId, _: Closed, _: u64) {
            self.outputs.push(Output::Stop);
        }
        fn handle_device(&mut self, _: u32, _: Result<(), DeviceError>, _: u64) {}
        fn handle_control(&mut self, (): (), _: u64) {}
        fn turn(&mut self, _: &mut dyn Memory, _: u64) {}
        fn poll_output(&mut self) -> Option<Output> {
            self.outputs.pop()
        }
        fn poll_timeout(&self) -> Option<u64> {
            None
        }
        fn handle_timeout(&mut self, _: u64) {}
    }

    /// The end of a send doesn't wake the reactor, and there is no other event here.
    #[test]
    fn words_behind_a_send_of_the_same_turn_leave() {
        for polling in [Polling::default(), Polling::Always, Polling::Never] {
            let config = ReactorConfig {
                name: "talker".into(),
                cpu: None,
                polling,
                arena_bytes: 4096,
                per_peer_max: None,
                addresses: Vec::new(),
                listeners: Vec::new(),
                devices: Vec::new(),
            };
            let handle = spawn_with(config, Talker::default(), Mailbox::new("talker").unwrap());
            let handle = handle.unwrap();
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            assert!(handle.sender().adopt(0, ours.into(), None));
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).unwrap();
            assert_eq!(all, b"a\0b\0c\0");
            drop(theirs);
            handle.join().unwrap();
        }
    }
}
