//! How people write statuses.
use super::*;

fn plain_asked(status: Status) -> Asked {
    Asked {
        status,
        fabrics_only: false,
        phase: None,
    }
}

#[test]
fn every_way_to_write_one_is_understood() {
    for text in [
        "0x281",
        "281h",
        "0281h",
        "641",
        "2h/81h",
        "2/0x81",
        "0x2/0x81",
        "2/81",
        "2/129",
        "0x2 0x81",
        "sct 0x2 / sc 0x81",
        "(sct 0x2 / sc 0x81)",
        "SCT=2 SC=129",
        "unrecovered read error",
        "Unrecovered Read Error",
        "unrecovered-read-error",
        "unrecovered read",
        "media-read",
        "nvme0n1: I/O Cmd(0x2) @ LBA 2048, 8 blocks, Unrecovered Read Error (sct 0x2 / sc 0x81)",
    ] {
        let want = plain_asked(Status::UNRECOVERED_READ);
        assert_eq!(parse(text), Ok(want), "{text}");
    }
}

#[test]
fn retry_bits_are_kept() {
    let full = Status::UNRECOVERED_READ.with_dnr();
    for text in [
        "0x4281",
        "2h/81h dnr",
        "sct 0x2 / sc 0x81 DNR",
        "NVMe status: Unrecovered Read Error: The read data could not be recovered(0x4281)",
    ] {
        assert_eq!(parse(text), Ok(plain_asked(full)), "{text}");
    }
    let full = Status::NAMESPACE_NOT_READY.with_crd(2).with_more();
    for text in [
        "0x3082",
        "namespace not ready crd=2 more",
        "0/82h CRD 2 MORE",
    ] {
        assert_eq!(parse(text), Ok(plain_asked(full)), "{text}");
    }
    let half = |phase| Asked {
        phase: Some(phase),
        ..plain_asked(Status::UNRECOVERED_READ.with_dnr())
    };
    assert_eq!(parse("0x8502"), Ok(half(false)));
    assert_eq!(parse("0x8503"), Ok(half(true)));
    // Type 5 is reserved, but half of a completion it may be.
    let half = parse("0x502").unwrap();
    assert_eq!(
        (half.status, half.phase),
        (Status::UNRECOVERED_READ, Some(false))
    );
}

#[test]
fn what_may_be_several_is_an_error_that_names_them() {
    for (text, parts) in [
        (
            "281",
            &[
                "0x281 (unrecovered read error",
                "0x119 (namespace is private",
            ][..],
        ),
        (
            "10",
            &["0x010 (metadata", "0x00a (command aborted due to missing"],
        ),
        (
            "0/10",
            &["metadata SGL length invalid", "missing fused command"],
        ),
        ("end-to-end", &["guard check", "storage tag check"]),
        (
            "invalid",
            &["invalid command opcode (0x001)", " more: which?"],
        ),
        (
            "ana",
            &["ANA attach failed", "asymmetric access transition"],
        ),
        ("controller busy", &[]),
    ] {
        match parse(text) {
            Ok(asked) => assert!(parts.is_empty() && asked.fabrics_only, "{text}: {asked:?}"),
            Err(error) => {
                for part in parts {
                    assert!(error.contains(part), "{text}: {error}");
                }
                assert!(!parts.is_empty(), "{text}: {error}");
            }
        }
    }
}

#[test]
fn what_is_none_is_said() {
    for (text, part) in [
        ("", "neither one code"),
        ("0x10000", "15 bits, 16 with the phase tag"),
        ("99999999999999999999", "15 bits"),
        ("0xfffff", "0 to 0xffff (65535)"),
        ("70000", "0 to 0xffff (65535)"),
        ("0x", "hexadecimal digits behind 0x"),
        ("0xg1", "hexadecimal digits behind 0x"),
        ("2/", "a type and a code, as in 2h/81h"),
        ("/81h", "a type and a code, as in 2h/81h"),
        ("2/x", "a type and a code, as in 2h/81h"),
        ("8/00", "a type is 0 to 7"),
        ("2/0x181", "a code 0 to 0xff"),
        ("sct 9 sc 1", "a type is 0 to 7"),
        ("sct 2", "neither one code"),
        ("frobnicated", "no status is called \"frobnicated\""),
        ("invalid field 2", "neither one code"),
        ("0x281 0x282 0x283", "neither one code"),
        (&"x".repeat(501), "too long"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn every_name_and_every_value_finds_its_status() {
    for status in Status::ALL {
        let name = status.name().unwrap();
        assert_eq!(parse(name).unwrap().status, *status, "{name}");
        let value = format!("{:#x}", status.with_dnr().0);
        assert_eq!(parse(&value), Ok(plain_asked(status.with_dnr())));
    }
    for (status, name) in connect_status::ALL {
        assert_eq!(parse(name).unwrap().status, status, "{name}");
    }
    for value in 0..=u16::MAX {
        let asked = parse(&format!("{value:#x}")).unwrap();
        let plain = asked.status.0 == value;
        assert!(plain || asked.phase.is_some(), "{value:#x}");
    }
}
