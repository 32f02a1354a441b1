//! The ports' counters, where other threads can read them.
use crate::machine::DeviceError;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use nvme::wire::Status;
use nvme::wire::status::Class;

/// Counters of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// I/O commands completed.
    pub commands: u64,
    /// Of them, with an error.
    pub errors: u64,
    /// Payload bytes, both directions.
    pub bytes: u64,
    /// Commands that had to wait for a buffer.
    pub waited_buffer: u64,
    /// Connections ended because the host broke the protocol.
    pub protocol_errors: u64,
    /// Connections ended because a header arrived with a wrong digest.
    pub damaged_headers: u64,
    /// Connections ended because keep-alive was missed.
    pub keep_alive_expired: u64,
    /// Connections now.
    pub connections: u32,
    /// I/O commands now between their arrival and their completion.
    pub in_flight: u32,
    /// Faults that were injected.
    pub faults: FaultStats,
    /// Requests that devices have failed.
    pub device: DeviceFailures,
}

/// Requests of one port that devices have failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceFailures {
    /// The device was full (ENOSPC).
    pub full: u64,
    /// Data could not be read or written: what the operating system reports, a file that was cut
    /// short, a media error of a controller behind it.
    pub media: u64,
    /// Error number of the operating system of the last of these; 0: none had one.
    pub errno: u64,
}

impl DeviceFailures {
    /// Counts one, if it says something of the device.
    pub(super) fn count(&mut self, error: DeviceError, status: Status) {
        let errno = match error {
            DeviceError::Os(errno) => u64::from(errno.unsigned_abs()),
            _ => 0,
        };
        if error == DeviceError::Full {
            self.full += 1;
        } else if matches!(status.class(), Class::Media) {
            self.media += 1;
            self.errno = errno;
        }
    }

    /// All of them.
    pub fn count_all(&self) -> u64 {
        self.full + self.media
    }
}

/// Faults injected at one port, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStats {
    /// Commands failed by a rule.
    pub errors: u64,
    /// Connections dropped, by chance or on request.
    pub drops: u64,
    /// Writes held.
    pub held_writes: u64,
    /// Writes executed a settled time after their connection was gone.
    pub late_writes: u64,
    /// Writes executed after their connection was gone, before keep-alive expired.
    pub outlived_writes: u64,
    /// Connections refused.
    pub refused: u64,
    /// Times that something was to be sent, and wasn't.
    pub muted: u64,
    /// Commands that hang, or did.
    pub hung: u64,
}

/// All ports' counters: one writer, any readers. Each figure is whole; figures of one port may be
/// of two loop turns.
#[derive(Debug)]
pub struct Board {
    ports: Box<[Line]>,
}

/// Three cache lines, which only their core writes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; 20]);

impl Board {
    /// All zero.
    pub fn new(ports: usize) -> Self {
        Board {
            ports: (0..ports).map(|_| Line::default()).collect(),
        }
    }

    /// Counters of a port (index).
    pub fn port(&self, port: u16) -> PortStats {
        let line = &self.ports[usize::from(port)].0;
        let of = |i: usize| line[i].load(Ordering::Relaxed);
        PortStats {
            commands: of(0),
            errors: of(1),
            bytes: of(2),
            waited_buffer: of(3),
            protocol_errors: of(4),
            damaged_headers: of(16),
            keep_alive_expired: of(5),
            connections: of(6) as u32,
            in_flight: of(7) as u32,
            faults: FaultStats {
                errors: of(8),
                drops: of(9),
                held_writes: of(10),
                late_writes: of(11),
                outlived_writes: of(12),
                refused: of(13),
                muted: of(14),
                hung: of(15),
            },
            device: DeviceFailures {
                full: of(17),
                media: of(18),
                errno: of(19),
            },
        }
    }

    pub(super) fn publish(&self, port: usize, stats: &PortStats) {
        let figures = [
            stats.commands,
            stats.errors,
            stats.bytes,
            stats.waited_buffer,
            stats.protocol_errors,
            stats.keep_alive_expired,
            u64::from(stats.connections),
            u64::from(stats.in_flight),
            stats.faults.errors,
            stats.faults.drops,
            stats.faults.held_writes,
            stats.faults.late_writes,
            stats.faults.outlived_writes,
            stats.faults.refused,
            stats.faults.muted,
            stats.faults.hung,
            stats.damaged_headers,
            stats.device.full,
            stats.device.media,
            stats.device.errno,
        ];
        for (cell, figure) in self.ports[port].0.iter().zip(figures) {
            cell.store(figure, Ordering::Relaxed);
        }
    }
}
