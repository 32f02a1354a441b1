use super::*;
use alloc::vec;

const DIGESTS: Framing = Framing {
    header_digest: true,
    data_digest: true,
    alignment: 4,
};

fn layout(bytes: &[u8], from_host: bool, framing: &Framing) -> Result<Layout, PduError> {
    Header::parse(bytes).unwrap().layout(from_host, framing)
}

#[test]
fn icreq_and_icresp_round_trip() {
    let req = IcReq {
        pfv: 0,
        hpda: 0,
        header_digest: true,
        data_digest: false,
        maxr2t: 3,
    };
    let mut out = Vec::new();
    req.emit(&mut out);
    assert_eq!(out.len(), 128);
    assert_eq!(
        out[..16],
        [0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0]
    );
    assert_eq!(IcReq::parse(&out), Ok(req));

    let resp = IcResp {
        pfv: 0,
        cpda: 31,
        header_digest: true,
        data_digest: true,
        maxh2cdata: 0x2_0000,
    };
    out.clear();
    resp.emit(&mut out);
    assert_eq!(
        out[..16],
        [1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 31, 3, 0, 0, 2, 0]
    );
    assert_eq!(IcResp::parse(&out), Ok(resp));
    // Digests on later PDUs don't touch these two.
    assert_eq!(layout(&out, false, &DIGESTS).unwrap().header, 128);
}

#[test]
fn t20_t25_icresp_with_bad_values_is_refused() {
    let good = IcResp {
        pfv: 0,
        cpda: 0,
        header_digest: false,
        data_digest: false,
        maxh2cdata: 4096,
    };
    for (bad, offset) in [
        (
            IcResp {
                maxh2cdata: 4095,
                ..good
            },
            12,
        ),
        (
            IcResp {
                maxh2cdata: 4098,
                ..good
            },
            12,
        ),
        (
            IcResp {
                maxh2cdata: 0,
                ..good
            },
            12,
        ),
        (IcResp { cpda: 32, ..good }, 10),
    ] {
        let mut out = Vec::new();
        bad.emit(&mut out);
        assert_eq!(IcResp::parse(&out), Err(WireError::Field { offset }));
    }
}

#[test]
fn digests_and_padding_lie_where_the_layout_says() {
    for alignment in (4..=128).step_by(4) {
        for (header_digest, data_digest) in [(false, false), (true, false), (true, true)] {
            let framing = Framing {
                header_digest,
                data_digest,
                alignment,
            };
            let own = DataHeader {
                cccid: 1,
                ttag: 2,
                offset: 3,
                length: 8,
            }
            .emit();
            let mut out = vec![0xaa; 3]; // appended, not overwritten
            framing.whole(&mut out, PduType::H2cData, flags::LAST, &own, b"8 bytes!");
            let pdu = &out[3..];
            let l = layout(pdu, true, &framing).unwrap();
            let (header, data) = (l.header as usize, (l.header + l.pad) as usize);
            assert_eq!(data % alignment as usize, 0);
            assert_eq!((l.data, l.flags & flags::LAST), (8, flags::LAST));
            assert_eq!(&pdu[data..data + 8], b"8 bytes!");
            assert_eq!(pdu.len(), data + 8 + l.data_digest as usize);
            assert!(framing.header_digest_ok(l.kind, &pdu[..header]));
            if header_digest {
                let mut bad = pdu[..header].to_vec();
                bad[9] ^= 1;
                assert!(!framing.header_digest_ok(l.kind, &bad));
            }
            if data_digest {
                assert_eq!(le32(pdu, data + 8), crc32c(0, b"8 bytes!"));
            }
        }
    }
}

/// A header of this type, with flags, HLEN, PDO and PLEN.
fn header(kind: u8, flags: u8, hlen: u8, pdo: u8, plen: u32) -> Header {
    Header {
        kind,
        flags,
        hlen,
        pdo,
        plen,
    }
}

#[test]
fn t24_each_wrong_field_has_its_error() {
    let (hdgst, ddgst) = (flags::HDGST, flags::DDGST);
    let cases = [
        (header(8, 0, 24, 0, 24), PduError::field(0)),
        (header(0xff, 0, 24, 0, 24), PduError::field(0)),
        (header(4, 0, 24, 0, 24), PduError::SEQUENCE),
        (header(5, hdgst, 24, 0, 24), PduError::field(1)),
        (header(5, 0, 23, 0, 24), PduError::field(2)),
        (header(5, 0, 24, 0, 25), PduError::field(4)),
        (header(5, 0, 24, 0, 0), PduError::field(4)),
        (header(5, 0, 24, 0, u32::MAX), PduError::field(4)),
        (header(7, 0, 24, 24, 24), PduError::field(4)), // no data
        (header(7, 0, 24, 20, 64), PduError::field(3)),
        (header(7, 0, 24, 26, 64), PduError::field(3)),
        (header(7, 0, 24, 255, 64), PduError::field(3)),
        (header(7, 0, 24, 252, 64), PduError::field(4)),
        (header(7, ddgst, 24, 24, 64), PduError::field(1)),
        (header(3, 0, 24, 0, 23), PduError::field(4)),
        (header(3, 0, 24, 0, 153), PduError::field(4)),
    ];
    for (header, error) in cases {
        assert_eq!(
            header.layout(false, &Framing::PLAIN),
            Err(error),
            "{header:?}"
        );
    }
    assert!(
        header(5, 0, 24, 0, 24)
            .layout(false, &Framing::PLAIN)
            .is_ok()
    );
    let longest = header(7, 0, 24, 24, u32::MAX).layout(false, &Framing::PLAIN);
    assert_eq!(longest.unwrap().data, u32::MAX - 24);
}

#[test]
fn t24_term_req_is_bounded_and_without_digests() {
    let mut out = Vec::new();
    TermReq::emit(PduError::field(2), true, &[0x55; 200], &mut out);
    assert_eq!(out.len(), 152);
    assert_eq!(out[..14], [2, 0, 24, 0, 152, 0, 0, 0, 1, 0, 2, 0, 0, 0]);
    assert_eq!(TermReq::parse(&out), Ok(TermReq { fes: 1, fei: 2 }));
    let l = layout(&out, true, &DIGESTS).unwrap();
    assert_eq!((l.header, l.pad, l.data, l.data_digest), (24, 0, 128, 0));
}

#[test]
fn capsule_with_and_without_data() {
    let sqe = [9; 64];
    for framing in [
        Framing::PLAIN,
        DIGESTS,
        Framing {
            alignment: 128,
            ..DIGESTS
        },
    ] {
        let mut out = Vec::new();
        framing.begin(&mut out, PduType::CapsuleCmd, 0, &sqe, 0);
        let l = layout(&out, true, &framing).unwrap();
        assert_eq!((l.header as usize, l.data), (out.len(), 0));
        out.clear();
        framing.whole(&mut out, PduType::CapsuleCmd, 0, &sqe, &[1; 512]);
        let l = layout(&out, true, &framing).unwrap();
        assert_eq!(l.data, 512);
        assert_eq!(u32::from(out[3]), l.header + l.pad);
    }
}
