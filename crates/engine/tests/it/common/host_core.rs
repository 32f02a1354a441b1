//! A core without front ends, whose program is the test.
use engine::export::{ExportControl, ExportEvent};
use engine::host::{Hints, HostConfig, HostControl, HostEvent, Io, Multipath, SubmitError};
use engine::machine::Memory;
use engine::{Around, Core, Machine};
use std::ops::{Deref, DerefMut};

/// Driven as any core; asked as its multipath volumes are.
pub struct HostCore(pub Core);

impl HostCore {
    pub fn new(config: HostConfig) -> Self {
        Self(Core::without_front_ends(Multipath::new(config)))
    }

    /// With room for so many paths in all.
    pub fn with_room(config: HostConfig, room: usize) -> Self {
        let engine = Multipath::with_room(config, room);
        Self(Core::without_front_ends(engine))
    }

    pub fn submit(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError> {
        self.0.submit(io, now_ns)
    }

    pub fn submit_with(&mut self, io: &Io, hints: Hints, now_ns: u64) -> Result<(), SubmitError> {
        self.0.submit_with(io, hints, now_ns)
    }

    pub fn poll_event(&mut self) -> Option<HostEvent> {
        loop {
            match self.0.poll_event()? {
                ExportEvent::Host(event) => return Some(event),
                // Of a ublk server; no other core has one, so no change there is in the way.
                ExportEvent::ToCore(..) | ExportEvent::Error(_) => {}
                other => panic!("of no front end: {other:?}"),
            }
        }
    }
}

impl Deref for HostCore {
    type Target = Multipath;
    fn deref(&self) -> &Multipath {
        self.0.host()
    }
}

impl DerefMut for HostCore {
    fn deref_mut(&mut self) -> &mut Multipath {
        self.0.host_mut()
    }
}

impl Around for HostCore {
    type Inner = Core;
    type Control = HostControl;

    fn inner(&self) -> &Core {
        &self.0
    }
    fn inner_mut(&mut self) -> &mut Core {
        &mut self.0
    }
    fn handle_control(&mut self, message: HostControl, now_ns: u64) {
        let message = ExportControl::Host(message);
        self.0.handle_control(message, now_ns);
    }
    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.0.turn(memory, now_ns);
    }
}
