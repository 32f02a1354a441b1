//! Status field of a completion queue entry (Base 2.0, 3.3.3.2.1).

/// The 15 status bits (without phase tag) of a completion: SC, SCT, CRD, M, DNR.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(pub u16);

impl core::fmt::Debug for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Status({:#06x})", self.0)
    }
}
