//! A host and a subsystem wired to each other by somebody who delays, tears and damages.
//!
//! Reaches what raw bytes hardly reach: every state of both machines, by the real protocol, with a
//! wrong byte at the worst moment.
use super::admin::{self, CheckedAdmin};
use super::queue::{self, CheckedQueue};
use super::subsystem;
use super::tape::{self, Tape};
use super::target::CheckedTarget;
use nvme::host::Data;
use nvme::wire::Status;
use nvme::wire::sqe::nvm;

/// Connection of the admin association, and of the I/O queue.
const ADMIN: usize = 0;
const QUEUE: usize = 1;
/// Bytes under way in one direction at most.
const WIRE_MAX: usize = 1 << 20;

/// The tape: two bytes of configuration, then one operation after the other.
pub fn run(data: &[u8]) {
    record(data);
}

/// Bytes that the two ends received, as tapes for the models of one of them.
pub struct Recorded {
    /// For `admin`.
    pub admin: Vec<u8>,
    /// For `subsystem`.
    pub subsystem: Vec<u8>,
    /// I/O commands that ended well.
    pub done: u32,
}

/// Runs a tape and returns what both ends heard.
pub fn record(data: &[u8]) -> Recorded {
    let mut tape = Tape::new(data);
    let (choice, target) = (tape.byte(), tape.byte());
    let mut world = World {
        choice,
        target: CheckedTarget::new(target),
        admin: CheckedAdmin::new(admin::config(choice), 0),
        queue: None,
        wires: [Wire::default(), Wire::default()],
        now_ns: 0,
        recorded: Recorded {
            admin: vec![choice],
            subsystem: vec![target],
            done: 0,
        },
    };
    world.target.open(ADMIN as u32, 0);
    while let Some(operation) = tape.operation() {
        world.step(operation, &mut tape);
    }
    let now_ns = world.now_ns;
    world.admin.finish(now_ns);
    if let Some(queue) = world.queue {
        world.recorded.done = queue.done;
        queue.finish(now_ns);
    }
    world.target.finish(now_ns);
    world.recorded
}

/// Bytes under way.
#[derive(Default)]
struct Wire {
    to_target: Vec<u8>,
    to_host: Vec<u8>,
}

struct World {
    choice: u8,
    target: CheckedTarget,
    admin: CheckedAdmin,
    queue: Option<CheckedQueue>,
    wires: [Wire; 2],
    now_ns: u64,
    recorded: Recorded,
}

impl World {
    fn step(&mut self, operation: u8, tape: &mut Tape<'_>) {
        let wire = usize::from(operation >> 4 & 1);
        match operation & 15 {
            0..=3 => self.run_for(usize::from(operation & 3) * 8 + 1),
            4 | 5 => self.submit(tape.byte(), tape.word()),
            6 => self.deliver_to_host(wire, usize::from(tape.word())),
            7 => self.deliver_to_target(wire, usize::from(tape.word())),
            8 => damage(&mut self.wires[wire].to_host, tape),
            9 => damage(&mut self.wires[wire].to_target, tape),
            10 => self
                .target
                .complete(tape.byte(), Status(tape.word() >> 1), self.now_ns),
            11 => self.pass_time(tape.word()),
            12 => self.target.administer(tape.byte(), self.now_ns),
            13 => self.end(wire, tape.byte()),
            14 => self.open_queue(),
            _ => self.pump(),
        }
    }

    /// `turns` of everything going well.
    fn run_for(&mut self, turns: usize) {
        for _ in 0..turns {
            self.pump();
            for wire in [ADMIN, QUEUE] {
                self.deliver_to_target(wire, usize::MAX);
                self.deliver_to_host(wire, usize::MAX);
            }
            self.target.give_buffer(self.now_ns);
            self.target.complete(0, Status(0), self.now_ns);
            self.recorded
                .subsystem
                .extend([subsystem::GIVE_BUFFER, subsystem::COMPLETE]);
            self.report_sent();
        }
    }

    /// Both sides put on the wires what they have to send.
    fn pump(&mut self) {
        let now_ns = self.now_ns;
        for (conn, wire) in self.wires.iter_mut().enumerate() {
            if wire.to_host.len() < WIRE_MAX {
                self.target.transmit(conn as u32, &mut wire.to_host, now_ns);
            }
        }
        self.target.close_as_asked(now_ns);
        self.admin
            .transmit(&mut self.wires[ADMIN].to_target, now_ns);
        if let Some(queue) = &mut self.queue {
            queue.transmit(&mut self.wires[QUEUE].to_target, now_ns);
        }
    }

    fn deliver_to_target(&mut self, wire: usize, len: usize) {
        let bytes = &mut self.wires[wire].to_target;
        let len = len.min(bytes.len());
        if self.target.is_open(wire as u32) {
            let [feed, zeroes] =
                [subsystem::FEED, subsystem::ZEROES].map(|o| o | (wire as u8) << 4);
            tape::put(&mut self.recorded.subsystem, feed, zeroes, &bytes[..len]);
            let taken = self.target.feed(wire as u32, &bytes[..len], self.now_ns);
            bytes.drain(..taken);
        } else {
            bytes.clear();
        }
    }

    fn deliver_to_host(&mut self, wire: usize, len: usize) {
        let bytes = &mut self.wires[wire].to_host;
        let bytes: Vec<u8> = bytes.drain(..len.min(bytes.len())).collect();
        match &mut self.queue {
            Some(queue) if wire == QUEUE => queue.feed(&bytes, self.now_ns),
            _ if wire == ADMIN => {
                tape::put(&mut self.recorded.admin, admin::FEED, admin::ZEROES, &bytes);
                self.admin.feed(&bytes, self.now_ns);
            }
            _ => {}
        }
    }

    fn report_sent(&mut self) {
        for conn in [ADMIN, QUEUE] {
            self.target.report_sent(conn as u32, usize::MAX);
            self.recorded
                .subsystem
                .extend([subsystem::REPORT_SENT | (conn as u8) << 4, 255]);
        }
        if let Some(queue) = &mut self.queue {
            queue.report_sent(usize::MAX);
        }
    }

    fn pass_time(&mut self, ms: u16) {
        self.now_ns += u64::from(ms) * 1_000_000;
        self.admin.tick(self.now_ns);
        if let Some(queue) = &mut self.queue {
            queue.tick(self.now_ns);
        }
        self.target.tick(self.now_ns);
    }

    fn open_queue(&mut self) {
        if self.queue.is_none()
            && let Some(cntlid) = self.admin.cntlid
        {
            self.target.open(QUEUE as u32, self.now_ns);
            let config = queue::config(self.choice, cntlid);
            self.queue = Some(CheckedQueue::new(config, self.now_ns));
        }
    }

    fn submit(&mut self, kind: u8, place: u16) {
        let bytes = (u32::from(place & 63) + 1) * 512;
        let (opcode, data) = match kind % 6 {
            0 => (nvm::FLUSH, Data::None),
            1 => (nvm::WRITE_ZEROES, Data::None),
            2 => (nvm::COMPARE, Data::Out(bytes)),
            3 => (nvm::DATASET_MANAGEMENT, Data::Out(16)),
            4 => (nvm::WRITE, Data::Out(bytes)),
            _ => (nvm::READ, Data::In(bytes)),
        };
        if let Some(queue) = &mut self.queue {
            // Up to twice as far as the namespace reaches.
            let block = u32::from(place >> 6) << 11 | u32::from(place & 1);
            queue.submit(opcode, data, block, self.now_ns);
        }
    }

    fn end(&mut self, wire: usize, choice: u8) {
        match (choice % 3, &mut self.queue) {
            (0, _) => self.target.close(wire as u32, self.now_ns),
            (1, _) if wire == ADMIN => self.admin.shutdown(self.now_ns),
            (2, _) if wire == ADMIN => self.admin.close(self.now_ns),
            (2, Some(queue)) => queue.close(self.now_ns),
            _ => {}
        }
    }
}

/// One bit of what is under way flips.
fn damage(bytes: &mut [u8], tape: &mut Tape<'_>) {
    let (at, bit) = (usize::from(tape.word()), tape.byte() % 8);
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << bit;
    }
}
