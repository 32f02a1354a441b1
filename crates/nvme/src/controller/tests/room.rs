//! Associations that make room for new hosts: the remembered search result changes no decision.
use super::*;
use crate::limits::IDLE_WANTED_NS;
use proptest::prelude::*;

/// Places, which is also the most controllers.
const PLACES: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    /// A host connects, where the place is free.
    Come(u32),
    /// It enables its controller, resets it, shuts it down.
    Enable(u32),
    Reset(u32),
    Shut(u32),
    Leave(u32),
    /// Submits a flush that stays with the driver until some are done.
    Hold(u32),
    Execute,
    /// A new host finds no place, this often.
    NoPlace(u8),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0..PLACES;
    prop_oneof![
        3 => who().prop_map(Step::Come),
        2 => who().prop_map(Step::Enable),
        2 => who().prop_map(Step::Reset),
        2 => who().prop_map(Step::Shut),
        1 => who().prop_map(Step::Leave),
        3 => who().prop_map(Step::Hold),
        1 => Just(Step::Execute),
        4 => (1u8..4).prop_map(Step::NoPlace),
        3 => (0..IDLE_WANTED_NS / 2).prop_map(Step::Pass),
        1 => Just(Step::Pass(IDLE_WANTED_NS)),
    ]
}

fn subsystem() -> Bench {
    let mut config = config();
    config.cntlid_max = 1000;
    let mut bench = Bench::new(config);
    bench.hold_commands = true;
    bench
}

/// Whether a host has this place, with a controller that accepts commands.
fn is_there(bench: &Bench, place: u32) -> bool {
    bench.wires.contains_key(&place) && !bench.closed.iter().any(|(conn, _)| *conn == place)
}

fn leave(bench: &mut Bench, conn: u32) {
    if bench.wires.contains_key(&conn) {
        bench.gone(conn);
        bench.wires.remove(&conn);
        bench.closed.retain(|(closed, _)| *closed != conn);
    }
}

/// A flush on an I/O queue of its own, of a controller that had none yet.
fn hold(bench: &mut Bench, place: u32, cntlid: u16) {
    let queue = PLACES + place;
    let csts = bench.csts(place);
    let is_ready = csts.rdy() && csts.shst() == 0;
    let is_used = bench.held.iter().any(|command| command.conn.0 == queue);
    if is_ready && !is_used && !bench.wires.contains_key(&queue) {
        bench.io(queue, 0, cntlid, 1, &Options::default());
        bench.send(queue, SqeBuilder::new(0).nsid(1), &[]);
    }
}

fn act(bench: &mut Bench, cntlids: &mut [u16], step: &Step, forgetful: bool) {
    match *step {
        Step::Come(place) if !bench.wires.contains_key(&place) => {
            bench.open(place, 0, &plain());
            let data = connect_data(NQN, CNTLID_ANY);
            let answer = bench.connect(place, admin_connect(), &data);
            cntlids[place as usize] = answer.result as u16;
        }
        Step::Enable(place) if is_there(bench, place) => {
            bench.set_cc(place, Cc::enabled(0, 0));
        }
        Step::Reset(place) if is_there(bench, place) => bench.set_cc(place, Cc(0)),
        Step::Shut(place) if is_there(bench, place) => {
            bench.set_cc(place, Cc::enabled(0, 0).with_shn(1));
        }
        Step::Leave(place) => [place, PLACES + place]
            .iter()
            .for_each(|conn| leave(bench, *conn)),
        Step::Hold(place) if is_there(bench, place) => {
            hold(bench, place, cntlids[place as usize]);
        }
        Step::Execute if !bench.held.is_empty() => bench.execute_one(),
        Step::NoPlace(times) => {
            for _ in 0..times {
                if forgetful {
                    bench.target.room_from_ns = 0;
                }
                bench.target.make_room(bench.now);
                bench.settle();
            }
        }
        Step::Pass(ns) => bench.advance(ns),
        _ => {}
    }
}

proptest! {
    #[test]
    fn make_room_ends_what_a_full_search_would_end(
        steps in prop::collection::vec(step(), 1..250),
    ) {
        let mut both = [(); 2].map(|()| (subsystem(), [0; PLACES as usize]));
        for step in steps {
            for ((bench, cntlids), forgetful) in both.iter_mut().zip([false, true]) {
                act(bench, cntlids, &step, forgetful);
            }
            let [(remembers, _), (looks, _)] = &both;
            prop_assert_eq!(&remembers.closed, &looks.closed, "{:?}", step);
        }
    }
}

#[test]
fn in_a_flood_all_are_looked_at_once_and_not_for_each_who_comes() {
    let mut bench = Bench::new(config());
    bench.open(0, 0, &plain());
    bench.connect(0, admin_connect(), &connect_data(NQN, CNTLID_ANY));
    let idle_ns = bench.now;
    bench.advance(MS);
    bench.target.make_room(bench.now);
    assert_eq!(bench.target.room_from_ns, idle_ns + IDLE_WANTED_NS);
    bench.advance(IDLE_WANTED_NS - 2 * MS);
    bench.target.make_room(bench.now);
    bench.settle();
    assert_eq!(bench.closed, []);
    bench.advance(MS);
    bench.target.make_room(bench.now);
    bench.settle();
    assert_eq!(bench.closed, [(0, CloseReason::Handshake)]);
}
