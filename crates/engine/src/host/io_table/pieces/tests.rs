use super::*;

const LIMITS: IoLimits = IoLimits {
    transfer_max: 1 << 17,
    write_zeroes_max: 1 << 20,
    deallocate_max: 1 << 30,
    boundary: 0,
    optimal_write: 0,
    atomic_bytes: 512,
    volatile_cache: false,
    read_only: false,
    write_zeroes: true,
    deallocate: true,
    deallocate_reads_zero: false,
    hole_bytes: 0,
};

#[test]
fn t34_pieces_cover_the_io_once_and_cross_no_boundary() {
    for boundary in [0, 512, 3 * 512, 4096, 1 << 16, 1 << 17, 3 << 17] {
        let limits = IoLimits { boundary, ..LIMITS };
        for (op, most) in [
            (IoOp::Read, 1 << 17),
            (IoOp::Write { fua: true }, 1 << 17),
            (IoOp::WriteZeroes { deallocate: false }, 1 << 20),
            (IoOp::Deallocate, 1 << 30),
        ] {
            let data = matches!(op, IoOp::Read | IoOp::Write { .. });
            for (offset, length) in [
                (0_u64, 512_u32),
                (512, 1 << 17),
                (1 << 40, 5 << 20),
                (7 << 9, 3 << 20),
            ] {
                let (mut at, end) = (offset, offset + u64::from(length));
                while at < end {
                    let piece = cut(&limits, op, at, (end - at) as u32);
                    assert!(piece > 0 && piece <= most && piece.is_multiple_of(512));
                    if let Some(boundary) = Some(u64::from(boundary)).filter(|it| data && *it > 0) {
                        let last = at + u64::from(piece) - 1;
                        assert_eq!(at / boundary, last / boundary, "{at} {piece}");
                    }
                    at += u64::from(piece);
                }
                assert_eq!(at, end);
            }
        }
    }
}

#[test]
fn what_is_surely_whole_is_never_cut() {
    for boundary in [0, 4096] {
        let limits = IoLimits { boundary, ..LIMITS };
        let most = whole_max(&limits);
        for op in [
            IoOp::Read,
            IoOp::WriteZeroes { deallocate: false },
            IoOp::Deallocate,
            IoOp::Flush,
        ] {
            assert_eq!(cut(&limits, op, 77 << 9, most), most);
        }
        assert_eq!(most, if boundary == 0 { 1 << 17 } else { 0 });
    }
}

#[test]
fn a_part_has_its_own_place_and_memory_where_it_has_data() {
    let io = Io {
        volume: 3,
        op: IoOp::Read,
        offset: 1 << 20,
        length: 1 << 20,
        span: Span {
            at: 4096,
            len: 1 << 20,
        },
        source: 5,
        cookie: 9,
    };
    let got = part(&io, 512, 1024);
    let span = Span {
        at: 4096 + 512,
        len: 1024,
    };
    let want = Io {
        offset: (1 << 20) + 512,
        length: 1024,
        span,
        ..io
    };
    assert_eq!(got, want);
    let zeroes = Io {
        op: IoOp::WriteZeroes { deallocate: false },
        span: Span::default(),
        ..io
    };
    assert_eq!(part(&zeroes, 512, 1024).span, Span::default());
}
