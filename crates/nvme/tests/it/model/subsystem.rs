//! A subsystem against hosts that say anything: raw bytes on several connections.
use super::tape::Tape;
use super::target::{CONNECTIONS, CheckedTarget};
use nvme::wire::Status;

/// Operations; the connection stands in bits 7:4.
pub const COMPLETE: u8 = 3;
/// Sends were done.
pub const REPORT_SENT: u8 = 7;
/// A buffer is there.
pub const GIVE_BUFFER: u8 = 8;
/// Bytes arrive.
pub const FEED: u8 = 9;
/// Zeroes arrive.
pub const ZEROES: u8 = 10;

/// The tape: a byte of configuration, then one operation after the other.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let mut target = CheckedTarget::new(tape.byte());
    let mut now_ns = 0;
    while let Some(operation) = tape.operation() {
        let conn = u32::from(operation >> 4) % CONNECTIONS;
        match operation & 15 {
            0 => target.open(conn, now_ns),
            1 => target.close(conn, now_ns),
            2 => target.complete(tape.byte(), Status(tape.word() >> 1), now_ns),
            COMPLETE | 4 => target.complete(0, Status(0), now_ns),
            5 => now_ns += u64::from(tape.word()) * 1_000_000,
            6 => target.administer(tape.byte(), now_ns),
            REPORT_SENT => target.report_sent(conn, usize::from(tape.byte())),
            GIVE_BUFFER => target.give_buffer(now_ns),
            ZEROES => {
                let len = usize::from(tape.word() % 4096);
                target.feed(conn, &vec![0; len], now_ns);
            }
            _ => {
                target.open(conn, now_ns);
                let len = usize::from(tape.word() % 4096);
                target.feed(conn, tape.take(len), now_ns);
            }
        }
        target.transmit(conn, &mut Vec::new(), now_ns);
        target.tick(now_ns);
        target.close_as_asked(now_ns);
    }
    target.finish(now_ns);
}
