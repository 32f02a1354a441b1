//! Every front end over every device: each cell of the table does one operation and checks bytes,
//! status and the requests that reached the devices.
//!
//! The engine is driven through [`Machine`](engine::Machine) and control messages only; its peers
//! are an NBD client, a host's engine, raw NVMe/TCP connections, a queue's commands as they are
//! when they have been fetched and checked, and a ublk queue's requests. All of it in virtual
//! time.
mod bad_input;
mod cells;
mod hand;
mod losses;
pub mod queue;
pub mod stage;
mod table;
mod two_engines;
pub mod ublk;

use crate::nvme_server::rig::Below;

/// The front end that the client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    Nbd,
    Nvme,
    Queue,
    Ublk,
}

impl Front {
    const ALL: [Self; 4] = [Self::Nbd, Self::Nvme, Self::Queue, Self::Ublk];

    fn name(self) -> &'static str {
        match self {
            Self::Nbd => "NBD",
            Self::Nvme => "NVMe/TCP",
            Self::Queue => "queue",
            Self::Ublk => "ublk",
        }
    }
}

/// Devices, with their names in the table.
const DEVICES: [(Below, &str); 5] = [
    (Below::Memory, "memory"),
    (Below::File, "file"),
    (Below::Paths, "multipath"),
    (Below::Mirror, "mirror"),
    (Below::MirrorOfPaths, "mirror of multipath legs"),
];

/// Result of a cell.
pub enum Cell {
    /// This was checked.
    Checked(fn(Front, Below)),
    /// There is no such cell.
    None(&'static str),
}

/// An operation of the table.
struct Operation {
    name: &'static str,
    /// The property that its cells check.
    checks: &'static str,
    cell: fn(Front, Below) -> Cell,
    /// Tests of the same with hardware queues: module and name in crates/broker/tests/it.
    queue: &'static [(&'static str, &'static str)],
}

const OPERATIONS: [Operation; 11] = [
    Operation {
        name: "read",
        checks: "bytes of the device; read from one leg; no device is changed",
        cell: |_, _| Cell::Checked(cells::read),
        queue: &[(
            "serve",
            "what_is_written_is_read_on_memory_and_file_by_every_form_of_pointer",
        )],
    },
    Operation {
        name: "write",
        checks: "bytes on each leg, each byte written once, none durable yet, none around",
        cell: |_, _| Cell::Checked(cells::write),
        queue: &[(
            "serve",
            "what_is_written_is_read_on_memory_and_file_by_every_form_of_pointer",
        )],
    },
    Operation {
        name: "FUA",
        checks: "durable on each leg when it is answered; other writes are not",
        cell: |_, _| Cell::Checked(cells::fua),
        queue: &[("storage", "fua_is_the_devices_own")],
    },
    Operation {
        name: "flush",
        checks: "a flush reaches each leg; what was written before is durable",
        cell: |_, _| Cell::Checked(cells::flush),
        queue: &[("serve", "zeroes_deallocation_and_flush")],
    },
    Operation {
        name: "zeroes",
        checks: "the blocks are zero on each leg, those around are not",
        cell: |_, _| Cell::Checked(cells::zeroes),
        queue: &[("serve", "zeroes_deallocation_and_flush")],
    },
    Operation {
        name: "discard",
        checks: "space is given up on each leg, legs stay alike, blocks around are untouched",
        cell: |_, _| Cell::Checked(cells::discard),
        queue: &[("serve", "zeroes_deallocation_and_flush")],
    },
    Operation {
        name: "compare",
        checks: "announced, equal and other bytes told apart, no device is changed",
        cell: |front, _| match front {
            Front::Nbd => Cell::None("NBD has no such request"),
            Front::Nvme => Cell::Checked(cells::compare),
            Front::Queue => Cell::None("queues do not have this command"),
            Front::Ublk => Cell::None("ublk has no such request"),
        },
        queue: &[(
            "opcodes",
            "commands_that_a_broker_does_not_do_end_with_invalid_opcode_and_change_nothing",
        )],
    },
    Operation {
        name: "partial blocks",
        checks: "bytes around are kept, on each leg",
        cell: |front, _| match front {
            Front::Nbd => Cell::Checked(cells::partial_blocks),
            Front::Nvme | Front::Queue | Front::Ublk => Cell::None("a command covers whole blocks"),
        },
        queue: &[(
            "lengths",
            "t16_pieces_that_are_not_as_long_as_the_blocks_are_refused_in_every_form",
        )],
    },
    Operation {
        name: "resize",
        checks: "the client learns the size; its last block is written on each leg",
        cell: |_, below| match below {
            Below::Memory | Below::File => {
                Cell::None("a local path keeps the size that it was opened with")
            }
            _ => Cell::Checked(cells::resize),
        },
        queue: &[],
    },
    Operation {
        name: "loss",
        checks: "writes under way end well, or wait; what was lost returns (see above)",
        cell: |_, below| match below {
            Below::Memory => Cell::None("memory has no path that could be lost"),
            _ => Cell::Checked(losses::loss),
        },
        queue: &[(
            "losses",
            "t13_flush_that_fails_is_told_to_every_open_queue_once",
        )],
    },
    Operation {
        name: "stop",
        checks: "requests under way end, all is durable, new clients are refused",
        cell: |_, _| Cell::Checked(losses::stop),
        queue: &[("serve", "a_broker_that_stops_is_noticed")],
    },
];
