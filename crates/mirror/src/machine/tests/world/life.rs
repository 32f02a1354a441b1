//! Events in a life of a mirror, and its end.
use super::super::super::legs::SLOTS;
use super::*;
use crate::{Id, Label};
use alloc::vec::Vec;

impl World {
    fn draw_leg(&mut self) -> usize {
        self.seed.below(self.disks.len() as u64) as usize
    }

    /// Time passes; writes that are late are executed, or never will be.
    fn pass(&mut self, mirror: &mut Mirror) {
        self.now_ns += match self.draw(3) {
            0 => self.draw(SECOND_NS / 10),
            1 => self.draw(3 * SECOND_NS),
            _ => {
                let next = mirror.poll_timeout();
                next.map_or(0, |at| at.saturating_sub(self.now_ns).min(10 * SECOND_NS))
            }
        };
        for leg in 0..self.disks.len() {
            self.late(leg);
        }
        mirror.handle_timeout(self.now_ns);
        self.poll(mirror);
    }

    fn late(&mut self, leg: usize) {
        self.expire(leg);
        if !self.disks[leg].late.is_empty() && self.draw(3) == 0 {
            let (given, _) = self.disks[leg].late.remove(0);
            self.apply(leg, &given);
        }
    }

    /// A request that is late for too long is never executed.
    fn expire(&mut self, leg: usize) {
        let now_ns = self.now_ns;
        self.disks[leg].late.retain(|it| it.1 > now_ns);
    }

    /// A leg goes away, or comes back.
    fn move_leg(&mut self, mirror: &mut Mirror) {
        let leg = self.draw_leg();
        let others = (0..self.disks.len())
            .filter(|&it| it != leg && !self.disks[it].away)
            .count();
        let disk = &mut self.disks[leg];
        if disk.away || !disk.found {
            disk.sick = false;
            let (is_away, takes) = (disk.away, mirror.may_read(leg as u8));
            match self.draw(4) {
                // It can be reached, and is not to return yet.
                0 if is_away && !takes => {
                    self.disks[leg].away = false;
                    mirror.spare_found(leg as u8, self.now_ns);
                }
                1 if !is_away && others > 0 => {
                    self.disks[leg].away = true;
                    self.disks[leg].life += 1;
                    if self.draw(2) == 0 {
                        mirror.leg_lost(leg as u8, self.now_ns);
                    }
                }
                _ => self.come_back(mirror, leg),
            }
        } else if others > 0 {
            disk.away = true;
            disk.life += 1;
            if self.draw(2) == 0 {
                mirror.leg_lost(leg as u8, self.now_ns);
            }
            // Its power failed besides.
            if !mirror.may_read(leg as u8) && self.draw(2) == 0 {
                self.lose_cache(leg);
            }
        }
        self.poll(mirror);
    }

    fn come_back(&mut self, mirror: &mut Mirror, leg: usize) {
        let disk = &mut self.disks[leg];
        (disk.away, disk.found) = (false, true);
        if mirror.may_read(leg as u8) && self.unfenced {
            return;
        }
        if mirror.may_read(leg as u8) {
            // It has never left: whoever has its paths waited for what was under way.
            for (given, _) in core::mem::take(&mut self.disks[leg].late) {
                if self.draw(2) == 0 {
                    self.apply(leg, &given);
                }
            }
            return;
        }
        let late = disk.late.iter().map(|it| it.1);
        let fence_ns = late.max().unwrap_or(self.now_ns);
        mirror.leg_found(leg as u8, fence_ns, self.now_ns);
    }

    fn lose_cache(&mut self, leg: usize) {
        for (block, version) in core::mem::take(&mut self.disks[leg].cache) {
            // Data read from a cache need not stay.
            self.read[block] = None;
            if self.draw(2) == 0 {
                self.disks[leg].blocks[block] = version;
            }
        }
    }

    /// A leg hangs, and maybe is taken out for that; or one that hung goes on.
    fn hang(&mut self, mirror: &mut Mirror) {
        let leg = self.draw_leg();
        let hung = self.disks[leg].hung || self.disks[leg].away;
        self.disks[leg].hung = !hung;
        if hung || self.draw(2) == 0 {
            return;
        }
        for _ in 0..self.draw(20) {
            match self.draw(3) {
                0 => self.submit(mirror),
                _ => self.end_one(mirror),
            }
            self.poll(mirror);
        }
        mirror.leg_lost(leg as u8, self.now_ns);
        self.poll(mirror);
        if (0..self.disks.len()).all(|leg| self.finish_change(mirror, leg)) {
            self.drop_left_legs(mirror);
        }
    }

    /// Whether a leg does not hang, or gets nothing.
    fn finish_change(&self, mirror: &Mirror, leg: usize) -> bool {
        !self.disks[leg].hung || !mirror.may_read(leg as u8)
    }

    /// A change ends, whatever requests legs have that left and hang.
    fn drop_left_legs(&mut self, mirror: &mut Mirror) {
        let changes = |asked: &Asked| !matches!(asked.request, Request::Read(_));
        for step in 0..4000 {
            if !self.asked.values().any(changes) {
                break;
            }
            let ends: Vec<usize> = (0..self.given.len())
                .filter(|&at| !self.hangs(at))
                .collect();
            // In turn: a copy that fails and begins anew holds up nobody else's.
            match ends.get(step % ends.len().max(1)) {
                Some(&at) => self.end_at(mirror, at),
                None => {
                    let next = mirror.poll_timeout();
                    self.now_ns = self.now_ns.max(next.unwrap_or(self.now_ns));
                    mirror.handle_timeout(self.now_ns);
                    self.poll(mirror);
                }
            }
        }
        let waits = self.asked.values().any(changes);
        // One that is new may have begun to return.
        let left = (0..self.disks.len()).all(|leg| self.finish_change(mirror, leg));
        self.claim(!waits || !left, "a change waits for a leg that has left");
        self.count("went on");
    }

    /// Legs that say nothing are replaced, and where one is missing a new one is added.
    fn look_after(&mut self, mirror: &mut Mirror) {
        while let Some(leg) = self.replaced.pop() {
            let _ = mirror.remove_leg(leg, self.now_ns);
        }
        for leg in 0..self.disks.len() {
            let entry = mirror.superblock().legs[leg];
            let quiet = mirror.facts(leg as u8).is_none_or(|it| it.in_flight == 0);
            let waits =
                mirror.changes.adding.has(leg as u8) || mirror.changes.removing.has(leg as u8);
            if entry.is_none() && quiet && !waits {
                self.ids += 1;
                let id = Id((u128::from(self.ids) << 64).to_le_bytes());
                self.disks[leg].replace();
                (self.disks[leg].away, self.disks[leg].found) = (false, true);
                self.disks[leg].bytes = PLACE.leg_bytes;
                let slot =
                    mirror.add_leg(id, Label::default(), PLACE, Legs::default(), self.now_ns);
                let later = mirror.stop.is_begun() || mirror.changes.growth.is_some();
                self.claim(later || slot == Ok(leg as u8), "a leg is not added");
            }
        }
        self.poll(mirror);
    }

    /// A block can't be read any more, on one leg at most.
    fn spoil(&mut self) {
        let all = self.blocks as u64;
        let (leg, block) = (self.draw_leg(), self.draw(all) as usize);
        if self.disks.iter().all(|disk| !disk.bad.contains(&true)) {
            self.disks[leg].bad[block] = true;
        }
    }

    /// A leg that gets no writes has all that its set does not name, and the union on the legs has
    /// all that it names.
    fn inspect_missed(&mut self, mirror: &Mirror) {
        let Some(first) = mirror.legs.in_sync().first() else {
            return;
        };
        let first = usize::from(first);
        let spoilt = self.refuses || self.disks.iter().any(|disk| disk.bad.contains(&true));
        for leg in SLOTS.filter(|&leg| !mirror.legs.writable().has(leg)) {
            let missed = mirror.legs.get(leg).and_then(Leg::missed);
            let position = match mirror.superblock().state(leg) {
                Some(EntryState::Stale(lack) | EntryState::Rebuilding(lack)) => lack.position,
                Some(EntryState::InSync) => u64::MAX,
                None => continue,
            };
            let (Some(missed), leg) = (missed, usize::from(leg)) else {
                continue;
            };
            for block in 0..self.blocks {
                let region = (block / REGION_BLOCKS) as u64;
                let marked = mirror.log.is_dirty(region) || mirror.unreadable.has(region);
                let lacks = missed.is_set(region) || block as u64 * BLOCK >= position;
                let same = self.disks[leg].block(block) == self.disks[first].block(block);
                let noted = marked || !missed.is_set(region);
                self.claim(noted, "what a leg lacks is not marked");
                self.claim(lacks || same || spoilt, "a leg lacks what is not noted");
            }
        }
    }

    /// While a leg is rebuilt another one is away, for a moment in which hardly anything is
    /// written; then perhaps the last leg in sync can't read a block.
    fn blink(&mut self, mirror: &mut Mirror) {
        let leg = self.draw_leg();
        let rebuilt = mirror.legs.rebuilding().count();
        let others = mirror.legs.in_sync().without(Legs::one(leg as u8));
        if rebuilt == 0
            || others.is_empty()
            || !mirror.legs.in_sync().has(leg as u8)
            || self.disks[leg].away
        {
            return;
        }
        self.disks[leg].away = true;
        self.disks[leg].life += 1;
        mirror.leg_lost(leg as u8, self.now_ns);
        self.poll(mirror);
        if self.draw(2) == 0 {
            self.lose_cache(leg);
        }
        for _ in 0..self.draw(6) {
            match self.draw(4) {
                0 => self.submit(mirror),
                _ => self.end_one(mirror),
            }
            self.poll(mirror);
        }
        self.come_back(mirror, leg);
        self.count("blinks");
        let spoilt = self.disks.iter().any(|disk| disk.bad.contains(&true));
        if others.count() == 1 && !spoilt && self.draw(2) == 0 {
            let block = self.draw(self.blocks as u64) as usize;
            let other = others.first().map_or(0, usize::from);
            self.disks[other].bad[block] = true;
        }
    }

    /// A leg can't write a block any more, or can write all again.
    fn refuse(&mut self) {
        let all = self.blocks as u64;
        let (leg, block) = (self.draw_leg(), self.draw(all) as usize);
        match self.draw(3) {
            0 => self.disks[leg].refused = [false; BLOCKS_MAX],
            _ => self.disks[leg].refused[block] = true,
        }
    }

    /// A leg becomes larger, or the mirror as large as its legs allow.
    fn grow(&mut self, mirror: &mut Mirror) {
        let leg = self.draw_leg();
        let blocks = [BLOCKS + 3, BLOCKS_MAX][self.draw(2) as usize] as u64;
        let disk = &mut self.disks[leg];
        disk.bytes = disk.bytes.max(PLACE.data_offset + blocks * BLOCK);
        let mut sizes = [0; crate::limits::LEGS_MAX];
        for (size, disk) in sizes.iter_mut().zip(&self.disks) {
            // More than that has no name here.
            *size = disk
                .bytes
                .min(PLACE.data_offset + BLOCKS_MAX as u64 * BLOCK);
        }
        if mirror.grow(&sizes, self.now_ns).is_ok() {
            self.count("grows");
        }
    }

    /// The power fails, or only the engine ends: of what is under way anything may have been done.
    fn crash(&mut self) {
        for (ticket, given, _) in core::mem::take(&mut self.given) {
            let leg = usize::from(ticket.leg);
            match (self.draw(8), &given) {
                (0..4, _) => self.apply(leg, &given),
                (4, Given::Superblock(copy, bytes)) => {
                    let mut torn = bytes.clone();
                    torn[512..].fill(0);
                    self.disks[leg].copies[usize::from(*copy)] = torn;
                }
                (4, Given::Page(_)) => self.disks[leg].page.fill(7),
                (5.., _) if self.inherits => {
                    self.disks[leg].late.push((given, self.now_ns + FENCE_NS));
                }
                (4, Given::Io(Request::Write(range, fua), version)) => {
                    let part = Range::new(range.start, BLOCK);
                    self.apply(leg, &Given::Io(Request::Write(part, *fua), *version));
                }
                _ => {}
            }
        }
        let power = self.draw(2) == 0;
        for leg in 0..self.disks.len() {
            self.expire(leg);
            while let Some((given, _)) = self.disks[leg].late.pop_if(|_| !self.inherits) {
                if self.draw(2) == 0 {
                    self.apply(leg, &given);
                }
            }
            if power {
                self.lose_cache(leg);
            }
        }
        self.asked.clear();
        // Data that was only read from a cache may be gone.
        for block in 0..self.blocks {
            if self.written[block] {
                self.read[block] = None;
            }
        }
    }

    /// From an assembly to the next crash, or to rest.
    pub fn live(&mut self) {
        let mask = self.seed.below(2 << self.disks.len()) as usize;
        let some: Vec<usize> = (0..self.disks.len())
            .filter(|leg| mask >> leg & 1 == 1)
            .collect();
        let all: Vec<usize> = (0..self.disks.len()).collect();
        if self.copies && self.draw(2) == 0 {
            self.put_back();
        }
        // An old copy without those that have more than it says nothing of what it lacks.
        let present = if mask >> self.disks.len() == 1 && !self.copies {
            &some
        } else {
            &all
        };
        let Some(mut mirror) = self.assembled(present).or_else(|| self.assembled(&all)) else {
            return;
        };
        self.poll(&mut mirror);
        let wild = self.draw(3);
        if wild == 1 {
            let leg = self.draw_leg();
            self.disks[leg].sick = true;
            let other = self.draw_leg();
            self.disks[other].sick |= self.draw(4) == 0;
        }
        for _ in 0..self.draw(500) {
            match self.draw(40) {
                0..10 => self.submit(&mut mirror),
                10..14 => self.pass(&mut mirror),
                14 if wild > 0 => self.move_leg(&mut mirror),
                15 if self.draw(8) == 0 => self.spoil(),
                17 if wild > 0 && self.draw(16) == 0 => {
                    let leg = self.draw_leg() as u8;
                    let _ = mirror.remove_leg(leg, self.now_ns);
                }
                18 => self.look_after(&mut mirror),
                19 if self.grows => self.grow(&mut mirror),
                20 if self.hang => self.hang(&mut mirror),
                21 if self.copies && self.draw(8) == 0 => self.copy_leg(),
                22..24 if self.blinks && self.draw(2) == 0 => self.blink(&mut mirror),
                22 if self.refuses && self.draw(4) == 0 => self.refuse(),
                16 if self.draw(16) == 0 => mirror.check(self.seed.below(2) == 0, self.now_ns),
                _ => self.end_one(&mut mirror),
            }
            self.poll(&mut mirror);
            self.inspect_missed(&mirror);
            if self.finding.is_some() {
                return;
            }
        }
        match self.draw(4) {
            0 => self.rest(&mut mirror),
            1 => {
                self.stop(&mut mirror);
                if self.copies {
                    self.copy_leg();
                }
            }
            _ => {}
        }
        if self.stopped.is_none() {
            self.crash();
        }
    }

    /// No more faults: all ends, all legs return, and all are the same.
    fn rest(&mut self, mirror: &mut Mirror) {
        for leg in 0..self.disks.len() {
            (self.disks[leg].sick, self.disks[leg].hung) = (false, false);
            self.come_back(mirror, leg);
        }
        let refuses = self.refuses && self.draw(2) == 0;
        for disk in self.disks.iter_mut().filter(|_| !refuses) {
            disk.refused = [false; BLOCKS_MAX];
        }
        for step in 0..4000 {
            while !self.given.is_empty() {
                self.end_one(mirror);
            }
            for leg in 0..self.disks.len() {
                self.late(leg);
                if !self.disks[leg].found {
                    self.come_back(mirror, leg);
                }
            }
            self.poll(mirror);
            self.look_after(mirror);
            let calm = self.given.is_empty() && self.asked.is_empty() && mirror.diverged() == 0;
            if step > 20 && calm && mirror.legs.in_sync().count() as usize == self.disks.len() {
                break;
            }
            if self.given.is_empty() {
                let next = mirror.poll_timeout();
                self.now_ns = self.now_ns.max(next.unwrap_or(self.now_ns));
                mirror.handle_timeout(self.now_ns);
                self.poll(mirror);
            }
        }
        if mirror.update.is_broken() {
            return;
        }
        self.claim(self.asked.is_empty(), "all has ended, and something waits");
        let lost = self.happened.contains_key("lost");
        // More of it is bad than can be recorded.
        let full = |leg: u8| mirror.facts(leg).is_some_and(|it| it.bad_full);
        let full = (0..self.disks.len() as u8).any(full);
        let lost = lost || full;
        let whole = mirror.superblock().in_sync().count() == self.disks.len()
            || lost
            || !mirror.startup.has_proposed();
        self.claim(whole, "a rebuild does not end");
        let first = mirror.legs.in_sync().first().map_or(0, usize::from);
        for block in 0..self.blocks {
            for leg in mirror.legs.in_sync().iter().map(usize::from) {
                let same = self.disks[first].block(block) == self.disks[leg].block(block);
                let bad = self.disks.iter().any(|disk| disk.bad[block]);
                let range = Range::new(block as u64 * BLOCK, BLOCK);
                let unwritten = [first as u8, leg as u8]
                    .iter()
                    .any(|leg| mirror.bad.is_bad(*leg, range));
                let marked = mirror.log.is_dirty((block / REGION_BLOCKS) as u64) && lost;
                let known = unwritten || marked;
                self.claim(same || bad || known, "legs differ at rest");
            }
        }
        self.count("rest");
    }

    /// A clean stop.
    fn stop(&mut self, mirror: &mut Mirror) {
        self.disks.iter_mut().for_each(|disk| disk.hung = false);
        mirror.stop(self.now_ns);
        for _ in 0..4000 {
            self.poll(mirror);
            if self.stopped.is_some() {
                break;
            }
            match self.given.is_empty() {
                true => self.pass(mirror),
                false => self.end_one(mirror),
            }
        }
        let Some(clean) = self.stopped else {
            return self.claim(false, "a stop does not end");
        };
        // A leg that is only looked at as a spare is not waited for.
        let spares = |it: &(Ticket, Given, u64)| it.0.is_of_spare();
        self.claim(
            self.given.iter().all(spares) && self.asked.is_empty(),
            "stopped too early",
        );
        self.last_clean = clean && !mirror.update.is_broken();
        if clean && mirror.startup.has_proposed() && !mirror.update.is_broken() {
            self.kept = self.acked;
            self.count("clean");
        }
        // A request that may be late when no host waits for it was fenced by the leg's owner.
        self.given.clear();
        for leg in 0..self.disks.len() {
            self.expire(leg);
            while let Some((given, _)) = self.disks[leg].late.pop() {
                if self.draw(2) == 0 {
                    self.apply(leg, &given);
                }
            }
            if self.draw(2) == 0 {
                self.lose_cache(leg);
            }
        }
        self.asked.clear();
    }
}
