//! docs/configuration.md has the keys of a target, with their defaults.
use super::{Config, Namespace, Port};
use crate::discovery::ReferralKeys;
use crate::faults::FaultSettings;
use crate::quantity::AnaStates;
use crate::reference::compare;
use service::control::access::PRIVATE;

#[test]
fn the_document_has_the_keys_of_a_target() {
    let nqn = "nqn = \"nqn.2026-01.org.example:v0\"\n";
    compare::<Config>("target", nqn, |config| {
        config.socket_mode.get_or_insert(PRIVATE);
    });
    compare::<Namespace>("namespace", "backend = \"mem:1MiB\"\n", |_| ());
    compare::<Port>("port", "listen = \"127.0.0.1:0\"\n", |port| {
        port.ana = AnaStates(vec![(None, port.ana.of(1))]);
    });
    compare::<FaultSettings>("faults", "", |_| ());
    compare::<ReferralKeys>("referral", "address = \"10.0.0.2\"\n", |_| ());
}
