//! Messages between the cores of a host, and its orderly stop.
use super::prelude::*;
use super::rig::send;
use engine::export::ExportEvent;
use engine::host::{HostEvent, Peers};

/// Most time until a message of one core reaches another.
const MAIL_NS: u64 = 50_000;

/// The cores of a host, as one of them sees the others.
struct PeersOf<'a> {
    /// I/Os in flight, by core and number of the path.
    board: &'a mut [Vec<u32>],
    core: usize,
}

impl Peers for PeersOf<'_> {
    fn are_there(&self) -> bool {
        self.board.len() > 1
    }
    fn in_flight(&self, path: usize) -> u32 {
        let rows = (0..).zip(self.board.iter());
        let others = rows.filter(|(row, _)| *row != self.core);
        let counts = others.map(|(_, row)| row.get(path).copied().unwrap_or(0));
        counts.sum()
    }
    fn show_in_flight(&mut self, path: usize, count: u32) {
        if let Some(shown) = self.board[self.core].get_mut(path) {
            *shown = count;
        }
    }
}

impl Host {
    /// Passes on what a core has to say after a turn.
    pub(super) fn listen(
        &mut self,
        world: &mut World,
        node: usize,
        mail: &mut Vec<Option<ExportControl>>,
    ) {
        let Some(core) = self.cores.iter().position(|it| *it == node) else {
            unreachable!("node {node} is no core of this host");
        };
        loop {
            let Body::Core(engine) = &mut world.nodes[node].body else {
                return;
            };
            let Some(event) = engine.poll_event() else {
                break;
            };
            let event = match event {
                ExportEvent::Host(event) => event,
                ExportEvent::ToCore(to, message) => {
                    let to = self.cores[usize::from(to)];
                    self.post(world, mail, to, ExportControl::OfCore(message));
                    continue;
                }
                _ => continue,
            };
            let others = self.cores.iter().copied().filter(|it| *it != node);
            match event {
                HostEvent::Publish(news) => {
                    for other in others.collect::<Vec<_>>() {
                        let message = HostControl::Path(news.clone());
                        self.post(world, mail, other, ExportControl::Host(message));
                    }
                }
                HostEvent::Report(news) => {
                    let first = self.cores[0];
                    let message = ExportControl::Host(HostControl::Path(news));
                    self.post(world, mail, first, message);
                }
                HostEvent::Mark(mark) => {
                    self.mark_ns = self.mark_ns.max(Some(mark.bound_ns));
                    let message = ExportControl::Host(HostControl::Marked(mark));
                    self.post(world, mail, node, message);
                }
                // Only changes of data can come late.
                HostEvent::Unfinished { changes, .. } => self.unfinished |= changes > 0,
                HostEvent::Unflushed(..) => self.unflushed = true,
                HostEvent::Loss(volume, untold) => {
                    let bit = 1 << volume;
                    self.losses = self.losses & !bit | if untold { bit } else { 0 };
                }
                HostEvent::Changed(ticket, result) => self.user.heard(ticket, result),
                HostEvent::Failed(_, line)
                | HostEvent::Returned(_, line)
                | HostEvent::Warning(_, line)
                | HostEvent::Trouble(_, line)
                    if core == 0 =>
                {
                    world.tell(|| line.clone());
                    self.lines.push(format!("{} {line}", world.now_ns));
                }
                _ => {}
            }
        }
        self.look_at_paths(world, core);
        self.show(world, core);
        self.stop_next(world, mail);
    }

    fn post(
        &mut self,
        world: &mut World,
        mail: &mut Vec<Option<ExportControl>>,
        to: usize,
        message: ExportControl,
    ) {
        let at_ns = world.now_ns + world.random.up_to(MAIL_NS);
        self.mail_ns = self.mail_ns.max(at_ns);
        send(world, mail, to, self.mail_ns, message);
    }

    /// Shows the other cores what one has in flight (T47), and tells it what they have.
    fn show(&mut self, world: &mut World, core: usize) {
        let Body::Core(engine) = &mut world.nodes[self.cores[core]].body else {
            return;
        };
        let board = &mut self.board;
        engine.exchange(&mut PeersOf { board, core }, |_| ());
    }

    /// Core 0 shuts the controllers down, so it comes last.
    fn stop_next(&mut self, world: &mut World, mail: &mut Vec<Option<ExportControl>>) {
        let Some(next) = self.stopping.filter(|&next| next < self.cores.len()) else {
            return;
        };
        let last = self.cores.get(next + 1);
        if last.is_none_or(|&node| world.nodes[node].stopped) {
            let message = ExportControl::Stop(super::run::DRAIN_NS);
            send(world, mail, self.cores[next], world.now_ns, message);
            self.stopping = Some(next.wrapping_sub(1));
        }
    }

    /// Whether a stop in order has come to its end.
    pub fn has_stopped(&self, world: &World) -> bool {
        self.cores.iter().all(|&node| world.nodes[node].stopped)
    }
}
