//! Requests and answers on the socket (a Unix stream socket), 32 bytes each, little-endian:
//!
//! ```text
//! at  bytes  request       answer
//!  0      4  operation     its number; 0 of a connection that is turned away
//!  4      4  version, 1    0, or an error number as of errno
//!  8      4  a             a
//! 12      4  b             b
//! 16      8  c             c
//! 24      8  d             d; with an error, bytes of text that follow
//! ```
//!
//! Memory files and eventfds come with the first byte (`SCM_RIGHTS`). A connection is turned away,
//! and closed, with EUSERS (as many are open as may be) or EAGAIN.

/// Bytes of a request, and of an answer without its text.
pub const MESSAGE: usize = 32;
/// The version of all of it.
pub const VERSION: u32 = 1;

/// Operation of a request, numbered from 1. The fields that it uses:
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opens a queue. Request: a kind, b entries, c bytes of data memory, d [`Coalescing`].
    /// Answer: a number of the queue, b namespaces, c bytes of the queue's memory, d address of the
    /// data memory or 0; descriptors: queue memory, kick, interrupt (`user_irq`), data memory (if
    /// any).
    Open,
    /// Registers memory. Request: c bytes; descriptor: a memory file. Answer: c its address. If its
    /// pages cannot be allocated, the connection ends behind the error.
    Register,
    /// Unregisters memory. Request: c its address.
    Unregister,
    /// Describes a namespace. Request: a NSID. Answer: a log2 of the block size, b flags (1:
    /// read-only), c blocks.
    Namespace,
    /// Lists namespaces, queues and threads, as far as the user may see them. Answer: d bytes of
    /// JSON follow.
    List,
    /// Identifies a namespace, so that it is known on other paths. Request: a NSID. Answer: a
    /// number of the controller, d bytes of text follow: NGUID and UUID (32 hexadecimal digits
    /// each) and the NQN, with blanks between. ENODATA: it shows nothing.
    Identity,
}

impl Operation {
    const ALL: [Self; 6] = [
        Self::Open,
        Self::Register,
        Self::Unregister,
        Self::Namespace,
        Self::List,
        Self::Identity,
    ];

    fn number(self) -> u32 {
        self as u32 + 1
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation; `None`: an unknown number.
    pub operation: Option<Operation>,
    /// [`VERSION`].
    pub version: u32,
    /// By operation.
    pub a: u32,
    /// By operation.
    pub b: u32,
    /// By operation.
    pub c: u64,
    /// By operation.
    pub d: u64,
}

impl Request {
    /// A request of this version.
    pub fn new(operation: Operation, a: u32, b: u32, c: u64, d: u64) -> Self {
        Self {
            operation: Some(operation),
            version: VERSION,
            a,
            b,
            c,
            d,
        }
    }

    /// Its bytes.
    pub fn emit(&self) -> [u8; MESSAGE] {
        let operation = self.operation.map_or(0, Operation::number);
        emit(operation, self.version, [self.a, self.b], [self.c, self.d])
    }

    /// From its bytes, which may be anything.
    pub fn parse(bytes: &[u8; MESSAGE]) -> Self {
        let (first, version, [a, b], [c, d]) = parse(bytes);
        let operation = Operation::ALL.into_iter().find(|it| it.number() == first);
        Self {
            operation,
            version,
            a,
            b,
            c,
            d,
        }
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The operation's number, 0 for an unknown one.
    pub operation: u32,
    /// 0, or as of `errno`.
    pub error: u32,
    /// By operation.
    pub a: u32,
    /// By operation.
    pub b: u32,
    /// By operation.
    pub c: u64,
    /// By operation; with an error, and of a list or an identity, bytes of text that follow.
    pub d: u64,
}

impl Answer {
    /// To a request.
    pub fn to(request: &Request) -> Self {
        Self {
            operation: request.operation.map_or(0, Operation::number),
            ..Self::default()
        }
    }

    /// Whether it answers such a request.
    pub fn answers(&self, operation: Operation) -> bool {
        self.operation == operation.number()
    }

    /// Whether it is what a connection is told that is not to be: whatever it asks for.
    pub fn turns_away(&self) -> bool {
        self.operation == 0 && self.error != 0
    }

    /// Bytes of text that follow.
    pub fn text_bytes(&self) -> u64 {
        let texts = [Operation::List, Operation::Identity];
        let has_text = self.error != 0 || texts.iter().any(|it| self.answers(*it));
        if has_text { self.d } else { 0 }
    }

    /// Its bytes.
    pub fn emit(&self) -> [u8; MESSAGE] {
        emit(
            self.operation,
            self.error,
            [self.a, self.b],
            [self.c, self.d],
        )
    }

    /// From its bytes.
    pub fn parse(bytes: &[u8; MESSAGE]) -> Self {
        let (operation, error, [a, b], [c, d]) = parse(bytes);
        Self {
            operation,
            error,
            a,
            b,
            c,
            d,
        }
    }
}

/// How many completions, and how long after the first of them, before the interrupt (U1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// Completions; 0 and 1: each.
    pub completions: u32,
    /// Microseconds after the first of them at the latest.
    pub time_us: u32,
}

impl Coalescing {
    /// As it stands in a request.
    pub fn emit(self) -> u64 {
        u64::from(self.completions) | u64::from(self.time_us) << 32
    }

    /// From a request.
    pub fn parse(value: u64) -> Self {
        Self {
            completions: value as u32,
            time_us: (value >> 32) as u32,
        }
    }
}

fn emit(first: u32, second: u32, words: [u32; 2], longs: [u64; 2]) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    for (at, word) in [first, second, words[0], words[1]].into_iter().enumerate() {
        bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
    }
    for (at, long) in longs.into_iter().enumerate() {
        bytes[16 + 8 * at..24 + 8 * at].copy_from_slice(&long.to_le_bytes());
    }
    bytes
}

fn parse(bytes: &[u8; MESSAGE]) -> (u32, u32, [u32; 2], [u64; 2]) {
    let long = |at: usize| {
        let each = std::array::from_fn(|n| bytes[at + n]);
        u64::from_le_bytes(each)
    };
    let (first, second) = (long(0), long(8));
    let words = [second as u32, (second >> 32) as u32];
    (
        first as u32,
        (first >> 32) as u32,
        words,
        [long(16), long(24)],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_lie_where_the_table_says() {
        for operation in Operation::ALL {
            let request = Request::new(operation, 2, 3, 4, 5 << 32);
            assert_eq!(Request::parse(&request.emit()), request);
            let answer = Answer {
                error: 16,
                b: 9,
                ..Answer::to(&request)
            };
            assert_eq!(Answer::parse(&answer.emit()), answer);
            assert!(answer.answers(operation));
        }
        let bytes = Request::new(Operation::Register, 2, 3, 4, 5).emit();
        let expected = [2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4];
        assert_eq!(bytes[..17], expected);
        assert_eq!(bytes[24], 5);
        assert_eq!(Request::parse(&[0xff; MESSAGE]).operation, None);
    }
}
