//! The input of a body as a tape of choices.

/// Shortest run of zeroes that is written as such.
const ZEROES_MIN: usize = 16;
/// Bytes of one operation at most: below what any body takes.
const CHUNK: usize = 2000;

/// Appends the arrival of `bytes`: `feed` before a length and as many bytes, `zeroes` before the
/// length of a run of zeroes (pages are full of them).
pub fn put(tape: &mut Vec<u8>, feed: u8, zeroes: u8, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let run = rest
            .iter()
            .take(CHUNK)
            .take_while(|byte| **byte == 0)
            .count();
        let len = match run {
            ZEROES_MIN.. => run,
            _ => plain(rest),
        };
        tape.push(if run >= ZEROES_MIN { zeroes } else { feed });
        tape.extend((len as u16).to_le_bytes());
        if run < ZEROES_MIN {
            tape.extend(&rest[..len]);
        }
        rest = &rest[len..];
    }
}

/// Bytes up to the next run of zeroes.
fn plain(bytes: &[u8]) -> usize {
    let run = bytes
        .windows(ZEROES_MIN)
        .position(|run| run.iter().all(|byte| *byte == 0));
    run.unwrap_or(bytes.len()).clamp(1, CHUNK)
}

/// Read from the front; an empty tape gives zeroes.
pub struct Tape<'a>(&'a [u8]);

impl<'a> Tape<'a> {
    /// All of `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// The next operation, `None` at the end of the tape.
    pub fn operation(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.operation().unwrap_or(0)
    }

    /// The next two bytes, little-endian.
    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next four bytes, little-endian.
    pub fn long(&mut self) -> u32 {
        u32::from(self.word()) | u32::from(self.word()) << 16
    }

    /// The next `len` bytes, or as many as are left.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
