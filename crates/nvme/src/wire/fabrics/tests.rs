use super::*;

#[test]
fn connect_command_and_data_round_trip() {
    let connect = Connect {
        recfmt: 0,
        qid: 3,
        sqsize: 127,
        cattr: CATTR_DISABLE_SQ_FLOW,
        kato_ms: 15_000,
    };
    let sqe = connect.emit().cid(9);
    assert_eq!(Connect::parse(&sqe.view()), connect);
    assert_eq!((sqe.bytes()[0], sqe.bytes()[4]), (0x7f, 0x01));
    assert_eq!(sqe.bytes()[40..48], [0, 0, 3, 0, 127, 0, 4, 0]);

    let data = ConnectData {
        hostid: [7; 16],
        cntlid: 5,
        subnqn: b"nqn.sub",
        hostnqn: b"nqn.host",
    };
    let bytes = data.emit();
    assert_eq!(ConnectData::parse(&bytes), Ok(data));
    assert_eq!(&bytes[256..264], b"nqn.sub\0");
    assert_eq!(&bytes[512..521], b"nqn.host\0");
    assert!(ConnectData::parse(&bytes[..1023]).is_err());
}

#[test]
fn an_nqn_must_end_within_223_bytes() {
    let data = ConnectData {
        hostid: [0; 16],
        cntlid: 0,
        subnqn: &[b'a'; 223],
        hostnqn: b"h",
    };
    let mut bytes = data.emit();
    assert_eq!(ConnectData::parse(&bytes), Ok(data));
    bytes[256 + 223] = b'a';
    assert_eq!(
        ConnectData::parse(&bytes),
        Err(WireError::Field { offset: 256 })
    );
    bytes[256..512].fill(b'a');
    assert_eq!(
        ConnectData::parse(&bytes),
        Err(WireError::Field { offset: 256 })
    );
    bytes[256] = 0;
    assert_eq!(
        ConnectData::parse(&bytes),
        Err(WireError::Field { offset: 256 })
    );
}

#[test]
fn properties() {
    let get = Property {
        offset: property::CAP,
        wide: true,
        value: 0,
    };
    assert_eq!(Property::parse(&get.emit_get().view()), Ok(get));
    let set = Property {
        offset: property::CC,
        wide: false,
        value: 0x46_0001,
    };
    assert_eq!(Property::parse(&set.emit_set().view()), Ok(set));
    let odd = set.emit_set().put(40, &[2]);
    assert_eq!(
        Property::parse(&odd.view()),
        Err(WireError::Field { offset: 40 })
    );

    let cap = Cap::fabrics(1023, 15);
    assert_eq!((cap.mqes(), cap.to(), cap.cqr()), (1023, 15, true));
    assert!(cap.css_nvm() && !cap.css_multiple() && !cap.css_admin_only());
    assert_eq!((cap.mpsmin(), cap.mpsmax()), (0, 0));
    assert_eq!(Cap(1 << 43 | 1 << 44 | 3 << 48 | 9 << 52).mpsmax(), 9);

    let cc = Cc::enabled(0, 6).with_shn(1);
    assert_eq!(
        (cc.en(), cc.css(), cc.mps(), cc.ams(), cc.shn()),
        (true, 6, 0, 0, 1)
    );
    assert_eq!((cc.iosqes(), cc.iocqes()), (6, 4));
    assert_eq!(Cc::enabled(0, 0).0, 0x0046_0001);
    let csts = Csts::new(true, false, 2);
    assert_eq!(
        (csts.rdy(), csts.cfs(), csts.shst(), csts.0),
        (true, false, 2, 9)
    );
    assert_eq!(
        (
            Version::V2_0.major(),
            Version::V2_0.minor(),
            Version(0x010300).minor()
        ),
        (2, 0, 3)
    );
}

#[test]
fn connect_results() {
    let result = ConnectResult {
        cntlid: 0x1234,
        authreq: 0,
    };
    assert_eq!(ConnectResult::parse(result.emit()), result);
    let invalid = InvalidParameter {
        offset: ConnectData::SUBNQN_AT,
        in_data: true,
    };
    assert_eq!(invalid.emit(), 0x1_0100);
    assert_eq!(InvalidParameter::parse(invalid.emit()), invalid);
}
