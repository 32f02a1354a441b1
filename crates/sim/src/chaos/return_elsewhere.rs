//! Clients that are cut off while a core stands still, and return to the others.
//!
//! Decides, from a plan and its seed, in which worlds that happens: to a host with applications on
//! several cores. The core that stands still has neither read the last requests of its clients nor
//! the ends of their connections. A client that returns to another core repeats these requests, so
//! it may be greeted only once the first one has dealt with them (T9).
use super::prelude::*;

/// One of so many of those worlds has some, and how many.
const ONE_OF: u64 = 2;
const EACH: u64 = 2;
/// A core stands still at least so long, and up to twice that.
const STILL_NS: u64 = 600 * MS;
/// Its clients are cut off at most so much later: by then they wait for it with all their requests.
const CUT_NS: u64 = 300 * MS;

/// A plan, perhaps with that in it.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    let layout = &plan.layout;
    let (hosts, cores) = (layout.hosts as u64, u64::from(layout.cores));
    if layout.habit.homes == 1 || random.up_to(ONE_OF - 1) > 0 {
        return;
    }
    for _ in 0..EACH {
        let at_ns = random.up_to(WINDOW_NS);
        let host = random.up_to(hosts - 1);
        let core = random.up_to(cores - 1);
        let lasts_ns = STILL_NS + random.up_to(STILL_NS);
        plan.add(Kind::FreezeHost, at_ns, lasts_ns, 64 * core + host);
        // All connections of the host's applications.
        plan.add(
            Kind::ClientReset,
            at_ns + random.up_to(CUT_NS),
            5 * MS,
            host,
        );
    }
}
