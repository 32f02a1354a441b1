//! Clients: accepted, greeted once their volume is ready, served, closed.
use super::arrivals::End;
use super::{Devices, ExportEvent, NbdServer, Reader};
use crate::client::{ClientCounters, ClientPlace, ClientReport};
use crate::limits::{BUFFER_MAX, DRAIN_ANSWER_NS};
use crate::machine::{ConnId, Output, Place, Send, Span};
use crate::motion::Motion;
use crate::pipeline::Stage;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use block::Issuer;
use core::cmp::Reverse;
use nbd::server::{CloseReason, Config, Event, Session};
use nbd::{BlockSizes, Export, Exports, Features, Kind, Request};

/// Of two parts of an answer's piece: the bits that say so in a cookie.
const FIRST_HALF: u32 = 1 << 30;
const SECOND_HALF: u32 = 1 << 31;

/// One place for a client.
#[derive(Default)]
pub(super) struct Client {
    pub state: State,
    pub export: u32,
    /// Its volume when the client came.
    pub volume: u16,
    /// That was removed: what is asked of that number now is another volume's.
    pub orphan: bool,
    /// Its identity.
    pub reader: Reader,
    /// Bytes of the shared arena that its requests have.
    pub held: u64,
    /// A request has what is its own.
    pub own_used: bool,
    /// Its requests that have ended, and whose memory somebody still has.
    pub lent: u16,
    /// Its requests that wait for memory, in the order of asking.
    pub waiting: VecDeque<u32>,
    /// In the line for the shared arena.
    pub in_line: bool,
    /// Got something back, and is looked at for it.
    pub looked_again: bool,
    /// Counts of its requests.
    pub counters: ClientCounters,
    /// Bytes that it has moved.
    pub motion: Motion,
    /// The connection is gone.
    pub closed: bool,
    /// It went without a DISC: what it asked for and was not begun is dropped.
    pub broken: bool,
    pub end: End,
    /// The reactor is asked whether that has come, and has not answered.
    pub is_checked: bool,
    touched: bool,
    /// Second half of an answer's piece, to be sent next, and its request.
    half: Option<(Span, u32)>,
}

#[derive(Default)]
pub(super) enum State {
    /// No client.
    #[default]
    Free,
    /// Connected; what clients that are gone have under way is not known yet. The number that it
    /// has for that.
    Arriving(u64),
    /// Connected; its volume isn't ready.
    Waiting,
    /// Served.
    Session(Box<Session>),
}

impl Client {
    pub fn is_free(&self) -> bool {
        matches!(self.state, State::Free)
    }

    pub fn poll_timeout(&self) -> Option<u64> {
        match &self.state {
            State::Session(session) => session.poll_timeout(),
            _ => None,
        }
    }

    /// Whether what it would hold with so much more comes back soon.
    #[inline]
    pub fn turns_over(&self, need: u64, now_ns: u64) -> bool {
        self.motion.turns_over(self.held + need, now_ns)
    }

    /// Whether a request of it waits for memory.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether nothing comes of it any more.
    pub fn is_gone(&self) -> bool {
        let over = match &self.state {
            State::Session(session) => session.is_over(),
            _ => true,
        };
        self.closed && over
    }

    /// Whether it has sent DISC, and is there.
    pub fn is_draining(&self) -> bool {
        matches!(&self.state, State::Session(session) if session.is_draining())
    }

    pub fn session(&mut self) -> Option<&mut Session> {
        match &mut self.state {
            State::Session(session) => Some(session),
            _ => None,
        }
    }
}

impl NbdServer {
    pub fn accept(&mut self, devices: &mut Devices, export: u32, now_ns: u64) -> Option<ConnId> {
        let announced = self.sources.iter().position(|(of, _)| *of == export);
        let source = announced.and_then(|at| self.sources.remove(at));
        let offer = self.offers.get(export as usize)?.as_ref()?;
        let volume = offer.volume;
        if self.draining {
            return None;
        }
        let Some(Reverse(client)) = self.free.pop() else {
            self.turn_away(export, now_ns);
            return None;
        };
        let arrival = self.arrive(devices, volume);
        self.clients[usize::from(client)] = Client {
            state: arrival.map_or(State::Waiting, State::Arriving),
            export,
            volume,
            reader: source.map_or_else(Reader::default, |(_, reader)| reader),
            waiting: VecDeque::with_capacity(self.config.requests_max.into()),
            counters: ClientCounters {
                since_ns: now_ns,
                ..ClientCounters::default()
            },
            ..Client::default()
        };
        self.counters[export as usize].clients += 1;
        if arrival.is_none() && self.can_greet(volume) {
            self.begin_session(devices, client, now_ns);
        }
        Some(self.conn_of(client))
    }

    /// The clients that are connected.
    pub fn client_reports(&self) -> impl Iterator<Item = ClientReport> {
        let all = self.clients.iter();
        let there = all.filter(|it| !it.is_free() && !it.closed && !it.orphan);
        there.map(|it| ClientReport {
            place: ClientPlace::Export(it.export),
            volume: it.volume,
            name: it.reader.name.to_string(),
            connections: 1,
            in_flight: match &it.state {
                State::Session(session) => session.in_flight().into(),
                _ => 0,
            },
            counters: it.counters,
        })
    }

    /// Whether there is something to tell the clients of a volume.
    fn can_greet(&self, volume: u16) -> bool {
        let ready = self.ready.get(usize::from(volume));
        ready.is_some_and(Option::is_some) || self.why_refused(volume).is_some()
    }

    /// All cores have settled the client of this core that came under this number.
    pub fn settled(&mut self, devices: &Devices, number: u64, now_ns: u64) {
        let is_it = |it: &Client| matches!(it.state, State::Arriving(of) if of == number);
        let Some(client) = self.clients.iter().position(is_it) else {
            return; // it is gone
        };
        let client = client as u16;
        let it = &mut self.clients[usize::from(client)];
        it.state = State::Waiting;
        let (volume, is_there) = (it.volume, !it.closed && !it.orphan);
        if is_there && self.can_greet(volume) {
            self.begin_session(devices, client, now_ns);
            self.outputs.push_back(Output::Resume(self.conn_of(client)));
        }
    }

    /// Of many who are turned away, few are spoken of.
    fn turn_away(&mut self, export: u32, now_ns: u64) {
        let count = self.turned_away.one_more(now_ns);
        let event = count.map(|count| ExportEvent::TurnedAway { export, count });
        self.events.extend(event);
    }

    /// The clients of a volume that is ready now, or that was refused. Those who were told so, and
    /// are still there, may have it now.
    pub(super) fn greet(&mut self, devices: &Devices, volume: u16) {
        for client in 0..self.config.clients_max {
            let it = &self.clients[usize::from(client)];
            if it.volume != volume || it.closed || it.orphan {
                continue;
            }
            match it.state {
                State::Free | State::Arriving(_) => {}
                State::Waiting => {
                    self.begin_session(devices, client, self.course.now_ns);
                    self.outputs.push_back(Output::Resume(self.conn_of(client)));
                }
                State::Session(_) => {
                    let exports = self.exports(devices, it);
                    let session = self.clients[usize::from(client)].session();
                    if let Some((session, exports)) = session.zip(exports) {
                        session.set_exports(exports);
                    }
                }
            }
        }
    }

    /// A volume won't be ready before somebody does something about it, or may be.
    pub fn refused(&mut self, devices: &Devices, volume: u16, why: Option<String>) {
        self.refused.retain(|it| it.0 != volume);
        if let Some(why) = why {
            self.refused.push((volume, why));
            self.greet(devices, volume);
        }
    }

    fn why_refused(&self, volume: u16) -> Option<&str> {
        let of = self.refused.iter().find(|it| it.0 == volume);
        of.map(|it| it.1.as_str())
    }

    fn begin_session(&mut self, devices: &Devices, client: u16, now_ns: u64) {
        let it = &self.clients[usize::from(client)];
        let Some(exports) = self.exports(devices, it) else {
            let (conn, abort) = (self.conn_of(client), true);
            self.outputs.push_back(Output::Close { conn, abort });
            return;
        };
        let config = Config {
            requests_max: self.config.requests_max,
            piece: BUFFER_MAX,
            ..Config::default()
        };
        let session = Session::new(config, exports, now_ns);
        let it = &mut self.clients[usize::from(client)];
        it.state = State::Session(Box::new(session));
        self.losses[usize::from(client)] = devices.flush_losses(it.volume) as u16;
        self.touch(client);
    }

    /// Export that a session offers; `None`: nothing that NBD could describe.
    fn exports(&self, devices: &Devices, client: &Client) -> Option<Exports> {
        let export = client.export;
        let offer = self.offers[export as usize].as_ref()?;
        if let Some(why) = self.why_refused(offer.volume) {
            return Some(Exports::none(why));
        }
        let info = (*self.ready.get(usize::from(offer.volume))?)?;
        let limits = devices.limits(offer.volume)?;
        let minimum = 1 << info.block_shift;
        let features = Features {
            read_only: offer.read_only || client.reader.read_only || limits.read_only,
            flush: true,
            fua: true,
            trim: limits.deallocate,
            // Where a path or leg has no command for it, zeroes are written.
            write_zeroes: true,
            fast_zero: limits.write_zeroes,
            multi_conn: true,
            // Nothing is kept here, so it is right and cheap: who asks is saved the data.
            cache: true,
            // Where nothing is known of holes all is data, in one extent.
            block_status: true,
            ..Features::default()
        };
        let export = Export {
            id: export,
            name: offer.name.clone(),
            description: Default::default(),
            size: info.bytes,
            block_sizes: BlockSizes {
                minimum,
                preferred: preferred(minimum, limits.optimal_write),
                maximum: nbd::limits::BLOCK_MAX,
            },
            features,
        };
        Exports::new(vec![export], Some(0)).ok()
    }

    /// The next turn takes the session's events.
    #[inline]
    pub(super) fn touch(&mut self, client: u16) {
        let it = &mut self.clients[usize::from(client)];
        if !it.touched {
            it.touched = true;
            self.touched.push(client);
        }
    }

    /// Takes the events of all sessions that were called; whether there were any.
    pub(super) fn drain_sessions(&mut self, devices: &mut Devices, now_ns: u64) -> bool {
        let mut any = false;
        while let Some(client) = self.touched.pop() {
            any = true;
            self.clients[usize::from(client)].touched = false;
            while let Some(event) = self.next_event(client) {
                self.session_event(devices, client, event, now_ns);
            }
            let it = &mut self.clients[usize::from(client)];
            if it.is_gone() && it.lent == 0 {
                self.free_client(client);
            }
            let due_ns = self.clients[usize::from(client)].poll_timeout();
            self.deadlines
                .set(client.into(), due_ns.unwrap_or(u64::MAX));
        }
        any
    }

    /// Nothing is left of a client: its place may be another's.
    fn free_client(&mut self, client: u16) {
        let it = &mut self.clients[usize::from(client)];
        let export = it.export;
        debug_assert!(it.held == 0 && !it.own_used && it.waiting.is_empty());
        *it = Client::default();
        self.table.close(client);
        self.stalls.forget(client);
        self.free.push(Reverse(client));
        self.counters[export as usize].clients -= 1;
        self.note_vacated(export);
    }

    /// Says so, if a withdrawn export has no clients.
    pub(super) fn note_vacated(&mut self, export: u32) {
        let at = export as usize;
        if self.offers[at].is_none() && self.counters[at].clients == 0 {
            self.events.push_back(ExportEvent::Vacated(export));
        }
    }

    fn next_event(&mut self, client: u16) -> Option<Event> {
        self.clients[usize::from(client)].session()?.poll_event()
    }

    fn session_event(&mut self, devices: &mut Devices, client: u16, event: Event, now_ns: u64) {
        let conn = self.conn_of(client);
        match event {
            Event::NeedBuffer { token, offset, len } => {
                self.open_places(client);
                let ticket = self.ticket(client, token);
                let request = Request::new(token, Kind::Write, offset, len);
                self.begin(devices, ticket, client, request);
            }
            Event::Request(request) => {
                let ticket = self.ticket(client, request.token);
                match request.kind {
                    Kind::Write => {
                        self.table[ticket].complete(request);
                        self.order(devices, ticket);
                    }
                    _ => {
                        self.open_places(client);
                        self.begin(devices, ticket, client, request);
                    }
                }
            }
            Event::Release { token } => self.release(self.ticket(client, token)),
            Event::Opened(_) => {}
            _ if self.clients[usize::from(client)].closed => {}
            Event::Transmit => self.outputs.push_back(Output::Transmit(conn)),
            Event::Resume => self.outputs.push_back(Output::Resume(conn)),
            Event::Close { reason } => {
                let abort = reason.is_abortive();
                if !matches!(reason, CloseReason::Finished) {
                    // It may send what it asked for again from when it sees this.
                    self.break_off(devices, client);
                }
                self.outputs.push_back(Output::Close { conn, abort });
                if !matches!(reason, CloseReason::Finished | CloseReason::Shutdown) {
                    self.tell_of_end(client, reason, now_ns);
                }
            }
        }
        self.course.now_ns = now_ns;
    }

    /// Of many, few are spoken of.
    fn tell_of_end(&mut self, client: u16, why: CloseReason, now_ns: u64) {
        let Some(count) = self.ended.one_more(now_ns) else {
            return;
        };
        let it = &self.clients[usize::from(client)];
        self.events.push_back(ExportEvent::Client {
            export: it.export,
            name: it.reader.name.clone(),
            why,
            count,
        });
    }

    /// Clients of one export, or all, are told that it is over.
    pub(super) fn shut(&mut self, export: Option<u32>, drain_ns: u64, now_ns: u64) {
        for client in 0..self.config.clients_max {
            let of = self.clients[usize::from(client)].export;
            if export.is_none_or(|export| export == of) {
                self.shut_one(client, drain_ns, now_ns);
            }
        }
    }

    pub(super) fn shut_one(&mut self, client: u16, drain_ns: u64, now_ns: u64) {
        let (conn, abort) = (self.conn_of(client), true);
        match &mut self.clients[usize::from(client)].state {
            State::Free => {}
            State::Arriving(_) | State::Waiting => {
                self.outputs.push_back(Output::Close { conn, abort });
            }
            State::Session(session) => {
                session.shutdown(drain_ns, now_ns);
                self.touch(client);
            }
        }
    }

    /// A volume is gone from this core: nobody is served from its number any more.
    pub fn forget_volume(&mut self, volume: u16) {
        if let Some(ready) = self.ready.get_mut(usize::from(volume)) {
            *ready = None;
        }
        self.refused.retain(|it| it.0 != volume);
        let offers = self.offers.iter_mut();
        for offer in offers.filter(|it| it.as_ref().is_some_and(|it| it.volume == volume)) {
            *offer = None;
        }
        for client in 0..self.config.clients_max {
            let it = &mut self.clients[usize::from(client)];
            if it.volume == volume && !it.is_free() && !it.orphan {
                it.orphan = true;
                // A client in the middle of a write is told when that is all here.
                self.shut_one(client, DRAIN_ANSWER_NS, self.course.now_ns);
            }
        }
    }

    /// For a client's first request.
    #[inline]
    fn open_places(&mut self, client: u16) {
        self.table.open(client);
    }

    #[inline]
    fn ticket(&self, client: u16, token: u32) -> u32 {
        self.table.ticket(client, token)
    }

    pub fn client_bytes(&mut self, client: u16, bytes: &[u8], now_ns: u64) -> usize {
        let it = &mut self.clients[usize::from(client)];
        let Some(session) = it.session() else {
            return 0; // until the volume is ready
        };
        let taken = session.handle_bytes(bytes, now_ns);
        if let Some(request) = session.buffer_request() {
            self.course.now_ns = now_ns;
            self.offer_buffer(client, request);
        }
        self.touch(client);
        taken
    }

    /// Gives a write its memory before the turn, if it is there: its data is received with its
    /// header. If the last request of its token is released behind other events, the turn does it.
    fn offer_buffer(&mut self, client: u16, request: Request) {
        let at = usize::from(client);
        while let Some(token) = self.clients[at].session().and_then(Session::take_release) {
            self.release(self.ticket(client, token));
        }
        self.open_places(client);
        let ticket = self.ticket(client, request.token);
        if self.table[ticket].pipeline.stage() == Stage::Free
            && let Some(session) = self.clients[at].session()
        {
            session.withdraw_buffer_request();
            self.begin_write(client, ticket, request);
        }
    }

    pub fn client_placement(&mut self, client: u16) -> Option<Place> {
        let placement = self.clients[usize::from(client)].session()?.placement()?;
        let work = &self.table[self.ticket(client, placement.token)];
        debug_assert_eq!(work.pipeline.stage(), Stage::Data);
        let position = work.head() + u64::from(placement.offset);
        Some(Place {
            span: work.span(position, placement.len),
            crc: None,
        })
    }

    pub fn client_payload(&mut self, client: u16, len: u32, now_ns: u64) {
        if let Some(session) = self.clients[usize::from(client)].session() {
            session.handle_payload(len, now_ns);
            self.moved(client, len);
            self.touch(client);
        }
    }

    pub fn client_transmit(&mut self, client: u16, out: &mut Vec<u8>) -> Option<Option<Send>> {
        let it = &mut self.clients[usize::from(client)];
        let send = |span, cookie| Send {
            span,
            digest: false,
            cookie,
            read: None,
        };
        if let Some((span, token)) = it.half.take() {
            return Some(Some(send(span, token | SECOND_HALF)));
        }
        let session = it.session()?;
        let transmit = session.poll_transmit(out);
        if session.has_event() {
            // The last answers make room for the next requests.
            self.touch(client);
        }
        let Some(payload) = transmit?.payload else {
            return Some(None);
        };
        self.moved(client, payload.len);
        let ticket = self.ticket(client, payload.token);
        let work = &mut self.table[ticket];
        let position = work.head() + u64::from(payload.offset);
        let span = work.span(position, payload.len);
        if span.len == payload.len {
            return Some(Some(send(span, payload.token)));
        }
        // A piece of the request that begins within a block may lie in two buffers.
        let rest = work.span(position + u64::from(span.len), payload.len - span.len);
        work.halves += 1;
        self.clients[usize::from(client)].half = Some((rest, payload.token));
        Some(Some(send(span, payload.token | FIRST_HALF)))
    }

    pub fn client_sent(&mut self, client: u16, cookie: u32) {
        let token = cookie & !(FIRST_HALF | SECOND_HALF);
        let ticket = self.ticket(client, token);
        let work = &mut self.table[ticket];
        let mut whole = 1;
        // A short second half may be sent from a copy and reported before its first half.
        if cookie & FIRST_HALF != 0 {
            work.halves -= 1;
            whole = 0;
            if work.halves == 0 {
                whole = core::mem::take(&mut work.deferred);
            }
        } else if cookie & SECOND_HALF != 0 && work.halves > 0 {
            work.deferred += 1;
            whole = 0;
        }
        if let Some(session) = self.clients[usize::from(client)].session() {
            (0..whole).for_each(|_| session.handle_sent(token));
            self.touch(client);
        }
    }

    /// Requests of a client that have not begun are dropped; the other cores are told of those
    /// that are under way.
    pub(super) fn break_off(&mut self, devices: &mut Devices, client: u16) {
        self.clients[usize::from(client)].broken = true;
        self.show_changes_of(devices, client);
    }

    /// A client is gone, which may send what is under way again to another core.
    pub(super) fn show_changes_of(&self, devices: &mut Devices, client: u16) {
        if !devices.cross_core.has_others() {
            return;
        }
        let is_its = |cookie| match Issuer::of_cookie(cookie) {
            Issuer::FrontEnd(0, request) => self.table[request].client == client,
            _ => false,
        };
        devices.cross_core.show_all(&mut devices.order, is_its);
    }

    pub fn client_closed(&mut self, devices: &mut Devices, client: u16) {
        let half = self.clients[usize::from(client)].half.take();
        if let Some((_, token)) = half {
            self.client_sent(client, token | SECOND_HALF);
        }
        let it = &mut self.clients[usize::from(client)];
        it.closed = true;
        if let Some(session) = it.session() {
            let broken = !session.is_draining();
            session.handle_closed();
            it.broken |= broken;
        }
        self.show_changes_of(devices, client);
        self.touch(client);
    }
}

/// The block size that a client should prefer: a power of two, as NBD has it, of which the
/// namespace's `optimal` write size (bytes; 0: unknown) is a multiple.
fn preferred(minimum: u32, optimal: u32) -> u32 {
    let least = minimum.max(4096);
    match optimal {
        0 => least,
        _ => (1 << optimal.trailing_zeros()).clamp(least, nbd::limits::BLOCK_MAX.max(least)),
    }
}

#[cfg(test)]
mod tests {
    use super::preferred;

    #[test]
    fn a_preferred_size_is_a_power_of_two_that_nbd_allows() {
        for (minimum, optimal, want) in [
            (512, 0, 4096),
            (4096, 0, 4096),
            (512, 512, 4096),
            (4096, 128 << 10, 128 << 10),
            (4096, 96 << 10, 32 << 10),
            (65536, 4096, 65536),
            (512, 1 << 31, nbd::limits::BLOCK_MAX),
        ] {
            assert_eq!(preferred(minimum, optimal), want, "{minimum} {optimal}");
        }
    }
}
