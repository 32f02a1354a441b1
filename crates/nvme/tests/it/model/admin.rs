//! A host's admin connection against a controller that says anything: raw bytes and time.
use super::queue::{OUTPUTS_MAX, SUBSYSTEM, identity};
use super::tape::Tape;
use nvme::host::{Admin, AdminConfig, AdminEvent, Digests};
use nvme::wire::fabrics::DISCOVERY_NQN;

/// The operation that hands in bytes.
pub const FEED: u8 = 2;
/// The operation that hands in zeroes.
pub const ZEROES: u8 = 3;

/// The tape: a byte of configuration, then one operation after the other.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let mut admin = CheckedAdmin::new(config(tape.byte()), 0);
    let mut now_ns = 0;
    while let Some(operation) = tape.operation() {
        match operation % 8 {
            0 => {
                now_ns += u64::from(tape.word()) * 1_000_000;
                admin.tick(now_ns);
            }
            1 => match tape.byte() {
                0 => admin.close(now_ns),
                1 => admin.shutdown(now_ns),
                _ => {}
            },
            ZEROES => {
                let len = usize::from(tape.word() % 8192);
                admin.feed(&vec![0; len], now_ns);
            }
            _ => {
                let len = usize::from(tape.word() % 8192);
                admin.feed(tape.take(len), now_ns);
            }
        }
        admin.transmit(&mut Vec::new(), now_ns);
    }
    admin.finish(now_ns);
}

/// In a configuration: of the discovery service.
pub const DISCOVERY: u8 = 0x40;

/// A configuration from one byte: digests, keep-alive, which subsystem.
pub fn config(choice: u8) -> AdminConfig {
    AdminConfig {
        host: identity(),
        subsystem: match choice & DISCOVERY {
            0 => SUBSYSTEM.to_owned(),
            _ => DISCOVERY_NQN.to_owned(),
        },
        digests: Digests {
            header: choice & 1 != 0,
            data: choice & 2 != 0,
        },
        kato_ms: if choice & 4 != 0 { 5_000 } else { 0 },
        io_queues: 1,
        timeout_ns: 5_000_000_000,
        nsid: None,
    }
}

/// An admin connection under a driver that keeps the contract and checks that it does.
pub struct CheckedAdmin {
    admin: Admin,
    failed: bool,
    closed: bool,
    /// The controller's identifier, once it is ready.
    pub cntlid: Option<u16>,
}

impl CheckedAdmin {
    /// A connection that is up.
    pub fn new(config: AdminConfig, now_ns: u64) -> Self {
        let mut admin = Admin::new(config);
        admin.handle_connected(now_ns);
        Self {
            admin,
            failed: false,
            closed: false,
            cntlid: None,
        }
    }

    /// Hands in bytes of the stream; all of them are the machine's own.
    pub fn feed(&mut self, bytes: &[u8], now_ns: u64) {
        if !self.closed && !bytes.is_empty() {
            let taken = self.admin.handle_bytes(bytes, now_ns);
            self.settle();
            assert!(
                taken == bytes.len() || self.failed,
                "an admin connection has no payload"
            );
        }
    }

    /// Appends everything that is to be sent.
    pub fn transmit(&mut self, out: &mut Vec<u8>, now_ns: u64) {
        for _ in 0..OUTPUTS_MAX {
            let before = out.len();
            if self.closed || self.admin.poll_transmit(out, now_ns).is_none() {
                assert_eq!(out.len(), before);
                return;
            }
            assert!(out.len() > before);
        }
        panic!("sends without end");
    }

    /// Lets time pass.
    pub fn tick(&mut self, now_ns: u64) {
        if self.admin.poll_timeout().is_some_and(|at| at <= now_ns) {
            self.admin.handle_timeout(now_ns);
            self.settle();
        }
        assert!(
            self.admin.poll_timeout().is_none_or(|at| at > now_ns),
            "a timer that never rests"
        );
    }

    /// An orderly end begins.
    pub fn shutdown(&mut self, now_ns: u64) {
        if !self.closed {
            self.admin.shutdown(now_ns);
            self.settle();
        }
    }

    /// The connection ended.
    pub fn close(&mut self, now_ns: u64) {
        if !self.closed {
            self.admin.handle_closed(now_ns);
            self.closed = true;
            self.settle();
        }
    }

    /// The end.
    pub fn finish(mut self, now_ns: u64) {
        self.close(now_ns);
        assert!(self.failed, "no Failed after the end of the connection");
    }

    fn settle(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            let Some(event) = self.admin.poll_event() else {
                return;
            };
            assert!(!self.failed, "{event:?} after Failed");
            match event {
                AdminEvent::Ready(facts) => {
                    assert!(self.cntlid.is_none(), "ready twice");
                    self.cntlid = Some(facts.0.cntlid);
                }
                AdminEvent::Changed(_) => assert!(self.cntlid.is_some(), "changed before ready"),
                AdminEvent::Discovery(_) => {}
                AdminEvent::Reset | AdminEvent::Paused(_) => {}
                AdminEvent::Aborted { .. } => panic!("nobody asked for an Abort"),
                AdminEvent::Allocated { .. } => panic!("nobody asked for allocated blocks"),
                AdminEvent::Failed(error) => {
                    assert!(!error.to_string().is_empty());
                    self.failed = true;
                }
            }
        }
        panic!("events without end");
    }
}
