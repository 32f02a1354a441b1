//! Submission queue entry (Base 2.0, 3.3.3.1), 64 bytes.
use super::{WireError, exact, le16, le32, le64, put};

/// Opcodes of the admin command set (Base 2.0, 5).
#[allow(missing_docs)]
pub mod admin {
    pub const DELETE_SQ: u8 = 0x00;
    pub const CREATE_SQ: u8 = 0x01;
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const DELETE_CQ: u8 = 0x04;
    pub const CREATE_CQ: u8 = 0x05;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0a;
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    pub const NAMESPACE_MANAGEMENT: u8 = 0x0d;
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    pub const KEEP_ALIVE: u8 = 0x18;
    pub const FORMAT_NVM: u8 = 0x80;
    pub const SANITIZE: u8 = 0x84;
    pub const GET_LBA_STATUS: u8 = 0x86;
}

/// Opcodes of the NVM command set (NVM command set 1.0, 3).
#[allow(missing_docs)]
pub mod nvm {
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const WRITE_UNCORRECTABLE: u8 = 0x04;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    pub const VERIFY: u8 = 0x0c;
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    pub const RESERVATION_REPORT: u8 = 0x0e;
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    pub const RESERVATION_RELEASE: u8 = 0x15;
    pub const COPY: u8 = 0x19;

    /// CDW12 of Read, Write, Compare: force unit access.
    pub const FUA: u32 = 1 << 30;
    /// CDW12 of Read, Write, Compare, Write Zeroes: limited retry.
    pub const LIMITED_RETRY: u32 = 1 << 31;
    /// CDW12 of Write Zeroes: the blocks may be deallocated.
    pub const DEALLOCATE: u32 = 1 << 25;
    /// CDW12 of Read, Write, Compare, Write Zeroes: protection information field (PRACT, PRCHK).
    pub const PROTECTION: u32 = 0xf << 26;
    /// CDW11 of Dataset Management: attribute deallocate.
    pub const DSM_DEALLOCATE: u32 = 1 << 2;
}

/// Opcode of every Fabrics command (Base 2.0, 6).
pub const FABRICS: u8 = 0x7f;

/// Fabrics command types, byte 4 of the entry.
#[allow(missing_docs)]
pub mod fctype {
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
    pub const AUTH_SEND: u8 = 0x05;
    pub const AUTH_RECEIVE: u8 = 0x06;
    pub const DISCONNECT: u8 = 0x08;
}

/// NSID of all namespaces, or of none in particular.
pub const NSID_ALL: u32 = 0xffff_ffff;

/// Flags byte: SGLs are used (PSDT 01b; the only way over fabrics, Base 2.0, 4.3.2).
const PSDT_SGL: u8 = 0x40;

/// The one SGL descriptor of a fabrics command (Base 2.0, 4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// All zero: no data.
    None,
    /// Type 5h, subtype Ah: the transport moves the data.
    Transport {
        /// Bytes.
        len: u32,
    },
    /// Type 0h, subtype 1h: the data lies in the capsule.
    InCapsule {
        /// From the end of the entry (plus ICDOFF).
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Anything else.
    Other {
        /// Type in bits 7:4, subtype in 3:0.
        identifier: u8,
    },
}

impl Sgl {
    /// Parses bytes 24…39 of an entry.
    pub fn parse(b: &[u8; 16]) -> Self {
        let (address, len) = (le64(b, 0), le32(b, 8));
        match b[15] {
            0x5a => Self::Transport { len },
            0x01 => Self::InCapsule {
                offset: address,
                len,
            },
            0x00 if address == 0 && len == 0 => Self::None,
            identifier => Self::Other { identifier },
        }
    }

    /// The descriptor's bytes; `Other` has only its identifier.
    pub fn emit(self) -> [u8; 16] {
        let mut b = [0; 16];
        let (address, len, identifier) = match self {
            Self::None => (0, 0, 0),
            Self::Transport { len } => (0, len, 0x5a),
            Self::InCapsule { offset, len } => (offset, len, 0x01),
            Self::Other { identifier } => (0, 0, identifier),
        };
        put(&mut b, 0, &address.to_le_bytes());
        put(&mut b, 8, &len.to_le_bytes());
        b[15] = identifier;
        b
    }
}

/// An entry to read.
#[derive(Clone, Copy, Debug)]
pub struct Sqe<'a>(&'a [u8; 64]);

impl<'a> Sqe<'a> {
    /// Bytes on the wire.
    pub const LEN: usize = 64;

    /// The entry at the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`] below 64 bytes.
    pub fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        exact::<64>(bytes).map(Self)
    }

    /// The entry in these bytes.
    #[inline]
    pub fn of(bytes: &'a [u8; 64]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn bytes(&self) -> &'a [u8; 64] {
        self.0
    }

    /// Opcode.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// FUSE, bits 1:0 of the flags: 0 = an ordinary command.
    pub fn fuse(&self) -> u8 {
        self.0[1] & 3
    }

    /// PSDT, bits 7:6 of the flags: 1 or 2 = SGLs.
    pub fn psdt(&self) -> u8 {
        self.0[1] >> 6
    }

    /// Command identifier.
    pub fn cid(&self) -> u16 {
        le16(self.0, 2)
    }

    /// Namespace; the Fabrics command type lies in its first byte instead.
    pub fn nsid(&self) -> u32 {
        le32(self.0, 4)
    }

    /// Fabrics command type.
    pub fn fctype(&self) -> u8 {
        self.0[4]
    }

    /// Metadata pointer.
    pub fn mptr(&self) -> u64 {
        le64(self.0, 16)
    }

    /// SGL descriptor 1.
    #[inline]
    pub fn sgl(&self) -> Sgl {
        let mut b = [0; 16];
        b.copy_from_slice(&self.0[24..40]);
        Sgl::parse(&b)
    }

    /// CDW`n`, 10 ≤ n ≤ 15.
    ///
    /// # Panics
    /// If `n` is anything else.
    pub fn cdw(&self, n: usize) -> u32 {
        assert!((10..=15).contains(&n));
        le32(self.0, n * 4)
    }

    /// Starting LBA of NVM commands (CDW10, CDW11).
    pub fn slba(&self) -> u64 {
        le64(self.0, 40)
    }

    /// Logical blocks of NVM commands: NLB + 1 (CDW12).
    pub fn blocks(&self) -> u32 {
        u32::from(le16(self.0, 48)) + 1
    }
}

/// An entry to write; starts as all zeroes with SGLs declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqeBuilder([u8; 64]);

impl SqeBuilder {
    /// An entry with this opcode.
    pub fn new(opcode: u8) -> Self {
        let mut b = [0; 64];
        b[0] = opcode;
        b[1] = PSDT_SGL;
        Self(b)
    }

    /// A Fabrics command of this type.
    pub fn fabrics(fctype: u8) -> Self {
        let mut sqe = Self::new(FABRICS);
        sqe.0[4] = fctype;
        sqe
    }

    /// Sets the command identifier.
    pub fn cid(mut self, cid: u16) -> Self {
        put(&mut self.0, 2, &cid.to_le_bytes());
        self
    }

    /// Sets the namespace.
    pub fn nsid(mut self, nsid: u32) -> Self {
        put(&mut self.0, 4, &nsid.to_le_bytes());
        self
    }

    /// Sets SGL descriptor 1.
    pub fn sgl(mut self, sgl: Sgl) -> Self {
        put(&mut self.0, 24, &sgl.emit());
        self
    }

    /// Sets CDW`n`.
    ///
    /// # Panics
    /// Unless 10 ≤ n ≤ 15.
    pub fn cdw(mut self, n: usize, value: u32) -> Self {
        assert!((10..=15).contains(&n));
        put(&mut self.0, n * 4, &value.to_le_bytes());
        self
    }

    /// Sets CDW10…CDW15.
    pub fn cdws(mut self, cdw: &[u32; 6]) -> Self {
        for (i, value) in cdw.iter().enumerate() {
            put(&mut self.0, 40 + 4 * i, &value.to_le_bytes());
        }
        self
    }

    /// Sets bytes 40… (the part whose layout depends on the command).
    ///
    /// # Panics
    /// If `at + value.len() > 64` or `at < 40`.
    pub fn put(mut self, at: usize, value: &[u8]) -> Self {
        assert!(at >= 40);
        put(&mut self.0, at, value);
        self
    }

    /// The entry, to read.
    pub fn view(&self) -> Sqe<'_> {
        Sqe(&self.0)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8; 64] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_all_fields() {
        let sqe = SqeBuilder::new(nvm::WRITE)
            .cid(0x1234)
            .nsid(7)
            .sgl(Sgl::InCapsule {
                offset: 0,
                len: 4096,
            })
            .cdws(&[1, 2, nvm::FUA | 7, 4, 5, 6]);
        let b = sqe.bytes();
        assert_eq!(b[..8], [0x01, 0x40, 0x34, 0x12, 7, 0, 0, 0]);
        assert_eq!(
            b[24..40],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0x01]
        );
        let view = Sqe::new(b).unwrap();
        assert_eq!(
            (view.opcode(), view.cid(), view.nsid(), view.psdt()),
            (1, 0x1234, 7, 1)
        );
        assert_eq!((view.slba(), view.blocks()), (0x2_0000_0001, 8));
        for n in 13..=15 {
            assert_eq!(view.cdw(n), n as u32 - 9);
        }
        assert!(Sqe::new(&b[..63]).is_err());
    }

    #[test]
    fn descriptors_round_trip() {
        for sgl in [
            Sgl::None,
            Sgl::Transport { len: 1 << 20 },
            Sgl::InCapsule {
                offset: 64,
                len: 512,
            },
            Sgl::Other { identifier: 0x4a },
        ] {
            assert_eq!(Sgl::parse(&sgl.emit()), sgl);
        }
        assert_eq!(Sgl::Transport { len: 0 }.emit()[15], 0x5a);
    }
}
