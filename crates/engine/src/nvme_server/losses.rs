//! Hosts that have to be told that a namespace may have lost acknowledged writes (T13).
//!
//! # Contract
//! Each host that had used the namespace by then is told by its next flush, whoever wrote what is
//! lost, and by whichever of its controllers it flushes. A host is known by its identifier.
use alloc::collections::BTreeSet;

/// Of one namespace.
#[derive(Default)]
pub(super) struct Losses {
    /// [Losses](crate::mirror::Devices::flush_losses) of its device that are known here.
    known: u32,
    untold: BTreeSet<[u8; 16]>,
}

impl Losses {
    /// A namespace that is active from now on, whose device has had so many.
    pub fn since(known: u32) -> Self {
        Self {
            known,
            untold: BTreeSet::new(),
        }
    }

    /// Its device has had so many; `hosts`: those that have used it.
    pub fn observe(&mut self, losses: u32, hosts: impl FnOnce() -> BTreeSet<[u8; 16]>) {
        if core::mem::replace(&mut self.known, losses) != losses {
            self.untold.append(&mut hosts());
        }
    }

    /// Whether this host's next flush has to fail.
    pub fn is_untold(&self, host: &[u8; 16]) -> bool {
        self.untold.contains(host)
    }

    /// A flush of this host has failed, and it hears of that.
    pub fn told(&mut self, host: &[u8; 16]) {
        self.untold.remove(host);
    }
}
