//! Features: which there are, their values, and what may be set.
use super::admin::bench;
use super::*;
use crate::wire::features::fid;
use crate::wire::identify::{self as id, cns};
use crate::wire::sqe::admin;

fn set(id: u8, value: u32) -> SqeBuilder {
    SqeBuilder::new(admin::SET_FEATURES)
        .cdw(10, id.into())
        .cdw(11, value)
}

fn get(id: u8) -> SqeBuilder {
    SqeBuilder::new(admin::GET_FEATURES).cdw(10, id.into())
}

#[test]
fn mandatory_features_are_there_and_stay_as_they_are() {
    let mut bench = bench();
    // (feature, its selectors, value): Base 2.0, 3.1.2.1.3, and NVM command set 1.0, 4.1.3.
    let constants = [
        (fid::ARBITRATION, 0, 7),
        (fid::POWER_MANAGEMENT, 0, 0),
        (fid::TEMPERATURE_THRESHOLD, 0, 0xffff),
        (fid::TEMPERATURE_THRESHOLD, 1 << 20, 0),
        (fid::ERROR_RECOVERY, 0, 0),
        (fid::WRITE_ATOMICITY, 0, 0),
    ];
    for (id, part, value) in constants {
        let found = bench.ask(0, get(id).cdw(11, part));
        assert_eq!(
            (found.status, found.result),
            (Status::SUCCESS, value),
            "{id:#x}"
        );
        let same = bench.ask(0, set(id, part | value as u32));
        assert_eq!(same.status, Status::SUCCESS, "{id:#x}");
        let other = bench.ask(0, set(id, part | (value as u32 ^ 1)));
        let refused = Status::FEATURE_NOT_CHANGEABLE.with_dnr();
        assert_eq!(other.status, refused, "{id:#x}");
    }
    // A second sensor, and a threshold that is neither over nor under.
    for part in [1 << 16, 2 << 20] {
        let found = bench.ask(0, get(fid::TEMPERATURE_THRESHOLD).cdw(11, part));
        assert_eq!(found.status, Status::INVALID_FIELD.with_dnr());
    }
}

#[test]
fn features_there_are_and_those_there_aren_t() {
    let mut bench = bench();
    assert_eq!(
        bench.ask(0, set(fid::ASYNC_EVENTS, u32::MAX)).status,
        Status::SUCCESS
    );
    assert_eq!(bench.ask(0, get(fid::ASYNC_EVENTS)).result, 0x900);
    assert_eq!(
        bench.ask(0, set(fid::KEEP_ALIVE, 1501)).status,
        Status::SUCCESS
    );
    assert_eq!(bench.ask(0, get(fid::KEEP_ALIVE)).result, 1600);
    assert_eq!(bench.ask(0, get(fid::VOLATILE_WRITE_CACHE)).result, 1);
    assert_eq!(
        bench.ask(0, set(fid::VOLATILE_WRITE_CACHE, 1)).status,
        Status::SUCCESS
    );
    let off = bench.ask(0, set(fid::VOLATILE_WRITE_CACHE, 0));
    assert_eq!(off.status, Status::FEATURE_NOT_CHANGEABLE.with_dnr());
    let id = bench.fetch(0, get(fid::HOST_IDENTIFIER).cdw(11, 1), 16);
    assert_eq!(id, Ok(vec![9; 16]));
    assert_eq!(
        bench.refusal(get(fid::HOST_IDENTIFIER), 8),
        Status::INVALID_FIELD
    );
    assert_eq!(
        bench.refusal(get(fid::HOST_IDENTIFIER).cdw(11, 1), 8),
        Status::SGL_DATA_LENGTH
    );
    let refused = bench.ask(0, set(fid::HOST_IDENTIFIER, 1));
    assert_eq!(refused.status, Status::SEQUENCE_ERROR.with_dnr());
    let saved = bench.ask(0, set(fid::KEEP_ALIVE, 0).cdw(10, 1 << 31 | 0x0f));
    assert_eq!(saved.status, Status::FEATURE_NOT_SAVEABLE.with_dnr());
    let default = bench.ask(0, get(fid::KEEP_ALIVE).cdw(10, 0x10f));
    assert_eq!(default.status, Status::INVALID_FIELD.with_dnr());
    for other in [0x00, 0x03, 0x08, 0x09, 0x0c, 0x10, 0x80, 0xff] {
        for sqe in [get(other), set(other, 0)] {
            assert_eq!(bench.ask(0, sqe).status, Status::INVALID_FIELD.with_dnr());
        }
    }
}

#[test]
fn t34_without_a_volatile_cache_there_is_no_such_feature() {
    let mut bench = Bench::new(SubsystemConfig {
        volatile_write_cache: false,
        ..config()
    });
    bench.admin(0, 0);
    let c = id::Controller::parse(&bench.page(cns::CONTROLLER, 0)).unwrap();
    assert_eq!(c.vwc, 6);
    let get = SqeBuilder::new(admin::GET_FEATURES).cdw(10, 6);
    assert_eq!(bench.ask(0, get).status, Status::INVALID_FIELD.with_dnr());
}
