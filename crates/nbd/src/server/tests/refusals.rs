//! Requests that are refused in transmission; the stream goes on after them.
use super::*;
use crate::wire::{cmd, flag};

const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

#[test]
fn flags_of_other_commands_are_invalid() {
    let legal = [
        (cmd::READ, flag::FUA | flag::DF),
        (cmd::WRITE, flag::FUA),
        (cmd::FLUSH, flag::FUA),
        (cmd::TRIM, flag::FUA),
        (cmd::CACHE, flag::FUA),
        (
            cmd::WRITE_ZEROES,
            flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
        ),
        (cmd::BLOCK_STATUS, flag::FUA | flag::REQ_ONE),
    ];
    let mut bench = Bench::open(true, true);
    for (command, legal) in legal {
        for bit in (0..16).map(|bit| 1 << bit) {
            let length = if command == cmd::FLUSH { 0 } else { 512 };
            let data = if command == cmd::WRITE {
                &[9; 512][..]
            } else {
                &[]
            };
            let error = bench.error_of(request(command, bit, 0, length), data);
            let want = if legal & bit != 0 { 0 } else { EINVAL };
            assert_eq!(error, want, "command {command} flag {bit:#x}");
        }
    }
    // Without structured replies there is no DF.
    let mut bench = Bench::open(false, true);
    assert_eq!(
        bench.error_of(request(cmd::READ, flag::DF, 0, 512), &[]),
        EINVAL
    );
}

#[test]
fn unknown_commands_are_invalid_and_the_stream_goes_on() {
    let mut bench = Bench::open(true, true);
    for command in [8, 9, 255, u16::MAX] {
        assert_eq!(bench.error_of(request(command, 0, 0, 0), &[]), EINVAL);
    }
    assert_eq!(bench.error_of(request(cmd::READ, 0, 0, 512), &[]), 0);
}

#[test]
fn commands_not_offered_are_invalid() {
    let mut plain = export(1, "disk");
    plain.features = Features::NONE;
    let mut bench = Bench::with(config(), Exports::new(vec![plain], None).unwrap());
    bench.feed(&[0, 0, 0, 3]);
    bench.feed(&option_bytes(opt::EXPORT_NAME, b"disk"));
    bench.sent.clear();
    for command in [cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS] {
        assert_eq!(bench.error_of(request(command, 0, 0, 512), &[]), EINVAL);
    }
    assert_eq!(bench.error_of(request(cmd::FLUSH, 0, 0, 0), &[]), EINVAL);
    assert_eq!(
        bench.error_of(request(cmd::READ, flag::FUA, 0, 512), &[]),
        EINVAL
    );
    assert_eq!(bench.error_of(request(cmd::WRITE, 0, 0, 512), &[1; 512]), 0);
}

#[test]
fn a_read_only_export_permits_no_change() {
    for structured in [false, true] {
        let mut bench = Bench::greeted();
        if structured {
            bench.option(opt::STRUCTURED_REPLY, &[]);
        }
        bench.option(opt::GO, &choice("locked", &[]));
        bench.sent.clear();
        for (command, flags) in [
            (cmd::WRITE, 0),
            (cmd::WRITE, flag::FUA),
            (cmd::TRIM, 0),
            (cmd::WRITE_ZEROES, flag::FAST_ZERO),
        ] {
            let data = if command == cmd::WRITE {
                &[7; 512][..]
            } else {
                &[]
            };
            let error = bench.error_of(request(command, flags, 0, 512), data);
            assert_eq!(error, EPERM, "the data went by unseen");
        }
        assert_eq!(bench.error_of(request(cmd::READ, 0, 0, 512), &[]), 0);
        assert_eq!(bench.error_of(request(cmd::FLUSH, 0, 0, 0), &[]), 0);
        assert!(
            bench
                .executed
                .iter()
                .all(|request| !request.kind.is_change())
        );
    }
}

#[test]
fn ranges_beyond_the_end_never_reach_the_driver() {
    let mut bench = Bench::open(false, true);
    for (offset, length) in [
        (MIB, 512),
        (MIB - 512, 1024),
        (u64::MAX - 511, 512),
        (u64::MAX, 1024),
    ] {
        let data = vec![3; length as usize];
        let error = bench.error_of(request(cmd::WRITE, 0, offset, length), &data);
        assert_eq!(error, ENOSPC);
        for command in [cmd::READ, cmd::TRIM, cmd::CACHE] {
            assert_eq!(
                bench.error_of(request(command, 0, offset, length), &[]),
                EINVAL
            );
        }
        let zeroes = request(cmd::WRITE_ZEROES, 0, offset, length);
        assert_eq!(bench.error_of(zeroes, &[]), ENOSPC);
    }
    assert!(bench.executed.is_empty());
}

#[test]
fn clients_that_asked_for_block_sizes_keep_to_them_and_others_have_bytes() {
    for (negotiated, want) in [(true, EINVAL), (false, 0)] {
        let mut bench = Bench::open(false, negotiated);
        assert_eq!(bench.error_of(request(cmd::READ, 0, 1, 512), &[]), want);
        assert_eq!(bench.error_of(request(cmd::READ, 0, 0, 511), &[]), want);
        assert_eq!(
            bench.error_of(request(cmd::WRITE, 0, 5, 3), &[1, 2, 3]),
            want
        );
        assert_eq!(bench.error_of(request(cmd::TRIM, 0, 7, 9), &[]), want);
        let executed = if negotiated { 0 } else { 4 };
        assert_eq!(bench.executed.len(), executed);
    }
}

#[test]
fn a_length_of_zero_is_invalid_and_no_reason_to_part() {
    let mut bench = Bench::open(true, true);
    for command in [
        cmd::READ,
        cmd::WRITE,
        cmd::TRIM,
        cmd::CACHE,
        cmd::WRITE_ZEROES,
    ] {
        assert_eq!(bench.error_of(request(command, 0, 512, 0), &[]), EINVAL);
    }
    assert!(bench.closed.is_empty());
}

#[test]
fn a_write_that_is_too_large_is_skipped_and_a_huge_one_ends_the_session() {
    use crate::limits::WRITE_SKIP_MAX;
    let mut bench = Bench::open(true, true);
    let length = 64 * KIB + 512;
    let data = vec![1; length as usize];
    assert_eq!(
        bench.error_of(request(cmd::WRITE, 0, 0, length), &data),
        EINVAL
    );
    assert_eq!(bench.error_of(request(cmd::READ, 0, 0, 512), &[]), 0);
    let mut bytes = Vec::new();
    request(cmd::WRITE, 0, 0, WRITE_SKIP_MAX).emit(&mut bytes);
    bench.feed(&bytes);
    assert!(bench.closed.is_empty());
    let zeroes = vec![0; 1 << 20];
    for _ in 0..WRITE_SKIP_MAX >> 20 {
        assert_eq!(bench.feed(&zeroes), 1 << 20);
    }
    assert_eq!(bench.error_of(request(cmd::READ, 0, 0, 512), &[]), 0);
    for length in [WRITE_SKIP_MAX + 1, u32::MAX] {
        let mut bench = Bench::open(true, true);
        let mut bytes = Vec::new();
        request(cmd::WRITE, 0, 0, length).emit(&mut bytes);
        bench.feed(&bytes);
        let fault = Fault::WriteLength(length);
        assert_eq!(bench.closed, [CloseReason::Protocol(fault)]);
        assert!(bench.sent.is_empty() && bench.buffers.is_empty());
    }
}

#[test]
fn block_status_without_a_context_is_invalid() {
    for structured in [false, true] {
        let mut bench = Bench::greeted();
        if structured {
            bench.option(opt::STRUCTURED_REPLY, &[]);
        }
        bench.option(opt::GO, &choice("disk", &[]));
        bench.sent.clear();
        let error = bench.error_of(request(cmd::BLOCK_STATUS, 0, 0, 512), &[]);
        assert_eq!(error, EINVAL);
    }
}
