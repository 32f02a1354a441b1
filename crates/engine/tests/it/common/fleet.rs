//! All cores of a host over one target, whose paths and volumes are changed.
use super::*;
use engine::Machine;
use engine::host::{
    Change, Changed, HostConfig, HostControl, HostEvent, Io, PathFacts, PathNews, PathState,
    Recovery,
};
use engine::target::{TargetConfig, TargetEngine};
use multipath::Outcome;
use policy::PathIndex;
use std::cell::RefCell;
use std::rc::Rc;

/// Most paths in all.
pub const ROOM: usize = 70;
pub type Answer = Result<Changed, String>;

/// All cores of a host, and a target; what one core tells another is passed on.
pub struct Fleet {
    pub world: World,
    pub hosts: Vec<Rc<RefCell<HostCore>>>,
    pub nodes: Vec<usize>,
    pub target: Rc<RefCell<TargetEngine>>,
    /// By core, but ends of I/Os.
    pub events: Vec<Vec<HostEvent>>,
    pub answers: Vec<(u64, Answer)>,
    pub loads: Vec<Load>,
    pub tickets: u64,
    /// Changes what the other cores hear of a path.
    pub facts: fn(&mut PathFacts),
}

pub fn target(ports: u16) -> TargetConfig {
    let mut target = target_config(ports);
    target.subsystem.connections_max = 64;
    target
}

impl Fleet {
    /// A volume over the first `paths` of the target's ports.
    pub fn new(cores: u16, paths: u32, target: TargetConfig) -> Self {
        Self::with(cores, paths, target, |_| ())
    }

    /// The same, where failing paths are treated another way.
    pub fn with(
        cores: u16,
        paths: u32,
        target: TargetConfig,
        change: impl FnOnce(&mut Recovery),
    ) -> Self {
        Self::of(cores, paths, target, |host| {
            change(&mut host.volumes[0].recovery);
        })
    }

    /// The same, of other hosts.
    pub fn of(
        cores: u16,
        paths: u32,
        target: TargetConfig,
        change: impl FnOnce(&mut HostConfig),
    ) -> Self {
        let mut config = host_config(paths);
        config.kato_ms = 1000;
        config.cores = cores;
        config.volumes[0].recovery = Recovery {
            quiesce_ns: 500 * MS,
            ..Recovery::default()
        };
        change(&mut config);
        let mut world = World::new(7);
        let engine = |core| {
            let mut config = config.clone();
            config.core = core;
            Rc::new(RefCell::new(HostCore::with_room(config, ROOM)))
        };
        let hosts: Vec<_> = (0..cores).map(engine).collect();
        // Nodes 0 and 1 are a host and the target, as elsewhere.
        let mut nodes = vec![world.add(hosts[0].clone(), 8 << 20)];
        let ports = target.shapes.len() as u32;
        let (arena, disks) = (target.arena_bytes as usize, target.devices.len());
        let target = Rc::new(RefCell::new(TargetEngine::new(target).unwrap()));
        world.add(target.clone(), arena);
        world.nodes[TARGET].disks = vec![Disk::new((BLOCKS * u64::from(BLOCK)) as usize); disks];
        nodes.extend(
            hosts[1..]
                .iter()
                .map(|host| world.add(host.clone(), 8 << 20)),
        );
        for &node in &nodes {
            let to = |listener| Address::To {
                node: TARGET,
                listener,
                delay_ns: WIRE_NS,
            };
            world.nodes[node].addresses = (0..ports).map(to).collect();
        }
        let mut fleet = Self {
            world,
            events: hosts.iter().map(|_| Vec::new()).collect(),
            hosts,
            nodes,
            target,
            answers: Vec::new(),
            loads: Vec::new(),
            tickets: 0,
            facts: |_| (),
        };
        let ready = |it: &Self| it.events.iter().all(|events| ready_of(events, 0).is_some());
        assert!(fleet.run(5 * SECOND, ready), "{:?}", fleet.events);
        fleet
    }

    /// The same load on every core, each on its own part of the volume.
    pub fn load(&mut self, total: u64) {
        let load = |(core, &node)| {
            let mut load = Load::new(total, 8, BLOCK);
            (load.node, load.base) = (node, core as u64 * (1 << 20));
            load
        };
        self.loads = self.nodes.iter().enumerate().map(load).collect();
    }

    /// The loads go on for so many I/Os more.
    pub fn load_more(&mut self, count: u64) {
        self.loads.iter_mut().for_each(|load| load.total += count);
    }

    pub fn step(&mut self) {
        self.step_but(None);
    }

    fn step_but(&mut self, but: Option<usize>) {
        let mut none = Load::new(0, 1, BLOCK);
        for core in (0..self.hosts.len()).filter(|&core| Some(core) != but) {
            let load = self.loads.get_mut(core).unwrap_or(&mut none);
            let events = &mut self.events[core];
            let before = events.len();
            load.step(&mut self.world, &self.hosts[core], events);
            let new: Vec<HostEvent> = events[before..].to_vec();
            for event in new {
                self.pass_on(event);
            }
        }
    }

    pub fn pass_on(&mut self, event: HostEvent) {
        let now_ns = self.world.now_ns;
        let tell = |host: &Rc<RefCell<HostCore>>, news| {
            host.borrow_mut()
                .handle_control(HostControl::Path(news), now_ns);
        };
        match event {
            HostEvent::Publish(mut news) => {
                if let PathNews::Found(facts) = &mut news {
                    (self.facts)(facts);
                }
                self.hosts[1..].iter().for_each(|it| tell(it, news.clone()));
            }
            HostEvent::Report(news) => tell(&self.hosts[0], news),
            HostEvent::Changed(ticket, answer) => self.answers.push((ticket, answer)),
            _ => {}
        }
    }

    pub fn run(&mut self, limit_ns: u64, mut over: impl FnMut(&Self) -> bool) -> bool {
        let end_ns = self.world.now_ns + limit_ns;
        while self.world.now_ns < end_ns {
            let left_ns = (end_ns - self.world.now_ns).min(MS / 10);
            self.world.pass(left_ns);
            self.step();
            if over(self) {
                return true;
            }
        }
        false
    }

    /// The end of one I/O of a core without a load, within `limit_ns`.
    pub fn one(&mut self, core: usize, io: &Io, limit_ns: u64) -> Option<Outcome> {
        let now_ns = self.world.now_ns;
        self.hosts[core].borrow_mut().submit(io, now_ns).unwrap();
        self.end(core, limit_ns)
    }

    /// How the next I/O of a core without a load ends, within `limit_ns`.
    pub fn end(&mut self, core: usize, limit_ns: u64) -> Option<Outcome> {
        let host = self.hosts[core].clone();
        let end_ns = self.world.now_ns + limit_ns;
        loop {
            // Earlier events are taken, too.
            while let Some(event) = { host.borrow_mut().poll_event() } {
                if let HostEvent::Done(done) = event {
                    return Some(done.outcome);
                }
                self.events[core].push(event.clone());
                self.pass_on(event);
            }
            self.step_but(Some(core));
            if self.world.now_ns >= end_ns {
                return None;
            }
            self.world.pass(MS / 10);
        }
    }

    pub fn ask(&mut self, change: Change, wait_ns: u64) -> u64 {
        self.tickets += 1;
        let ticket = self.tickets;
        let message = HostControl::Change {
            ticket,
            change,
            wait_ns,
        };
        let now_ns = self.world.now_ns;
        self.hosts[0].borrow_mut().handle_control(message, now_ns);
        ticket
    }

    /// The answer to a change, within 10 s.
    pub fn change(&mut self, change: Change) -> Answer {
        let ticket = self.ask(change, 5 * SECOND);
        let of = |it: &Self| it.answers.iter().position(|(of, _)| *of == ticket);
        assert!(self.run(10 * SECOND, |it| of(it).is_some()), "no answer");
        let at = of(self).unwrap();
        self.answers.remove(at).1
    }

    pub fn add(&mut self, address: u32) -> Answer {
        self.change(Change::AddPath(0, Box::new(tcp_path(address))))
    }

    pub fn remove(&mut self, path: PathIndex, force: bool) -> Answer {
        self.change(Change::RemovePath {
            volume: 0,
            path,
            force,
        })
    }

    pub fn finish(&mut self) {
        let over = |it: &Self| it.loads.iter().all(Load::is_over);
        let ended = |it: &Self| it.loads.iter().map(|load| load.ended).collect::<Vec<_>>();
        assert!(self.run(200 * SECOND, over), "{:?}", ended(self));
        assert!(self.loads.iter().all(|load| load.errors() == 0));
        assert!(self.loads.iter().all(|load| load.verified > 0));
        self.at_rest();
    }

    /// Nothing waits, and nothing is counted as in flight (T41).
    pub fn at_rest(&self) {
        for host in &self.hosts {
            let host = host.borrow();
            let stats = host.hold_stats(0);
            let waiting = stats.held + stats.behind + stats.queued + stats.delayed;
            assert_eq!(waiting, 0, "{stats:?}");
            let in_flight = (0..64).map(|path| host.in_flight(0, PathIndex(path)));
            assert_eq!(in_flight.sum::<u32>(), 0);
        }
    }

    pub fn states(&self, path: PathIndex) -> Vec<PathState> {
        let hosts = self.hosts.iter();
        hosts
            .map(|host| host.borrow().path_state(0, path))
            .collect()
    }

    pub fn paths(&self) -> Vec<u8> {
        let host = self.hosts[0].borrow();
        let all: Vec<u8> = host.paths(0).map(|path| path.0).collect();
        for other in &self.hosts[1..] {
            let there: Vec<u8> = other.borrow().paths(0).map(|path| path.0).collect();
            assert_eq!(there, all, "all cores know the same paths");
        }
        all
    }

    /// I/Os done on a path, over all cores.
    pub fn ios(&self, path: PathIndex) -> u64 {
        let ios = |host: &Rc<RefCell<HostCore>>| -> u64 {
            host.borrow().counters(0, path).ios.iter().sum()
        };
        self.hosts.iter().map(ios).sum()
    }

    pub fn until_freed(&mut self, path: PathIndex) {
        let freed = |it: &Self| {
            let mut events = it.events[0].iter().rev();
            events.any(|event| matches!(event, HostEvent::Freed(0, Some(of)) if *of == path))
        };
        assert!(self.run(10 * SECOND, freed), "never freed");
    }

    pub fn connections(&self) -> Vec<usize> {
        let nodes = self.nodes.iter();
        nodes.map(|&node| self.world.connections(node)).collect()
    }
}
