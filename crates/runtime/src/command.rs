//! Requests to namespaces of controllers that the kernel drives: one command each.
//!
//! # Limits
//! [`COMMANDS_MAX`](sys::COMMANDS_MAX) in flight per reactor; more wait here, as many as the
//! machine has requests.
use crate::PassthroughDevice;
use crate::device::{Backend, Devices, Done, device_number};
use crate::reactor::{Reactor, Tag};
use block::SlotMap;
use engine::Machine;
use engine::machine::{DeviceError, DeviceOp, DeviceRequest};
use nvme::host::Command;
use nvme::wire::dsm::Range;
use std::collections::VecDeque;
use std::sync::Arc;
use sys::{COMMANDS_MAX, CommandData, Errno, Extent, Fd, LATE, NvmeCommand, Ring};

/// Commands that wait for room and commands in flight, by the identifiers of the rings' tags.
#[derive(Default)]
pub(crate) struct Commands {
    waiting: VecDeque<(DeviceRequest, Extent)>,
    in_flight: SlotMap<(DeviceRequest, Arc<PassthroughDevice>)>,
}

impl Commands {
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty()
    }

    /// Whether there is room for one more.
    fn have_room(&mut self) -> bool {
        if self.waiting.capacity() == 0 {
            // Once, where there is such a device at all.
            self.in_flight = SlotMap::new(COMMANDS_MAX as u32);
            self.waiting.reserve(COMMANDS_MAX);
        }
        !self.in_flight.is_full()
    }
}

impl Devices {
    /// Gives a request to the driver, or has it wait.
    pub(crate) fn begin_command(
        &mut self,
        ring: &mut Ring,
        request: &DeviceRequest,
        data: Extent,
        before_ns: u64,
    ) {
        if self.commands.have_room() {
            self.issue_command(ring, request, data, before_ns);
        } else {
            self.commands.waiting.push_back((*request, data));
        }
    }

    fn issue_command(
        &mut self,
        ring: &mut Ring,
        request: &DeviceRequest,
        data: Extent,
        before_ns: u64,
    ) {
        let at = device_number(request.device);
        let Backend::Passthrough(file, device) = &self.backends[at] else {
            let error = DeviceError::Os(Errno::NXIO.raw_os_error());
            return self.results.push((request.id, Err(error)));
        };
        let in_flight = &mut self.commands.in_flight;
        let key = in_flight.insert((*request, Arc::clone(device)));
        let tag = (Tag::Command(key.index()).bits(), before_ns);
        if let Err(error) = give(ring, tag, file, device, request, data) {
            in_flight.remove(key);
            self.results.push((request.id, Err(error)));
        }
    }

    /// A command has ended.
    pub(crate) fn handle_command(
        &mut self,
        ring: &mut Ring,
        slot: u32,
        result: Result<u32, Errno>,
        before_ns: impl Fn(u32) -> u64,
    ) -> Done {
        let in_flight = &mut self.commands.in_flight;
        let (request, device) = in_flight.remove(in_flight.key(slot));
        let result = match result {
            // Nothing of it was done.
            Err(LATE) => Err(DeviceError::Lost),
            result => device.ended(result, &request),
        };
        // A command that can't be submitted leaves its place to the next.
        while self.commands.have_room()
            && let Some((next, data)) = self.commands.waiting.pop_front()
        {
            let before_ns = match next.op.is_change() {
                true => before_ns(next.id),
                false => u64::MAX,
            };
            self.issue_command(ring, &next, data, before_ns);
        }
        (request.id, result)
    }
}

impl<M: Machine> Reactor<M>
where
    M::Control: Send,
{
    pub(crate) fn handle_command(&mut self, slot: u32, result: Result<u32, Errno>) {
        let (devices, machine) = (&mut self.devices, &self.machine);
        let before_ns = |id| machine.start_before_ns(id);
        let (id, result) = devices.handle_command(&mut self.ring, slot, result, before_ns);
        self.machine.handle_device(id, result, self.now_ns);
    }
}

fn give(
    ring: &mut Ring,
    tag: (u64, u64),
    file: &Fd,
    device: &PassthroughDevice,
    request: &DeviceRequest,
    data: Extent,
) -> Result<(), DeviceError> {
    if device.read_only() && request.op.is_change() {
        return Err(DeviceError::ReadOnly);
    }
    let namespace = device.namespace();
    let (command, moves) = command(request, namespace.nsid, namespace.block_shift)?;
    let data = match moves {
        Moves::Nothing => CommandData::None,
        Moves::Data => CommandData::Extent(data),
        Moves::Range(range) => CommandData::Range(range),
    };
    ring.command(file, device.reaping(), &command, data, tag)
        .map_err(|error| DeviceError::Os(error.raw_os_error()))
}

/// Data that a command moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moves {
    Nothing,
    Data,
    Range([u8; 16]),
}

/// A request as the command that does it. EINVAL: no command does; the engine cuts what is longer
/// than one.
fn command(
    request: &DeviceRequest,
    nsid: u32,
    shift: u8,
) -> Result<(NvmeCommand, Moves), DeviceError> {
    let invalid = DeviceError::Os(Errno::INVAL.raw_os_error());
    let whole = (request.offset | request.length).is_multiple_of(1 << shift);
    let slba = request.offset >> shift;
    let blocks = u32::try_from(request.length >> shift).map_err(|_| invalid)?;
    let most = match request.op {
        DeviceOp::Flush => 0,
        DeviceOp::Deallocate => u32::MAX,
        _ => 1 << 16,
    };
    if !whole || blocks > most {
        return Err(invalid);
    }
    let (made, moves) = match request.op {
        DeviceOp::Read => (
            Command::read(nsid, slba, blocks, shift, false, 0),
            Moves::Data,
        ),
        DeviceOp::Write { fua } => (
            Command::write(nsid, slba, blocks, shift, fua, 0),
            Moves::Data,
        ),
        DeviceOp::Compare => (Command::compare(nsid, slba, blocks, shift, 0), Moves::Data),
        DeviceOp::Flush => (Command::flush(nsid, 0), Moves::Nothing),
        DeviceOp::WriteZeroes { deallocate } => (
            Command::write_zeroes(nsid, slba, blocks, deallocate, 0),
            Moves::Nothing,
        ),
        DeviceOp::Deallocate => {
            let range = Range {
                attributes: 0,
                blocks,
                slba,
            };
            let mut made = Command::deallocate(nsid, slba, blocks, 0);
            // Those dwords hold the range, which is sent beside.
            made.cdw[2..].fill(0);
            (made, Moves::Range(range.emit()))
        }
    };
    let command = NvmeCommand {
        opcode: made.opcode,
        nsid: made.nsid,
        cdw: made.cdw,
    };
    Ok((command, moves))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Span;
    use engine::machine::LocalDevice;

    fn request(op: DeviceOp, offset: u64, length: u64) -> DeviceRequest {
        DeviceRequest {
            id: 1,
            device: LocalDevice(0),
            op,
            offset,
            length,
            span: Span { at: 0, len: 0 },
        }
    }

    #[test]
    fn each_request_is_one_command() {
        let fua = 1 << 30;
        for (op, opcode, cdw, moves) in [
            (DeviceOp::Read, 2, [2, 0, 7, 0, 0, 0], Moves::Data),
            (
                DeviceOp::Write { fua: true },
                1,
                [2, 0, 7 | fua, 0, 0, 0],
                Moves::Data,
            ),
            (DeviceOp::Compare, 5, [2, 0, 7, 0, 0, 0], Moves::Data),
            (
                DeviceOp::WriteZeroes { deallocate: false },
                8,
                [2, 0, 7, 0, 0, 0],
                Moves::Nothing,
            ),
        ] {
            let (made, moved) = command(&request(op, 1024, 4096), 3, 9).unwrap();
            assert_eq!((made.opcode, made.nsid, made.cdw), (opcode, 3, cdw));
            assert_eq!(moved, moves, "{op:?}");
        }
        let (flush, moved) = command(&request(DeviceOp::Flush, 0, 0), 3, 9).unwrap();
        assert_eq!(
            (flush.opcode, flush.cdw, moved),
            (0, [0; 6], Moves::Nothing)
        );
    }

    #[test]
    fn a_range_to_deallocate_is_sent_beside_its_command() {
        let (made, moves) = command(&request(DeviceOp::Deallocate, 8192, 4096), 1, 12).unwrap();
        assert_eq!((made.opcode, made.cdw), (9, [0, 4, 0, 0, 0, 0]));
        let mut range = [0; 16];
        (range[4], range[8]) = (1, 2);
        assert_eq!(moves, Moves::Range(range));
    }

    #[test]
    fn what_no_command_can_do_is_refused() {
        for (op, offset, length) in [
            (DeviceOp::Read, 1, 512),
            (DeviceOp::Read, 0, 100),
            (DeviceOp::Read, 0, 65537 * 512),
            (DeviceOp::Deallocate, 0, 512 << 32),
        ] {
            let error = command(&request(op, offset, length), 1, 9).unwrap_err();
            assert_eq!(error, DeviceError::Os(22), "{op:?} {offset} {length}");
        }
    }
}
