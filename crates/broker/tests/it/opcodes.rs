//! Every I/O opcode there is: what a broker doesn't do it says so.
use crate::common::{Stage, finish, pattern, read, write};
use broker::Trust;
use queue::Status;

/// Flush, Write, Read, Write Zeroes, Dataset Management, Cancel. Not Compare (05h), Verify (0Ch) or
/// Copy (19h): who sends one must not hear that blocks are alike which nobody compared.
const DONE: [u8; 6] = [0x00, 0x01, 0x02, 0x08, 0x09, 0x18];

#[test]
fn commands_that_a_broker_does_not_do_end_with_invalid_opcode_and_change_nothing() {
    for trust in [Trust::Mediated, Trust::Trusted] {
        let stage = Stage::new(|config| config.trust = trust);
        let mut queue = stage.poll();
        let data = pattern(1, 4096);
        for nsid in [1, 3] {
            write(&mut queue, nsid, 0, 0, &data).unwrap();
        }
        let other = pattern(2, 4096);
        for opcode in (0..=u8::MAX).filter(|opcode| !DONE.contains(opcode)) {
            for nsid in [1_u64, 3] {
                queue.data().unwrap().write(0, &other);
                let address = queue.data().unwrap().address();
                let entry = [u64::from(opcode) | nsid << 32, 0, 0, address, 0, 0, 0, 0];
                queue.raw(&entry, 0).unwrap();
                let status = finish(&mut queue).status;
                let expected = Status::INVALID_OPCODE.with_dnr();
                assert_eq!(status, expected, "opcode {opcode:#x}, namespace {nsid}");
                let mut left = vec![0; 4096];
                queue.data().unwrap().read(0, &mut left);
                assert!(left == other, "opcode {opcode:#x} wrote to the client");
            }
        }
        for nsid in [1, 3] {
            assert!(read(&mut queue, nsid, 0, 1).unwrap() == data);
        }
    }
}
