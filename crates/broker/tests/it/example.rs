//! The client's example, against a broker.
#[path = "../../../queue/examples/queue.rs"]
#[allow(dead_code, reason = "its words on a command line")]
mod program;

use crate::common::Stage;
use std::time::Duration;

fn ran(stage: &Stage, nsid: u32) -> Result<String, String> {
    let mut said = Vec::new();
    let ended = program::run(&stage.path(), nsid, Duration::from_millis(50), &mut said);
    ended.map_err(|error| error.to_string())?;
    Ok(String::from_utf8(said).unwrap())
}

#[test]
fn the_example_in_rust_verifies_data_and_counts() {
    let stage = Stage::new(|config| config.user_poll = 1);
    for nsid in [1, 3] {
        let said = ran(&stage, nsid).unwrap();
        assert!(said.contains("verified 256 blocks of 4096 bytes"), "{said}");
        let rate = said.split(" IOPS, 127 outstanding").next().unwrap();
        let rate = rate.lines().last().unwrap();
        assert!(rate.parse::<f64>().unwrap() > 0.0, "{said}");
        stage.until_free();
    }
}

#[test]
fn the_example_in_rust_finds_data_that_is_not_what_was_written() {
    let stage = Stage::plain();
    // Nothing is kept there, so zeroes come back.
    assert_eq!(ran(&stage, 2).unwrap_err(), "block 0 is wrong");
    // No user may write to it.
    let refused = ran(&stage, 4).unwrap_err();
    assert!(refused.contains("a command failed"), "{refused}");
    let refused = ran(&stage, 9).unwrap_err();
    assert!(refused.contains("no namespace 9"), "{refused}");
}
