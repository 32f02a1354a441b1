//! Retry delays come only to hosts that ask for them (Host Behavior Support).
use crate::host_peer::admin::{AdminPeer, Answer, Model, admin_config, name};
use nvme::host::{AdminConfig, AdminEvent, Digests};
use nvme::wire::Status;
use nvme::wire::identify::Controller;

fn with_delays(crdt1: u16) -> Model {
    let mut model = Model::default();
    model.id = Controller {
        crdt1,
        crdt2: 0,
        crdt3: 0,
        ..model.id
    };
    model
}

/// The data that the host sends with its feature.
fn told(peer: &AdminPeer) -> Vec<Vec<u8>> {
    let told = peer.data.iter().filter(|(of, _)| of == "Feature 16 0x0");
    told.map(|(_, data)| data.clone()).collect()
}

#[test]
fn t01_a_controller_that_has_retry_delays_is_asked_to_use_them() {
    for digests in [
        Digests::default(),
        Digests {
            header: true,
            data: true,
        },
    ] {
        let config = AdminConfig {
            digests,
            ..admin_config()
        };
        let peer = AdminPeer::ready(config, with_delays(2));
        let mut wanted = vec![0; 512];
        wanted[0] = 1;
        assert_eq!(told(&peer), [wanted]);
    }
    let peer = AdminPeer::ready(admin_config(), with_delays(0));
    assert!(told(&peer).is_empty(), "it has none");
}

#[test]
fn t01_a_controller_that_has_no_such_feature_is_used_all_the_same() {
    let mut peer = AdminPeer::new(admin_config(), with_delays(2)).scripted(|sqe| {
        let asked = name(sqe) == "Feature 16 0x0";
        asked.then(|| Answer::error(Status::INVALID_FIELD.with_dnr()))
    });
    peer.run();
    assert!(matches!(peer.events()[..], [AdminEvent::Ready(_)]));
}
