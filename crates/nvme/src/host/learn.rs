//! Properties of a namespace whose controller a kernel driver has set up: read by Identify alone,
//! with the same checks as over an association of braid's own.
//!
//! # Contract
//! The caller sends Identify and returns the pages, or an error of its own type. Pages are
//! untrusted input.
//!
//! # Limits
//! Limits are those of Identify: a memory page of the controller counts as 4 KiB, which is the
//! least there is (CAP isn't asked for). ANA states are not read: a command that meets one that
//! doesn't allow it ends with a path error.
use alloc::format;
use alloc::string::String;
use core::fmt;

use super::admin::{blank, controller_info, identifiers, limits_of, nvm_shape, shape};
use super::{ControllerInfo, NamespaceError, NamespaceInfo, Step};
use crate::wire::fabrics::Version;
use crate::wire::identify::{
    Controller, IndependentNamespace, Namespace, NvmController, NvmNamespace, Page, cmic, cns,
    cntrltype, oacs,
};
use crate::wire::{Status, WireError};

/// Smallest memory page of a controller, log2.
const PAGE_SHIFT: u32 = 12;

/// Reason why a namespace can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LearnError<E> {
    /// A page could not be requested.
    Ask(E),
    /// The controller refused a page that is required.
    Refused(Step, Status),
    /// A malformed page.
    Malformed(Step, WireError),
    /// Its controller isn't one for I/O: its type.
    ControllerType(u8),
    /// The namespace can't be used.
    Namespace(u32, NamespaceError),
}

impl<E: fmt::Display> fmt::Display for LearnError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(error) => error.fmt(f),
            Self::Refused(step, status) => write!(f, "{step}: the controller refuses: {status}"),
            Self::Malformed(step, error) => write!(f, "{step}: malformed answer: {error}"),
            Self::ControllerType(kind) => {
                write!(
                    f,
                    "its controller has type {kind}; only I/O controllers have paths"
                )
            }
            Self::Namespace(nsid, error) => write!(f, "namespace {nsid} {error}"),
        }
    }
}

/// Asks `controller` (Identify, CNS and NSID) until namespace `nsid` is known.
///
/// # Errors
/// [`LearnError`].
pub fn learn<E>(
    nsid: u32,
    controller: &mut dyn FnMut(u8, u32) -> Result<Result<Page, Status>, E>,
) -> Result<(ControllerInfo, NamespaceInfo), LearnError<E>> {
    let mut asker = Asker(controller);
    let step = Step::IdentifyController;
    let id = asker.must(step, cns::CONTROLLER, 0)?;
    let id = Controller::parse(&id).map_err(|error| LearnError::Malformed(step, error))?;
    // 0: not reported (before 1.4).
    if id.cntrltype != 0 && id.cntrltype != cntrltype::IO {
        return Err(LearnError::ControllerType(id.cntrltype));
    }
    let ana = id.cmic & cmic::ANA != 0;
    let mut info = controller_info(&id, PAGE_SHIFT, ana);
    if info.subnqn.is_empty() {
        info.subnqn = old_nqn(&id);
    }
    let new = Version(id.ver) >= Version::V2_0;
    if new
        && let Some(page) = asker.may(cns::COMMAND_SET_CONTROLLER, 0)?
        && let Ok(limits) = NvmController::parse(&page)
    {
        limits_of(&mut info, &limits, PAGE_SHIFT);
        info.lists_allocated &= id.oacs & oacs::GET_LBA_STATUS != 0;
    }
    let namespace = namespace(nsid, &id, info.transfer_max, new, &mut asker)?;
    Ok((info, namespace))
}

/// Requests pages.
struct Asker<'a, E>(&'a mut dyn FnMut(u8, u32) -> Result<Result<Page, Status>, E>);

impl<E> Asker<'_, E> {
    fn must(&mut self, step: Step, cns: u8, nsid: u32) -> Result<Page, LearnError<E>> {
        (self.0)(cns, nsid)
            .map_err(LearnError::Ask)?
            .map_err(|status| LearnError::Refused(step, status))
    }

    /// Requests a page that not every controller has.
    fn may(&mut self, cns: u8, nsid: u32) -> Result<Option<Page>, LearnError<E>> {
        let answer = (self.0)(cns, nsid).map_err(LearnError::Ask)?;
        Ok(answer.ok())
    }
}

/// Reads the namespace: descriptors first, because the other pages are valid for the NVM command
/// set only.
fn namespace<E>(
    nsid: u32,
    controller: &Controller,
    transfer_max: Option<u32>,
    new: bool,
    asker: &mut Asker<'_, E>,
) -> Result<NamespaceInfo, LearnError<E>> {
    let refused = |why| LearnError::Namespace(nsid, why);
    let malformed = |step| move |error| LearnError::Malformed(step, error);
    let mut found = blank(nsid);
    if let Some(page) = asker.may(cns::DESCRIPTORS, nsid)? {
        let why = identifiers(&mut found, &page).map_err(malformed(Step::Descriptors))?;
        why.map_or(Ok(()), |why| Err(refused(why)))?;
    }
    let step = Step::Namespace;
    let page = asker.must(step, cns::NAMESPACE, nsid)?;
    let id = Namespace::parse(&page).map_err(malformed(step))?;
    let atomic_blocks = u32::from(controller.awun) + 1;
    let ana = controller.cmic & cmic::ANA != 0;
    if let Some(why) = shape(&mut found, &id, atomic_blocks, transfer_max, ana) {
        return Err(refused(why));
    }
    if new && let Some(page) = asker.may(cns::COMMAND_SET_NAMESPACE, nsid)? {
        let nvm = NvmNamespace::parse(&page).map_err(malformed(Step::NvmNamespace))?;
        if let Some(why) = nvm_shape(&mut found, &nvm, id.format_index(), id.nsfeat) {
            return Err(refused(why));
        }
    }
    if new && let Some(page) = asker.may(cns::INDEPENDENT_NAMESPACE, nsid)? {
        let step = Step::IndependentNamespace;
        let own = IndependentNamespace::parse(&page).map_err(malformed(step))?;
        found.read_only |= own.nsattr & 1 != 0;
        if (own.nmic & 1 != 0) != found.shared {
            return Err(refused(NamespaceError::Sharing));
        }
    }
    Ok(found)
}

/// The NQN of a controller from before there were any (Base 2.0, 4.5): made of its identifiers, as
/// they are padded.
fn old_nqn(id: &Controller) -> String {
    let whole = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    format!(
        "nqn.2014.08.org.nvmexpress:{:04x}{:04x}{}{}",
        id.vid,
        id.ssvid,
        whole(&id.sn),
        whole(&id.mn)
    )
    .trim_end()
    .chars()
    .filter(|c| !c.is_control())
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::identify::{Descriptor, cmic::MULTI_CONTROLLER, emit_descriptors, oncs};
    use crate::wire::layout::{padded, terminated};

    /// A controller that knows all pages but those of 2.0.
    struct Kernel {
        controller: Controller,
        namespace: Namespace,
    }

    impl Kernel {
        fn new() -> Self {
            let mut lbaf = [0; 64];
            lbaf[2] = 9;
            lbaf[6] = 12;
            Self {
                controller: Controller {
                    vid: 0x1b36,
                    ssvid: 0x1af4,
                    sn: padded("S1"),
                    mn: padded("M1"),
                    cntlid: 2,
                    ver: 0x0001_0400,
                    mdts: 7,
                    cmic: MULTI_CONTROLLER,
                    cntrltype: 1,
                    vwc: 7,
                    oncs: oncs::DSM | oncs::WRITE_ZEROES,
                    subnqn: terminated("nqn.x"),
                    ..Controller::default()
                },
                namespace: Namespace {
                    nsze: 1000,
                    nlbaf: 1,
                    flbas: 1,
                    nmic: 1,
                    eui64: [7; 8],
                    lbaf,
                    ..Namespace::default()
                },
            }
        }

        fn answer(&self, cns: u8, nsid: u32) -> Result<Page, Status> {
            match (cns, nsid) {
                (cns::CONTROLLER, 0) => Ok(self.controller.emit()),
                (cns::NAMESPACE, 3) => Ok(self.namespace.emit()),
                (cns::DESCRIPTORS, 3) => Ok(emit_descriptors(&[Descriptor::Uuid([5; 16])])),
                _ => Err(Status::INVALID_FIELD.with_dnr()),
            }
        }

        fn learn(&self) -> Result<(ControllerInfo, NamespaceInfo), LearnError<&'static str>> {
            learn(3, &mut |cns, nsid| Ok(self.answer(cns, nsid)))
        }
    }

    #[test]
    fn identify_alone_finds_the_same_properties() {
        let (controller, namespace) = Kernel::new().learn().unwrap();
        assert_eq!(
            (controller.cntlid, controller.subnqn.as_str()),
            (2, "nqn.x")
        );
        assert_eq!(controller.transfer_max, Some(4096 << 7));
        assert!(controller.volatile_write_cache && controller.multi_controller);
        assert_eq!((namespace.nsid, namespace.blocks), (3, 1000));
        assert_eq!((namespace.block_shift, namespace.shared), (12, true));
        assert_eq!((namespace.uuid, namespace.eui64), ([5; 16], [7; 8]));
    }

    #[test]
    fn a_controller_without_an_nqn_gets_that_of_old() {
        let mut kernel = Kernel::new();
        kernel.controller.subnqn = [0; 256];
        let nqn = kernel.learn().unwrap().0.subnqn;
        let serial = format!("S1{}", " ".repeat(18));
        assert_eq!(
            nqn,
            format!("nqn.2014.08.org.nvmexpress:1b361af4{serial}M1")
        );
    }

    #[test]
    fn an_unusable_namespace_has_a_reason() {
        let refused = |change: &dyn Fn(&mut Kernel)| {
            let mut kernel = Kernel::new();
            change(&mut kernel);
            format!("{}", kernel.learn().unwrap_err())
        };
        for (said, part) in [
            (refused(&|it| it.controller.cntrltype = 3), "type 3"),
            (refused(&|it| it.namespace.nsze = 0), "namespace 3"),
            (refused(&|it| it.namespace.lbaf[4] = 8), "metadata"),
            (refused(&|it| it.namespace.dps = 1), "protection"),
        ] {
            assert!(said.contains(part), "{said}");
        }
        let gone = learn(3, &mut |_, _| Err("no such device"));
        assert_eq!(gone, Err(LearnError::Ask("no such device")));
        let none = learn(4, &mut |cns, nsid| {
            Ok::<_, &str>(Kernel::new().answer(cns, nsid))
        });
        assert!(
            matches!(none, Err(LearnError::Refused(Step::Namespace, _))),
            "{none:?}"
        );
    }

    #[test]
    fn a_page_of_anything_is_an_answer_or_an_error() {
        for byte in 0..=u8::MAX {
            let answered = learn(1, &mut |_, _| Ok::<_, ()>(Ok([byte; 4096])));
            assert!(answered.is_err(), "{byte}: {answered:?}");
        }
    }
}
