//! Writes a pattern through a hardware queue, reads it back and compares, then reads at random and
//! counts. The same in C: `crates/queue-c/examples/queue.c`.
//!
//! `cargo run --release -p braid-queue --example queue -- SOCKET [NSID [SECONDS]]`
use queue::{Done, Options, Queue, Region};
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Commands in flight.
const DEPTH: u16 = 127;
/// Blocks of the namespace that are written; fewer if it has fewer.
const BLOCKS: u64 = 1024;
/// Bytes of the data memory for each command: no block is larger.
const SLOT: usize = 4096;
/// A poller gets no event when the server dies: it asks so often while nothing comes.
const ASK: Duration = Duration::from_millis(100);
/// In one of so many looks at nothing it reads the clock.
const LOOKS: u32 = 4096;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize| words.get(at).map_or("1", String::as_str);
    let duration = word(2).parse().map(Duration::try_from_secs_f64);
    let (Some(socket), Ok(nsid), Ok(Ok(duration))) = (words.first(), word(1).parse(), duration)
    else {
        eprintln!("usage: queue SOCKET [NSID [SECONDS]]");
        return ExitCode::from(2);
    };
    match run(Path::new(socket), nsid, duration, &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{socket}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Does it, and says so on `out`.
///
/// # Errors
/// No server; a command fails; data is wrong.
pub fn run(
    socket: &Path,
    nsid: u32,
    duration: Duration,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let options = Options {
        entries: DEPTH + 1,
        data_bytes: (usize::from(DEPTH) * SLOT) as u64,
        ..Options::default()
    };
    let mut queue = Queue::open(socket, &options)?;
    let shape = queue.namespace(nsid)?;
    let data = queue.data().ok_or("no data memory")?.clone();
    let (blocks, block_bytes) = (shape.blocks.min(BLOCKS), 1_u32 << shape.block_shift);

    for block in 0..blocks {
        data.write(0, &pattern(block, block_bytes));
        let piece = data.piece(0, block_bytes);
        queue.write((nsid, false), block, 1, &[piece], block)?;
        queue.submit()?;
        next(&mut queue)?;
    }
    let mut read = vec![0; block_bytes as usize];
    for block in 0..blocks {
        data.write(0, &vec![0; read.len()]);
        queue.read(nsid, block, 1, &[data.piece(0, block_bytes)], block)?;
        queue.submit()?;
        next(&mut queue)?;
        data.read(0, &mut read);
        if read != pattern(block, block_bytes) {
            return Err(format!("block {block} is wrong").into());
        }
    }
    writeln!(out, "verified {blocks} blocks of {block_bytes} bytes")?;

    let of = Random {
        nsid,
        blocks,
        block_bytes,
        drawn: 1,
    };
    let rate = of.read(&mut queue, &data, duration)?;
    writeln!(out, "{rate:.0} IOPS, {DEPTH} outstanding")?;
    queue.close();
    Ok(())
}

/// The content of a block.
fn pattern(block: u64, bytes: u32) -> Vec<u8> {
    let word = |at: u64| (block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at;
    let words = 0..u64::from(bytes / 8);
    words.flat_map(|at| word(at).to_le_bytes()).collect()
}

/// Waits until a command has ended; all must succeed. Its token.
fn next(queue: &mut Queue) -> Result<u64, Box<dyn Error>> {
    let mut nothing = Nothing::default();
    loop {
        if let Some(done) = queue.poll()? {
            return ended(&done);
        }
        nothing.has_come(queue)?;
    }
}

/// Looks at nothing.
#[derive(Default)]
struct Nothing {
    looks: u32,
    asked: Option<Instant>,
}

impl Nothing {
    /// Asks now and then whether the server lives.
    fn has_come(&mut self, queue: &mut Queue) -> Result<(), queue::Error> {
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(LOOKS) {
            return Ok(());
        }
        let asked = *self.asked.get_or_insert_with(Instant::now);
        if asked.elapsed() < ASK {
            return Ok(());
        }
        self.asked = None;
        queue.is_alive()
    }
}

fn ended(done: &Done) -> Result<u64, Box<dyn Error>> {
    if !done.status.is_success() {
        return Err(format!("a command failed: {}", done.status).into());
    }
    Ok(done.token)
}

/// Reads at random.
struct Random {
    nsid: u32,
    blocks: u64,
    block_bytes: u32,
    drawn: u64,
}

impl Random {
    /// Keeps [`DEPTH`] reads in flight for so long; reads per second.
    fn read(
        mut self,
        queue: &mut Queue,
        data: &Region,
        duration: Duration,
    ) -> Result<f64, Box<dyn Error>> {
        let (begun, mut count) = (Instant::now(), 0_u64);
        for slot in 0..DEPTH {
            self.prepare(queue, data, slot.into())?;
        }
        queue.submit()?;
        let (mut slots, mut failed) = (Vec::with_capacity(32), None);
        let mut nothing = Nothing::default();
        let elapsed = loop {
            let reaped = queue.reap(32, |done| match ended(&done) {
                Ok(slot) => slots.push(slot),
                Err(error) => failed = Some(error),
            })?;
            if let Some(error) = failed {
                return Err(error);
            }
            if reaped == 0 {
                nothing.has_come(queue)?;
            }
            count += reaped as u64;
            let elapsed = begun.elapsed();
            if elapsed >= duration {
                break elapsed;
            }
            for slot in slots.drain(..) {
                self.prepare(queue, data, slot)?;
            }
            queue.submit()?;
        };
        while queue.in_flight() > 0 {
            next(queue)?;
        }
        Ok(count as f64 / elapsed.as_secs_f64())
    }

    fn prepare(
        &mut self,
        queue: &mut Queue,
        data: &Region,
        slot: u64,
    ) -> Result<(), Box<dyn Error>> {
        self.drawn = self.drawn.wrapping_mul(6_364_136_223_846_793_005);
        self.drawn = self.drawn.wrapping_add(1_442_695_040_888_963_407);
        let block = (self.drawn >> 33) % self.blocks;
        let piece = data.piece(slot as usize * SLOT, self.block_bytes);
        queue.read(self.nsid, block, 1, &[piece], slot)?;
        Ok(())
    }
}
