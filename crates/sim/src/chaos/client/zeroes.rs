//! Blocks of an application's own that it also zeroes and deallocates: these have no place in the
//! history, for zeroes of several requests are alike.
//!
//! # Contract
//! No two requests of one of these blocks are under way together, nor is one beside a change that
//! was cut off and may be executed yet. So a read returns what the last change left there, or what
//! those since then may have left that failed. A block that was deallocated has zeroes, or what it
//! had before.
//!
//! # Limits
//! Where caches may be lost, everything that was ever there may be there again: flushes are not
//! taken into account.
use super::session::RequestError;
use super::{Begun, Orphan};
use crate::chaos::disk::tag;
use crate::chaos::prelude::*;
use alloc::format;
use alloc::vec;
use nbd::Kind;

/// How many an application has.
pub const ZEROED: u64 = 8;
/// One request in so many is of these.
const ONE_OF: u64 = 8;

/// Those of one application.
pub(super) struct Zeroes {
    /// Their numbers.
    range: Range<u64>,
    /// Values that each may hold.
    may_hold: Vec<BTreeSet<u64>>,
    caches: bool,
}

impl Zeroes {
    /// Blocks with zeroes, from `first` on; `caches`: they may be lost.
    pub fn new(first: u64, caches: bool) -> Self {
        Self {
            range: first..first + ZEROED,
            may_hold: vec![BTreeSet::from([BLANK.0]); ZEROED as usize],
            caches,
        }
    }

    /// Whether they are the blocks of a request.
    pub fn has(&self, request: &Request, unit: u64) -> bool {
        request.length > 0 && self.range.contains(&(request.offset / unit))
    }

    fn possible(&mut self, block: u64) -> &mut BTreeSet<u64> {
        &mut self.may_hold[(block - self.range.start) as usize]
    }

    /// A change of some of them has ended. A write leaves `tag` in the first one, and the tags that
    /// follow in the others.
    fn changed(&mut self, blocks: Range<u64>, kind: Kind, tag: u64, done: bool) {
        let first = blocks.start;
        for block in blocks {
            let caches = self.caches;
            let possible = self.possible(block);
            if done && kind != Kind::Trim && !caches {
                possible.clear();
            }
            possible.insert(match kind {
                Kind::Write => tag + (block - first),
                _ => BLANK.0,
            });
        }
    }
}

impl Client {
    /// A request of these blocks, where there are some that nothing is under way to.
    pub(super) fn draw_zeroes(&mut self, token: u32, now_ns: u64) -> Option<Begun> {
        let range = self.zeroes.as_ref()?.range.clone();
        if self.random.up_to(ONE_OF - 1) > 0 {
            return None;
        }
        let count = 1 + self.random.up_to(ZEROED - 1);
        let first = range.start + self.random.up_to(ZEROED - count);
        let kind = match self.random.up_to(7) {
            0 | 1 => Kind::WriteZeroes,
            2 => Kind::Trim,
            3 | 4 => Kind::Write,
            _ => Kind::Read,
        };
        if self.is_under_way(first..first + count) {
            return None;
        }
        let unit = self.habit.unit;
        let tag = self.number << 48 | self.writes << 6;
        self.writes += u64::from(kind == Kind::Write);
        let fua = kind == Kind::Write && self.random.up_to(15) == 0;
        let request = Request {
            fua,
            ..Request::new(token, kind, first * unit, (count * unit) as u32)
        };
        Some(Begun {
            request,
            start_ns: now_ns,
            tag,
        })
    }

    /// Whether a request of some of these blocks has not ended, or may be executed yet.
    fn is_under_way(&self, blocks: Range<u64>) -> bool {
        let unit = self.habit.unit;
        let all = self.conns.iter().flat_map(|it| it.requests.iter());
        let mut begun = all.flatten().map(|it| {
            let first = it.request.offset / unit;
            first..first + u64::from(it.request.length) / unit
        });
        let meets = |it: &Range<u64>| it.start < blocks.end && blocks.start < it.end;
        let orphan = |it: &Orphan| meets(&it.blocks);
        begun.any(|it| meets(&it)) || self.orphans.iter().any(orphan)
    }

    /// A request of these blocks has ended, and is no orphan.
    pub(super) fn zeroes_ended(
        &mut self,
        conn: usize,
        begun: &Begun,
        result: Result<(), RequestError>,
        memory: &dyn Memory,
    ) {
        let (request, unit) = (begun.request, self.habit.unit);
        let first = request.offset / unit;
        let blocks = first..first + u64::from(request.length) / unit;
        let span = self.span(conn, request.token, 0, request.length);
        let Some(zeroes) = &mut self.zeroes else {
            unreachable!("a request of blocks that there are not");
        };
        if request.kind.is_change() {
            return zeroes.changed(blocks, request.kind, begun.tag, result.is_ok());
        }
        if result.is_err() {
            return;
        }
        for (block, bytes) in blocks.zip(memory.bytes(span).chunks(unit as usize)) {
            let seen = tag(bytes).0;
            let possible = zeroes.possible(block);
            if !possible.contains(&seen) {
                let what = format!("block {block} has {seen:#x}, and may have {possible:x?}");
                self.wrong.get_or_insert(what);
                return;
            }
        }
        self.zeroes_judged = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_hold(caches: bool, changes: &[(Kind, u64, bool)]) -> Vec<u64> {
        let mut zeroes = Zeroes::new(40, caches);
        for &(kind, tag, done) in changes {
            zeroes.changed(40..42, kind, tag, done);
        }
        zeroes.possible(41).iter().copied().collect()
    }

    #[test]
    fn a_block_holds_what_was_left_last() {
        let write = |tag, done| (Kind::Write, tag, done);
        assert_eq!(may_hold(false, &[]), [0]);
        assert_eq!(may_hold(false, &[write(8, true)]), [9]);
        assert_eq!(
            may_hold(false, &[write(8, true), write(64, false)]),
            [9, 65]
        );
        let zeroed = [write(8, true), (Kind::WriteZeroes, 0, true)];
        assert_eq!(may_hold(false, &zeroed), [0]);
        assert_eq!(may_hold(true, &zeroed), [0, 9], "it was in a cache");
        let hint = [write(8, true), (Kind::Trim, 0, true)];
        assert_eq!(may_hold(false, &hint), [0, 9], "a hint");
    }
}
