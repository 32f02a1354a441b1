//! The input of a body as a tape of choices.

/// Appends an operation that is followed by a length and as many bytes; nothing if there are none.
pub fn put(tape: &mut Vec<u8>, operation: u8, bytes: &[u8]) {
    for bytes in bytes.chunks(CHUNK) {
        tape.push(operation);
        tape.extend((bytes.len() as u16).to_le_bytes());
        tape.extend(bytes);
    }
}

/// Bytes of one operation at most: below what any body takes.
const CHUNK: usize = 2000;

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
