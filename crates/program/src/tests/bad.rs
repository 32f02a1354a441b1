//! Bad files, bad modules, and bad choices.
use super::*;
use std::process::Command;

fn refusal(bytes: &[u8]) -> String {
    load(bytes).unwrap_err().to_string()
}

#[test]
fn not_a_module_is_refused() {
    let good = choosing("(i32.const 0)");
    assert!(load(&good).is_ok());
    let mut version = good.clone();
    version[4] = 9;
    let whole = good.len();
    for bytes in [
        &b""[..],
        &b"\x7fELF"[..],
        &b"(module)"[..],
        &version[..],
        &good[..whole - 1],
        &good[..9],
    ] {
        let why = refusal(bytes);
        assert!(why.starts_with("not a WebAssembly module"), "{why}");
        assert!(!why.ends_with('['), "{why}");
    }
    let large = vec![0; FILE_BYTES_MAX as usize + 1];
    assert_eq!(refusal(&large), "larger than 4 MiB");
}

#[test]
fn features_beyond_the_list_are_refused() {
    for text in [
        "(module (memory i64 1))",
        "(module (memory 1) (memory 1))",
        "(module (memory 1 1 shared))",
        "(module (func (result v128) (v128.const i64x2 0 0)))",
    ] {
        let why = refusal(&wat::parse_str(text).unwrap());
        assert!(why.starts_with("not a WebAssembly module"), "{text}: {why}");
    }
}

#[test]
fn custom_sections_are_ignored() {
    let mut bytes = choosing("(i32.const 0)");
    // A name section that is none.
    bytes.extend([0, 9, 4, b'n', b'a', b'm', b'e', 0xFF, 0xFF, 0xFF, 0xFF]);
    assert!(load(&bytes).is_ok());
}

#[test]
fn unknown_imports_are_refused_by_name() {
    let parts = |import: &str| {
        let text = format!(
            "(module (import {import}) (memory (export \"memory\") 1)
               (global (export \"braid_context\") i32 (i32.const 0))
               (func (export \"braid_select\") (param i32 i32) (result i32) (i32.const 0)))"
        );
        wat::parse_str(text).unwrap()
    };
    for (import, why) in [
        (
            "\"env\" \"select\" (func)",
            "imports env.select, which does not exist",
        ),
        (
            "\"braid\" \"clock\" (func)",
            "imports braid.clock, which does not exist",
        ),
        (
            "\"wasi_snapshot_preview1\" \"fd_write\" (func)",
            "imports wasi_snapshot_preview1.fd_write, which does not exist; load it with \
             braid policy load --wasi",
        ),
    ] {
        assert_eq!(refusal(&parts(import)), why);
    }
    let abort = "\"env\" \"abort\" (func (param i32 i32 i32 i32))";
    assert!(load(&parts(abort)).is_ok());
    // Of another type.
    assert!(refusal(&parts("\"env\" \"abort\" (func)")).starts_with("does not start"));
    let clock =
        "\"wasi_snapshot_preview1\" \"clock_time_get\" (func (param i32 i64 i32) (result i32))";
    let wasi = Options { wasi: true };
    assert!(Program::new("go", &parts(clock), wasi).is_ok());
    let other = "\"wasi_snapshot_preview1\" \"path_open\" (func)";
    assert!(Program::new("go", &parts(other), wasi).is_err());
}

#[test]
fn missing_and_wrong_exports_are_named() {
    let select = "(func (export \"braid_select\") (param i32 i32) (result i32) (i32.const 0))";
    let memory = "(memory (export \"memory\") 1)";
    let context = "(global (export \"braid_context\") i32 (i32.const 0))";
    for (parts, why) in [
        ([select, "", context], "exports no \"memory\""),
        ([select, memory, ""], "exports no \"braid_context\""),
        (["", memory, context], "exports no \"braid_select\""),
        (
            ["(func (export \"braid_select\"))", memory, context],
            "exports \"braid_select\" of another type",
        ),
        (
            [
                select,
                memory,
                "(global (export \"braid_context\") i64 (i64.const 0))",
            ],
            "exports \"braid_context\" of another type",
        ),
        (
            [
                select,
                memory,
                "(global (export \"braid_context\") i32 (i32.const 65528))",
            ],
            "its braid_context at 0xfff8 is not aligned to 8, or reaches beyond its memory",
        ),
        (
            [
                select,
                memory,
                "(global (export \"braid_context\") i32 (i32.const -8))",
            ],
            "its braid_context at 0xfffffff8 is not aligned to 8, or reaches beyond its memory",
        ),
        (
            [
                select,
                memory,
                "(func (export \"braid_context\") (result i32) (i32.const 4))",
            ],
            "its braid_context at 0x4 is not aligned to 8, or reaches beyond its memory",
        ),
    ] {
        let text = format!("(module {} {} {})", parts[0], parts[1], parts[2]);
        assert_eq!(refusal(&wat::parse_str(text).unwrap()), why);
    }
    let by_function = "(func (export \"braid_context\") (result i32) (i32.const 4096))";
    let text = format!("(module {select} {memory} {by_function})");
    assert!(load(&wat::parse_str(text).unwrap()).is_ok());
}

/// Of 100 MiB nothing is allocated: the limit stands before the instance.
#[test]
fn too_much_memory_is_refused() {
    let text = "(module (memory (export \"memory\") 1600)
        (global (export \"braid_context\") i32 (i32.const 0))
        (func (export \"braid_select\") (param i32 i32) (result i32) (i32.const 0)))";
    assert!(refusal(&wat::parse_str(text).unwrap()).starts_with("does not start"));
    let tables = "(table 100000 funcref)
        (func (export \"braid_select\") (param i32 i32) (result i32) (i32.const 0))";
    assert!(refusal(&module(tables)).starts_with("does not start"));
    // 17 pages, as plain Rust has them, and a table.
    let rust = text
        .replace("1600", "17")
        .replace("(global", "(table 1 funcref) (global");
    assert!(load(&wat::parse_str(rust).unwrap()).is_ok());
}

/// Locals are set to 0, and values of blocks copied, for no fuel.
#[test]
fn functions_over_unpaid_limits_are_refused() {
    let select = "(func (export \"braid_select\") (param i32 i32) (result i32) (i32.const 0))";
    let with = |part: &str, count: usize| {
        let parts = part.replace("MANY", &"i64 ".repeat(count));
        let abort = "(import \"env\" \"abort\" (func (param i32 i32 i32 i32)))";
        let text = format!(
            "(module {abort} (memory (export \"memory\") 1)
               (global (export \"braid_context\") i32 (i32.const 0)) {select} {parts})"
        );
        load(&wat::parse_str(text).unwrap())
    };
    let locals = "(func (local i32) (local MANY))";
    assert!(with(locals, 127).is_ok());
    assert_eq!(
        with(locals, 128).unwrap_err().to_string(),
        "its function 2 has 129 locals, more than 128; optimized code has fewer"
    );
    let huge = format!("(func {})", "(local MANY)".repeat(200));
    assert!(with(&huge, 200).is_err());
    for part in [
        "(func (param MANY))",
        "(func (result MANY) unreachable)",
        "(func unreachable (loop (param MANY) unreachable))",
    ] {
        assert!(with(part, VALUES_MAX).is_ok(), "{part}");
        assert!(with(part, VALUES_MAX + 1).is_err(), "{part}");
        let wasi = Options { wasi: true };
        let bytes = module(&format!(
            "{select} {}",
            part.replace("MANY", &"i64 ".repeat(33))
        ));
        let why = Program::new("go", &bytes, wasi).unwrap_err();
        assert!(matches!(why, LoadError::Values), "{part}: {why}");
    }
}

/// A call of WASI pays for the bytes that it fills: 4 times 64 KiB are within the fuel, 5 not.
#[test]
fn random_bytes_cost_fuel() {
    let choose = |times: u32| {
        let call = "(drop (call $fill (i32.const 65536) (i32.const 65536)))";
        let text = format!(
            "(module (import \"wasi_snapshot_preview1\" \"random_get\"
                 (func $fill (param i32 i32) (result i32)))
               (memory (export \"memory\") 2)
               (global (export \"braid_context\") i32 (i32.const 1024))
               (func (export \"braid_select\") (param i32 i32) (result i32) {} (i32.const 1)))",
            call.repeat(times as usize)
        );
        let bytes = wat::parse_str(text).unwrap();
        let program = Program::new("fill", &bytes, Options { wasi: true }).unwrap();
        let mut it = program.runner(None).unwrap();
        let choice = it.select(&REQUEST, &[VIEW; 2], &[0; 2]);
        (choice, fault(&program, Fault::OutOfFuel))
    };
    assert_eq!(choose(4), (Choice::Path(1), 0));
    assert_eq!(choose(5), (Choice::FallBack, 1));
}

/// The interpreter counts its stack in bytes: 30 calls of 128 locals fit, 40 don't.
#[test]
fn stack_has_4096_cells() {
    for (depth, choice) in [(30, Choice::Path(1)), (40, Choice::FallBack)] {
        let many = "i64 ".repeat(126);
        let (_, mut it) = runner(&module(&format!(
            "(func $deep (param $n i32) (local {many})
               (if (local.get $n) (then (call $deep (i32.sub (local.get $n) (i32.const 1))))))
             (func (export \"braid_select\") (param $r i32) (param $p i32) (result i32)
               (if (i32.eqz (i32.load offset=4 (local.get $r)))
                 (then (call $deep (i32.const {depth}))))
               (i32.const 1))"
        )));
        assert_eq!(it.select(&REQUEST, &[VIEW; 2], &[0; 2]), choice, "{depth}");
    }
}

#[test]
fn endless_starts_are_refused() {
    let select = "(func (export \"braid_select\") (param i32 i32) (result i32) (i32.const 0))";
    let endless = "(loop $l (br $l))";
    for parts in [
        format!("(func $s {endless}) (start $s) {select}"),
        format!("(func (export \"_initialize\") {endless}) {select}"),
        format!("(func (export \"__wasm_call_ctors\") {endless}) {select}"),
        format!(
            "(func (export \"braid_select\") (param i32 i32) (result i32) {endless} (i32.const 0))"
        ),
    ] {
        let why = refusal(&module(&parts));
        assert!(why.contains("fuel"), "{why}");
    }
}

/// Traps at every call but the warm-up, each with the reason; then it is out.
#[test]
fn traps_are_counted_by_reason_until_it_is_out() {
    let not_warm = "(if (i32.eqz (i32.load offset=4 (local.get $r))) (then";
    for (body, reason) in [
        ("(loop $l (br $l))", Fault::OutOfFuel),
        ("unreachable", Fault::Trap),
        ("(i32.store (i32.const -4) (i32.const 1))", Fault::Trap),
        (
            "(drop (i32.div_u (i32.const 1) (i32.const 0)))",
            Fault::Trap,
        ),
        ("(drop (call $deep))", Fault::Trap),
        ("(return (i32.const -1))", Fault::NoSuchPath),
        ("(return (i32.const 2))", Fault::NoSuchPath),
        ("(return (i32.const 0))", Fault::UnusablePath),
    ] {
        let (program, mut it) = runner(&module(&format!(
            "(func $deep (result i32) (i32.add (call $deep) (i32.const 1)))
             (func (export \"braid_select\") (param $r i32) (param $p i32) (result i32)
               {not_warm} {body})) (i32.const 1))"
        )));
        let views = [DEAD, VIEW];
        for _ in 0..FAULTS_MAX {
            assert_eq!(
                it.select(&REQUEST, &views, &[0; 2]),
                Choice::FallBack,
                "{body}"
            );
        }
        assert_eq!(
            it.select(&REQUEST, &views, &[0; 2]),
            Choice::TakenOut,
            "{body}"
        );
        assert_eq!(fault(&program, reason), u64::from(FAULTS_MAX) + 1, "{body}");
        assert!(program.state().is_out);
        let all: u64 = program.state().counts.faults.iter().sum();
        assert_eq!(all, u64::from(FAULTS_MAX) + 1, "{body}");
        // A second core hears of it.
        let mut other = program.runner(None).unwrap();
        assert_eq!(other.select(&REQUEST, &views, &[0; 2]), Choice::TakenOut);
    }
}

/// At the stated rate it stays: ten faults in each window of 1,024 choices.
#[test]
fn ten_faults_in_a_window_are_allowed() {
    let (program, mut it) = runner(&choosing(
        "(if (i32.eq (i32.load offset=32 (local.get $r)) (i32.const 1)) (then unreachable))
         (i32.const 0)",
    ));
    for number in 0..4 * WINDOW {
        let length = if number % WINDOW < FAULTS_MAX {
            1
        } else {
            4096
        };
        let request = Request { length, ..REQUEST };
        let choice = it.select(&request, &[VIEW; 2], &[0; 2]);
        assert_eq!(choice == Choice::FallBack, length == 1, "{number}");
    }
    assert_eq!(fault(&program, Fault::Trap), u64::from(4 * FAULTS_MAX));
    assert!(!program.state().is_out);
}

/// A trap after 10⁶ calls costs one choice.
#[test]
fn trap_at_the_millionth_call_is_one_fallback() {
    let (program, mut it) = runner(&module(
        "(global $n (mut i32) (i32.const 0))
         (func (export \"braid_select\") (param i32 i32) (result i32)
           (global.set $n (i32.add (global.get $n) (i32.const 1)))
           (if (i32.eq (global.get $n) (i32.const 1000000)) (then unreachable))
           (i32.const 1))",
    ));
    let mut fallbacks = 0;
    for _ in 0..1_000_010 {
        fallbacks += u32::from(it.select(&REQUEST, &[VIEW; 2], &[0; 2]) == Choice::FallBack);
    }
    assert_eq!((fallbacks, fault(&program, Fault::Trap)), (1, 1));
    assert_eq!(it.select(&REQUEST, &[VIEW; 2], &[0; 2]), Choice::Path(1));
}

#[test]
fn only_regular_files_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let fifo = at("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    for path in [&fifo, &directory.path().to_owned(), &"/dev/zero".into()] {
        assert!(matches!(read(path), Err(LoadError::NotAFile)), "{path:?}");
    }
    assert!(matches!(read(&at("none")), Err(LoadError::Read(_))));
    let large = std::fs::File::create(at("large")).unwrap();
    large.set_len(FILE_BYTES_MAX + 1).unwrap();
    assert!(matches!(read(&at("large")), Err(LoadError::TooLarge)));
}
