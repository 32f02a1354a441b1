//! Models of both sessions of NBD: drivers that keep the contract and check that a session does,
//! whatever its peer says. Property tests and fuzz targets play them from a tape of bytes.
pub mod client;
pub mod seeds;
pub mod server;
#[path = "../../../../../fuzz/src/tape.rs"]
#[allow(dead_code, reason = "each crate's models use a part")]
pub mod tape;

/// Plays one input.
pub type Body = fn(&[u8]);

/// Every target by the name of its corpus.
#[allow(dead_code, reason = "for the test that replays")]
pub const TARGETS: [(&str, Body); 2] = [("nbd_client", client::run), ("nbd_server", server::run)];

/// Operations of both: bytes arrive; zeroes arrive.
pub const FEED: u8 = 9;
/// See [`FEED`].
pub const ZEROES: u8 = 10;
/// One bit of the next bytes that arrive is wrong; its place follows.
pub const FLIP: u8 = 12;

/// Bytes on their way to a session, in pieces of one size.
#[derive(Default)]
pub struct Wire {
    piece: usize,
    flip: Option<u16>,
}

impl Wire {
    /// The size stands in bits 3:2.
    pub fn new(choice: u8) -> Self {
        Self {
            piece: [usize::MAX, 1, 37, 1000][usize::from(choice >> 2 & 3)],
            flip: None,
        }
    }

    /// See [`FLIP`].
    pub fn flip(&mut self, place: u16) {
        self.flip = Some(place);
    }

    /// Returns the part of `bytes` that arrives, and the size of its pieces.
    pub fn arrive(&mut self, bytes: &[u8]) -> (Vec<u8>, usize) {
        let mut bytes = bytes.to_vec();
        if let Some(place) = self.flip.take_if(|_| !bytes.is_empty()) {
            let place = usize::from(place) % (bytes.len() * 8);
            bytes[place / 8] ^= 1 << (place % 8);
        }
        (bytes, self.piece)
    }
}

/// Payload lies in one piece of a buffer.
fn in_one_piece(offset: u32, len: u32, piece: u32) -> bool {
    len > 0 && offset / piece == (offset + len - 1) / piece
}
