use super::{fits, refusal};
use crate::Span;
use crate::host::types::{Io, IoOp, VolumeInfo};
use block::IoLimits;
use multipath::Outcome;

const INFO: VolumeInfo = VolumeInfo {
    bytes: 1 << 20,
    block_shift: 12,
    transfer_max: 1 << 17,
    read_only: false,
};

fn io(op: IoOp, offset: u64, length: u32) -> Io {
    Io {
        volume: 0,
        op,
        offset,
        length,
        span: Span { at: 0, len: length },
        source: 0,
        cookie: 0,
    }
}

#[test]
fn only_whole_blocks_inside_the_volume_fit() {
    for op in [
        IoOp::Read,
        IoOp::Write { fua: false },
        IoOp::WriteZeroes { deallocate: false },
        IoOp::Deallocate,
    ] {
        for (offset, length, want) in [
            (0, 4096, true),
            (0, 1 << 17, true),
            ((1 << 20) - 4096, 4096, true),
            (1 << 20, 4096, false),
            ((1 << 20) - 4096, 8192, false),
            (u64::MAX - 4095, 4096, false),
            (0, 0, false),
            (512, 4096, false),
            (0, 512, false),
            (
                0,
                (1 << 17) + 4096,
                matches!(op, IoOp::WriteZeroes { .. } | IoOp::Deallocate),
            ),
        ] {
            let got = fits(&io(op, offset, length), &INFO);
            assert_eq!(got, want, "{op:?} {length} at {offset}");
        }
    }
}

#[test]
fn the_span_is_as_long_as_the_data() {
    let mut read = io(IoOp::Read, 0, 8192);
    read.span.len = 4096;
    assert!(!fits(&read, &INFO));
    let mut zeroes = io(IoOp::WriteZeroes { deallocate: false }, 0, 8192);
    zeroes.span.len = 0;
    assert!(fits(&zeroes, &INFO));
    assert!(fits(&io(IoOp::Flush, 77, 0), &INFO), "flush has no range");
}

#[test]
fn what_can_not_succeed_is_refused_without_a_path() {
    let able = IoLimits {
        transfer_max: 1 << 17,
        write_zeroes_max: 1 << 17,
        deallocate_max: 1 << 30,
        boundary: 0,
        optimal_write: 0,
        atomic_bytes: 4096,
        volatile_cache: false,
        read_only: false,
        write_zeroes: true,
        deallocate: true,
        deallocate_reads_zero: true,
        hole_bytes: 0,
    };
    let read_only = IoLimits {
        read_only: true,
        ..able
    };
    let poor = IoLimits {
        write_zeroes: false,
        deallocate: false,
        ..able
    };
    for op in [
        IoOp::Read,
        IoOp::Write { fua: true },
        IoOp::Flush,
        IoOp::WriteZeroes { deallocate: false },
        IoOp::Deallocate,
    ] {
        let changes = !matches!(op, IoOp::Read | IoOp::Flush);
        let optional = matches!(op, IoOp::WriteZeroes { .. } | IoOp::Deallocate);
        assert_eq!(refusal(op, &able), None);
        assert_eq!(
            refusal(op, &read_only),
            changes.then_some(Outcome::ReadOnly)
        );
        assert_eq!(refusal(op, &poor), optional.then_some(Outcome::Unsupported));
    }
}
