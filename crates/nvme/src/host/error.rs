//! Errors of a host machine, in words that name the side at fault and the remedy.
use core::fmt;

use super::Digests;
use crate::wire::fabrics::{ConnectData, InvalidParameter, Version, connect_status};
use crate::wire::pdu::{Fes, PduError};
use crate::wire::{Status, WireError};

/// The step of a machine in which something failed; also the state of an [`Admin`](super::Admin).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // `Display` says it
pub enum Step {
    Handshake,
    Connect,
    Capabilities,
    ReadyTimeouts,
    Version,
    Configure,
    Ready,
    IdentifyController,
    NvmController,
    QueueCount,
    EventConfig,
    HostBehavior,
    NamespaceList,
    Namespace,
    NvmNamespace,
    IndependentNamespace,
    Descriptors,
    AnaLog,
    DiscoveryLog,
    ChangedLog,
    EventLog,
    KeepAlive,
    EventRequest,
    Abort,
    Shutdown,
    Reset,
    /// None: it waits for events.
    Idle,
}

impl Step {
    const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "NVMe/TCP handshake (ICReq)",
            Self::Connect => "Connect",
            Self::Capabilities => "Property Get (CAP)",
            Self::ReadyTimeouts => "Property Get (CRTO)",
            Self::Version => "Property Get (VS)",
            Self::Configure => "Property Set (CC.EN)",
            Self::Ready => "Property Get (CSTS)",
            Self::IdentifyController => "Identify Controller",
            Self::NvmController => "Identify Controller (NVM command set)",
            Self::QueueCount => "Set Features (number of queues)",
            Self::EventConfig => "Set Features (asynchronous events)",
            Self::HostBehavior => "Set Features (host behavior)",
            Self::NamespaceList => "Identify (namespace list)",
            Self::Namespace => "Identify Namespace",
            Self::NvmNamespace => "Identify Namespace (NVM command set)",
            Self::IndependentNamespace => "Identify Namespace (independent)",
            Self::Descriptors => "Identify (namespace descriptors)",
            Self::AnaLog => "Get Log Page (ANA)",
            Self::DiscoveryLog => "Get Log Page (discovery)",
            Self::ChangedLog => "Get Log Page (changed namespaces)",
            Self::EventLog => "Get Log Page (of an event)",
            Self::KeepAlive => "Keep Alive",
            Self::EventRequest => "Asynchronous Event Request",
            Self::Abort => "Abort",
            Self::Shutdown => "shutdown (CC.SHN)",
            Self::Reset => "controller reset (CC.EN)",
            Self::Idle => "waiting",
        }
    }
}

impl Step {
    /// Whether its commands are Fabrics commands, whose specific statuses have their own meanings.
    const fn is_fabrics(self) -> bool {
        matches!(
            self,
            Self::Connect
                | Self::Capabilities
                | Self::ReadyTimeouts
                | Self::Version
                | Self::Configure
                | Self::Ready
                | Self::Shutdown
                | Self::Reset
        )
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reason why a namespace can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceError {
    /// Its command set isn't NVM (CSI).
    CommandSet(u8),
    /// Its format has metadata, bytes per block.
    Metadata(u16),
    /// Its format has protection information, type.
    Protection(u8),
    /// Its format has storage tags, bits.
    StorageTag(u8),
    /// Its block size, log2, isn't between 512 bytes and the host's limit.
    BlockSize(u8),
    /// Its block size, log2, is larger than the largest transfer of its controller (MDTS).
    BlockBeyondTransfer(u8),
    /// Its format isn't one of those it lists.
    Format,
    /// It has no blocks.
    Empty,
    /// Two structures disagree whether it is shared or private.
    Sharing,
    /// An identifier differs between Identify Namespace and the descriptors.
    Identity,
    /// The controller refused a page of it.
    Refused(Status),
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CommandSet(2) => f.write_str("is zoned; only the NVM command set is supported"),
            Self::CommandSet(csi) => {
                write!(
                    f,
                    "has command set {csi}; only the NVM command set is supported"
                )
            }
            Self::Metadata(bytes) => write!(
                f,
                "has {bytes} bytes of metadata per block; format it without metadata"
            ),
            Self::Protection(kind) => write!(
                f,
                "has protection information (type {kind}); format it without protection"
            ),
            Self::StorageTag(bits) => write!(
                f,
                "has storage tags of {bits} bits; format it without protection"
            ),
            Self::BlockSize(shift) => {
                write!(f, "has blocks of 2^{shift} bytes; format it to 512 or 4096")
            }
            Self::BlockBeyondTransfer(shift) => write!(
                f,
                "has blocks of {} bytes, more than its controller transfers at once (MDTS); format \
                 it to smaller blocks, or raise the target's limit",
                1_u64 << shift.min(63)
            ),
            Self::Format => f.write_str("has a format that it doesn't list; its target is broken"),
            Self::Empty => f.write_str("has no blocks; give it a size at the target"),
            Self::Sharing => {
                f.write_str("is called shared and private at once; its target is broken")
            }
            Self::Identity => f.write_str("has two identities at once; its target is broken"),
            Self::Refused(status) => write!(f, "isn't shown by its controller: {status}"),
        }
    }
}

/// Beginning of the line of [`HostError::Digests`], for programs that see only lines.
pub const DIGESTS_DIFFER: &str = "digests asked for: ";

/// Reason why a host machine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostError {
    /// No answer in time.
    TimedOut(Step),
    /// The connection ended.
    Closed,
    /// The controller broke the protocol; it gets a TermReq with the details.
    Protocol(PduError),
    /// The controller reports that the host broke the protocol.
    Terminated {
        /// Fatal error status.
        fes: u16,
        /// Fatal error information.
        fei: u32,
    },
    /// ICResp has another PDU format version than 0 (T25).
    PduVersion(u16),
    /// ICResp doesn't echo the digests asked for (T25).
    Digests {
        /// Digests asked for.
        asked: Digests,
        /// Digests of the answer.
        got: Digests,
    },
    /// Connect was rejected.
    Connect {
        /// Its status.
        status: Status,
        /// DW0 and DW1: where the wrong parameter lies.
        result: u64,
    },
    /// The controller requires authentication.
    Authentication,
    /// The controller isn't the one asked for, or reports two identifiers.
    ControllerId {
        /// As asked, or as in Connect's answer.
        want: u16,
        /// As answered.
        got: u16,
    },
    /// An impossible version (0 or 1.0…1.1, which had no fabrics).
    Version(Version),
    /// No NVM command set.
    NoNvmCommandSet,
    /// Its largest queue is too small: MQES.
    QueueSize(u16),
    /// The host's or the subsystem's NQN isn't 1…223 bytes long.
    Nqn,
    /// CSTS.CFS is set.
    Fatal,
    /// CSTS.RDY stayed 0 for all of CAP.TO, ms.
    NotReady(u32),
    /// A command of the machine failed.
    Command {
        /// Its step.
        step: Step,
        /// Its status.
        status: Status,
    },
    /// Data that doesn't parse.
    Malformed {
        /// Step of the command.
        step: Step,
        /// The fault.
        error: WireError,
    },
    /// Identify Controller names another subsystem than the one asked for.
    Subsystem,
    /// The controller type has no I/O queues (CNTRLTYPE).
    ControllerType(u8),
    /// IOCCSZ or ICDOFF is invalid for NVMe/TCP.
    Capsule,
    /// KAS is 0, but a keep-alive was asked for.
    NoKeepAlive,
    /// The controller has more of something than the host accepts.
    Limit {
        /// The step.
        step: Step,
        /// The most that is accepted.
        max: u32,
    },
    /// A log kept changing while it was read.
    Unstable(Step),
    /// A namespace can't be used.
    Namespace {
        /// NSID.
        nsid: u32,
        /// The reason.
        why: NamespaceError,
    },
    /// An ANA group stayed in "change" longer than ANATT (T26).
    AnaTransition {
        /// Its identifier.
        group: u32,
    },
    /// The controller reported a persistent internal error (T30).
    PersistentInternalError,
}

impl core::error::Error for HostError {}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TimedOut(Step::KeepAlive) => {
                f.write_str("keep-alive missed: the controller didn't answer in time")
            }
            Self::TimedOut(step) => write!(
                f,
                "no answer to {step} in time; check that an NVMe/TCP target listens there"
            ),
            Self::Closed => f.write_str("the connection ended"),
            Self::Protocol(error) if error.fes == Fes::HeaderDigest => f.write_str(
                "a header from the controller arrived damaged (header digest error); check the \
                 network",
            ),
            Self::Protocol(error) => write!(f, "the controller broke the protocol: {error}"),
            Self::Terminated { fes, fei } => match Fes::from_value(fes) {
                Some(Fes::HeaderDigest) => f.write_str(
                    "the controller ended the connection: a header from us arrived damaged \
                     (header digest error); check the network",
                ),
                Some(fes) => {
                    write!(
                        f,
                        "the controller ended the connection: {} ({fei:#x})",
                        fes.name()
                    )
                }
                None => write!(
                    f,
                    "the controller ended the connection: error {fes:#x} ({fei:#x})"
                ),
            },
            Self::Connect { status, result } => connect(f, status, result),
            Self::Authentication => f.write_str(
                "the subsystem requires authentication, which isn't supported; allow this host \
                 without it",
            ),
            Self::Command { step, status } if step.is_fabrics() => {
                write!(f, "{step} failed: ")?;
                fabrics_status(f, status)
            }
            Self::Command { step, status } => write!(f, "{step} failed: {status}"),
            Self::Malformed { step, error } => {
                write!(f, "the data of {step} can't be understood: {error}")
            }
            Self::Limit { step, max } => write!(f, "{step}: more than {max}, the most supported"),
            Self::Unstable(step) => write!(f, "{step}: it changed at every read; try again later"),
            Self::Namespace { nsid, why } => write!(f, "namespace {nsid} {why}"),
            _ => self.fmt_controller(f),
        }
    }
}

impl HostError {
    /// Properties of the controller that make it unusable.
    fn fmt_controller(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::PduVersion(pfv) => {
                write!(
                    f,
                    "the controller speaks PDU format {pfv}; only format 0 is supported"
                )
            }
            Self::Digests { asked, got } => write!(
                f,
                "{DIGESTS_DIFFER}header {}, data {}; the controller says: header {}, data {}; \
                 switch them alike on both sides",
                on(asked.header),
                on(asked.data),
                on(got.header),
                on(got.data)
            ),
            Self::ControllerId { want, got } => {
                write!(
                    f,
                    "controller {want} was asked for and {got} answered; connect anew"
                )
            }
            Self::Version(version) => write!(
                f,
                "the controller reports version {}.{}.{}; 1.2.1 or later is needed",
                version.major(),
                version.minor(),
                version.tertiary()
            ),
            Self::NoNvmCommandSet => f.write_str("the controller has no NVM command set"),
            Self::QueueSize(mqes) => write!(
                f,
                "the controller's queues hold {} entries; at least 2 are needed",
                u32::from(mqes) + 1
            ),
            Self::Nqn => {
                f.write_str("an NQN has 1 to 223 bytes; check the host's and the subsystem's")
            }
            Self::Fatal => f.write_str("the controller has a fatal error (CSTS.CFS); reset it"),
            Self::NotReady(ms) => {
                write!(
                    f,
                    "the controller wasn't ready within its own limit of {ms} ms (CAP.TO)"
                )
            }
            Self::Subsystem => f.write_str(
                "the controller belongs to another subsystem than the one asked for; check the NQN",
            ),
            Self::ControllerType(kind) => {
                write!(
                    f,
                    "a controller of type {kind} has no namespaces; give a subsystem's NQN"
                )
            }
            Self::Capsule => {
                f.write_str("the controller's capsule size or data offset can't be over TCP")
            }
            Self::NoKeepAlive => {
                f.write_str("the controller has no keep-alive; set the keep-alive time-out to 0")
            }
            Self::AnaTransition { group } => {
                write!(
                    f,
                    "ANA group {group} stayed in transition longer than the controller's ANATT"
                )
            }
            _ => f.write_str("the controller reported a persistent internal error; reset it"),
        }
    }
}

const fn on(digest: bool) -> &'static str {
    if digest { "on" } else { "off" }
}

/// Explains a rejected Connect and its remedy (Base 2.0, 6.3). A status of a Fabrics command:
/// 1h/80h and following mean other things than in the NVM command set (Base 2.0, figures of
/// 3.3.3.2.1).
fn fabrics_status(f: &mut fmt::Formatter<'_>, status: Status) -> fmt::Result {
    let named = connect_status::ALL.iter().find(|of| status.is(of.0));
    let Some((_, name)) = named else {
        return write!(f, "{status}");
    };
    let dnr = if status.dnr() { ", do not retry" } else { "" };
    write!(f, "{name} ({:x}h/{:02x}h{dnr})", status.sct(), status.sc())
}

fn connect(f: &mut fmt::Formatter<'_>, status: Status, result: u64) -> fmt::Result {
    f.write_str("Connect rejected: ")?;
    f.write_str(match status.code() {
        connect_status::INVALID_PARAMETERS => match InvalidParameter::parse(result) {
            InvalidParameter {
                in_data: true,
                offset: ConnectData::SUBNQN_AT,
            } => {
                "subsystem NQN unknown at this address; correct it, or ask the target which it has \
                 (nvme-cli: nvme discover)"
            }
            InvalidParameter {
                in_data: true,
                offset: ConnectData::HOSTNQN_AT,
            } => "host NQN not accepted; check its form and the subsystem's list of hosts",
            InvalidParameter {
                in_data: true,
                offset: ConnectData::CNTLID_AT,
            } => "controller identifier unknown; the association has ended, connect anew",
            InvalidParameter { in_data: true, .. } => "host identifier not accepted",
            InvalidParameter {
                in_data: false,
                offset: 42,
            } => "queue identifier not accepted",
            InvalidParameter {
                in_data: false,
                offset: 44,
            } => "queue size not accepted; ask for fewer entries",
            InvalidParameter {
                in_data: false,
                offset: 48,
            } => "keep-alive time-out not accepted",
            InvalidParameter { .. } => "a parameter isn't accepted",
        },
        connect_status::INVALID_HOST => {
            "this host isn't allowed; add its NQN to the subsystem's list of hosts"
        }
        connect_status::CONTROLLER_BUSY => {
            "no controller is free; try again later, or end another association"
        }
        connect_status::RESTART_DISCOVERY | connect_status::DISCOVER_RESTART => {
            "the subsystem has moved; find out where to, and use that address"
        }
        connect_status::INVALID_QUEUE_TYPE => "it has no such queue; is it a discovery controller?",
        connect_status::AUTHENTICATION_REQUIRED => {
            "authentication is required, which isn't supported"
        }
        connect_status::INCOMPATIBLE_FORMAT => "it doesn't know the record format",
        _ => return write!(f, "{status}"),
    })?;
    write!(f, " (status {:x}h/{:02x}h)", status.sct(), status.sc())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_rejected_connect_says_which_and_what_to_do() {
        let at = |offset, in_data| HostError::Connect {
            status: connect_status::INVALID_PARAMETERS.with_dnr(),
            result: InvalidParameter { offset, in_data }.emit(),
        };
        assert_eq!(
            at(256, true).to_string(),
            "Connect rejected: subsystem NQN unknown at this address; correct it, or ask the \
             target which it has (nvme-cli: nvme discover) (status 1h/82h)"
        );
        assert!(at(512, true).to_string().contains("host NQN"));
        assert!(at(44, false).to_string().contains("fewer entries"));
        let host = HostError::Connect {
            status: connect_status::INVALID_HOST,
            result: 0,
        };
        assert!(host.to_string().contains("isn't allowed"));
        let other = HostError::Connect {
            status: Status::INTERNAL_ERROR,
            result: 0,
        };
        assert_eq!(
            other.to_string(),
            "Connect rejected: internal error (0h/06h)"
        );
    }

    /// 1h/84h of the NVM command set would be something else.
    #[test]
    fn a_refused_property_command_has_the_words_of_fabrics() {
        let said = |step, status: Status| HostError::Command { step, status }.to_string();
        assert_eq!(
            said(Step::Capabilities, connect_status::INVALID_HOST.with_dnr()),
            "Property Get (CAP) failed: connect invalid host (1h/84h, do not retry)"
        );
        for step in [Step::Version, Step::Ready, Step::Configure, Step::Shutdown] {
            for (status, name) in connect_status::ALL {
                assert!(said(step, status).contains(name), "{step}: {status:?}");
            }
        }
        let other = said(Step::Version, Status::INVALID_FIELD);
        assert!(
            other.contains("invalid field in command (0h/02h)"),
            "{other}"
        );
        let identify = said(Step::Namespace, connect_status::INVALID_HOST);
        assert!(!identify.contains("connect"), "{identify}");
    }

    #[test]
    fn every_error_is_one_line() {
        let digests = Digests {
            header: true,
            data: false,
        };
        for error in [
            HostError::TimedOut(Step::Handshake),
            HostError::TimedOut(Step::KeepAlive),
            HostError::Closed,
            HostError::Protocol(PduError::field(2)),
            HostError::Terminated { fes: 3, fei: 0 },
            HostError::Terminated { fes: 99, fei: 0 },
            HostError::PduVersion(1),
            HostError::Digests {
                asked: digests,
                got: Digests::default(),
            },
            HostError::Version(Version(0)),
            HostError::QueueSize(0),
            HostError::NotReady(500),
            HostError::PersistentInternalError,
            HostError::Namespace {
                nsid: 1,
                why: NamespaceError::CommandSet(2),
            },
            HostError::Namespace {
                nsid: 1,
                why: NamespaceError::Metadata(8),
            },
        ] {
            let text = error.to_string();
            assert!(
                text.len() > 15 && !text.contains(['\n', '\t']) && !text.contains("  "),
                "{text}"
            );
        }
    }
}
