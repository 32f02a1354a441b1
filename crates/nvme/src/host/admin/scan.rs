//! The namespaces of a controller: their list, their properties, and whether each can be used.
//!
//! The list is read in pieces of 1024 (CNS 02h); then, of each namespace, the descriptors (03h: a
//! command set other than NVM is refused before anything else is read), Identify Namespace (00h)
//! and, since 2.0, the NVM command set's part (05h: storage tags are refused) and the one that is
//! independent of command sets (08h). A page that the controller doesn't have is requested once.
//!
//! A subsystem may have thousands of namespaces, and each costs several round trips: if the wanted
//! one is listed, only that one is examined, else no more than [`NAMESPACES_ASKED_MAX`] usable
//! ones. After some in a row that cannot be used, the page that showed it (descriptors or Identify
//! Namespace) is requested of many together, and only those that it does not exclude are examined
//! one by one.
use alloc::vec::Vec;

use super::connect::identify;
use super::{AHEAD, Admin, Next, may_pass};
use crate::host::transport::own_command;
use crate::host::{AnaState, Completed, Data, HostError, NamespaceError, NamespaceInfo, Step};
use crate::limits::{
    BLOCK_SHIFT_MAX, HOST_NAMESPACES_MAX, NAMESPACES_AHEAD, NAMESPACES_ASKED_MAX, REFUSED_IN_A_ROW,
};
use crate::wire::fabrics::Version;
use crate::wire::identify::{
    CSI_NVM, Descriptor, IDENTIFY_LEN, IndependentNamespace, NSID_LIST_MAX, Namespace,
    NvmNamespace, Page, cns, descriptors, nsids,
};
use crate::wire::sqe::NSID_ALL;
use crate::wire::{SqeBuilder, Status, WireError};

/// A pass over the namespaces.
#[derive(Debug)]
pub struct Scan {
    /// Active namespaces, ascending, and the current one.
    nsids: Vec<u32>,
    current: usize,
    /// Active namespaces that are not examined.
    pub unasked: usize,
    draft: NamespaceInfo,
    /// Usable namespaces.
    pub found: Vec<NamespaceInfo>,
    /// Unusable namespaces.
    pub refused: Vec<(u32, NamespaceError)>,
    /// Format number and features of the current namespace.
    format: usize,
    nsfeat: u8,
    /// The controller doesn't know CNS 05h.
    no_nvm: bool,
    /// The controller doesn't know CNS 08h.
    no_independent: bool,
    /// Refused in a row, each by the page of this step.
    row: (usize, Step),
    /// Pages of the current namespace and of those behind it, requested together.
    ahead: Vec<Ahead>,
}

/// A page that is read ahead.
#[derive(Debug)]
struct Ahead {
    page: Page,
    /// How its command ended.
    end: Option<Status>,
}

impl Scan {
    /// Whether the next step concerns several namespaces.
    pub fn is_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Takes bytes of a page that is read ahead.
    pub fn place_ahead(&mut self, place: u32, at: usize, bytes: &[u8]) {
        self.ahead[place as usize].page[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The current namespace can't be used, as the page of this step shows.
    fn refuse(&mut self, nsid: u32, step: Step, why: NamespaceError) {
        self.refused.push((nsid, why));
        self.row = match self.row {
            (count, before) if before == step => (count + 1, step),
            _ => (1, step),
        };
    }
}

impl Default for Scan {
    fn default() -> Self {
        Self {
            nsids: Vec::new(),
            current: 0,
            unasked: 0,
            draft: blank(0),
            found: Vec::new(),
            refused: Vec::new(),
            format: 0,
            nsfeat: 0,
            no_nvm: false,
            no_independent: false,
            row: (0, Step::Namespace),
            ahead: Vec::new(),
        }
    }
}

/// Whether a refusal concerns the structure, not the namespace.
fn is_unknown(status: Status) -> bool {
    status.is(Status::INVALID_FIELD) || status.is(Status::INVALID_OPCODE)
}

/// A namespace of which only the number is known.
pub(in crate::host) fn blank(nsid: u32) -> NamespaceInfo {
    NamespaceInfo {
        nsid,
        blocks: 0,
        block_shift: 0,
        nguid: [0; 16],
        eui64: [0; 8],
        uuid: [0; 16],
        csi: CSI_NVM,
        shared: false,
        ana_group: 0,
        ana_state: AnaState::Optimized,
        read_only: false,
        atomic_blocks: 1,
        boundary_blocks: 0,
        optimal_write_blocks: 0,
        deallocate_reads_zero: false,
        hole_blocks: 0,
    }
}

impl Admin {
    /// Starts a new pass; returns its first step.
    pub(super) fn rescan(&mut self) -> Step {
        self.scan = Scan {
            no_nvm: self.scan.no_nvm,
            no_independent: self.scan.no_independent,
            ..Scan::default()
        };
        Step::NamespaceList
    }

    pub(super) fn scan_command(&self, step: Step) -> (SqeBuilder, Data) {
        let nsid = self.scan.draft.nsid;
        match step {
            // NSIDs above this one.
            Step::NamespaceList => identify(
                cns::ACTIVE_NAMESPACES,
                self.scan.nsids.last().copied().unwrap_or(0),
            ),
            Step::Descriptors => identify(cns::DESCRIPTORS, nsid),
            Step::NvmNamespace => identify(cns::COMMAND_SET_NAMESPACE, nsid),
            Step::IndependentNamespace => identify(cns::INDEPENDENT_NAMESPACE, nsid),
            _ => identify(cns::NAMESPACE, nsid),
        }
    }

    pub(super) fn scan_finished(&mut self, step: Step) -> Result<Next, HostError> {
        if step == Step::NamespaceList {
            return self.listed();
        }
        let malformed = |error| HostError::Malformed { step, error };
        let draft = &mut self.scan.draft;
        let refused = match step {
            Step::Descriptors => identifiers(draft, &*self.page).map_err(malformed)?,
            Step::Namespace => {
                let id = Namespace::parse(&*self.page).map_err(malformed)?;
                (self.scan.format, self.scan.nsfeat) = (id.format_index(), id.nsfeat);
                let (atomic_blocks, ana) = (self.facts.atomic_blocks, self.facts.ana);
                shape(draft, &id, atomic_blocks, self.facts.transfer_max, ana)
            }
            Step::NvmNamespace => {
                let id = NvmNamespace::parse(&*self.page).map_err(malformed)?;
                nvm_shape(draft, &id, self.scan.format, self.scan.nsfeat)
            }
            _ => {
                let id = IndependentNamespace::parse(&*self.page).map_err(malformed)?;
                draft.read_only |= id.nsattr & 1 != 0;
                ((id.nmic & 1 != 0) != draft.shared).then_some(NamespaceError::Sharing)
            }
        };
        if let Some(why) = refused {
            let nsid = draft.nsid;
            self.scan.refuse(nsid, step, why);
            return Ok(self.next_namespace());
        }
        Ok(match step {
            Step::Descriptors => Next::Begin(Step::Namespace),
            Step::Namespace if self.asks_new() && !self.scan.no_nvm => {
                Next::Begin(Step::NvmNamespace)
            }
            Step::Namespace | Step::NvmNamespace => self.after_nvm(),
            _ => self.take_namespace(),
        })
    }

    /// The controller refused a page.
    pub(super) fn scan_refused(&mut self, step: Step, status: Status) -> Result<Next, HostError> {
        Ok(match step {
            // Before 1.3; or no such command set, which Identify Namespace will show.
            Step::Descriptors => Next::Begin(Step::Namespace),
            Step::NvmNamespace => {
                self.scan.no_nvm |= is_unknown(status);
                self.after_nvm()
            }
            Step::IndependentNamespace => {
                self.scan.no_independent |= is_unknown(status);
                self.take_namespace()
            }
            // It may have been detached since it was listed.
            _ => {
                let nsid = self.scan.draft.nsid;
                let why = NamespaceError::Refused(status);
                self.scan.refuse(nsid, step, why);
                self.next_namespace()
            }
        })
    }

    /// Whether pages that came with 2.0 may be requested.
    fn asks_new(&self) -> bool {
        self.facts.version >= Version::V2_0
    }

    /// The pages of the NVM command set for the current namespace are read.
    fn after_nvm(&mut self) -> Next {
        match self.asks_new() && !self.scan.no_independent {
            true => Next::Begin(Step::IndependentNamespace),
            false => self.take_namespace(),
        }
    }

    /// Handles a piece of the list in the page (Base 2.0, 5.17.2.2).
    fn listed(&mut self) -> Result<Next, HostError> {
        let step = Step::NamespaceList;
        let mut count = 0;
        for nsid in nsids(&*self.page) {
            let last = self.scan.nsids.last().copied().unwrap_or(0);
            // The list must ascend, or the pass would never end.
            if nsid <= last || nsid == NSID_ALL {
                let error = WireError::Field {
                    offset: 4 * count as u16,
                };
                return Err(HostError::Malformed { step, error });
            }
            if self.scan.nsids.len() == HOST_NAMESPACES_MAX {
                return Err(HostError::Limit {
                    step,
                    max: HOST_NAMESPACES_MAX as u32,
                });
            }
            self.scan.nsids.push(nsid);
            count += 1;
        }
        if count == NSID_LIST_MAX {
            return Ok(Next::Begin(step)); // there may be more
        }
        if let Some(wanted) = self.config.nsid
            && self.scan.nsids.binary_search(&wanted).is_ok()
        {
            self.scan.unasked = self.scan.nsids.len() - 1;
            self.scan.nsids = alloc::vec![wanted];
        }
        Ok(self.begin_namespace())
    }

    fn take_namespace(&mut self) -> Next {
        let taken = core::mem::replace(&mut self.scan.draft, blank(0));
        self.scan.found.push(taken);
        self.scan.row.0 = 0;
        self.next_namespace()
    }

    fn next_namespace(&mut self) -> Next {
        self.scan.current += 1;
        self.begin_namespace()
    }

    /// Examines the current namespace, or ends the pass.
    fn begin_namespace(&mut self) -> Next {
        if self.scan.found.len() == NAMESPACES_ASKED_MAX {
            self.scan.unasked = self.scan.nsids.len() - self.scan.current;
            return self.scanned();
        }
        let Some(&nsid) = self.scan.nsids.get(self.scan.current) else {
            return self.scanned();
        };
        self.scan.draft = blank(nsid);
        let (refused, step) = self.scan.row;
        let left = self.scan.nsids.len() - self.scan.current;
        if refused >= REFUSED_IN_A_ROW
            && left > 1
            && matches!(step, Step::Descriptors | Step::Namespace)
        {
            let page = || Ahead {
                page: [0; IDENTIFY_LEN],
                end: None,
            };
            let count = left.min(NAMESPACES_AHEAD);
            self.scan.ahead = core::iter::repeat_with(page).take(count).collect();
            return Next::Begin(step);
        }
        Next::Begin(Step::Descriptors)
    }

    /// Sends the commands of a step for several namespaces.
    pub(super) fn send_ahead(&mut self, step: Step) {
        for (place, at) in (0..self.scan.ahead.len()).zip(self.scan.current..) {
            self.scan.draft = blank(self.scan.nsids[at]);
            let (sqe, data) = self.scan_command(step);
            self.submit(&own_command(&sqe, data, AHEAD + place as u32));
        }
    }

    /// Handles the end of one of them. After the last one, those that their pages exclude are
    /// refused, up to the first one that may be usable.
    pub(super) fn read_ahead(&mut self, end: &Completed, now_ns: u64) {
        self.keep_alive.traffic = true;
        self.scan.ahead[(end.token - AHEAD) as usize].end = Some(end.status);
        if self.scan.ahead.iter().all(|it| it.end.is_some()) {
            let next = self.sift();
            self.follow(next, now_ns);
        }
    }

    fn sift(&mut self) -> Result<Next, HostError> {
        let step = self.step;
        for ahead in core::mem::take(&mut self.scan.ahead) {
            let nsid = self.scan.nsids[self.scan.current];
            let draft = &mut blank(nsid);
            let malformed = |error| HostError::Malformed { step, error };
            let (atomic_blocks, ana) = (self.facts.atomic_blocks, self.facts.ana);
            let refused = match ahead.end {
                Some(status) if !status.is_success() => {
                    let is_final = step == Step::Namespace && !may_pass(status);
                    is_final.then_some(NamespaceError::Refused(status))
                }
                _ if step == Step::Descriptors => {
                    identifiers(draft, &ahead.page).map_err(malformed)?
                }
                _ => {
                    let id = Namespace::parse(&ahead.page).map_err(malformed)?;
                    shape(draft, &id, atomic_blocks, self.facts.transfer_max, ana)
                }
            };
            // One that may be usable is examined by itself.
            let Some(why) = refused else {
                self.scan.row.0 = 0;
                break;
            };
            self.scan.refuse(nsid, step, why);
            self.scan.current += 1;
        }
        Ok(self.begin_namespace())
    }

    /// All namespaces are read; their ANA states may not be.
    fn scanned(&mut self) -> Next {
        if self.facts.ana {
            return Next::Begin(self.restart_ana());
        }
        self.tell(self.scan.found.clone(), None);
        Next::Work
    }
}

/// Namespace descriptors (Base 2.0, 5.17.2.3).
pub(in crate::host) fn identifiers(
    draft: &mut NamespaceInfo,
    page: &[u8],
) -> Result<Option<NamespaceError>, WireError> {
    for descriptor in descriptors(page) {
        match descriptor? {
            Descriptor::Eui64(id) => draft.eui64 = id,
            Descriptor::Nguid(id) => draft.nguid = id,
            Descriptor::Uuid(id) => draft.uuid = id,
            Descriptor::Csi(csi) => draft.csi = csi,
            Descriptor::Other(_) => {}
        }
    }
    Ok((draft.csi != CSI_NVM).then_some(NamespaceError::CommandSet(draft.csi)))
}

/// Identify Namespace (NVM command set 1.0, 4.1.5.1). Returns why the namespace cannot be used, if
/// so.
pub(in crate::host) fn shape(
    draft: &mut NamespaceInfo,
    id: &Namespace,
    atomic_blocks: u32,
    transfer_max: Option<u32>,
    ana: bool,
) -> Option<NamespaceError> {
    if id.nsze == 0 {
        return Some(NamespaceError::Empty);
    }
    let Some(format) = id.format() else {
        return Some(NamespaceError::Format);
    };
    if id.dps & 7 != 0 {
        return Some(NamespaceError::Protection(id.dps & 7));
    }
    if format.metadata != 0 {
        return Some(NamespaceError::Metadata(format.metadata));
    }
    if !(9..=BLOCK_SHIFT_MAX).contains(&format.block_shift) {
        return Some(NamespaceError::BlockSize(format.block_shift));
    }
    if transfer_max.is_some_and(|most| most < 1 << format.block_shift) {
        return Some(NamespaceError::BlockBeyondTransfer(format.block_shift));
    }
    if !same(&mut draft.nguid, id.nguid) || !same(&mut draft.eui64, id.eui64) {
        return Some(NamespaceError::Identity);
    }
    draft.blocks = id.nsze;
    draft.block_shift = format.block_shift;
    draft.shared = id.nmic & 1 != 0;
    draft.ana_group = if ana { id.anagrpid } else { 0 };
    draft.read_only = id.nsattr & 1 != 0;
    let own = id.nsfeat & Namespace::NSFEAT_ATOMICS != 0;
    draft.atomic_blocks = if own {
        u32::from(id.nawun) + 1
    } else {
        atomic_blocks
    };
    draft.boundary_blocks = id.noiob;
    let says_sizes = id.nsfeat & Namespace::NSFEAT_OPTIMAL != 0;
    let optimal = |blocks: u16| u32::from(blocks) + 1;
    draft.optimal_write_blocks = if says_sizes { optimal(id.nows) } else { 0 };
    draft.deallocate_reads_zero = id.dlfeat & 7 == 1;
    draft.hole_blocks = match id.dlfeat & 0xf {
        0b1001 if says_sizes => optimal(id.npdg),
        0b1001 => 1,
        _ => 0,
    };
    None
}

/// Identify Namespace of the NVM command set, of a namespace with this format and these features
/// (NVM command set 1.0, 4.1.5.3; NPDGL came with 1.1). Returns why the namespace cannot be used,
/// if so.
pub(in crate::host) fn nvm_shape(
    draft: &mut NamespaceInfo,
    id: &NvmNamespace,
    format: usize,
    nsfeat: u8,
) -> Option<NamespaceError> {
    // The larger field has what does not fit NPDG, which may be there as well.
    let says_large = nsfeat & Namespace::NSFEAT_LARGE_DEALLOCATE != 0 && id.npdgl > 0;
    if says_large && draft.hole_blocks > 0 {
        draft.hole_blocks = id.npdgl;
    }
    let bits = id.storage_tag_bits(format);
    (bits != 0).then_some(NamespaceError::StorageTag(bits))
}

/// Takes an identifier if none is known yet (zero = none); `false`: another is known.
fn same<const N: usize>(known: &mut [u8; N], shown: [u8; N]) -> bool {
    if *known == [0; N] {
        *known = shown;
    }
    shown == [0; N] || *known == shown
}
