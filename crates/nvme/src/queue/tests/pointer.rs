//! Data pointers: the walk returns the pieces that were built; a hostile pointer ends with a
//! status.
use super::super::Entry;
use super::super::pointer::{Form, LIST_WORDS, List, PAGE, Piece, PieceError, build, walk};
use crate::wire::Status;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const LIST: u64 = 1 << 40;

fn built(pieces: &[Piece], form: Form) -> Result<(Entry, Vec<u64>), PieceError> {
    let mut entry = [0xff << 14, 0, 0, 9, 9, 0, 0, 0];
    let mut words = vec![0; LIST_WORDS];
    let list = List {
        address: LIST,
        store: |at: usize, value| words[at] = value,
    };
    build(&mut entry, pieces, form, list)?;
    Ok((entry, words))
}

fn walked(entry: &Entry, words: &[u64], len: u32) -> Result<Vec<Piece>, Status> {
    let mut pieces = Vec::new();
    let mut reads = 0;
    let word = |address: u64| {
        reads += 1;
        let at = address.checked_sub(LIST)?;
        words.get((at / 8) as usize).copied()
    };
    walk(entry, len, word, &mut pieces)?;
    assert!(reads <= 2 * LIST_WORDS + 2, "{reads} reads");
    let sum: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
    assert_eq!(sum, u64::from(len));
    Ok(pieces)
}

fn piece(address: u64, len: u32) -> Piece {
    Piece { address, len }
}

#[test]
fn one_buffer_is_one_piece_at_any_offset_and_length() {
    for form in [Form::Auto, Form::Prp, Form::Sgl] {
        for offset in [0, 4, 512, 4092] {
            for len in [1, 512, 4096, 4097, 8192, 8193, 65_536, 1 << 20, 2 << 20] {
                let whole = piece(0x7000_0000 + offset, len);
                let (entry, words) = built(&[whole], form).unwrap();
                assert_eq!(walked(&entry, &words, len).unwrap(), [whole], "{form:?}");
            }
        }
    }
}

#[test]
fn prps_are_as_the_specification_has_them() {
    let (entry, _) = built(&[piece(0x5010, 4096)], Form::Auto).unwrap();
    assert_eq!(
        (entry[3], entry[4], entry[0] >> 14 & 3),
        (0x5010, 0x6000, 0)
    );
    let (entry, _) = built(&[piece(0x5000, 4096)], Form::Auto).unwrap();
    assert_eq!((entry[3], entry[4]), (0x5000, 0));
    let (entry, words) = built(&[piece(0x5800, 3 * 4096)], Form::Auto).unwrap();
    assert_eq!((entry[3], entry[4]), (0x5800, LIST));
    assert_eq!(words[..4], [0x6000, 0x7000, 0x8000, 0]);
    let two = [piece(0x5800, 2048), piece(0x9000, 100)];
    let (entry, _) = built(&two, Form::Auto).unwrap();
    assert_eq!((entry[3], entry[4]), (0x5800, 0x9000));
}

#[test]
fn sgls_are_as_the_specification_has_them() {
    let (entry, _) = built(&[piece(0x5001, 77)], Form::Sgl).unwrap();
    assert_eq!((entry[0] >> 14 & 3, entry[3], entry[4]), (1, 0x5001, 77));
    let two = [piece(0x5001, 77), piece(0x9003, 3)];
    let (entry, words) = built(&two, Form::Auto).unwrap();
    assert_eq!((entry[3], entry[4]), (LIST, 32 | 0x30 << 56));
    assert_eq!(words[..4], [0x5001, 77, 0x9003, 3]);
    assert_eq!(walked(&entry, &words, 80).unwrap(), two);
}

#[test]
fn pieces_that_cannot_be_told_are_refused() {
    let gap = [piece(0x5000, 100), piece(0x9000, 100)];
    assert_eq!(built(&gap, Form::Prp).unwrap_err(), PieceError::Offset);
    // Addresses that no memory has.
    for (address, len) in [(u64::MAX - 3, 3 * 4096), (u64::MAX - 4095, 2 * 4096)] {
        let _ = built(&[Piece { address, len }], Form::Auto);
        let _ = built(&[Piece { address, len }], Form::Prp);
    }
    assert_eq!(built(&[], Form::Auto).unwrap_err(), PieceError::Empty);
    assert_eq!(
        built(&[piece(1, 0)], Form::Auto).unwrap_err(),
        PieceError::Empty
    );
    let long = piece(0, (LIST_WORDS as u32 + 2) * 4096);
    assert_eq!(built(&[long], Form::Prp).unwrap_err(), PieceError::Count);
    let many = vec![piece(1, 1); LIST_WORDS / 2 + 1];
    assert_eq!(built(&many, Form::Auto).unwrap_err(), PieceError::Count);
}

#[test]
fn a_prp_list_goes_on_in_the_next_page() {
    // It begins three entries before the end of its page: two pages, then where it goes on.
    let mut words = vec![0; 1024];
    (words[509], words[510], words[511]) = (0x1000, 0x3000, LIST + 4096);
    (words[512], words[513]) = (0x5000, 0x6000);
    let entry = [0, 0, 0, 0x10_0000, LIST + 509 * 8, 0, 0, 0];
    let pieces = walked(&entry, &words, 5 * 4096).unwrap();
    let expected = [
        piece(0x10_0000, 4096),
        piece(0x1000, 4096),
        piece(0x3000, 4096),
        piece(0x5000, 8192),
    ];
    assert_eq!(pieces, expected);
    // The last entry of a page is a page where nothing comes after it.
    words[511] = 0x7000;
    let pieces = walked(&entry, &words, 4 * 4096).unwrap();
    assert_eq!(pieces[3], piece(0x7000, 4096));
}

#[test]
fn segments_follow_each_other() {
    let mut words = vec![0; 1024];
    // One block, then the last segment: two blocks.
    words[..4].copy_from_slice(&[0x1000, 100, LIST + 4096, 32 | 0x30 << 56]);
    words[512..516].copy_from_slice(&[0x2000, 50, 0x2032, 50]);
    let entry = [1 << 14, 0, 0, LIST, 32 | 0x20 << 56, 0, 0, 0];
    let pieces = walked(&entry, &words, 200).unwrap();
    assert_eq!(pieces, [piece(0x1000, 100), piece(0x2000, 100)]);
}

#[test]
fn wrong_pointers_get_their_status() {
    let words = [
        1,
        2, // not a page
        0x1000,
        100,
        LIST,
        32 | 0x20 << 56, // a segment that leads to itself
        0x1000,
        10,
        0x2000,
        10 | 0x10 << 56, // a bit bucket
    ];
    let prp = |first, second| [0, 0, 0, first, second, 0, 0, 0];
    let sgl = |first, second| [1 << 14, 0, 0, first, second, 0, 0, 0];
    let loops = [0x1000, 0, LIST, 32 | 0x20 << 56];
    for (entry, len, expected) in [
        (prp(2, 0), 512, Status::PRP_OFFSET),
        (prp(0x1800, 0x2004), 4096, Status::PRP_OFFSET),
        (prp(0, 4), 3 * 4096, Status::PRP_OFFSET),
        (prp(0, LIST), 3 * 4096, Status::PRP_OFFSET),
        (prp(0, 0x1000), 3 * 4096, Status::DATA_TRANSFER_ERROR),
        (sgl(0x1000, 100), 101, Status::SGL_DATA_LENGTH),
        (sgl(0x1000, 100), 99, Status::SGL_DATA_LENGTH),
        (sgl(0x1000, 100 | 0x40 << 56), 100, Status::SGL_TYPE),
        (sgl(0x1000, 100 | 1 << 40), 100, Status::SGL_TYPE),
        (sgl(LIST, 24 | 0x30 << 56), 100, Status::SGL_SEGMENT),
        (sgl(LIST, 0x30 << 56), 100, Status::SGL_SEGMENT),
        (sgl(LIST + 48, 32 | 0x30 << 56), 20, Status::SGL_TYPE),
        (sgl(LIST + 16, 32 | 0x30 << 56), 100, Status::SGL_SEGMENT),
        (sgl(0, 32 | 0x30 << 56), 100, Status::DATA_TRANSFER_ERROR),
        ([2 << 14, 0, 0, 0, 0, 0, 0, 0], 512, Status::INVALID_FIELD),
    ] {
        let status = walked(&entry, &words, len).unwrap_err();
        assert!(status.is(expected) && status.dnr(), "{entry:x?}: {status}");
    }
    let endless = walked(&sgl(LIST, 32 | 0x20 << 56), &loops, 100).unwrap_err();
    assert!(endless.is(Status::SGL_COUNT), "{endless}");
    // A list of one entry per page that leads to itself.
    let mut page = vec![0; 512];
    page[511] = LIST + 511 * 8;
    let status = walked(&prp(0, LIST + 511 * 8), &page, 1 << 20).unwrap_err();
    assert!(status.is(Status::PRP_OFFSET), "{status}");
}

proptest! {
    #[test]
    fn built_pointers_are_walked(
        cuts in proptest::collection::vec((0..1_u64 << 30, 1..40_000_u32), 1..20),
        sgl in any::<bool>(),
    ) {
        let pieces: Vec<Piece> = cuts.iter().map(|&(at, len)| piece(at, len)).collect();
        let len = pieces.iter().map(|piece| piece.len).sum();
        let form = if sgl { Form::Sgl } else { Form::Auto };
        let (entry, words) = built(&pieces, form).unwrap();
        let bytes = |pieces: &[Piece]| -> Vec<u64> {
            let each = pieces.iter().flat_map(|it| it.address..it.address + u64::from(it.len));
            each.step_by(97).collect()
        };
        let walked = walked(&entry, &words, len).unwrap();
        prop_assert_eq!(bytes(&walked), bytes(&pieces));
    }

    #[test]
    fn hostile_lists_end(
        words in proptest::collection::vec(
            prop_oneof![
                any::<u64>(),
                (0..600_u64).prop_map(|at| LIST + 8 * at),
                (0..64_u64, 0..8_u64).prop_map(|(len, kind)| (len * 16) | (kind << 60)),
                (0..64_u64).prop_map(|page| page * PAGE),
            ],
            600,
        ),
        head in 0..8_usize,
        psdt in 0..4_u64,
        len in 1..1_u32 << 20,
    ) {
        let entry = [psdt << 14, 0, 0, words[head], words[head + 1], 0, 0, 0];
        let _ = walked(&entry, &words, len);
    }
}
