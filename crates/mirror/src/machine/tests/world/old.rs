//! An older copy of a leg's disk, put back while nobody has the mirror (T50, T51).
use super::*;
use alloc::vec::Vec;

impl World {
    /// Takes a copy of a leg as it is now.
    pub fn copy_leg(&mut self) {
        let leg = self.draw(self.disks.len() as u64) as usize;
        self.old = Some((leg, self.disks[leg].copied()));
    }

    /// Puts that back, where it is certain that it is found: other legs prove that it is older, or
    /// it lacks one event, and all that it lacks besides is marked. A leg that is put back within
    /// two heartbeats, and has the newest event, can't be told from the leg itself.
    pub fn put_back(&mut self) {
        let Some((leg, old)) = self.old.take() else {
            return;
        };
        // Without it another leg has everything: else what it had is nowhere.
        let whole = self.in_sync().filter(|&it| it != leg);
        let whole: Vec<usize> = whole.collect();
        let now = core::mem::replace(&mut self.disks[leg], old);
        match self.is_found(leg, &whole) {
            Some(what) => {
                self.disks[leg].life = now.life + 1;
                self.disks[leg].bytes = now.bytes;
                self.put_back.push(leg);
                self.count(what);
            }
            None => self.old = Some((leg, core::mem::replace(&mut self.disks[leg], now))),
        }
    }

    fn roles(&self) -> Option<(Assembly, Superblock)> {
        let given = self.disks.iter().map(Disk::chosen);
        let given: Vec<_> = given.map(|it| it.map(|it| it.superblock)).collect();
        let assembly = assemble(&given, Wishes::default()).ok()?;
        let newest = given[assembly.newest].ok()?;
        Some((assembly, newest))
    }

    /// Legs that are in sync now.
    fn in_sync(&self) -> impl Iterator<Item = usize> {
        let roles = self.roles().map(|it| it.0.roles).unwrap_or_default();
        let in_sync = (0..).zip(roles).filter(|it| it.1 == Role::InSync);
        in_sync.map(|it| it.0)
    }

    /// How the leg is found that was put back, where others are `whole`.
    fn is_found(&self, leg: usize, whole: &[usize]) -> Option<&'static str> {
        let (assembly, newest) = self.roles()?;
        // The leg itself was in sync, or it would prove nothing.
        if newest.state(leg as u8) != Some(EntryState::InSync) {
            return None;
        }
        let in_sync = |at: &usize| assembly.roles[*at] == Role::InSync && whole.contains(at);
        let first = (0..self.disks.len()).find(in_sync)?;
        let marked = self.disks[first].intents();
        let same = |block: usize| {
            let region = (block / REGION_BLOCKS) as u64;
            let same = self.disks[first].block(block) == self.disks[leg].block(block);
            same || marked.is_set(region)
        };
        let old = self.disks[leg].chosen().ok()?.superblock;
        match assembly.roles[leg] {
            Role::Behind {
                why: Why::RolledBack,
                ..
            } => Some("rolled back"),
            _ if old.event + 1 == newest.event && (0..self.blocks).all(same) => Some("lags"),
            _ => None,
        }
    }
}
