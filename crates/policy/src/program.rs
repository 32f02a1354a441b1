//! `program:<name>@<hash>`: a program that a user loaded chooses.
//!
//! This crate neither loads nor runs programs: it knows the [trait](Program) that something that
//! runs one implements, and falls back to `queue-depth` where that has no answer.
//!
//! # Contract
//! A program only ranks usable paths. One that was [taken out](Choice::TakenOut) is dropped, and
//! `soonest` is the policy from then on.

use crate::parse::PolicyError;
use crate::types::{Completion, PathIndex, PathView, Request};
use alloc::boxed::Box;
use core::fmt;

/// A program at work, for one selector.
pub trait Program: Send {
    /// Chooses a path; `in_flight`: this core's I/Os on each.
    fn select(&mut self, request: &Request, paths: &[PathView], in_flight: &[u32]) -> Choice;

    /// Reports the end of an I/O of `length` bytes that it has placed, or its stand-in while it was
    /// there.
    fn complete(&mut self, done: &Completion, length: u32);

    /// Forgets what was learnt of `path` (row A11).
    fn reset(&mut self, path: PathIndex);
}

/// Answer of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This path; it is usable.
    Path(usize),
    /// None: `queue-depth` chooses this time.
    FallBack,
    /// It has failed too often: `soonest` chooses from now on.
    TakenOut,
}

/// Class of the tickets of I/Os that a program, or its stand-in, has placed.
pub(crate) const TICKET_CLASS: u8 = u8::MAX;

/// The place of a program: in a selector, or in a message to its owner. A copy is empty.
#[derive(Default)]
pub struct ProgramSlot(pub Option<Box<dyn Program>>);

impl Clone for ProgramSlot {
    fn clone(&self) -> Self {
        Self(None)
    }
}

impl fmt::Debug for ProgramSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "a program"
        } else {
            "none"
        })
    }
}

/// Longest name of a program, bytes.
pub const PROGRAM_NAME_MAX: usize = 23;

/// Which program: its name, and the first 64 bits of the SHA-256 of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramId {
    hash: u64,
    length: u8,
    name: [u8; PROGRAM_NAME_MAX],
}

impl ProgramId {
    /// A program of this name; what a name may not contain becomes `-`, and a long one is cut.
    pub fn new(name: &str, hash: u64) -> Self {
        let mut it = Self {
            hash,
            length: 0,
            name: [0; PROGRAM_NAME_MAX],
        };
        for (to, from) in it.name.iter_mut().zip(name.bytes()) {
            *to = if is_of_name(from) { from } else { b'-' };
            it.length += 1;
        }
        if it.length == 0 {
            (it.name[0], it.length) = (b'-', 1);
        }
        it
    }

    /// Its name.
    pub fn name(&self) -> &str {
        let name = core::str::from_utf8(&self.name[..usize::from(self.length)]);
        name.unwrap_or("-") // ASCII only
    }

    /// First 64 bits of the SHA-256 of its file.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Reads what [`Display`](fmt::Display) writes.
    ///
    /// # Errors
    /// [`PolicyError::NotAProgram`].
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let id = text.strip_prefix("program:").and_then(|it| {
            let (name, hash) = it.rsplit_once('@')?;
            let is_name = (1..=PROGRAM_NAME_MAX).contains(&name.len());
            let is_name = is_name && name.bytes().all(is_of_name);
            let is_hash = hash.len() == 16 && hash.bytes().all(|it| it.is_ascii_hexdigit());
            let hash = u64::from_str_radix(hash, 16).ok()?;
            (is_name && is_hash).then(|| Self::new(name, hash))
        });
        id.ok_or(PolicyError::NotAProgram)
    }
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

impl fmt::Display for ProgramId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program:{}@{:016x}", self.name(), self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Ana, Ended, Group, Policy, Ticket};
    use crate::{Explained, Selector, Why};
    use std::string::ToString;
    use std::sync::{Arc, Mutex};
    use std::vec::Vec;

    /// Answers from a list, and notes its calls.
    struct Listed {
        answers: Vec<Choice>,
        calls: Arc<Mutex<Vec<&'static str>>>,
    }

    impl Program for Listed {
        fn select(&mut self, _: &Request, _: &[PathView], _: &[u32]) -> Choice {
            self.calls.lock().unwrap().push("select");
            self.answers.remove(0)
        }

        fn complete(&mut self, _: &Completion, length: u32) {
            assert_eq!(length, 4096);
            self.calls.lock().unwrap().push("complete");
        }

        fn reset(&mut self, _: PathIndex) {
            self.calls.lock().unwrap().push("reset");
        }
    }

    const REQUEST: Request = Request {
        source: 0,
        group: Group::Read,
        length: 4096,
        address: 0,
        now_ns: 1,
    };
    const VIEW: PathView = PathView {
        enabled: true,
        ana: Ana::Optimized,
        distance: 0,
        in_flight_elsewhere: 0,
        throughput: 1,
    };

    fn done(path: PathIndex, ticket: Ticket) -> Completion {
        Completion {
            path,
            group: Group::Read,
            latency_ns: 1,
            ended: Ended::Good,
            now_ns: 2,
            ticket,
            gap_ns: 0,
        }
    }

    #[test]
    fn id_is_read_as_written_and_else_refused() {
        let id = ProgramId::new("near small", 0xabc);
        assert_eq!(id.to_string(), "program:near-small@0000000000000abc");
        assert_eq!(ProgramId::parse(&id.to_string()), Ok(id));
        assert_eq!(Policy::Program(id).to_string(), id.to_string());
        assert_eq!(Policy::parse(&id.to_string()), Err(PolicyError::IsAProgram));
        assert_eq!(ProgramId::new("", 0).name(), "-");
        assert_eq!(
            ProgramId::new(&"x".repeat(99), 0).name().len(),
            PROGRAM_NAME_MAX
        );
        for wrong in [
            "program:a",
            "program:@0000000000000abc",
            "program:a@abc",
            "a@0",
        ] {
            assert_eq!(
                ProgramId::parse(wrong),
                Err(PolicyError::NotAProgram),
                "{wrong}"
            );
        }
    }

    /// Counts stay balanced while programs come, have no answer, are taken out and go (T41).
    #[test]
    fn t41_counts_balance_whatever_a_program_does() {
        let id = ProgramId::new("p", 1);
        let mut selector = Selector::new(2, Policy::Program(id));
        let views = [VIEW; 2];
        let select = |it: &mut Selector| {
            let path = it.select(&REQUEST, &views).unwrap();
            (path, it.ticket())
        };
        // It is not there yet: queue-depth.
        let first = select(&mut selector);
        let second = select(&mut selector);
        assert_eq!((first.0, second.0), (PathIndex(0), PathIndex(1)));
        let calls = Arc::new(Mutex::new(Vec::new()));
        let answers = [Choice::Path(1), Choice::FallBack, Choice::TakenOut];
        let listed = || {
            std::boxed::Box::new(Listed {
                answers: answers.to_vec(),
                calls: calls.clone(),
            })
        };
        selector.set_program(id, listed());
        let third = select(&mut selector);
        assert_eq!(third.0, PathIndex(1));
        let mut why = Explained::new();
        let explained = selector.select_explained(&REQUEST, &views, &mut why);
        assert_eq!((explained, why.why), (Some(PathIndex(0)), Why::Program));
        let fourth = (PathIndex(0), selector.ticket());
        selector.reset_path(PathIndex(0));
        assert_eq!(selector.in_flight(PathIndex(0)), 2);
        let _ = selector.complete(&done(third.0, third.1));
        let fifth = select(&mut selector);
        assert_eq!(selector.policy(), Policy::Soonest);
        assert_eq!(
            *calls.lock().unwrap(),
            ["select", "select", "reset", "complete", "select"]
        );
        for (path, ticket) in [first, second, fourth, fifth] {
            let _ = selector.complete(&done(path, ticket));
        }
        // It stays out until it is given again.
        selector.set_policy(Policy::Program(id));
        assert_eq!(selector.policy(), Policy::Soonest);
        selector.set_program(id, listed());
        assert_eq!(selector.policy(), Policy::Program(id));
        assert_eq!([0, 1].map(|it| selector.in_flight(PathIndex(it))), [0, 0]);
    }

    /// T41: a program, given again or behind another policy, learns of no I/O from before.
    #[test]
    fn t41_a_new_program_hears_of_its_own_ios_only() {
        let id = ProgramId::new("p", 1);
        let mut selector = Selector::new(2, Policy::Program(id));
        let calls = Arc::new(Mutex::new(Vec::new()));
        let give = |it: &mut Selector| {
            let program = Listed {
                answers: std::vec![Choice::FallBack],
                calls: calls.clone(),
            };
            it.set_program(id, std::boxed::Box::new(program));
        };
        let select = |it: &mut Selector| {
            let path = it.select(&REQUEST, &[VIEW; 2]).unwrap();
            (path, it.ticket())
        };
        let ends = |it: &mut Selector, (path, ticket)| {
            calls.lock().unwrap().clear();
            let _ = it.complete(&done(path, ticket));
            calls.lock().unwrap().len()
        };
        // The stand-in's, while there is none.
        let first = select(&mut selector);
        give(&mut selector);
        let second = select(&mut selector);
        // The same again; then with another policy between.
        give(&mut selector);
        let third = select(&mut selector);
        selector.set_policy(Policy::Numa);
        give(&mut selector);
        let fourth = select(&mut selector);
        for (io, count) in [(first, 0), (second, 0), (third, 0), (fourth, 1)] {
            assert_eq!(ends(&mut selector, io), count);
        }
    }
}
