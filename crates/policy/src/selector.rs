//! The selector: one core's choice among the paths of one volume, whatever the policy.
//!
//! It owns the counts of I/Os in flight and of selections, and passes each decision to the policy
//! in force. I/Os in flight are counted under every policy: the counts balance across a switch, and
//! `queue-depth` knows the load from its first I/O on (T41).
//!
//! # Limits
//! [`PATHS_MAX`] paths; [`PATH_STATE_BYTES_MAX`] bytes of state per path.

use core::fmt;

use crate::explain::Explained;
use crate::historical_service_time::HistoricalServiceTime;
use crate::latency::Latency;
use crate::limits::{BUCKETS, CELLS, PATH_STATE_BYTES_MAX, PATHS_MAX};
use crate::parse::KnobError;
use crate::program::{self, Choice, Program, ProgramId, ProgramSlot};
use crate::round_robin::RoundRobin;
use crate::service_time::ServiceTime;
use crate::soonest::Soonest;
use crate::types::*;
use crate::weighted_latency::{self, WeightedLatency};
use crate::{devid, numa, pid, queue_depth, round_robin_latency};
use alloc::boxed::Box;

/// The selector of one core: the state of one policy over the paths of one volume.
///
/// Holds no clock and takes no lock; one core owns it. The caller passes the state of the paths
/// ([`PathView`]) with every selection, and reports every end of an I/O with
/// [`Selector::complete`].
#[derive(Clone, Debug)]
pub struct Selector {
    policy: Policy,
    knobs: Knobs,
    paths: usize,
    /// Those that are there, one bit each: see [`Selector::set_present`].
    present: u64,
    /// More than one of them.
    has_others: bool,
    pub(crate) in_flight: [u32; PATHS_MAX],
    /// By cell as of `weighted`, and path.
    selections: [[u64; PATHS_MAX]; CELLS],
    pub(crate) round_robin: RoundRobin,
    pub(crate) weighted: WeightedLatency,
    pub(crate) soonest: Soonest,
    pub(crate) latency: Latency,
    pub(crate) service_time: ServiceTime,
    pub(crate) historical: HistoricalServiceTime,
    /// Of `program`; none until it is loaded.
    program: ProgramSlot,
    /// Epoch of `program`: it learns the ends of no I/Os from before it was given. It wraps.
    program_epoch: u8,
    /// The program in whose place `soonest` chooses.
    taken_out: Option<ProgramId>,
    /// Of the I/O placed last.
    ticket: Ticket,
}

const _: () = assert!(size_of::<Selector>() <= PATHS_MAX * PATH_STATE_BYTES_MAX);

/// A volume has at most [`PATHS_MAX`] paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyPaths(
    /// Number asked for.
    pub usize,
);

impl Selector {
    /// A selector for `paths` paths (0…[`PATHS_MAX`]), with `policy` and default knobs.
    ///
    /// # Panics
    /// With more than [`PATHS_MAX`] paths; configurations are checked before.
    pub fn new(paths: usize, policy: Policy) -> Self {
        assert!(paths <= PATHS_MAX, "at most {PATHS_MAX} paths");
        Self {
            policy,
            knobs: Knobs::default(),
            paths,
            present: first(paths),
            has_others: paths > 1,
            in_flight: [0; PATHS_MAX],
            selections: [[0; PATHS_MAX]; CELLS],
            round_robin: RoundRobin::default(),
            weighted: WeightedLatency::new(1),
            soonest: Soonest::new(1),
            latency: Latency::default(),
            service_time: ServiceTime::new(1),
            historical: HistoricalServiceTime::default(),
            program: ProgramSlot::default(),
            program_epoch: 0,
            taken_out: None,
            ticket: Ticket::default(),
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Changes the policy. The state of the old one and the statistics are cleared; in-flight
    /// counts stay (T41). Setting the policy in force changes nothing, nor does a program that was
    /// taken out: it has to be [given](Self::set_program) again.
    pub fn set_policy(&mut self, policy: Policy) {
        if matches!((policy, self.taken_out), (Policy::Program(id), Some(out)) if id == out) {
            return;
        }
        self.taken_out = None;
        if policy == self.policy {
            return;
        }
        let (in_flight, knobs) = (self.in_flight, self.knobs);
        let (present, has_others) = (self.present, self.has_others);
        let (epoch, program_epoch) = (self.soonest.next_epoch(), self.program_epoch);
        *self = Self {
            in_flight,
            knobs,
            present,
            has_others,
            soonest: Soonest::new(epoch),
            service_time: ServiceTime::new(epoch),
            weighted: WeightedLatency::new(epoch),
            program_epoch,
            ..Self::new(self.paths, policy)
        };
    }

    /// Changes the policy to a program, at once with what runs it.
    pub fn set_program(&mut self, id: ProgramId, program: Box<dyn Program>) {
        self.taken_out = None;
        self.set_policy(Policy::Program(id));
        self.program = ProgramSlot(Some(program));
        self.program_epoch = self.program_epoch.wrapping_add(1);
    }

    /// Whether late reads may get a second copy, so that the caller has to ask about reads.
    pub fn hedges(&self) -> bool {
        self.paths > 1 && self.knobs.hedging.works(self.policy)
    }

    /// Knobs.
    pub fn knobs(&self) -> Knobs {
        self.knobs
    }

    /// Changes the knobs of weighted-latency, from the next completion on.
    ///
    /// # Errors
    /// A value is out of range; the old ones stay.
    pub fn set_knobs(&mut self, knobs: Knobs) -> Result<(), KnobError> {
        knobs.check()?;
        self.knobs = knobs;
        Ok(())
    }

    /// Number of paths.
    pub fn paths(&self) -> usize {
        self.paths
    }

    /// The volume has `paths` paths now. New ones, at the end, start unmeasured; removed ones are
    /// forgotten, but their I/Os in flight still end with [`Self::complete`]. An index should be
    /// used again only after that, or the latencies of the old path's last I/Os count as the new
    /// one's.
    ///
    /// # Errors
    /// [`TooManyPaths`]; nothing changes.
    pub fn set_paths(&mut self, paths: usize) -> Result<(), TooManyPaths> {
        if paths > PATHS_MAX {
            return Err(TooManyPaths(paths));
        }
        for path in paths..self.paths {
            self.reset_path(PathIndex(path as u8));
        }
        let added = first(paths) & !first(self.paths);
        self.paths = paths;
        self.show_present((self.present | added) & first(paths));
        self.round_robin.truncate(paths);
        self.weighted.truncate(paths);
        Ok(())
    }

    /// Whether there is a path of this index: the table may have vacant places. All are there at
    /// first. While one path is left weighted-latency takes no samples (row A2).
    pub fn set_present(&mut self, path: PathIndex, is_present: bool) {
        if usize::from(path.0) < self.paths {
            let bit = 1 << path.0;
            self.show_present(self.present & !bit | u64::from(is_present) << path.0);
        }
    }

    fn show_present(&mut self, present: u64) {
        self.present = present;
        self.has_others = present.count_ones() > 1;
    }

    /// As [`Self::select`] where there is no choice. It leaves the turn unchanged: otherwise
    /// flushes, which go to each path, would begin every round anew.
    #[cold]
    pub fn select_only(&mut self, request: &Request, paths: &[PathView]) -> Option<PathIndex> {
        let round_robin = self.round_robin;
        let chosen = self.select(request, paths);
        self.round_robin = round_robin;
        chosen
    }

    /// Chooses a path for `request`, or `None` when no path is usable. Counts the selection and
    /// raises the in-flight count of the chosen path: every `Some` is balanced by one
    /// [`Self::complete`].
    ///
    /// # Panics
    /// If `paths` does not hold one view for each path.
    pub fn select(&mut self, request: &Request, paths: &[PathView]) -> Option<PathIndex> {
        assert!(paths.len() == self.paths, "one view for each path");
        // `soonest` comes first, so that it is reached without a jump table.
        if self.policy == Policy::Soonest {
            return self.select_soonest(request, paths);
        }
        let chosen = match self.policy {
            Policy::Numa => numa::choose(paths),
            Policy::RoundRobin { bytes } => self.round_robin.choose(bytes, request.length, paths),
            Policy::QueueDepth => queue_depth::choose(paths, &self.in_flight),
            Policy::WeightedLatency(over) => {
                let cell = weighted_latency::cell(over.buckets, request.group, request.length);
                if over.buckets {
                    self.ticket = self.weighted.ticket(cell);
                }
                let chosen = self.weighted.choose(cell, paths)?;
                return Some(self.place(cell, chosen));
            }
            _ => self.choose_rarely(request, paths),
        }?;
        Some(self.place(request.group as usize, chosen))
    }

    /// Counts an I/O on its path.
    #[inline]
    fn place(&mut self, cell: usize, chosen: usize) -> PathIndex {
        self.in_flight[chosen] += 1;
        self.selections[cell][chosen] += 1;
        PathIndex(chosen as u8)
    }

    /// As [`Self::select`], and records the reasons.
    ///
    /// # Panics
    /// If `paths` does not hold one view for each path.
    #[cold]
    pub fn select_explained(
        &mut self,
        request: &Request,
        paths: &[PathView],
        out: &mut Explained,
    ) -> Option<PathIndex> {
        assert!(paths.len() == self.paths, "one view for each path");
        out.begin(self, request, paths);
        if self.policy != Policy::Soonest {
            let chosen = self.select(request, paths);
            out.end(chosen, None);
            return chosen;
        }
        let in_flight = &self.in_flight;
        let (placed, why) = self
            .soonest
            .choose_explained(request, paths, in_flight, out);
        let placed = placed.map(|(chosen, ticket)| {
            self.ticket = ticket;
            self.place(request.group as usize, chosen)
        });
        out.end(placed, why);
        placed
    }

    /// Selects by the policies for mirrors and those of device-mapper; a function of its own, to
    /// keep the others short.
    #[inline(never)]
    fn choose_rarely(&mut self, request: &Request, paths: &[PathView]) -> Option<usize> {
        match self.policy {
            Policy::Pid => pid::choose(request.source, paths),
            Policy::Devid(path) => devid::choose(path, paths),
            Policy::Latency => self.latency.choose(request, paths, &self.in_flight),
            Policy::RoundRobinLatency { bytes } => {
                let (latency, in_flight) = (&self.latency, &self.in_flight);
                let among = round_robin_latency::among(latency, request, paths, in_flight);
                let circle = &mut self.round_robin;
                round_robin_latency::choose(circle, bytes, among, request, paths.len())
            }
            Policy::HistoricalServiceTime => {
                self.historical
                    .choose(request.now_ns, paths, &self.in_flight)
            }
            Policy::Program(id) => self.choose_by_program(id, request, paths),
            _ => {
                let chosen = self.service_time.choose(request.length, paths)?;
                self.ticket = self.service_time.begin(chosen, request.length);
                Some(chosen)
            }
        }
    }

    fn choose_by_program(
        &mut self,
        id: ProgramId,
        request: &Request,
        paths: &[PathView],
    ) -> Option<usize> {
        self.ticket = Ticket {
            units: request.length,
            class: program::TICKET_CLASS,
            epoch: self.program_epoch,
            ..Ticket::default()
        };
        let in_flight = &self.in_flight[..self.paths];
        let answer = match &mut self.program.0 {
            Some(program) if paths.iter().any(PathView::usable) => {
                program.select(request, paths, in_flight)
            }
            _ => Choice::FallBack,
        };
        match answer {
            Choice::Path(chosen) => {
                assert!(paths[chosen].usable(), "a program's answer is checked");
                Some(chosen)
            }
            Choice::FallBack => queue_depth::choose(paths, &self.in_flight),
            Choice::TakenOut => {
                self.set_policy(Policy::Soonest);
                self.taken_out = Some(id);
                let (chosen, ticket) = self.soonest.place(request, paths, &self.in_flight)?;
                self.ticket = ticket;
                Some(chosen)
            }
        }
    }

    /// A function of its own, so that the others don't pay for its registers and its ticket.
    #[inline(never)]
    fn select_soonest(&mut self, request: &Request, paths: &[PathView]) -> Option<PathIndex> {
        let (chosen, ticket) = self.soonest.place(request, paths, &self.in_flight)?;
        self.ticket = ticket;
        Some(self.place(request.group as usize, chosen))
    }

    /// Returns how long after it was placed on `path` an I/O may be worth a second copy, ns.
    /// `None`: never. It is no read (T8), there is no other path, or this policy does not predict.
    #[inline]
    pub fn look_after_ns(&self, path: PathIndex, ticket: &Ticket) -> Option<u64> {
        let path = usize::from(path.0);
        if self.policy != Policy::Soonest || self.paths < 2 || path >= self.paths {
            return None;
        }
        self.soonest.look_after_ns(path, ticket)
    }

    /// Whether [`Self::hedge`] would send a copy; nothing is booked.
    ///
    /// # Panics
    /// If `paths` does not hold one view for each path.
    pub fn would_hedge(
        &mut self,
        request: &Request,
        paths: &[PathView],
        path: PathIndex,
        ticket: &Ticket,
        age_ns: u64,
    ) -> bool {
        assert!(paths.len() == self.paths, "one view for each path");
        let (from, in_flight) = (usize::from(path.0), &self.in_flight);
        let soonest = self.policy == Policy::Soonest && self.paths > 1 && from < self.paths;
        let other = |it: &mut Soonest| it.other(request, paths, in_flight, from, ticket, age_ns);
        soonest && other(&mut self.soonest).is_ok()
    }

    /// Whether a read gets a second copy now: one that [`Self::select`] placed on `path` with
    /// `ticket`, that has been under way there for `age_ns`, and that has no copy yet. `request` is
    /// the same as then, but for the time, which is now. `age_ns` is a lower bound: it excludes the
    /// time in which an end may have gone unnoticed.
    ///
    /// A copy is booked as by [`Self::select`], and [`Self::ticket`] is the copy's: each of the two
    /// needs a [`Self::complete`] of its own.
    ///
    /// # Panics
    /// If `paths` does not hold one view for each path.
    pub fn hedge(
        &mut self,
        request: &Request,
        paths: &[PathView],
        path: PathIndex,
        ticket: &Ticket,
        age_ns: u64,
    ) -> Hedge {
        assert!(paths.len() == self.paths, "one view for each path");
        let from = usize::from(path.0);
        if self.policy != Policy::Soonest || self.paths < 2 || from >= self.paths {
            return Hedge::No;
        }
        let in_flight = &self.in_flight;
        match self
            .soonest
            .hedge(request, paths, in_flight, from, ticket, age_ns)
        {
            Ok((other, ticket)) => {
                self.ticket = ticket;
                Hedge::Send(self.place(request.group as usize, other))
            }
            Err(Some(after_ns)) => Hedge::Again(after_ns),
            Err(None) => Hedge::No,
        }
    }

    /// Returns the ticket of the I/O that was placed last, for its [`Completion::ticket`].
    #[inline]
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Returns the forecast of `soonest` for `request` on one path. `None` under other policies,
    /// and for a path without a measurement.
    #[cfg(test)]
    pub(crate) fn forecast(
        &self,
        request: &Request,
        path: PathIndex,
        view: &PathView,
    ) -> Option<Forecast> {
        let index = usize::from(path.0);
        if self.policy != Policy::Soonest || index >= self.paths {
            return None;
        }
        let own = self.in_flight[index];
        self.soonest.forecast(index, request, view, own)
    }

    /// Reports the end of one I/O that [`Self::select`] placed; also of one that could not be sent,
    /// as [`Ended::Failed`], or that was taken back, as [`Ended::Dropped`].
    ///
    /// # Panics
    /// If no I/O was in flight on that path.
    pub fn complete(&mut self, done: &Completion) -> Noted {
        let path = usize::from(done.path.0);
        assert!(self.in_flight[path] > 0, "completed, but not selected");
        self.in_flight[path] -= 1;
        if self.policy == Policy::Soonest {
            return self.complete_soonest(done);
        }
        let learns = done.ended == Ended::Good && path < self.paths;
        match self.policy {
            // A head with a single path has nothing to learn (row A2).
            Policy::WeightedLatency(over) if learns && self.has_others => {
                match self.weighted.cell_of(over.buckets, done) {
                    Some(cell) => self.weighted.sample(cell, done, &self.knobs),
                    None => Noted::default(),
                }
            }
            Policy::Latency | Policy::RoundRobinLatency { .. } if learns => {
                self.latency.sample(done)
            }
            Policy::HistoricalServiceTime if learns => self.historical.sample(done),
            Policy::ServiceTime => self.service_time.end(path, &done.ticket),
            // Of I/Os that another policy placed the length isn't known, and a program that counts
            // would take off what it never added.
            Policy::Program(_)
                if path < self.paths
                    && done.ticket.class == program::TICKET_CLASS
                    && done.ticket.epoch == self.program_epoch =>
            {
                if let Some(program) = &mut self.program.0 {
                    program.complete(done, done.ticket.units);
                }
                Noted::default()
            }
            _ => Noted::default(),
        }
    }

    #[inline(never)]
    fn complete_soonest(&mut self, done: &Completion) -> Noted {
        let path = usize::from(done.path.0);
        let own = self.in_flight[path];
        self.soonest.complete(done, own, path < self.paths);
        Noted::default()
    }

    /// Calculates the weights that closed windows asked for ([`Noted::weigh`]): once per loop turn,
    /// after its completions. Cheap when there is nothing to do. Without it weighted-latency learns
    /// nothing; `per-numa` learns by [`Self::weigh_node`] instead.
    #[inline]
    pub fn weigh(&mut self) {
        if self.weighted.is_due() && !self.policy.is_per_numa() {
            self.weighted.weigh(self.paths);
        }
    }

    /// Under `per-numa`: whether this core's measurements have changed since the last call, so that
    /// [`Self::means`] has to be published to the node's other cores.
    #[inline]
    pub fn take_news(&mut self) -> bool {
        self.policy.is_per_numa() && core::mem::take(&mut self.weighted.unpublished)
    }

    /// Returns this core's measurements of a path, for all cores of its node and for itself.
    pub fn means(&self, path: PathIndex) -> Means {
        match usize::from(path.0) {
            path if path < self.paths => self.weighted.means(path),
            _ => Means::default(),
        }
    }

    /// Under `per-numa`: calculates all weights from the measurements of the node's cores, this one
    /// among them. Called when any of them had [news](Self::take_news), after the completions of a
    /// turn.
    pub fn weigh_node(&mut self, node: impl Fn(PathIndex) -> NodeMeans) {
        if self.policy.is_per_numa() {
            self.weighted.weigh_node(self.paths, node);
        }
    }

    /// Forgets what was learnt about `path` (capacity change, reconnect, removal): statistics and
    /// pending weight work (row A11). I/Os in flight stay counted.
    pub fn reset_path(&mut self, path: PathIndex) {
        let index = usize::from(path.0);
        if index >= self.paths {
            return;
        }
        for selections in &mut self.selections {
            selections[index] = 0;
        }
        self.weighted.reset(path);
        self.soonest.reset(index);
        self.latency.reset(index);
        self.historical.reset(index);
        if let Some(program) = &mut self.program.0 {
            program.reset(path);
        }
    }

    /// I/Os of this core in flight on `path`.
    pub fn in_flight(&self, path: PathIndex) -> u32 {
        self.in_flight
            .get(usize::from(path.0))
            .copied()
            .unwrap_or(0)
    }

    /// Returns the predicted time of an I/O of 4 KiB on `path` behind what this core has in flight
    /// there, ns; `None`: the policy predicts nothing, or no I/O was timed on the path yet.
    pub fn expected_ns(&self, path: PathIndex, group: Group, now_ns: u64) -> Option<u64> {
        if self.policy != Policy::Soonest {
            return None;
        }
        let request = Request {
            source: 0,
            group,
            length: 4096,
            address: 0,
            now_ns,
        };
        let own = self.in_flight(path);
        self.soonest.expected_ns(&request, path.0.into(), own)
    }

    /// Returns the statistics of row A9 for `path` and `group`; all 0 for a path that does not
    /// exist. Selections are counted under every policy, the rest is weighted-latency's. Over the
    /// size buckets counts and credits are added, others averaged; weights are rounded.
    pub fn stats(&self, path: PathIndex, group: Group) -> PathStats {
        let mut sum = PathStats::default();
        let mut known = [0; 3];
        for bucket in 0..BUCKETS {
            let of = self.bucket_stats(path, group, bucket);
            sum.add(&of);
            let values = [u64::from(of.weight), of.score, of.smoothed_ns];
            for (known, value) in known.iter_mut().zip(values) {
                *known += u64::from(value > 0);
            }
        }
        let mean = |sum: u64, count: u64| sum.checked_div(count).unwrap_or(0);
        PathStats {
            weight: mean(u64::from(sum.weight) + known[0] / 2, known[0]) as u32,
            score: mean(sum.score, known[1]),
            smoothed_ns: mean(sum.smoothed_ns, known[2]),
            ..sum
        }
    }

    /// As [`Self::stats`] for one size bucket (row A12). Where sizes are not kept apart all is in
    /// the first.
    pub fn bucket_stats(&self, path: PathIndex, group: Group, bucket: usize) -> PathStats {
        let (index, cell) = (usize::from(path.0), bucket * 3 + group as usize);
        if index >= self.paths || bucket >= BUCKETS {
            return PathStats::default();
        }
        PathStats {
            selections: self.selections[cell][index],
            ..self.weighted.stats(cell, index)
        }
    }
}

/// Bits of the first `count` paths.
const fn first(count: usize) -> u64 {
    match count {
        PATHS_MAX => u64::MAX,
        _ => (1 << count) - 1,
    }
}

impl fmt::Display for TooManyPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} paths asked for; a volume has at most {PATHS_MAX}",
            self.0
        )
    }
}

impl core::error::Error for TooManyPaths {}
