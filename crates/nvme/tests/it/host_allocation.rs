//! Get LBA Status as the host asks it: beside all other commands, and without a deadline.
use crate::host_peer::admin::{AdminPeer, Answer, Model, SECOND, admin_config, name};
use nvme::host::{AdminEvent, ControllerInfo};
use nvme::limits::ALLOCATION_QUESTIONS_MAX;
use nvme::wire::fabrics::Version;
use nvme::wire::identify::{NvmController, oacs};
use nvme::wire::lba_status::{ALLOCATED, COMPLETE, Entry, List, Request};
use nvme::wire::sqe::admin;
use nvme::wire::{Sqe, Status};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// The controller's command, as asked, and its answer; `None`: it is never answered.
type Answers = Rc<RefCell<VecDeque<Option<Answer>>>>;

/// A controller that lists allocated blocks, and answers questions with these, in order.
fn lister(model: &mut Model) -> impl FnMut(&Sqe<'_>) -> Option<Answer> + use<> {
    model.id.oacs = oacs::GET_LBA_STATUS;
    let nvm = NvmController {
        aocs: NvmController::ALLOCATED_LBAS,
        ..NvmController::default()
    };
    move |sqe| (name(sqe) == "Identify 06 0").then(|| Answer::data(&nvm.emit()))
}

fn ready() -> (AdminPeer, Answers) {
    let answers = Answers::default();
    let theirs = answers.clone();
    let mut model = Model::default();
    let mut lists = lister(&mut model);
    let mut peer = AdminPeer::new(admin_config(), model).scripted(move |sqe| {
        if sqe.opcode() != admin::GET_LBA_STATUS {
            return lists(sqe);
        }
        let answer = theirs.borrow_mut().pop_front().expect("an answer");
        Some(answer.unwrap_or_else(Answer::silent))
    });
    peer.run();
    assert!(controller(&mut peer).lists_allocated);
    peer.take_seen();
    (peer, answers)
}

fn controller(peer: &mut AdminPeer) -> ControllerInfo {
    match peer.admin.poll_event() {
        Some(AdminEvent::Ready(facts)) => facts.0,
        other => panic!("{other:?}"),
    }
}

fn list(entries: &[(u64, u32)]) -> Answer {
    let entries: Vec<_> = entries
        .iter()
        .map(|it| Entry::allocated(it.0, it.1))
        .collect();
    let mut bytes = Vec::new();
    List::emit(&entries, COMPLETE, &mut bytes);
    bytes.resize(72, 0);
    Answer::data(&bytes)
}

/// Answers, by token.
fn told(peer: &mut AdminPeer) -> Vec<(u64, Option<(u32, bool)>)> {
    let told = |event| match event {
        AdminEvent::Allocated { token, found } => (token, found),
        other => panic!("{other:?}"),
    };
    peer.events().into_iter().map(told).collect()
}

#[test]
fn only_a_controller_that_says_both_is_asked() {
    for (oacs, aocs, version, want) in [
        (1 << 9, 1, Version::V2_0, true),
        (0, 1, Version::V2_0, false),
        (1 << 9, 0, Version::V2_0, false),
        // Which blocks it lists is not known before 2.0.
        (1 << 9, 1, Version(0x1_0400), false),
    ] {
        let mut model = Model {
            version,
            ..Model::default()
        };
        model.id.oacs = oacs;
        let nvm = NvmController {
            aocs,
            ..NvmController::default()
        };
        let mut peer = AdminPeer::new(admin_config(), model)
            .scripted(move |sqe| (name(sqe) == "Identify 06 0").then(|| Answer::data(&nvm.emit())));
        peer.run();
        let lists = controller(&mut peer).lists_allocated;
        assert_eq!(lists, want, "{oacs:#x} {aocs} {version:?}");
    }
}

#[test]
fn questions_are_asked_one_after_the_other_in_pieces() {
    let (mut peer, answers) = ready();
    let asked = Rc::new(RefCell::new(Vec::new()));
    let theirs = asked.clone();
    let mut script = std::mem::replace(&mut peer.script, Box::new(|_| None));
    peer.script = Box::new(move |sqe| {
        let request = Request::parse(&std::array::from_fn(|i| sqe.cdw(10 + i)));
        theirs.borrow_mut().push((sqe.nsid(), request));
        script(sqe)
    });
    answers
        .borrow_mut()
        .extend([Some(list(&[(500, 9)])), Some(list(&[(7, 3)]))]);
    assert!(peer.admin.ask_allocated(1, (1, 100, 1 << 20), 0));
    assert!(peer.admin.ask_allocated(2, (1, 7, 10), 0));
    peer.run();
    let hole = Some((400, false));
    assert_eq!(told(&mut peer), [(1, hole), (2, Some((4, true)))]);
    let request = |slba, blocks| Request {
        slba,
        len: 72,
        action: ALLOCATED,
        blocks,
    };
    let want = [(1, request(100, 65_535)), (1, request(7, 10))];
    assert_eq!(*asked.borrow(), want);
}

#[test]
fn refusal_or_damage_of_one_answer_says_nothing() {
    let (mut peer, answers) = ready();
    let damaged = Answer::error(Status::TRANSIENT_TRANSPORT);
    let denied = Answer::error(Status::ANA_INACCESSIBLE);
    answers
        .borrow_mut()
        .extend([Some(damaged), Some(denied), Some(list(&[]))]);
    for token in 0..3 {
        assert!(peer.admin.ask_allocated(token, (1, 0, 8), 0));
    }
    peer.run();
    assert_eq!(
        told(&mut peer),
        [(0, None), (1, None), (2, Some((8, false)))]
    );
    // One that does not have the command after all is not asked again.
    let unknown = Answer::error(Status::INVALID_OPCODE.with_dnr());
    answers.borrow_mut().push_back(Some(unknown));
    for token in 0..3 {
        assert!(peer.admin.ask_allocated(token, (1, 0, 8), 0));
    }
    peer.run();
    assert_eq!(told(&mut peer), [(0, None), (1, None), (2, None)]);
    assert!(!peer.admin.ask_allocated(3, (1, 0, 8), 0));
}

/// The association lives on: keep-alive and everything else pass, and only questions are refused.
#[test]
fn t12_unanswered_question_costs_nothing_but_questions() {
    let (mut peer, answers) = ready();
    answers.borrow_mut().push_back(None);
    for token in 0..ALLOCATION_QUESTIONS_MAX as u64 {
        assert!(peer.admin.ask_allocated(token, (1, 0, 8), 0));
    }
    assert!(!peer.admin.ask_allocated(99, (1, 0, 8), 0), "room for some");
    peer.run();
    peer.run_until(120 * SECOND);
    assert!(told(&mut peer).is_empty());
    let seen = peer.take_seen();
    let kept = seen.iter().filter(|it| *it == "Keep alive").count();
    assert!(kept >= 10, "{seen:?}");
    assert!(!peer.admin.ask_allocated(99, (1, 0, 8), 120 * SECOND));
    peer.admin.request_ana(120 * SECOND);
    peer.run();
    assert!(matches!(peer.events()[..], [AdminEvent::Changed(_)]));
}

#[test]
fn late_question_is_refused_before_there_are_too_many() {
    let (mut peer, answers) = ready();
    answers.borrow_mut().push_back(None);
    assert!(peer.admin.ask_allocated(0, (1, 0, 8), 0));
    assert!(peer.admin.ask_allocated(1, (1, 0, 8), 4 * SECOND));
    assert!(!peer.admin.ask_allocated(2, (1, 0, 8), 5 * SECOND));
}
