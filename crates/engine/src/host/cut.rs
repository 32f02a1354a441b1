//! A leg of a mirror that another host may take over (T48): what it was given is taken back.
//!
//! # Contract
//! [`Multipath::cut`] ends the connections of the volume's paths, so that the bound of what they
//! carry counts from now (T9), and fails what waits; what fails from then on is not tried again.
//! New I/O goes as ever: whoever cuts submits only what may go. A change that nobody answered for
//! is held first, as ever, and fails afterwards. Reads with [`Hints::past_cut`] go on: they wait
//! for a path, and fail for want of one, as ever.
//!
//! [`Hints::past_cut`]: super::Hints::past_cut
//!
//! # Limits
//! A device is asked to end what it has; what it can't, it goes on with. Nothing is taken back of a
//! volume with `write_failover = immediate`: that is a part of what this risks.

use super::io::VolumeIo;
use super::types::NO_PATH;
use super::volumes::Volume;
use super::{Multipath, WriteFailover};
use multipath::Outcome;

impl VolumeIo<'_> {
    /// Ends an I/O that would be tried again, if it was taken back.
    pub(super) fn is_taken_back(&mut self, index: u32, now_ns: u64) -> bool {
        let cut = self.volume.is_cut && !self.on.ios.get(index).survives_cut();
        if cut {
            self.end(index, Outcome::PathError, NO_PATH, now_ns);
        }
        cut
    }
}

impl Multipath {
    /// Takes back what a volume was given, as far as that can be done.
    pub fn cut(&mut self, volume: u16, why: &str, now_ns: u64) {
        // Where nobody waits for what is under way, an error would say too early that it is over.
        let fenced = |it: &&mut Volume| it.recovery.write_failover == WriteFailover::Fenced;
        let there = self.volumes.get_mut(usize::from(volume));
        let there = there.filter(|it| !it.is_vacant());
        let Some(it) = there.filter(fenced) else {
            return; // see the module's limits; or the leg's volume is not open on this core yet
        };
        it.is_cut = true;
        self.each_path(|sessions, at| {
            if sessions.volume.number == volume && sessions.volume.paths[at].is_live() {
                sessions.lose(at, Some(why), now_ns);
            }
        });
        let mut io = self.io(volume);
        while let Some(index) = io.volume.waits.pop_cut(&mut io.on.ios) {
            io.end(index, io.volume.without_path(), NO_PATH, now_ns);
        }
        io.fail_waiting_flushes(now_ns);
    }

    /// Failed I/Os may be tried again.
    pub fn uncut(&mut self, volume: u16) {
        if let Some(it) = self.volumes.get_mut(usize::from(volume)) {
            it.is_cut = false;
        }
    }

    /// How often paths were found: [`Self::leaves_behind_ns`] is the same until the next time.
    pub fn paths_found(&self) -> u64 {
        self.on.found
    }

    /// For how long a volume's controllers may execute what they were given, from the end of their
    /// connections on; `None`: nothing bounds that, or none was seen yet.
    pub fn leaves_behind_ns(&self, volume: u16) -> Option<u64> {
        let it = self.volumes.get(usize::from(volume))?;
        let mut longest_ns = None;
        for path in it.paths.iter().filter(|it| it.known.facts.is_some()) {
            let bound_ns = path.bound_ns(&it.recovery, self.on.settings.kato_ms);
            longest_ns = longest_ns.max(Some(bound_ns?));
        }
        longest_ns
    }
}
