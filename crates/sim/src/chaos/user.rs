//! The user that changes a host's paths while it runs, and restores them all in the end.
//!
//! # Contract
//! Every change is answered once. A process that begins has the paths of its configuration,
//! or where hosts are told of paths, those that a mark of the one before it names.
use super::prelude::*;
use engine::host::{Change, Changed};
use policy::limits::PATHS_MAX;

/// How long a change may take, ns: less than most faults last, so that some are called off.
const WAIT_NS: u64 = 700_000_000;

/// A requested change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The path to an address is there.
    Add,
    /// It is not.
    Remove,
    Fail,
    Drain,
    Restore,
    /// There is a second path to it, because of this fault.
    Second(u64),
    /// There is no second path because of this fault any more.
    NoSecond(u64),
}

/// One who changes paths.
#[derive(Default)]
pub struct User {
    asked: u64,
    /// Unanswered requests: ticket, address, wish.
    open: Vec<(u64, usize, Wish)>,
    /// Tickets of what was done.
    pub done: Vec<u64>,
    /// Changes by which a path may leave with what it had: ticket, when they were asked for, and
    /// whether it leaves if they are made, or if not.
    risky: Vec<(u64, u64, bool)>,
    /// When those were asked for by which one did, or perhaps did.
    left: Vec<u64>,
    /// By address: its path.
    paths: Vec<Option<PathIndex>>,
    /// Second paths: by which fault, and where.
    seconds: Vec<(u64, usize, PathIndex)>,
    /// The number of no path; `None`: any will do.
    nobody: Option<PathIndex>,
    /// Paths that left since the process began.
    pub removed: u32,
    /// An answer to nothing.
    pub wrong: Option<String>,
}

impl User {
    /// A process begins, with these paths by address; all that there are, if they are `known`.
    /// `lost_ns`: that is now, and a path left the one before with writes whose loss was not
    /// reported.
    pub fn begin(&mut self, paths: Vec<Option<PathIndex>>, known: bool, lost_ns: Option<u64>) {
        self.open.clear();
        self.left.extend(self.risky.drain(..).map(|it| it.1));
        self.left.extend(lost_ns);
        self.seconds.clear();
        self.paths = paths;
        self.nobody = (!known).then_some(PathIndex(PATHS_MAX as u8 - 1));
        self.removed = 0;
    }

    /// A change was made, or not.
    pub fn heard(&mut self, ticket: u64, result: Result<Changed, String>) {
        let Some(at) = self.open.iter().position(|(of, ..)| *of == ticket) else {
            self.wrong = Some(format!(
                "change {ticket} is answered, and was not asked for"
            ));
            return;
        };
        let (_, address, wish) = self.open.swap_remove(at);
        if let Some(at) = self.risky.iter().position(|it| it.0 == ticket) {
            let (_, at_ns, made) = self.risky.swap_remove(at);
            self.left.extend((result.is_ok() == made).then_some(at_ns));
        }
        let Ok(Changed { path, .. }) = result else {
            return;
        };
        self.done.push(ticket);
        match wish {
            Wish::Add => self.paths[address] = path,
            Wish::Remove => {
                self.paths[address] = None;
                self.removed += 1;
            }
            Wish::Second(name) => self.seconds.extend(path.map(|path| (name, address, path))),
            Wish::NoSecond(name) => {
                self.seconds.retain(|(of, ..)| *of != name);
                self.removed += 1;
            }
            Wish::Fail | Wish::Drain | Wish::Restore => {}
        }
    }

    /// Returns a request that was never answered.
    pub fn unanswered(&self) -> Option<String> {
        let first = self.open.first();
        first.map(|(_, address, wish)| format!("{wish:?} of path {address} is not answered"))
    }

    /// When it was asked for that paths leave by force or come, those that left with what they had,
    /// of all processes.
    pub fn left(&self) -> Vec<u64> {
        let open = self.risky.iter().map(|it| it.1);
        self.left.iter().copied().chain(open).collect()
    }

    /// Paths that are to leave, and perhaps have.
    pub fn leaving(&self) -> u32 {
        let leave = |wish: &Wish| matches!(wish, Wish::Remove | Wish::NoSecond(_));
        self.open.iter().filter(|(.., wish)| leave(wish)).count() as u32
    }

    /// How many addresses there are.
    pub fn addresses(&self) -> usize {
        self.paths.len()
    }

    /// Addresses to which there are paths, or may be: those that a mark names (T13).
    pub fn had(&self) -> Vec<usize> {
        let second = |at: &usize| self.seconds.iter().any(|(_, of, _)| of == at);
        let comes = |at: &usize| {
            let adds = |wish: &Wish| matches!(wish, Wish::Add | Wish::Second(_));
            self.open.iter().any(|(_, of, wish)| of == at && adds(wish))
        };
        let all = 0..self.addresses();
        all.filter(|it| self.path(*it).is_some() || second(it) || comes(it))
            .collect()
    }

    /// The path to an address, if there is one.
    pub fn path(&self, address: usize) -> Option<PathIndex> {
        self.paths.get(address).copied().flatten()
    }

    /// Whether there is exactly one path to every address that there should be one to, and nothing
    /// is being changed.
    pub fn is_content(&self, wanted: impl Fn(usize) -> bool) -> bool {
        let mut paths = (0..).zip(&self.paths);
        let as_wanted = paths.all(|(address, path)| path.is_some() == wanted(address));
        self.open.is_empty() && self.seconds.is_empty() && as_wanted
    }

    /// The ticket of what was asked for last.
    pub fn last(&self) -> u64 {
        self.asked
    }

    /// Whether a path to an address is being added.
    pub fn is_adding(&self, address: usize) -> bool {
        self.open
            .iter()
            .any(|it| it.1 == address && it.2 == Wish::Add)
    }

    pub(super) fn waits_for(&self, address: usize) -> bool {
        self.open.iter().any(|(_, of, _)| *of == address)
    }
}

impl Rig {
    /// Requests a change of the path to an address; by force, if need be.
    pub fn ask(&mut self, host: usize, address: usize, wish: Wish, force: bool) {
        let (volume, first) = self.first_path(address);
        let user = &mut self.hosts[host].user;
        // Of one that is not there, the number is as good as any.
        let none = user.nobody.unwrap_or(first);
        let path = user.path(address).unwrap_or(none);
        let new = || Box::new(make::path_to(address as u32, volume.into()));
        let remove = |path, force| Change::RemovePath {
            volume,
            path,
            force,
        };
        let change = match wish {
            Wish::Add | Wish::Second(_) => Change::AddPath(volume, new()),
            Wish::Remove => remove(path, force),
            Wish::Fail => Change::FailPath(volume, path, force),
            Wish::Drain => Change::DrainPath(volume, path, force),
            Wish::Restore => Change::RestorePath(volume, path),
            Wish::NoSecond(name) => {
                let Some(it) = user.seconds.iter().find(|(of, ..)| *of == name) else {
                    return;
                };
                remove(it.2, true)
            }
        };
        user.asked += 1;
        let ticket = user.asked;
        user.open.push((ticket, address, wish));
        let risky = match wish {
            Wish::Remove => force.then_some(true),
            Wish::NoSecond(_) => Some(true),
            Wish::Add | Wish::Second(_) => Some(false),
            _ => None,
        };
        user.risky
            .extend(risky.map(|made| (ticket, self.world.now_ns, made)));
        let message = HostControl::Change {
            ticket,
            change,
            wait_ns: WAIT_NS,
        };
        let first = self.hosts[host].cores[0];
        self.tell(first, ExportControl::Host(message));
    }

    /// Requests a path that is missing at an address, unless a request is under way already. A
    /// second path takes the place of a first one that is gone: there may be room for one of them
    /// only.
    pub fn restore(&mut self, host: usize, address: usize) {
        let told = self.has_heard(host, address);
        let (volume, _) = self.first_path(address);
        let it = &mut self.hosts[host];
        if it.stopping.is_some() || it.user.waits_for(address) {
            return;
        }
        let Some(engine) = self.world.nodes[it.cores[0]].core() else {
            return;
        };
        let seconds = &mut it.user.seconds;
        let second = seconds.iter().position(|(_, of, _)| *of == address);
        if let (Some(at), None) = (second, it.user.paths[address]) {
            it.user.paths[address] = Some(seconds.swap_remove(at).2);
            return;
        }
        let second = second.map(|at| seconds[at].0);
        let wish = match it.user.path(address) {
            None if told => Wish::Add,
            None => return,
            Some(path) => match (engine.host().path_state(volume, path), second) {
                (PathState::Failed | PathState::Draining, _) => Wish::Restore,
                (_, Some(name)) => Wish::NoSecond(name),
                _ => return,
            },
        };
        self.ask(host, address, wish, true);
    }
}
