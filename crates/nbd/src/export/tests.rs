use super::*;
use alloc::string::ToString;
use alloc::vec;

fn export(name: &str) -> Export {
    Export {
        id: 1,
        name: name.into(),
        description: String::new(),
        size: 1 << 20,
        block_sizes: BlockSizes {
            minimum: 512,
            preferred: 4096,
            maximum: BLOCK_MAX,
        },
        features: Features::default(),
    }
}

fn refused(change: impl FnOnce(&mut Export)) -> &'static str {
    let mut bad = export("b");
    change(&mut bad);
    let error = Exports::new(vec![export("a"), bad], None).unwrap_err();
    assert_eq!(error.index, 1);
    assert!(error.to_string().starts_with("export 1: "), "{error}");
    error.field
}

#[test]
fn exports_that_no_client_could_use_are_refused_by_field() {
    assert!(Exports::new(vec![export("a"), export("b")], Some(1)).is_ok());
    assert_eq!(refused(|e| e.name = "x".repeat(4097)), "name");
    assert_eq!(refused(|e| e.name = "x\0".into()), "name");
    assert_eq!(refused(|e| e.name = "a".into()), "name");
    assert_eq!(refused(|e| e.description = "\0".into()), "description");
    assert_eq!(refused(|e| e.size += 1), "size");
    assert_eq!(refused(|e| e.size = 1 << 63), "size");
    let sizes: [fn(&mut BlockSizes); 9] = [
        |s| s.minimum = 0,
        |s| s.minimum = 513,
        |s| s.minimum = 1 << 17,
        |s| s.preferred = 256,
        |s| s.preferred = 4097,
        |s| s.maximum = 0,
        |s| s.maximum = 5000,
        |s| s.maximum = BLOCK_MAX + 512,
        |s| s.maximum = 2048,
    ];
    for change in sizes {
        assert_eq!(refused(|e| change(&mut e.block_sizes)), "block_sizes");
    }
}

#[test]
fn a_list_has_an_end_and_its_default_is_in_it() {
    let many: Vec<Export> = (0..1025).map(|i| export(&i.to_string())).collect();
    assert_eq!(Exports::new(many, None).unwrap_err().field, "list");
    let error = Exports::new(vec![export("a")], Some(1)).unwrap_err();
    assert_eq!(error.field, "default");
    assert!(Exports::new(vec![], None).is_ok());
}

#[test]
fn the_empty_name_is_the_default_unless_an_export_has_it() {
    let exports = Exports::new(vec![export("a"), export("b")], Some(1)).unwrap();
    assert_eq!(exports.find(b"a"), Some(0));
    assert_eq!(exports.find(b""), Some(1));
    assert_eq!(exports.find(b"c"), None);
    let exports = Exports::new(vec![export("a"), export("")], Some(0)).unwrap();
    assert_eq!(exports.find(b""), Some(1));
    let exports = Exports::new(vec![export("a")], None).unwrap();
    assert_eq!(exports.find(b""), None);
}

#[test]
fn flags_say_what_can_be_used() {
    let all = Features {
        read_only: false,
        flush: true,
        fua: true,
        rotational: true,
        trim: true,
        write_zeroes: true,
        fast_zero: true,
        cache: true,
        multi_conn: true,
        block_status: false,
    };
    assert_eq!(all.flags(true), 0b1101_1111_1101);
    assert_eq!(all.flags(false), 0b1101_0111_1101);
    assert_eq!(Features::from_flags(all.flags(true)), all);
    let read_only = Features {
        read_only: true,
        ..all
    };
    assert_eq!(
        read_only.flags(false),
        0b0101_0001_0111,
        "neither FUA, trim nor zeroes"
    );
    let no_zeroes = Features {
        write_zeroes: false,
        ..all
    };
    assert_eq!(no_zeroes.flags(false), 0b0101_0011_1101, "nor fast ones");
    assert_eq!(Features::default().flags(false), 1);
}
