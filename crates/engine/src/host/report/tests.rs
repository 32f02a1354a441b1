use super::*;
use nvme::host::AnaState;

pub(in super::super) fn namespace(nsid: u32) -> NamespaceInfo {
    NamespaceInfo {
        nsid,
        blocks: 8,
        block_shift: 9,
        nguid: [0; 16],
        eui64: [0; 8],
        uuid: [0; 16],
        csi: 0,
        shared: true,
        ana_group: 1,
        ana_state: AnaState::Optimized,
        read_only: false,
        atomic_blocks: 1,
        boundary_blocks: 0,
        optimal_write_blocks: 0,
        deallocate_reads_zero: true,
        hole_blocks: 0,
    }
}

#[test]
fn the_only_namespace_needs_no_name() {
    let one = [namespace(7)];
    assert_eq!(pick(None, &one, 0).unwrap().nsid, 7);
    assert_eq!(pick(Some(7), &one, 0).unwrap().nsid, 7);
}

#[test]
fn several_namespaces_and_no_nsid_are_listed() {
    let two = [namespace(1), namespace(5)];
    assert_eq!(pick(Some(5), &two, 0).unwrap().nsid, 5);
    assert_eq!(
        pick(None, &two, 0).unwrap_err(),
        "the subsystem has 2 namespaces; add ?nsid=N to the path: 1 (4096 bytes), 5 (4096 bytes)"
    );
}

#[test]
fn a_namespace_that_is_not_there_names_those_that_are() {
    let why = pick(Some(2), &[namespace(1)], 0).unwrap_err();
    assert_eq!(why, "namespace 2 isn't there; use one of: 1 (4096 bytes)");
    assert!(pick(Some(2), &[], 0).is_err());
    assert!(pick(None, &[], 0).is_err());
}

#[test]
fn a_long_list_is_cut() {
    let many: alloc::vec::Vec<_> = (1..=1000).map(namespace).collect();
    let why = pick(None, &many, 0).unwrap_err();
    assert!(why.ends_with(", and 984 more"), "{why}");
    // Those that were not asked for count too.
    let why = pick(None, &many[..16], 1008).unwrap_err();
    assert!(
        why.starts_with("the subsystem has 1024 namespaces"),
        "{why}"
    );
    assert!(why.ends_with(", and 1008 more"), "{why}");
    assert!(why.len() < 500);
}

#[test]
fn the_reason_of_a_lost_connection_says_what_to_do() {
    assert_eq!(
        closed(
            &SessionState::Identifying,
            Role::Admin,
            false,
            Closed::Error(111)
        ),
        "can't connect: connection refused; start the target there, or correct host and port"
    );
    assert_eq!(
        closed(&SessionState::Live, Role::Io, true, Closed::Error(104)),
        "connection lost: reset by the target; see the target's log"
    );
    assert_eq!(
        closed(&SessionState::Live, Role::Io, true, Closed::Error(9999)),
        "connection lost: system error 9999; check network and target"
    );
}

#[test]
fn a_connection_that_nobody_takes_is_refused_however_the_system_says_so() {
    let refused = |errno| {
        closed(
            &SessionState::Identifying,
            Role::Admin,
            false,
            Closed::Error(errno),
        )
    };
    assert_eq!([refused(103), refused(104)], [refused(111), refused(111)]);
    let reset = closed(
        &SessionState::Identifying,
        Role::Admin,
        true,
        Closed::Error(104),
    );
    assert!(reset.contains("reset by the target"), "{reset}");
}

#[test]
fn want_of_descriptors_is_no_matter_of_the_network() {
    for (errno, part) in [
        (24, "too many open files; raise the hard limit (ulimit -Hn)"),
        (23, "fs.file-max"),
        (12, "no memory"),
        (105, "no memory"),
    ] {
        let text = closed(
            &SessionState::Identifying,
            Role::Admin,
            false,
            Closed::Error(errno),
        );
        assert!(text.starts_with("can't connect: "), "{text}");
        assert!(text.contains(part) && !text.contains("network"), "{text}");
    }
}

#[test]
fn an_aborted_connection_has_a_name() {
    assert_eq!(os_error(103).0, "aborted");
}
