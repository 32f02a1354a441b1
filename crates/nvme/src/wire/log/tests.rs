use super::super::layout::{padded, terminated, text};
use super::*;

#[test]
fn request_round_trip_with_all_bits() {
    let request = Request {
        lid: lid::ANA,
        lsp: ANA_GROUPS_ONLY,
        retain: true,
        len: 4 * (0x0003_0002 + 1),
        offset: 0x1_0000_0004,
        by_index: false,
        csi: 2,
    };
    let cdw = request.emit();
    assert_eq!(cdw, [0x0002_810c, 3, 4, 1, 0x0200_0000]);
    assert_eq!(Request::parse(&cdw), request);
    assert_eq!(Request::parse(&[0xffff_0000, 0xffff, 0, 0, 0]).len, 1 << 34);
}

#[test]
fn fixed_pages_have_their_fields_in_place() {
    let entry = ErrorEntry {
        error_count: 1,
        cid: 0x203,
        nsid: 9,
        ..ErrorEntry::default()
    };
    let b = entry.emit();
    assert_eq!((b[0], b[10], b[11], b[24]), (1, 3, 2, 9));
    assert_eq!(ErrorEntry::parse(&b), Ok(entry));
    let smart = Smart {
        temperature: 0x0102,
        units_read: 5,
        errors: 6,
        ..Smart::default()
    };
    let b = smart.emit();
    assert_eq!((b[1], b[2], b[32], b[176]), (2, 1, 5, 6));
    let firmware = FirmwareSlot {
        afi: 1,
        frs1: padded("1.0"),
    };
    assert_eq!(&firmware.emit()[8..16], b"1.0     ");
}

#[test]
fn effects_of_both_tables() {
    let page = emit_effects(&[(0x06, CSUPP)], &[(0x01, CSUPP | LBCC)]);
    assert_eq!(le32(&page, 0x18), CSUPP);
    assert_eq!(io_effects(&page, 1), Ok(CSUPP | LBCC));
    assert_eq!(io_effects(&page, 2), Ok(0));
    assert!(io_effects(&page[1..], 1).is_err());
}

fn two_groups() -> Vec<u8> {
    let mut page = Vec::new();
    let groups = [
        (1, 7, AnaState::Optimized, alloc::vec![1, 3]),
        (2, 9, AnaState::Change, alloc::vec![2]),
    ];
    emit_ana(
        11,
        groups
            .into_iter()
            .map(|(i, c, s, n)| (i, c, s, n.into_iter())),
        &mut page,
    );
    page
}

#[test]
fn ana_round_trip() {
    let page = two_groups();
    assert_eq!(page.len(), 16 + 32 + 8 + 32 + 4);
    let log = AnaLog::new(&page).unwrap();
    assert_eq!(log.change_count(), 11);
    let groups: Vec<_> = log.groups().map(Result::unwrap).collect();
    assert_eq!(groups.len(), 2);
    assert_eq!((groups[0].id, groups[0].change_count), (1, 7));
    assert_eq!(groups[0].nsids().collect::<Vec<_>>(), [1, 3]);
    assert_eq!(
        (groups[1].state, groups[1].nsids().count()),
        (AnaState::Change, 1)
    );
}

#[test]
fn t26_ana_page_is_bounds_checked() {
    let page = two_groups();
    for cut in 16..page.len() {
        let results: Vec<_> = AnaLog::new(&page[..cut]).unwrap().groups().collect();
        let whole = usize::from(cut >= 56);
        assert_eq!(results.len(), whole + 1, "cut at {cut}");
        assert!(results[whole].is_err(), "cut at {cut}");
    }
    assert!(AnaLog::new(&page[..15]).is_err());

    let mut wild = page.clone();
    wild[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut groups = AnaLog::new(&wild).unwrap().groups();
    assert!(matches!(
        groups.next(),
        Some(Err(WireError::Truncated { .. }))
    ));
    assert!(groups.next().is_none());

    let mut state = page;
    state[32] = 5;
    let mut groups = AnaLog::new(&state).unwrap().groups();
    assert_eq!(groups.next(), Some(Err(WireError::Field { offset: 16 })));
}

#[test]
fn discovery_entries_stop_at_the_count_and_at_the_end() {
    let entry = DiscoveryEntry {
        trtype: 3,
        adrfam: 1,
        subtype: 2,
        trsvcid: padded("4420"),
        traddr: padded("127.0.0.1"),
        subnqn: terminated("nqn.a"),
        ..DiscoveryEntry::default()
    };
    let header = DiscoveryHeader {
        generation: 3,
        records: 2,
        format: 0,
    };
    let mut page = header.emit().to_vec();
    for _ in 0..3 {
        page.extend_from_slice(&entry.emit());
    }
    assert_eq!(discovery_entries(&page).unwrap().count(), 2);
    assert_eq!(discovery_entries(&page[..2047]).unwrap().count(), 0);
    assert!(discovery_entries(&page[..1023]).is_err());
    let first = discovery_entries(&page).unwrap().next().unwrap();
    assert_eq!(
        (text(&first.traddr), text(&first.subnqn)),
        ("127.0.0.1", "nqn.a")
    );
}
