use super::{Conflict, Identity, Namespace, Size};
use alloc::string::{String, ToString};

fn namespace(controller: u16) -> Namespace {
    Namespace {
        subsystem: String::from("nqn.2026-01.org.example:v0"),
        controller,
        nsid: 1,
        nguid: [1; 16],
        eui64: [2; 8],
        uuid: [3; 16],
        command_set: 0,
        shared: true,
    }
}

/// Result for a second path that differs by `change`.
fn joins(change: impl FnOnce(&mut Namespace)) -> Result<(), Conflict> {
    let mut here = namespace(2);
    change(&mut here);
    Identity::Namespace(here).joins(&Identity::Namespace(namespace(1)))
}

#[test]
fn t31_all_facts_agree_or_the_path_is_refused() {
    assert_eq!(joins(|_| ()), Ok(()));
    assert_eq!(joins(|n| n.subsystem.push('x')), Err(Conflict::Subsystem));
    assert_eq!(joins(|n| n.nsid = 2), Err(Conflict::Nsid(2, 1)));
    assert_eq!(
        joins(|n| n.nguid[15] = 9).map_err(|c| matches!(c, Conflict::Nguid(..))),
        Err(true)
    );
    assert_eq!(
        joins(|n| n.eui64[0] = 9).map_err(|c| matches!(c, Conflict::Eui64(..))),
        Err(true)
    );
    assert_eq!(
        joins(|n| n.uuid[7] = 9).map_err(|c| matches!(c, Conflict::Uuid(..))),
        Err(true)
    );
    assert_eq!(
        joins(|n| n.command_set = 2),
        Err(Conflict::CommandSet(2, 0))
    );
    assert_eq!(joins(|n| n.shared = false), Err(Conflict::Private));
    assert_eq!(joins(|n| n.controller = 1), Err(Conflict::Controller(1)));
}

#[test]
fn t31_an_identifier_shown_on_one_path_only_is_a_difference() {
    assert_eq!(
        joins(|n| n.uuid = [0; 16]),
        Err(Conflict::Uuid([0; 16], [3; 16]))
    );
    assert_eq!(
        joins(|n| n.nguid = [0; 16]),
        Err(Conflict::Nguid([0; 16], [1; 16]))
    );
}

#[test]
fn t31_every_set_of_identifiers_but_the_empty_one_suffices() {
    for shown in 0..8 {
        let [here, there] = [2, 1].map(|controller| {
            let mut n = namespace(controller);
            if shown & 1 == 0 {
                n.nguid = [0; 16];
            }
            if shown & 2 == 0 {
                n.eui64 = [0; 8];
            }
            if shown & 4 == 0 {
                n.uuid = [0; 16];
            }
            Identity::Namespace(n)
        });
        let want = if shown == 0 {
            Err(Conflict::Unidentified)
        } else {
            Ok(())
        };
        assert_eq!(here.joins(&there), want, "{shown:03b}");
    }
}

#[test]
fn t31_private_on_either_side_is_private() {
    let mut there = namespace(1);
    there.shared = false;
    let here = Identity::Namespace(namespace(2));
    assert_eq!(
        here.joins(&Identity::Namespace(there)),
        Err(Conflict::Private)
    );
}

#[test]
fn t31_one_identifier_in_two_subsystems_is_refused() {
    let one = Identity::Namespace(namespace(1));
    let mut other = namespace(1);
    other.subsystem.push('x');
    assert_eq!(
        Identity::Namespace(other.clone()).coexists(&one, false),
        Err(Conflict::TwoSubsystems)
    );
    other.nguid = [7; 16];
    other.eui64 = [0; 8];
    other.uuid = [0; 16];
    assert_eq!(
        Identity::Namespace(other.clone()).coexists(&one, false),
        Ok(())
    );
    // Two that show nothing share nothing.
    other.nguid = [0; 16];
    let silent = Identity::Namespace(other.clone());
    other.subsystem.push('y');
    assert_eq!(Identity::Namespace(other).coexists(&silent, false), Ok(()));
}

#[test]
fn t31_a_controller_id_may_be_seen_once_per_subsystem() {
    let one = Identity::Namespace(namespace(1));
    let mut other = namespace(1);
    other.nsid = 2;
    assert_eq!(
        Identity::Namespace(other.clone()).coexists(&one, false),
        Err(Conflict::Controller(1))
    );
    other.controller = 2;
    assert_eq!(Identity::Namespace(other).coexists(&one, false), Ok(()));
}

/// Of a driver's controller, which has one association for all its namespaces.
#[test]
fn t31_namespaces_of_a_driven_controller_coexist() {
    let one = Identity::Namespace(namespace(1));
    let mut other = namespace(1);
    // The same namespace through the same controller is the same path.
    assert_eq!(
        Identity::Namespace(other.clone()).coexists(&one, true),
        Err(Conflict::Controller(1))
    );
    other.nsid = 2;
    other.uuid = [9; 16];
    assert_eq!(
        Identity::Namespace(other.clone()).coexists(&one, true),
        Ok(())
    );
    // The exception covers controller numbers only.
    other.subsystem.push('x');
    assert_eq!(
        Identity::Namespace(other).coexists(&one, true),
        Err(Conflict::TwoSubsystems)
    );
}

#[test]
fn t32_the_same_path_may_return_as_another_controller_but_not_as_another_namespace() {
    let before = Identity::Namespace(namespace(1));
    let mut alone = namespace(5);
    assert_eq!(Identity::Namespace(alone.clone()).same_as(&before), Ok(()));
    alone.uuid = [9; 16];
    assert!(Identity::Namespace(alone).same_as(&before).is_err());
}

#[test]
fn devices_are_one_only_with_themselves() {
    let device = Identity::Device(1);
    assert_eq!(device.joins(&Identity::Device(1)), Ok(()));
    assert_eq!(
        Identity::Device(2).joins(&device),
        Err(Conflict::Device(2, 1))
    );
    assert_eq!(
        Identity::Namespace(namespace(1)).joins(&device),
        Err(Conflict::Kind)
    );
    assert_eq!(device.coexists(&Identity::Device(1), false), Ok(()));
}

#[test]
fn bytes_saturate() {
    assert_eq!(
        Size {
            blocks: 8,
            block_shift: 9
        }
        .bytes(),
        4096
    );
    assert_eq!(
        Size {
            blocks: u64::MAX >> 9,
            block_shift: 9
        }
        .bytes(),
        (u64::MAX >> 9) << 9
    );
    assert_eq!(
        Size {
            blocks: u64::MAX >> 8,
            block_shift: 9
        }
        .bytes(),
        u64::MAX
    );
    assert_eq!(
        Size {
            blocks: 1,
            block_shift: 200
        }
        .bytes(),
        u64::MAX
    );
}

#[test]
fn errors_say_what_differs_and_what_to_do() {
    assert_eq!(
        joins(|n| n.eui64 = [0; 8]).unwrap_err().to_string(),
        "EUI-64 none here, 0202020202020202 there: not one namespace; give each its own volume"
    );
    assert_eq!(
        Conflict::BlockSize(9, 12).to_string(),
        "blocks of 512 bytes here, 4096 there: format them alike"
    );
}
