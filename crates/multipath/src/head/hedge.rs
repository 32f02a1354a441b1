//! A second copy of a read that is late: see [`Selector::hedge`](policy::Selector::hedge).

use super::Head;
use policy::{Completion, Ended, Group, Hedge, PathIndex, Request, Ticket};

impl Head {
    /// A copy for which nobody waits any more was not sent, or was taken back: nothing is learnt of
    /// `path`, and nothing is held against it (T41, T43).
    #[cold]
    pub fn dropped(&mut self, path: PathIndex, group: Group, now_ns: u64, ticket: Ticket) {
        let noted = self.selector.complete(&Completion {
            path,
            group,
            latency_ns: 0,
            ended: Ended::Dropped,
            now_ns,
            ticket,
            gap_ns: self.gap_ns,
        });
        if self.trials.out != 0 {
            self.end_trial(path, &ticket, false);
        }
        self.weigh |= noted.weigh;
    }

    /// Whether reads are to be asked about: see [`Selector::hedges`](policy::Selector::hedges).
    pub fn hedges(&self) -> bool {
        self.selector.hedges()
    }

    /// How long after it was placed an I/O is worth a look for a second copy, ns: see
    /// [`Selector::look_after_ns`](policy::Selector::look_after_ns).
    #[inline]
    pub fn look_after_ns(&self, path: PathIndex, ticket: &Ticket) -> Option<u64> {
        self.selector.look_after_ns(path, ticket)
    }

    /// Whether a read that is late gets a second copy now, on a path that may be used: see
    /// [`Selector::hedge`](policy::Selector::hedge). The copy, too, is answered by one
    /// [`Head::complete`].
    pub fn hedge(
        &mut self,
        request: &Request,
        path: PathIndex,
        ticket: &Ticket,
        age_ns: u64,
    ) -> Hedge {
        self.trials.begun = false;
        let views = &self.views;
        self.selector.hedge(request, views, path, ticket, age_ns)
    }

    /// As [`Head::hedge`], among the paths for which `allow` holds.
    #[cold]
    pub fn hedge_among(
        &mut self,
        request: &Request,
        path: PathIndex,
        ticket: &Ticket,
        age_ns: u64,
        allow: impl Fn(PathIndex) -> bool,
    ) -> Hedge {
        self.among_only(allow, |it| it.hedge(request, path, ticket, age_ns))
    }

    /// Whether [`Head::hedge_among`] would send a copy; nothing is booked.
    #[cold]
    pub fn would_hedge_among(
        &mut self,
        request: &Request,
        path: PathIndex,
        ticket: &Ticket,
        age_ns: u64,
        allow: impl Fn(PathIndex) -> bool,
    ) -> bool {
        self.among_only(allow, |it| {
            let views = &it.views;
            it.selector
                .would_hedge(request, views, path, ticket, age_ns)
        })
    }

    /// Asks something with only the paths usable for which `allow` holds.
    fn among_only<T>(
        &mut self,
        allow: impl Fn(PathIndex) -> bool,
        ask: impl FnOnce(&mut Self) -> T,
    ) -> T {
        for (path, view) in (0_u8..).zip(&mut self.views) {
            view.enabled &= allow(PathIndex(path));
        }
        let answer = ask(self);
        self.show();
        answer
    }
}
