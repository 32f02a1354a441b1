//! Every parser of the wire: none panics, what it reports stays inside what it was given, and what
//! was parsed survives being written and parsed again.
use nvme::wire::fabrics::{Connect, ConnectData, ConnectResult, InvalidParameter, Property};
use nvme::wire::features::{AsyncEvent, QueueCount};
use nvme::wire::identify::{self, Controller, IndependentNamespace, Namespace, NvmNamespace};
use nvme::wire::layout::text;
use nvme::wire::log::{self, AnaLog, DiscoveryEntry, DiscoveryHeader, ErrorEntry, Smart};
use nvme::wire::pdu::{self, DataHeader, Fes, Framing, Header, IcReq, IcResp, PduType, TermReq};
use nvme::wire::sqe::Sgl;
use nvme::wire::{Cqe, Sqe, Status, dsm, lba_status};

/// First byte: what was negotiated. Then the bytes that every parser is given.
pub fn run(data: &[u8]) {
    let Some((&agreed, bytes)) = data.split_first() else {
        return;
    };
    let framing = Framing {
        header_digest: agreed & 1 != 0,
        data_digest: agreed & 2 != 0,
        alignment: (u32::from(agreed >> 3) + 1) * 4,
    };
    headers(bytes, &framing);
    connection_set_up(bytes);
    entries(bytes);
    fabrics(bytes);
    pages(bytes);
    lists(bytes);
}

fn headers(bytes: &[u8], framing: &Framing) {
    let Ok(header) = Header::parse(bytes) else {
        return;
    };
    assert_eq!(header.emit(), bytes[..pdu::COMMON_LEN]);
    for from_host in [false, true] {
        match header.layout(from_host, framing) {
            Ok(layout) => {
                let parts = [layout.header, layout.pad, layout.data, layout.data_digest];
                let sum: u64 = parts.iter().map(|&part| u64::from(part)).sum();
                assert_eq!(sum, u64::from(header.plen));
                assert_eq!(layout.kind.from_host(), from_host);
                assert!(layout.header as usize <= pdu::HEADER_MAX && layout.pad < 256);
                if let Some(whole) = bytes.get(..layout.header as usize) {
                    framing.header_digest_ok(layout.kind, whole);
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    if let Ok(data) = DataHeader::parse(bytes) {
        let mut written = Vec::new();
        framing.begin(&mut written, PduType::C2hData, 0, &data.emit(), 1);
        assert_eq!(DataHeader::parse(&written), Ok(data));
    }
}

fn connection_set_up(bytes: &[u8]) {
    if let Ok(request) = IcReq::parse(bytes) {
        let mut written = Vec::new();
        request.emit(&mut written);
        assert_eq!(IcReq::parse(&written), Ok(request));
    }
    if let Ok(response) = IcResp::parse(bytes) {
        let mut written = Vec::new();
        response.emit(&mut written);
        assert_eq!(IcResp::parse(&written), Ok(response));
        assert!(response.maxh2cdata >= 4096);
    }
    if let Ok(term) = TermReq::parse(bytes)
        && let Some(fes) = Fes::from_value(term.fes)
    {
        let mut written = Vec::new();
        TermReq::emit(
            pdu::PduError { fes, fei: term.fei },
            true,
            bytes,
            &mut written,
        );
        assert_eq!(TermReq::parse(&written), Ok(term));
        let header = Header::parse(&written).expect("a whole header was written");
        assert!(header.layout(true, &Framing::PLAIN).is_ok());
    }
}

fn entries(bytes: &[u8]) {
    if let Ok(cqe) = Cqe::parse(bytes) {
        assert_eq!(Cqe::parse(&cqe.emit()), Ok(cqe));
        status(cqe.status);
        let event = AsyncEvent::parse(cqe.result as u32);
        assert_eq!(AsyncEvent::parse(event.emit()), event);
        if let Some(count) = QueueCount::parse(cqe.result as u32) {
            assert_eq!(QueueCount::parse(count.emit()), Some(count));
        }
        let connected = ConnectResult::parse(cqe.result);
        assert_eq!(ConnectResult::parse(connected.emit()), connected);
        let refused = InvalidParameter::parse(cqe.result);
        assert_eq!(InvalidParameter::parse(refused.emit()), refused);
    }
    let _ = pdu::parse_response(bytes);
}

fn status(status: Status) {
    let _ = (status.class(), status.is_path_error(), status.name());
}

fn fabrics(bytes: &[u8]) {
    if let Ok(sqe) = Sqe::new(bytes) {
        let _ = (
            sqe.opcode(),
            sqe.fuse(),
            sqe.psdt(),
            sqe.fctype(),
            sqe.mptr(),
            sqe.slba(),
        );
        assert!(sqe.blocks() >= 1);
        let sgl = sqe.sgl();
        // Of a foreign kind only the identifier is kept.
        assert!(matches!(sgl, Sgl::Other { .. }) || Sgl::parse(&sgl.emit()) == sgl);
        let connect = Connect::parse(&sqe);
        assert_eq!(Connect::parse(&connect.emit().view()), connect);
        if let Ok(property) = Property::parse(&sqe) {
            assert_eq!(Property::parse(&property.emit_set().view()), Ok(property));
        }
        let request = log::Request::parse(&[10, 11, 12, 13, 14].map(|n| sqe.cdw(n)));
        assert_eq!(log::Request::parse(&request.emit()), request);
        let request = lba_status::Request::parse(&[10, 11, 12, 13].map(|n| sqe.cdw(n)));
        assert_eq!(lba_status::Request::parse(&request.emit()), request);
    }
    if let Ok(connect) = ConnectData::parse(bytes) {
        let written = connect.emit();
        assert_eq!(ConnectData::parse(&written), Ok(connect));
    }
}

fn pages(bytes: &[u8]) {
    if let Ok(page) = Controller::parse(bytes) {
        assert_eq!(Controller::parse(&page.emit()), Ok(page));
        let _ = (text(&page.sn), text(&page.mn), text(&page.subnqn));
    }
    if let Ok(page) = Namespace::parse(bytes) {
        assert_eq!(Namespace::parse(&page.emit()), Ok(page));
        let _ = page.format();
    }
    if let Ok(page) = NvmNamespace::parse(bytes) {
        assert_eq!(NvmNamespace::parse(&page.emit()), Ok(page));
        assert!((0..64).all(|format| page.storage_tag_bits(format) < 128));
    }
    if let Ok(page) = IndependentNamespace::parse(bytes) {
        assert_eq!(IndependentNamespace::parse(&page.emit()), Ok(page));
    }
    if let Ok(list) = lba_status::List::parse(bytes) {
        assert!(list.entries().count() * lba_status::Entry::LEN <= bytes.len());
    }
    if let Ok(page) = Smart::parse(bytes) {
        assert_eq!(Smart::parse(&page.emit()), Ok(page));
    }
    if let Ok(entry) = ErrorEntry::parse(bytes) {
        assert_eq!(ErrorEntry::parse(&entry.emit()), Ok(entry));
    }
    if let Ok(header) = DiscoveryHeader::parse(bytes) {
        assert_eq!(DiscoveryHeader::parse(&header.emit()), Ok(header));
    }
    let _ = log::io_effects(bytes, 0xff);
}

fn lists(bytes: &[u8]) {
    if let Ok(page) = AnaLog::new(bytes) {
        let groups = page.groups().filter_map(Result::ok);
        let nsids: usize = groups.map(|group| group.nsids().count()).sum();
        assert!(nsids * 4 <= bytes.len());
    }
    if let Ok(entries) = log::discovery_entries(bytes) {
        let check = |entry: &DiscoveryEntry| {
            let _ = (
                text(&entry.traddr),
                text(&entry.trsvcid),
                text(&entry.subnqn),
            );
        };
        assert!(entries.inspect(check).count() < bytes.len() / log::DISCOVERY_UNIT);
    }
    assert!(identify::nsids(bytes).all(|nsid| nsid != 0));
    let descriptors = identify::descriptors(bytes);
    assert!(descriptors.count() <= bytes.len() / 4 + 1);
    assert!(dsm::ranges(bytes).count() <= dsm::RANGES_MAX);
}
