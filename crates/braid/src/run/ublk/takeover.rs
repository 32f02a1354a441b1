//! A device is taken over from an engine that has died: the steps, without the driver.
//!
//! # Contract
//! The driver lets a take-over begin once. From then on the device belongs to nobody until all of
//! its queues are fetched by one process: an end in between leaves it beyond repair, and its users
//! wait until the machine starts anew. So all that can fail is done before, a step that fails for
//! want of something is tried again for as long as it takes, and nothing is given up, but by an
//! engine that stops: before it has mapped a queue at once, for the next one goes on.
//!
//! A record says how far it may have come. With it, an engine goes on where another one ended
//! before it had mapped a queue; after that the driver has the memory of the process that is gone,
//! and no other one can map them. Where some queues had fetched and others not, another begin makes
//! the driver of Linux 6.12 follow a null pointer: there is none once a queue may have been mapped,
//! but that a map is tried.
use super::record::Recovery;
use std::ops::ControlFlow;
use sys::Errno;

/// The driver, the cores and the record, as a take-over needs them.
pub trait TakesOver {
    /// Records that it may have begun.
    ///
    /// # Errors
    /// The file can't be written.
    fn note_begun(&mut self) -> Result<(), String>;
    /// Records that queues may be mapped, and have fetched.
    ///
    /// # Errors
    /// The file can't be written.
    fn note_mapping(&mut self) -> Result<(), String>;
    /// Begins it.
    ///
    /// # Errors
    /// EBUSY: later. EINVAL: it was begun before.
    fn begin(&mut self) -> Result<(), Errno>;
    /// Opens the device.
    ///
    /// # Errors
    /// ENODEV: it is gone. Others may pass.
    fn open(&mut self) -> Result<(), Errno>;
    /// Maps a queue.
    ///
    /// # Errors
    /// EINVAL: it is of another process. Others may pass.
    fn map(&mut self, queue: u16) -> Result<(), Errno>;
    /// Cores fetch the requests of all queues, but those that do.
    ///
    /// # Errors
    /// The outer one is final, the inner one may pass.
    fn fetch(&mut self) -> Result<Result<(), Errno>, Errno>;
    /// Ends it: requests come again.
    ///
    /// # Errors
    /// Final.
    fn end(&mut self) -> Result<(), Errno>;
    /// A step failed, and is tried again after this; `Break`: the engine stops, and it is not.
    fn pause(&mut self, step: &str, why: &str) -> ControlFlow<()>;
}

/// Why a device is lost.
const DIED: &str =
    "an engine died while it took it over, and the driver keeps its queues for that process";

/// The same.
const STOPPED: &str =
    "this engine stops while it takes it over, and the driver keeps its queues for this process";

/// How a take-over ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakenOver {
    /// The cores serve the device.
    Done,
    /// The driver has not seen the end of the process before, or the engine stops.
    Later,
    /// Nothing has begun, and why.
    No(String),
    /// The device is beyond repair, and why.
    Lost(String),
}

/// Takes a device over. `before`: how far an earlier take-over may have come. `pid`: the process
/// that the driver names as the last one that served it.
pub fn take_over(it: &mut impl TakesOver, queues: u16, before: Recovery, pid: i32) -> TakenOver {
    let (may_begin, is_begun) = match before {
        Recovery::None => (true, false),
        Recovery::Begun => (true, true),
        // It has ended: all queues had fetched.
        Recovery::Mapping(Some(of)) if of == pid => (true, false),
        // All of them had fetched, or none.
        Recovery::Mapping(_) if queues == 1 => (true, true),
        Recovery::Mapping(_) => (false, true),
    };
    // Before it begins: later it might wait for a file system on this very device.
    if may_begin
        && before != Recovery::Begun
        && let Err(why) = it.note_begun()
    {
        return TakenOver::No(why);
    }
    let begun = if may_begin { it.begin() } else { Ok(()) };
    match begun {
        Ok(()) => {}
        Err(Errno::INVAL) if is_begun => {}
        Err(Errno::INVAL) => {
            return TakenOver::Lost("another program has begun to take it over".into());
        }
        Err(Errno::BUSY) => return TakenOver::Later,
        Err(error) => return TakenOver::No(format!("it cannot be taken over: {error}")),
    }
    while let Err(why) = it.open() {
        if why == Errno::NODEV {
            return TakenOver::Lost("it was removed meanwhile".into());
        }
        if it.pause("open", &why.to_string()).is_break() {
            return TakenOver::Later;
        }
    }
    while let Err(why) = it.note_mapping() {
        if it.pause("record the take-over of", &why).is_break() {
            return TakenOver::Later;
        }
    }
    for queue in 0..queues {
        while let Err(why) = it.map(queue) {
            if why == Errno::INVAL {
                return TakenOver::Lost(DIED.into());
            }
            if it.pause("map a queue of", &why.to_string()).is_break() {
                return match queue {
                    0 => TakenOver::Later,
                    _ => TakenOver::Lost(STOPPED.into()),
                };
            }
        }
    }
    loop {
        match it.fetch() {
            Ok(Ok(())) => break,
            // The memory of this process has the address of that of the dead one, which the driver
            // compares, and the queues are that one's.
            Ok(Err(Errno::INVAL | Errno::BUSY)) if !may_begin => {
                return TakenOver::Lost(DIED.into());
            }
            Ok(Err(why)) => {
                if it.pause("fetch from", &why.to_string()).is_break() {
                    return TakenOver::Lost(STOPPED.into());
                }
            }
            Err(why) => {
                return TakenOver::Lost(format!("the driver refuses a queue: {why}"));
            }
        }
    }
    match it.end() {
        Ok(()) => TakenOver::Done,
        Err(why) => TakenOver::Lost(format!("the driver does not end the take-over: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A device with two queues. Steps fail as they are told to, each with an error of its own.
    #[derive(Default)]
    struct Fake {
        fails: VecDeque<(&'static str, Errno)>,
        cannot_record: bool,
        /// The engine stops.
        stops: bool,
        steps: Vec<String>,
    }

    impl Fake {
        fn failing(fails: &[(&'static str, Errno)]) -> Self {
            Self {
                fails: fails.iter().copied().collect(),
                ..Self::default()
            }
        }

        fn step(&mut self, name: &str) -> Result<(), Errno> {
            self.steps.push(name.to_owned());
            match self.fails.front() {
                Some((step, why)) if *step == name => {
                    let why = *why;
                    self.fails.pop_front();
                    Err(why)
                }
                _ => Ok(()),
            }
        }
    }

    impl TakesOver for Fake {
        fn note_begun(&mut self) -> Result<(), String> {
            self.steps.push("note".into());
            match self.cannot_record {
                true => Err("full".into()),
                false => Ok(()),
            }
        }
        fn note_mapping(&mut self) -> Result<(), String> {
            self.step("note mapping").map_err(|why| why.to_string())
        }
        fn begin(&mut self) -> Result<(), Errno> {
            self.step("begin")
        }
        fn open(&mut self) -> Result<(), Errno> {
            self.step("open")
        }
        fn map(&mut self, queue: u16) -> Result<(), Errno> {
            self.step(&format!("map {queue}"))
        }
        fn fetch(&mut self) -> Result<Result<(), Errno>, Errno> {
            match self.step("fetch") {
                Err(Errno::PERM) => Err(Errno::PERM),
                passes => Ok(passes),
            }
        }
        fn end(&mut self) -> Result<(), Errno> {
            self.step("end")
        }
        fn pause(&mut self, _: &str, _: &str) -> ControlFlow<()> {
            self.steps.push("pause".into());
            match self.stops {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        }
    }

    const ALL: [&str; 8] = [
        "note",
        "begin",
        "open",
        "note mapping",
        "map 0",
        "map 1",
        "fetch",
        "end",
    ];

    /// Takes a device of two queues over that was begun, or not.
    fn taken(it: &mut Fake, is_begun: bool) -> TakenOver {
        let before = if is_begun {
            Recovery::Begun
        } else {
            Recovery::None
        };
        take_over(it, 2, before, 77)
    }

    fn is_lost(of: &TakenOver, why: &str) {
        assert!(
            matches!(of, TakenOver::Lost(text) if text.contains(why)),
            "{of:?}: {why}"
        );
    }

    #[test]
    fn take_over_is_recorded_before_it_begins() {
        let mut it = Fake::default();
        assert_eq!(taken(&mut it, false), TakenOver::Done);
        assert_eq!(it.steps, ALL);
        let mut it = Fake {
            cannot_record: true,
            ..Fake::default()
        };
        assert_eq!(taken(&mut it, false), TakenOver::No("full".into()));
        assert_eq!(it.steps, ["note"]);
    }

    #[test]
    fn one_that_has_not_begun_fails_without_harm() {
        let begun = |why, is_begun| taken(&mut Fake::failing(&[("begin", why)]), is_begun);
        assert_eq!(begun(Errno::BUSY, false), TakenOver::Later);
        assert_eq!(begun(Errno::BUSY, true), TakenOver::Later);
        assert!(matches!(begun(Errno::PERM, false), TakenOver::No(_)));
        is_lost(&begun(Errno::INVAL, false), "another program");
    }

    #[test]
    fn one_that_was_begun_goes_on_from_the_record() {
        let mut it = Fake::failing(&[("begin", Errno::INVAL)]);
        assert_eq!(taken(&mut it, true), TakenOver::Done);
        assert_eq!(it.steps, ALL[1..]);
        let mut it = Fake::failing(&[("begin", Errno::INVAL), ("map 0", Errno::INVAL)]);
        is_lost(&taken(&mut it, true), "an engine died");
    }

    #[test]
    fn take_over_is_not_begun_again_where_some_queues_may_have_fetched() {
        let step = |queues, of, pid, fails: &[_]| {
            let mut it = Fake::failing(fails);
            let ended = take_over(&mut it, queues, Recovery::Mapping(of), pid);
            (ended, it.steps.iter().any(|it| it == "begin"))
        };
        let taken = [("map 0", Errno::INVAL)];
        for of in [Some(78), None] {
            let (ended, has_begun) = step(2, of, 77, &taken);
            is_lost(&ended, "an engine died");
            assert!(!has_begun, "it would follow a null pointer");
            let (ended, _) = step(2, of, 77, &[("fetch", Errno::INVAL)]);
            is_lost(&ended, "an engine died");
            let free = (TakenOver::Done, false);
            assert_eq!(step(2, of, 77, &[]), free, "no queue was mapped");
        }
        assert_eq!(
            step(2, Some(77), 77, &[]),
            (TakenOver::Done, true),
            "it had ended"
        );
        let begun = [("begin", Errno::INVAL)];
        for fails in [&begun[..], &[]] {
            let ended = step(1, None, 77, fails);
            assert_eq!(ended, (TakenOver::Done, true), "one queue");
        }
    }

    #[test]
    fn step_that_fails_after_it_began_is_repeated() {
        let many = [("open", Errno::MFILE); 100].into_iter();
        let others = [
            ("note mapping", Errno::NOSPC),
            ("map 1", Errno::NOMEM),
            ("fetch", Errno::NOSPC),
            ("fetch", Errno::NOMEM),
        ];
        let fails: Vec<_> = many.chain(others).collect();
        let mut it = Fake::failing(&fails);
        assert_eq!(taken(&mut it, false), TakenOver::Done);
        let pauses = it.steps.iter().filter(|it| *it == "pause").count();
        assert_eq!(pauses, fails.len());
    }

    #[test]
    fn engine_that_stops_leaves_to_the_next_one_what_it_has_not_mapped() {
        let stopped = |step| {
            let mut it = Fake::failing(&[(step, Errno::NOMEM)]);
            it.stops = true;
            taken(&mut it, false)
        };
        for step in ["open", "note mapping", "map 0"] {
            assert_eq!(stopped(step), TakenOver::Later, "{step}");
        }
        for step in ["map 1", "fetch"] {
            is_lost(&stopped(step), "this engine stops");
        }
    }

    #[test]
    fn device_that_cannot_be_served_is_said_to_be_lost() {
        let lost = |step, why| taken(&mut Fake::failing(&[(step, why)]), false);
        is_lost(&lost("open", Errno::NODEV), "removed");
        is_lost(&lost("fetch", Errno::PERM), "a queue");
        is_lost(&lost("end", Errno::BUSY), "does not end");
    }
}
