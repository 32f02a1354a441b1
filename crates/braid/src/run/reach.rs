//! Whether somebody who speaks NVMe/TCP is at an address: asked of several at a time, so that those
//! that say nothing cost their time side by side.
//!
//! # Contract
//! A connection is opened, an ICReq sent, the head of an ICResp awaited, and the connection closed:
//! no controller is made. Results come one by one, as they are there, on the caller's thread.
//!
//! # Limits
//! [`ASKED_MAX`] at a time. A request to stop is heeded ten times a second, but for a TCP
//! connection that is being opened: within the time-out.
use nvme::host::Digests;
use nvme::wire::pdu::{COMMON_LEN, IC_LEN, IcReq};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

/// Addresses that are asked at a time.
pub const ASKED_MAX: usize = 32;
/// How often somebody looks whether to stop.
const TICK: Duration = Duration::from_millis(100);
/// Type of an ICResp.
const IC_RESP: u8 = 1;
/// A thread that asks needs little.
const STACK_BYTES: usize = 256 << 10;

/// How addresses are asked.
#[derive(Clone, Copy)]
pub struct Manner<'a> {
    pub digests: Digests,
    /// For the connection, and for the answer.
    pub timeout: Duration,
    /// No caller wants to know any more.
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

/// Asks all; `each` hears of them by their place in the list. Those that were not asked when
/// somebody wanted to stop are not heard of.
pub fn ask_all(
    addresses: &[SocketAddr],
    manner: Manner<'_>,
    each: impl FnMut(usize, Result<(), String>),
) {
    let work = |address: &SocketAddr| (!(manner.stop)()).then(|| ask(*address, manner));
    side_by_side(addresses, work, each);
}

/// Work that is done for each thing, until it is `None`.
fn side_by_side<T: Sync, R: Send>(
    things: &[T],
    work: impl Fn(&T) -> Option<R> + Sync,
    mut each: impl FnMut(usize, R),
) {
    let next = AtomicUsize::new(0);
    let (to, results) = sync_channel(ASKED_MAX);
    let run = |to: std::sync::mpsc::SyncSender<_>| {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(result) = things.get(at).and_then(&work) else {
                return;
            };
            if to.send((at, result)).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..things.len().min(ASKED_MAX) {
            let (to, run) = (to.clone(), &run);
            let thread = thread::Builder::new().name("reach".into());
            let thread = thread.stack_size(STACK_BYTES);
            if thread.spawn_scoped(scope, move || run(to)).is_err() {
                break; // those that are there do it
            }
        }
        drop(to);
        results.iter().for_each(|(at, result)| each(at, result));
    });
}

fn ask(address: SocketAddr, manner: Manner<'_>) -> Result<(), String> {
    let wait = manner.timeout.max(TICK);
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::TimedOut => format!("no connection within {wait:?}; check address and port"),
        _ => format!("can't connect: {error}"),
    };
    let mut stream = TcpStream::connect_timeout(&address, wait).map_err(failed)?;
    let mut pdu = Vec::with_capacity(IC_LEN);
    IcReq {
        pfv: 0,
        hpda: 0,
        header_digest: manner.digests.header,
        data_digest: manner.digests.data,
        maxr2t: 0,
    }
    .emit(&mut pdu);
    let lost = |error: std::io::Error| format!("connection lost: {error}");
    stream.write_all(&pdu).map_err(lost)?;
    let (mut head, mut got) = ([0; COMMON_LEN], 0);
    let end = Instant::now() + wait;
    while got < head.len() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("it says nothing within connect_timeout ({wait:?})"));
        }
        if (manner.stop)() {
            return Err("not tried to the end".into());
        }
        stream
            .set_read_timeout(Some(left.min(TICK)))
            .map_err(lost)?;
        match stream.read(&mut head[got..]) {
            Ok(0) => return Err("it ended the connection instead of an answer".into()),
            Ok(bytes) => got += bytes,
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                _ => return Err(lost(error)),
            },
        }
    }
    match head[0] {
        IC_RESP => Ok(()),
        _ => Err("its answer is not NVMe/TCP".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::Barrier;

    /// Each waits until as many as may be are under way.
    #[test]
    fn many_are_asked_at_a_time_and_not_more() {
        let barrier = Barrier::new(ASKED_MAX);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let things: Vec<usize> = (0..4 * ASKED_MAX).collect();
        let mut heard = Vec::new();
        let work = |it: &usize| {
            let there = now.fetch_add(1, Ordering::Relaxed) + 1;
            most.fetch_max(there, Ordering::Relaxed);
            barrier.wait();
            now.fetch_sub(1, Ordering::Relaxed);
            Some(*it)
        };
        side_by_side(&things, work, |at, it| {
            assert_eq!(at, it);
            heard.push(it);
        });
        heard.sort_unstable();
        assert_eq!(heard, things);
        assert_eq!(most.load(Ordering::Relaxed), ASKED_MAX);
    }

    #[test]
    fn who_wants_to_stop_hears_of_no_more() {
        let things: Vec<usize> = (0..1000).collect();
        let mut heard = 0;
        let work = |it: &usize| (*it < 100).then_some(());
        side_by_side(&things, work, |_, ()| heard += 1);
        assert_eq!(heard, 100);
    }

    #[test]
    fn who_says_nothing_or_something_else_is_none() {
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let dead = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [&mute, &other, &dead].map(|it| it.local_addr().unwrap());
        drop(dead);
        let web = thread::spawn(move || {
            let mut stream = other.accept().unwrap().0;
            stream.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let manner = Manner {
            digests: Digests::default(),
            timeout: Duration::from_millis(300),
            stop: &|| false,
        };
        let mut all = [const { None }; 3];
        ask_all(&addresses, manner, |at, result| all[at] = result.err());
        web.join().unwrap();
        let all = all.map(Option::unwrap_or_default);
        assert!(all[0].contains("says nothing"), "{all:?}");
        assert!(all[1].contains("not NVMe/TCP"), "{all:?}");
        assert!(all[2].contains("refused"), "{all:?}");
        // No controller is asked for a caller that has gone.
        let stop = Manner {
            stop: &|| true,
            ..manner
        };
        ask_all(&addresses, stop, |_, _| panic!("asked"));
    }
}
