//! The cost of keeping overlapping changes in order, for an instruction counter:
//! `overlap_cost order|none same|apart IN_FLIGHT ITERATIONS`.
//!
//! Each iteration is one change of 4 KiB: the oldest of those that may be executed ends, and a new
//! one comes. `same`: all are of one block, so that each waits for the one before; `apart`: no two
//! in flight overlap. `none` runs the loop alone. The difference of two runs with different numbers
//! of iterations, divided by theirs, is the cost of one change.
use block::Range;
use block::order::{ChangeOrder, Ticket};
use std::collections::VecDeque;
use std::process::ExitCode;

const BYTES: u64 = 4096;
/// Blocks that changes are spread over.
const BLOCKS: u64 = 1 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Some(checksum) => {
            println!("checksum {checksum}");
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("usage: overlap_cost order|none same|apart IN_FLIGHT ITERATIONS");
            ExitCode::from(2)
        }
    }
}

fn run(words: &[&str]) -> Option<u64> {
    let [what, spread, in_flight, iterations] = *words else {
        return None;
    };
    let blocks = match spread {
        "same" => 1,
        "apart" => BLOCKS,
        _ => return None,
    };
    let in_flight: usize = in_flight.parse().ok().filter(|it| *it > 0)?;
    let iterations: u64 = iterations.parse().ok()?;
    let range = |i: u64| Range::new(i.wrapping_mul(0x9e37_79b9) % blocks * BYTES, BYTES);
    let ranges = (0..iterations).map(range);
    Some(match what {
        "order" => order(ranges, in_flight),
        "none" => ranges.fold(0, |sum, it| sum ^ std::hint::black_box(it).start),
        _ => return None,
    })
}

fn order(ranges: impl Iterator<Item = Range>, in_flight: usize) -> u64 {
    let mut order = ChangeOrder::new(in_flight);
    let mut begun: VecDeque<Ticket> = VecDeque::with_capacity(in_flight);
    let mut sum = 0;
    for (i, range) in (0..).zip(ranges) {
        if i >= in_flight as u64
            && let Some(ticket) = begun.pop_front()
        {
            order.end(ticket);
            while let Some(next) = order.poll_begun() {
                sum ^= next.owner;
                begun.push_back(next.ticket);
            }
        }
        let (ticket, begins) = order.admit(i, 0, range);
        if begins {
            begun.push_back(ticket);
        }
    }
    sum
}
