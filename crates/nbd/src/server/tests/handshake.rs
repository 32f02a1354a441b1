//! Option haggling, rule by rule.
use super::*;
use crate::wire::{BASE_ALLOCATION, rep};
use alloc::format;

const ACK: (u32, Vec<u8>) = (rep::ACK, Vec::new());

fn refused(kind: u32) -> Vec<(u32, Vec<u8>)> {
    vec![(kind, Vec::new())]
}

#[test]
fn the_greeting_offers_fixed_newstyle_without_zeroes() {
    let bench = Bench::with(config(), exports());
    assert_eq!(bench.sent, b"NBDMAGICIHAVEOPT\0\x03");
    assert_eq!(bits::FIXED_NEWSTYLE | bits::NO_ZEROES, 3);
}

#[test]
fn unknown_client_flags_end_the_session() {
    for flags in [4u32, 1 << 31, 0xffff_fffc] {
        let mut bench = Bench::with(config(), exports());
        bench.feed(&flags.to_be_bytes());
        let fault = Fault::ClientFlags(flags);
        assert_eq!(bench.closed, [CloseReason::Protocol(fault)]);
    }
    for flags in [0, 1, 2, 3] {
        let mut bench = Bench::with(config(), exports());
        bench.feed(&[0, 0, 0, flags]);
        assert!(bench.closed.is_empty());
        bench.sent.clear();
        // Fixed newstyle is honoured even where the client doesn't claim to know it.
        assert_eq!(bench.option(99, &[]), refused(rep::ERR_UNSUP));
    }
}

#[test]
fn unknown_options_are_answered_and_their_data_skipped() {
    let mut bench = Bench::greeted();
    for option in [0, 4, opt::EXTENDED_HEADERS, 12, u32::MAX] {
        assert_eq!(bench.option(option, &[]), refused(rep::ERR_UNSUP));
        assert_eq!(bench.option(option, &[1; 300]), refused(rep::ERR_UNSUP));
    }
    assert_eq!(bench.option(opt::STRUCTURED_REPLY, &[]), [ACK]);
}

#[test]
fn tls_is_refused_by_policy() {
    let mut bench = Bench::greeted();
    assert_eq!(bench.option(opt::STARTTLS, &[]), refused(rep::ERR_POLICY));
    assert_eq!(bench.option(opt::STARTTLS, &[0]), refused(rep::ERR_INVALID));
}

#[test]
fn options_without_data_refuse_some() {
    let mut bench = Bench::greeted();
    for option in [opt::LIST, opt::STRUCTURED_REPLY] {
        assert_eq!(bench.option(option, &[0]), refused(rep::ERR_INVALID));
    }
    bench.option(opt::GO, &choice("disk", &[]));
    assert!(!bench.opened.unwrap().structured);
}

#[test]
fn abort_is_acknowledged_whatever_it_carries_and_ends_the_session() {
    for data in [&[][..], &[1, 2, 3]] {
        let mut bench = Bench::greeted();
        assert_eq!(bench.option(opt::ABORT, data), [ACK]);
        assert_eq!(bench.closed, [CloseReason::Finished]);
        assert_eq!(bench.feed(b"whatever"), 8, "swallowed");
    }
}

#[test]
fn the_list_names_and_describes_every_export() {
    let mut bench = Bench::greeted();
    let list = bench.option(opt::LIST, &[]);
    let server = |text: &[u8]| (rep::SERVER, text.to_vec());
    let want = [
        server(b"\0\0\0\x04diska disk"),
        server(b"\0\0\0\x06locked"),
        ACK,
    ];
    assert_eq!(list, want);
    assert_eq!(bench.option(opt::LIST, &[]), want, "as often as one likes");
}

#[test]
fn a_long_list_goes_out_in_runs_and_nothing_is_read_meanwhile() {
    let list = (0..1000).map(|i| export(i, &("x".repeat(100) + &i.to_string())));
    let mut bench = Bench::with(config(), Exports::new(list.collect(), None).unwrap());
    bench.feed(&[0, 0, 0, 3]);
    bench.hold.transmit = true;
    let bytes = option_bytes(opt::LIST, &[]);
    assert_eq!(bench.feed(&[&bytes[..], &bytes].concat()), bytes.len());
    let mut runs = Vec::new();
    let mut all = Vec::new();
    loop {
        let mut out = Vec::new();
        if bench.session.poll_transmit(&mut out).is_none() {
            break;
        }
        runs.push(out.len());
        all.extend(out);
    }
    assert!(runs.len() > 20 && runs.iter().all(|run| *run < 5000));
    assert_eq!(replies_to(opt::LIST, &all).len(), 1001);
    bench.pump();
    assert_eq!(bench.resumed, 1);
    assert_eq!(bench.feed(&bytes), bytes.len());
}

#[test]
fn unsent_answers_of_the_handshake_are_bounded() {
    let mut bench = Bench::greeted();
    bench.hold.transmit = true;
    let one = option_bytes(99, &[]);
    let many = one.repeat(40);
    assert_eq!(bench.feed(&many), one.len());
    assert_eq!(bench.resumed, 0);
    bench.transmit();
    bench.pump();
    assert_eq!(bench.resumed, 1);
    assert_eq!(bench.feed(&many), one.len());
}

#[test]
fn info_tells_what_was_asked_for_and_stays_in_the_handshake() {
    let mut bench = Bench::greeted();
    let flags = all_features().flags(false).to_be_bytes();
    let size = MIB.to_be_bytes();
    let info = |parts: &[&[u8]]| (rep::INFO, parts.concat());
    let first = info(&[&[0, 0], &size, &flags]);
    let asked = bench.option(opt::INFO, &choice("disk", &[]));
    assert_eq!(asked, [first.clone(), ACK]);
    let all = [
        info::EXPORT,
        info::NAME,
        info::DESCRIPTION,
        info::BLOCK_SIZE,
        77,
    ];
    let asked = bench.option(opt::INFO, &choice("disk", &all));
    let sizes = [512u32, 4096, 65536].map(u32::to_be_bytes);
    let want = [
        first,
        info(&[&[0, 1], b"disk"]),
        info(&[&[0, 2], b"a disk"]),
        info(&[&[0, 3], sizes.as_flattened()]),
        ACK,
    ];
    assert_eq!(asked, want);
    assert_eq!(bench.opened, None);
    assert!(bench.session.poll_timeout().is_some());
}

#[test]
fn the_default_export_is_told_by_its_name_and_an_empty_description_not_at_all() {
    let mut bench = Bench::greeted();
    let asked = bench.option(opt::INFO, &choice("", &[info::NAME, info::DESCRIPTION]));
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[1], (rep::INFO, b"\0\x01locked".to_vec()));
}

#[test]
fn info_and_go_whose_lengths_disagree_are_invalid_and_unknown_names_unknown() {
    let good = choice("disk", &[info::BLOCK_SIZE]);
    for option in [opt::INFO, opt::GO] {
        let mut bench = Bench::greeted();
        for len in 0..good.len() {
            let asked = bench.option(option, &good[..len]);
            assert_eq!(asked, refused(rep::ERR_INVALID), "{len} bytes");
        }
        let longer = [&good[..], &[0]].concat();
        assert_eq!(bench.option(option, &longer), refused(rep::ERR_INVALID));
        let huge = [&[0xff; 4], &good[4..]].concat();
        assert_eq!(bench.option(option, &huge), refused(rep::ERR_INVALID));
        let other = choice("disc", &[]);
        assert_eq!(bench.option(option, &other), refused(rep::ERR_UNKNOWN));
        assert_eq!(bench.opened, None);
    }
}

#[test]
fn go_opens_the_export_and_ends_the_handshake() {
    let mut bench = Bench::greeted();
    let said = bench.option(opt::GO, &choice("disk", &[info::BLOCK_SIZE]));
    assert_eq!(said.len(), 3);
    let opened = Opened {
        export: 7,
        negotiated_block_size: true,
        structured: false,
        block_status: false,
    };
    assert_eq!(bench.opened, Some(opened));
    assert_eq!(bench.session.poll_timeout(), None);
    // Asking by Info alone commits to nothing (Block size constraints).
    let mut bench = Bench::greeted();
    bench.option(opt::INFO, &choice("disk", &[info::BLOCK_SIZE]));
    bench.option(opt::GO, &choice("disk", &[]));
    assert!(!bench.opened.unwrap().negotiated_block_size);
}

#[test]
fn export_name_is_answered_bare_with_zeroes_unless_declined() {
    for (flags, zeroes) in [(3, 0), (2, 0), (1, 124), (0, 124)] {
        let mut bench = Bench::with(config(), exports());
        bench.feed(&[0, 0, 0, flags]);
        bench.sent.clear();
        bench.feed(&option_bytes(opt::EXPORT_NAME, b""));
        let flags = Features {
            read_only: true,
            ..all_features()
        };
        let mut want = MIB.to_be_bytes().to_vec();
        want.extend(flags.flags(false).to_be_bytes());
        want.resize(10 + zeroes, 0);
        assert_eq!(bench.sent, want);
        assert_eq!(bench.opened.unwrap().export, 8);
    }
}

#[test]
fn export_name_has_no_word_for_no() {
    let mut bench = Bench::greeted();
    bench.feed(&option_bytes(opt::EXPORT_NAME, b"disc"));
    assert_eq!(bench.closed, [CloseReason::Refused]);
    assert!(bench.sent.is_empty());
}

#[test]
fn a_client_is_told_why_there_is_no_export() {
    let long = format!("{}ä", "x".repeat(1023));
    for (why, said) in [
        ("it is not there", "it is not there"),
        (&long[..], &long[..1023]),
    ] {
        let mut bench = Bench::with(config(), Exports::none(why));
        bench.feed(&[0, 0, 0, 3]);
        bench.sent.clear();
        let refused = vec![(rep::ERR_UNKNOWN, said.as_bytes().to_vec())];
        assert_eq!(bench.option(opt::LIST, &[]), [ACK]);
        for option in [opt::INFO, opt::GO] {
            assert_eq!(bench.option(option, &choice("disk", &[])), refused);
        }
        // An export that is added meanwhile can be opened.
        bench.session.set_exports(exports());
        bench.option(opt::GO, &choice("disk", &[]));
        assert!(bench.opened.is_some());
    }
}

#[test]
fn structured_replies_bring_the_df_flag() {
    for structured in [false, true] {
        let mut bench = Bench::greeted();
        if structured {
            assert_eq!(bench.option(opt::STRUCTURED_REPLY, &[]), [ACK]);
        }
        let said = bench.option(opt::GO, &choice("disk", &[]));
        let flags = Fields(&said[0].1[10..]).u16().unwrap();
        assert_eq!(flags, all_features().flags(structured));
        assert_eq!(bench.opened.unwrap().structured, structured);
    }
}

fn queries(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

fn context(id: u32) -> (u32, Vec<u8>) {
    let id = id.to_be_bytes();
    let parts: [&[u8]; 2] = [&id, BASE_ALLOCATION.as_bytes()];
    (rep::META_CONTEXT, parts.concat())
}

#[test]
fn contexts_need_structured_replies() {
    let mut bench = Bench::greeted();
    for option in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        let asked = bench.option(option, &queries("disk", &[BASE_ALLOCATION]));
        assert_eq!(asked, refused(rep::ERR_INVALID));
    }
}

#[test]
fn contexts_are_listed_by_wildcard_and_selected_by_name() {
    let mut bench = Bench::greeted();
    bench.option(opt::STRUCTURED_REPLY, &[]);
    let both = |bench: &mut Bench, data: &[u8]| {
        let list = bench.option(opt::LIST_META_CONTEXT, data);
        (list, bench.option(opt::SET_META_CONTEXT, data))
    };
    let found = |id| vec![context(id), ACK];
    let none = || vec![ACK];
    let asked = both(&mut bench, &queries("disk", &[]));
    assert_eq!(asked, (found(0), none()));
    let asked = both(&mut bench, &queries("disk", &["base:"]));
    assert_eq!(asked, (found(0), none()));
    let asked = both(&mut bench, &queries("disk", &["qemu:x", BASE_ALLOCATION]));
    assert_eq!(asked, (found(0), found(1)));
    let twice = queries("disk", &[BASE_ALLOCATION, BASE_ALLOCATION]);
    assert_eq!(both(&mut bench, &twice), (found(0), found(1)));
    let asked = both(&mut bench, &queries("disk", &["base:other", "x"]));
    assert_eq!(asked, (none(), none()));
    let asked = both(&mut bench, &queries("disc", &[BASE_ALLOCATION]));
    let unknown = refused(rep::ERR_UNKNOWN);
    assert_eq!(asked, (unknown.clone(), unknown));
}

#[test]
fn contexts_are_not_offered_unless_the_export_has_them() {
    let mut plain = export(1, "disk");
    plain.features.block_status = false;
    let mut bench = Bench::with(config(), Exports::new(vec![plain], None).unwrap());
    bench.feed(&[0, 0, 0, 3]);
    bench.option(opt::STRUCTURED_REPLY, &[]);
    for option in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        assert_eq!(
            bench.option(option, &queries("disk", &[BASE_ALLOCATION])),
            [ACK]
        );
    }
    bench.option(opt::GO, &choice("disk", &[]));
    assert!(!bench.opened.unwrap().block_status);
}

#[test]
fn the_last_selection_counts_even_if_it_failed_and_only_for_its_export() {
    let good = queries("disk", &[BASE_ALLOCATION]);
    let cases: [(&[u8], bool); 4] = [
        (&good, true),
        (&queries("disk", &[]), false),
        (&good[..good.len() - 1], false),
        (&queries("locked", &[BASE_ALLOCATION]), false),
    ];
    for (last, selected) in cases {
        let mut bench = Bench::greeted();
        bench.option(opt::STRUCTURED_REPLY, &[]);
        bench.option(opt::SET_META_CONTEXT, &good);
        bench.option(opt::SET_META_CONTEXT, last);
        bench.option(opt::GO, &choice("disk", &[]));
        assert_eq!(bench.opened.unwrap().block_status, selected);
    }
}

#[test]
fn queries_that_reach_beyond_their_option_are_invalid() {
    let mut bench = Bench::greeted();
    bench.option(opt::STRUCTURED_REPLY, &[]);
    let good = queries("disk", &[BASE_ALLOCATION]);
    for option in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        for bad in [
            &good[..good.len() - 1],
            &good[..6],
            &[],
            &[&good[..], &[0]].concat(),
            &[&[0xff; 4], &good[4..]].concat(),
        ] {
            assert_eq!(bench.option(option, bad), refused(rep::ERR_INVALID));
        }
    }
}

#[test]
fn an_overlong_option_is_skipped_and_answered_and_a_huge_one_ends_the_session() {
    use crate::limits::{OPTION_DATA_MAX, OPTION_SKIP_MAX};
    let mut bench = Bench::greeted();
    for option in [opt::GO, opt::LIST, 99] {
        let data = vec![0; OPTION_DATA_MAX as usize + 1];
        assert_eq!(bench.option(option, &data), refused(rep::ERR_TOO_BIG));
    }
    let largest = vec![0; OPTION_SKIP_MAX as usize];
    assert_eq!(bench.option(99, &largest), refused(rep::ERR_TOO_BIG));
    assert_eq!(bench.option(opt::STRUCTURED_REPLY, &[]), [ACK]);
    assert!(bench.session.rx.capacity() <= OPTION_DATA_MAX as usize);
    for (option, len) in [
        (99, OPTION_SKIP_MAX + 1),
        (opt::ABORT, u32::MAX),
        (opt::EXPORT_NAME, OPTION_DATA_MAX + 1),
    ] {
        let mut bench = Bench::greeted();
        let mut bytes = Vec::new();
        OptionHeader { option, len }.emit(&mut bytes);
        bench.feed(&bytes);
        let fault = Fault::OptionLength(len);
        assert_eq!(bench.closed, [CloseReason::Protocol(fault)]);
    }
}

#[test]
fn options_have_a_number_and_a_magic() {
    let mut bench = Bench::greeted();
    for _ in 0..crate::limits::OPTIONS_MAX {
        assert_eq!(bench.option(99, &[]), refused(rep::ERR_UNSUP));
    }
    bench.feed(&option_bytes(99, &[]));
    assert_eq!(bench.closed, [CloseReason::Protocol(Fault::Options)]);
    let mut bench = Bench::greeted();
    bench.feed(&[7; 16]);
    assert_eq!(bench.closed, [CloseReason::Protocol(Fault::OptionMagic)]);
    assert!(bench.sent.is_empty());
}

#[test]
fn exports_may_change_during_the_handshake_and_not_later() {
    let mut bench = Bench::greeted();
    let other = Exports::new(vec![export(9, "other")], None).unwrap();
    bench.session.set_exports(other.clone());
    let unknown = bench.option(opt::GO, &choice("disk", &[]));
    assert_eq!(unknown, refused(rep::ERR_UNKNOWN));
    bench.option(opt::GO, &choice("other", &[]));
    assert_eq!(bench.opened.unwrap().export, 9);
    let mut bench = Bench::open(true, true);
    bench.session.set_exports(other);
    assert_eq!(bench.session.exports.list().len(), 2);
}
