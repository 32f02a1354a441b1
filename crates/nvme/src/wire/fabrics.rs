//! Fabrics commands (Base 2.0, 6) and the properties of a controller (Base 2.0, 3.1.3).
use super::sqe::fctype;
use super::{Sqe, SqeBuilder, Status, WireError, exact, le16, le32, le64, put};
use crate::limits::NQN_MAX;

/// The well-known discovery subsystem (Base 2.0, 3.1.2.3).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// CNTLID of Connect: the controller chooses (dynamic controller model).
pub const CNTLID_ANY: u16 = 0xffff;

/// Statuses of Connect (Base 2.0, 6.3, type 1h); their codes mean something else on other commands.
pub mod connect_status {
    use super::Status;
    /// RECFMT isn't supported.
    pub const INCOMPATIBLE_FORMAT: Status = Status::new(1, 0x80);
    /// The controller has another host, or none is free.
    pub const CONTROLLER_BUSY: Status = Status::new(1, 0x81);
    /// A parameter is wrong; the result names it.
    pub const INVALID_PARAMETERS: Status = Status::new(1, 0x82);
    /// The subsystem moved: ask discovery again.
    pub const RESTART_DISCOVERY: Status = Status::new(1, 0x83);
    /// The host may not connect.
    pub const INVALID_HOST: Status = Status::new(1, 0x84);
    /// The queue type isn't supported (discovery controllers have no I/O queues).
    pub const INVALID_QUEUE_TYPE: Status = Status::new(1, 0x85);
    /// Discovery changed while its log was read.
    pub const DISCOVER_RESTART: Status = Status::new(1, 0x90);
    /// Authentication is required.
    pub const AUTHENTICATION_REQUIRED: Status = Status::new(1, 0x91);

    /// All of them, in order, with their names in the specification.
    pub const ALL: [(Status, &str); 8] = [
        (INCOMPATIBLE_FORMAT, "incompatible format"),
        (CONTROLLER_BUSY, "controller busy"),
        (INVALID_PARAMETERS, "connect invalid parameters"),
        (RESTART_DISCOVERY, "connect restart discovery"),
        (INVALID_HOST, "connect invalid host"),
        (INVALID_QUEUE_TYPE, "invalid queue type"),
        (DISCOVER_RESTART, "discover restart"),
        (AUTHENTICATION_REQUIRED, "authentication required"),
    ];
}

/// CATTR bit: SQ flow control off.
pub const CATTR_DISABLE_SQ_FLOW: u8 = 1 << 2;

/// The Connect command (Base 2.0, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Record format: 0.
    pub recfmt: u16,
    /// 0 = admin queue.
    pub qid: u16,
    /// Entries, less one.
    pub sqsize: u16,
    /// Attributes; see [`CATTR_DISABLE_SQ_FLOW`].
    pub cattr: u8,
    /// Keep-alive time-out, ms (admin queue).
    pub kato_ms: u32,
}

impl Connect {
    /// From an entry whose fctype is Connect.
    pub fn parse(sqe: &Sqe<'_>) -> Self {
        let b = sqe.bytes();
        Self {
            recfmt: le16(b, 40),
            qid: le16(b, 42),
            sqsize: le16(b, 44),
            cattr: b[46],
            kato_ms: le32(b, 48),
        }
    }

    /// The entry, without identifier and data descriptor.
    pub fn emit(&self) -> SqeBuilder {
        SqeBuilder::fabrics(fctype::CONNECT)
            .put(40, &self.recfmt.to_le_bytes())
            .put(42, &self.qid.to_le_bytes())
            .put(44, &self.sqsize.to_le_bytes())
            .put(46, &[self.cattr])
            .put(48, &self.kato_ms.to_le_bytes())
    }
}

/// The 1024 bytes of data of Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectData<'a> {
    /// Host identifier.
    pub hostid: [u8; 16],
    /// Controller asked for; [`CNTLID_ANY`].
    pub cntlid: u16,
    /// Subsystem NQN.
    pub subnqn: &'a [u8],
    /// Host NQN.
    pub hostnqn: &'a [u8],
}

impl<'a> ConnectData<'a> {
    /// Bytes on the wire.
    pub const LEN: usize = 1024;
    /// Offset of CNTLID (for the error's IPO).
    pub const CNTLID_AT: u16 = 16;
    /// Offset of SUBNQN.
    pub const SUBNQN_AT: u16 = 256;
    /// Offset of HOSTNQN.
    pub const HOSTNQN_AT: u16 = 512;

    /// # Errors
    /// [`WireError::Truncated`] below 1024 bytes; [`WireError::Field`] where an NQN has no
    /// terminating
    /// zero within its 223 bytes and one, is empty or isn't UTF-8.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let b = exact::<1024>(bytes)?;
        let mut hostid = [0; 16];
        hostid.copy_from_slice(&b[..16]);
        Ok(Self {
            hostid,
            cntlid: le16(b, 16),
            subnqn: nqn(b, Self::SUBNQN_AT)?,
            hostnqn: nqn(b, Self::HOSTNQN_AT)?,
        })
    }

    /// The bytes; NQNs are cut at 223 (configuration was checked before).
    pub fn emit(&self) -> [u8; 1024] {
        let mut b = [0; 1024];
        b[..16].copy_from_slice(&self.hostid);
        put(&mut b, 16, &self.cntlid.to_le_bytes());
        put(&mut b, 256, &self.subnqn[..self.subnqn.len().min(NQN_MAX)]);
        put(
            &mut b,
            512,
            &self.hostnqn[..self.hostnqn.len().min(NQN_MAX)],
        );
        b
    }
}

/// The NQN in the 256-byte field at `offset`, without its terminator.
fn nqn(b: &[u8; 1024], offset: u16) -> Result<&[u8], WireError> {
    let field = &b[usize::from(offset)..usize::from(offset) + 256];
    let end = field.iter().position(|&byte| byte == 0);
    match end {
        Some(len @ 1..=NQN_MAX) if core::str::from_utf8(&field[..len]).is_ok() => Ok(&field[..len]),
        _ => Err(WireError::Field { offset }),
    }
}

/// DW0 of a Connect that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResult {
    /// The controller.
    pub cntlid: u16,
    /// Authentication is required before anything else (AUTHREQ; any bit).
    pub authreq: u16,
}

impl ConnectResult {
    /// From the completion's DW0 and DW1.
    pub fn parse(result: u64) -> Self {
        Self {
            cntlid: result as u16,
            authreq: (result >> 16) as u16,
        }
    }

    /// The completion's DW0 and DW1.
    pub fn emit(&self) -> u64 {
        u64::from(self.cntlid) | u64::from(self.authreq) << 16
    }
}

/// DW0 of a Connect that ended with Invalid Parameters: where the parameter lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidParameter {
    /// Offset (IPO).
    pub offset: u16,
    /// In the data, else in the entry (IATTR bit 0).
    pub in_data: bool,
}

impl InvalidParameter {
    /// From the completion's DW0 and DW1.
    pub fn parse(result: u64) -> Self {
        Self {
            offset: result as u16,
            in_data: result >> 16 & 1 != 0,
        }
    }

    /// The completion's DW0 and DW1.
    pub fn emit(&self) -> u64 {
        u64::from(self.offset) | u64::from(self.in_data) << 16
    }
}

/// Offsets of the properties that exist over fabrics (Base 2.0, 3.1.3).
pub mod property {
    /// Controller capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Controller configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Controller status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
    /// NVM subsystem reset, 4 bytes.
    pub const NSSR: u32 = 0x20;
    /// Controller ready time-outs, 4 bytes.
    pub const CRTO: u32 = 0x68;
}

/// Property Get or Set (Base 2.0, 6.5 and 6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property {
    /// Offset of the property.
    pub offset: u32,
    /// 8 bytes, else 4.
    pub wide: bool,
    /// Value to set (0 in Get).
    pub value: u64,
}

impl Property {
    /// From an entry whose fctype is Property Get or Set.
    ///
    /// # Errors
    /// [`WireError::Field`] at 40 if the size is neither 4 nor 8 bytes.
    pub fn parse(sqe: &Sqe<'_>) -> Result<Self, WireError> {
        let b = sqe.bytes();
        let wide = match b[40] & 7 {
            0 => false,
            1 => true,
            _ => return Err(WireError::Field { offset: 40 }),
        };
        Ok(Self {
            offset: le32(b, 44),
            wide,
            value: le64(b, 48),
        })
    }

    /// The Property Get entry; `value` isn't used.
    pub fn emit_get(&self) -> SqeBuilder {
        self.emit(fctype::PROPERTY_GET)
    }

    /// The Property Set entry.
    pub fn emit_set(&self) -> SqeBuilder {
        self.emit(fctype::PROPERTY_SET)
            .put(48, &self.value.to_le_bytes())
    }

    fn emit(&self, fctype: u8) -> SqeBuilder {
        SqeBuilder::fabrics(fctype)
            .put(40, &[u8::from(self.wide)])
            .put(44, &self.offset.to_le_bytes())
    }
}

/// The Disconnect entry of an I/O queue (Base 2.0, 6.4).
pub fn disconnect() -> SqeBuilder {
    SqeBuilder::fabrics(fctype::DISCONNECT)
}

/// CAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap(pub u64);

impl Cap {
    /// Largest queue, entries less one.
    pub const fn mqes(self) -> u16 {
        self.0 as u16
    }

    /// Contiguous queues required (always set over fabrics).
    pub const fn cqr(self) -> bool {
        self.0 >> 16 & 1 != 0
    }

    /// Longest wait for CSTS.RDY, units of 500 ms.
    pub const fn to(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// NVM command set there (CSS bit 0).
    pub const fn css_nvm(self) -> bool {
        self.0 >> 37 & 1 != 0
    }

    /// One or more I/O command sets, chosen by CC.CSS 110b (CSS bit 6).
    pub const fn css_multiple(self) -> bool {
        self.0 >> 43 & 1 != 0
    }

    /// Admin command set only (CSS bit 7): no I/O.
    pub const fn css_admin_only(self) -> bool {
        self.0 >> 44 & 1 != 0
    }

    /// Smallest memory page: 2^(12 + MPSMIN) bytes.
    pub const fn mpsmin(self) -> u8 {
        (self.0 >> 48 & 15) as u8
    }

    /// Largest memory page: 2^(12 + MPSMAX) bytes.
    pub const fn mpsmax(self) -> u8 {
        (self.0 >> 52 & 15) as u8
    }

    /// There is a CRTO (CRMS not 0).
    pub const fn has_ready_timeouts(self) -> bool {
        self.0 >> 59 & 3 != 0
    }

    /// As a controller over fabrics reports it: CQR set, NVM command set, 4 KiB pages.
    pub const fn fabrics(mqes: u16, to: u8) -> Self {
        Self(mqes as u64 | 1 << 16 | (to as u64) << 24 | 1 << 37)
    }
}

/// VS: major · minor · tertiary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl Version {
    /// 2.0.0.
    pub const V2_0: Self = Self(2 << 16);

    /// Major.
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Minor.
    pub const fn minor(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Tertiary.
    pub const fn tertiary(self) -> u8 {
        self.0 as u8
    }
}

/// CC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cc(pub u32);

impl Cc {
    /// EN set, 64-byte submission and 16-byte completion entries, with this page size (MPS) and
    /// command set selection (CSS: 0 = NVM, 6 = all that are supported).
    pub const fn enabled(mps: u8, css: u8) -> Self {
        Self(1 | (css as u32 & 7) << 4 | (mps as u32 & 15) << 7 | 6 << 16 | 4 << 20)
    }

    /// EN.
    pub const fn en(self) -> bool {
        self.0 & 1 != 0
    }

    /// Command set selected.
    pub const fn css(self) -> u8 {
        (self.0 >> 4 & 7) as u8
    }

    /// Memory page size: 2^(12 + MPS).
    pub const fn mps(self) -> u8 {
        (self.0 >> 7 & 15) as u8
    }

    /// Arbitration mechanism.
    pub const fn ams(self) -> u8 {
        (self.0 >> 11 & 7) as u8
    }

    /// Shutdown notification: 0 none, 1 normal, 2 abrupt.
    pub const fn shn(self) -> u8 {
        (self.0 >> 14 & 3) as u8
    }

    /// With a shutdown notification.
    pub const fn with_shn(self, shn: u8) -> Self {
        Self(self.0 & !(3 << 14) | (shn as u32 & 3) << 14)
    }

    /// log2 of the submission entry.
    pub const fn iosqes(self) -> u8 {
        (self.0 >> 16 & 15) as u8
    }

    /// log2 of the completion entry.
    pub const fn iocqes(self) -> u8 {
        (self.0 >> 20 & 15) as u8
    }
}

/// CSTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Csts(pub u32);

impl Csts {
    /// From its parts; `shst`: 0 normal, 1 shutting down, 2 shut down.
    pub const fn new(rdy: bool, cfs: bool, shst: u8) -> Self {
        Self(rdy as u32 | (cfs as u32) << 1 | (shst as u32 & 3) << 2)
    }

    /// Ready.
    pub const fn rdy(self) -> bool {
        self.0 & 1 != 0
    }

    /// Controller fatal status.
    pub const fn cfs(self) -> bool {
        self.0 & 2 != 0
    }

    /// Shutdown status: 0 normal, 1 shutting down, 2 shut down.
    pub const fn shst(self) -> u8 {
        (self.0 >> 2 & 3) as u8
    }
}

#[cfg(test)]
mod tests;
