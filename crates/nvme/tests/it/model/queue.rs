//! A host's I/O queue under a driver that keeps the contract and checks that the queue does.
use nvme::host::{Command, Data, Digests, HostIdentity, IoQueue, IoQueueConfig, QueueEvent};
use nvme::wire::crc::crc32c;
use nvme::wire::sqe::nvm;
use std::collections::BTreeMap;

/// Name of the subsystem in all bodies.
pub const SUBSYSTEM: &str = "nqn.2026-01.org.example:fuzz";
/// More outputs than this from one event is a loop without end.
pub const OUTPUTS_MAX: usize = 10_000;

/// Identity of the host in all models.
pub fn identity() -> HostIdentity {
    HostIdentity {
        nqn: "nqn.2026-01.org.example:host".to_owned(),
        id: [7; 16],
    }
}

/// A queue and what is expected of it.
pub struct CheckedQueue {
    queue: IoQueue,
    commands: BTreeMap<u32, Expected>,
    /// Tokens of payload handed out and not reported as sent.
    unsent: Vec<u32>,
    tokens: u32,
    failed: bool,
    closed: bool,
    /// Commands that ended well.
    pub done: u32,
}

/// One command in flight.
struct Expected {
    data: Data,
    placed: u32,
    /// The byte that its payload is full of.
    fill: u8,
}

impl CheckedQueue {
    /// A queue that is connected.
    pub fn new(config: IoQueueConfig, now_ns: u64) -> Self {
        let mut queue = IoQueue::new(config);
        queue.handle_connected(now_ns);
        let commands = BTreeMap::new();
        Self {
            queue,
            commands,
            unsent: Vec::new(),
            tokens: 0,
            failed: false,
            closed: false,
            done: 0,
        }
    }

    /// Submits a command, if the queue takes it.
    pub fn submit(&mut self, opcode: u8, data: Data, block: u32, now_ns: u64) {
        let bytes = match data {
            Data::None => 512,
            Data::In(bytes) | Data::Out(bytes) => bytes,
        };
        let token = self.tokens;
        let cdw = match opcode {
            // One range (the count is 0's based), whatever the payload says of it.
            nvm::DATASET_MANAGEMENT => [0, nvm::DSM_DEALLOCATE, 0, 0, 0, 0],
            _ => [block, 0, (bytes / 512).saturating_sub(1), 0, 0, 0],
        };
        // Ranges of all ones lie outside every namespace, those of zeroes inside.
        let fill = if opcode == nvm::DATASET_MANAGEMENT && block & 1 != 0 {
            0xff
        } else {
            0
        };
        let command = Command {
            opcode,
            nsid: 1,
            cdw,
            data,
            token,
        };
        if self.queue.submit(&command, now_ns).is_ok() {
            assert!(!self.failed, "a command was taken after the end");
            self.tokens += 1;
            let expected = Expected {
                data,
                placed: 0,
                fill,
            };
            self.commands.insert(token, expected);
            assert!(self.queue.in_flight() <= self.queue.capacity());
        }
        self.settle();
    }

    /// Hands in bytes of the stream.
    pub fn feed(&mut self, mut bytes: &[u8], now_ns: u64) {
        while !bytes.is_empty() && !self.closed {
            let taken = match self.queue.placement() {
                Some(place) => {
                    let taken = bytes.len().min(place.len as usize);
                    self.place(place.token, place.offset, place.len, taken);
                    let crc = place.crc.map_or(0, |crc| crc32c(crc, &bytes[..taken]));
                    self.queue.handle_payload(taken as u32, crc, now_ns);
                    taken
                }
                None => self.queue.handle_bytes(bytes, now_ns),
            };
            assert!(taken <= bytes.len());
            bytes = &bytes[taken..];
            self.settle();
            if taken == 0 && self.queue.placement().is_none() {
                assert!(self.failed, "stuck: takes nothing and wants no payload");
                return;
            }
        }
    }

    fn place(&mut self, token: u32, offset: u32, len: u32, taken: usize) {
        let expected = self
            .commands
            .get_mut(&token)
            .expect("payload for no command in flight");
        let Data::In(bytes) = expected.data else {
            panic!("payload for {:?}", expected.data)
        };
        assert!(len > 0 && u64::from(offset) + u64::from(len) <= u64::from(bytes));
        assert_eq!(offset, expected.placed, "payload out of order");
        expected.placed += taken as u32;
    }

    /// Appends everything that is to be sent, payload included.
    pub fn transmit(&mut self, out: &mut Vec<u8>, now_ns: u64) {
        for _ in 0..OUTPUTS_MAX {
            if self.closed {
                return;
            }
            let before = out.len();
            let Some(transmit) = self.queue.poll_transmit(out, now_ns) else {
                assert_eq!(out.len(), before);
                return;
            };
            assert!(out.len() > before || transmit.payload.is_some());
            if let Some(payload) = transmit.payload {
                let expected = self
                    .commands
                    .get(&payload.token)
                    .expect("payload of no command");
                let Data::Out(bytes) = expected.data else {
                    panic!("sends {:?}", expected.data)
                };
                let end = u64::from(payload.offset) + u64::from(payload.len);
                assert!(payload.len > 0 && end <= u64::from(bytes));
                let begun = out.len();
                out.resize(begun + payload.len as usize, expected.fill);
                if payload.digest {
                    let crc = crc32c(0, &out[begun..]);
                    out.extend_from_slice(&crc.to_le_bytes());
                }
                self.unsent.push(payload.token);
            }
        }
        panic!("sends without end");
    }

    /// Reports the oldest `count` sends as done.
    pub fn report_sent(&mut self, count: usize) {
        for token in self.unsent.drain(..count.min(self.unsent.len())) {
            self.queue.handle_sent(token);
        }
        self.settle();
    }

    /// Lets time pass.
    pub fn tick(&mut self, now_ns: u64) {
        if self.queue.poll_timeout().is_some_and(|at| at <= now_ns) {
            self.queue.handle_timeout(now_ns);
            self.settle();
        }
        assert!(
            self.queue.poll_timeout().is_none_or(|at| at > now_ns),
            "a timer that never rests"
        );
    }

    /// The connection ended.
    pub fn close(&mut self, now_ns: u64) {
        if !self.closed {
            self.report_sent(usize::MAX);
            self.queue.handle_closed(now_ns);
            self.closed = true;
            self.settle();
        }
    }

    /// The end: everything must have been given back.
    pub fn finish(mut self, now_ns: u64) {
        self.close(now_ns);
        assert!(self.failed, "no Failed after the end of the connection");
        assert!(
            self.commands.is_empty(),
            "{} commands never completed",
            self.commands.len()
        );
        assert_eq!(self.queue.in_flight(), 0);
    }

    fn settle(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            let Some(event) = self.queue.poll_event() else {
                return;
            };
            assert!(!self.failed, "{event:?} after Failed");
            match event {
                QueueEvent::Ready => {}
                QueueEvent::Completed(done) => {
                    let expected = self.commands.remove(&done.token).expect("completed twice");
                    assert!(
                        !self.unsent.contains(&done.token),
                        "completed while being sent"
                    );
                    if done.status.0 == 0 {
                        self.done += 1;
                        if let Data::In(bytes) = expected.data {
                            assert_eq!(expected.placed, bytes, "a short read that succeeded");
                        }
                    }
                }
                QueueEvent::Failed(error) => {
                    assert!(!error.to_string().is_empty());
                    assert!(
                        self.commands.is_empty(),
                        "Failed before all commands completed"
                    );
                    self.failed = true;
                }
            }
        }
        panic!("events without end");
    }
}

/// A configuration from one byte: digests, flow control, depth.
pub fn config(choice: u8, cntlid: u16) -> IoQueueConfig {
    IoQueueConfig {
        host: identity(),
        subsystem: SUBSYSTEM.to_owned(),
        cntlid,
        qid: 1,
        entries: [2, 3, 8, 32][usize::from(choice >> 3 & 3)],
        digests: Digests {
            header: choice & 1 != 0,
            data: choice & 2 != 0,
        },
        disable_sq_flow_control: choice & 4 != 0,
        in_capsule_max: [0, 8192][usize::from(choice >> 5 & 1)],
        timeout_ns: 5_000_000_000,
    }
}
