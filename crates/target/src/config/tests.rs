//! Files that are right, and what is said of those that aren't.
use super::*;
use nvme::host::AnaState;
use service::control::access::{Access, Mode, Name};
use terminal::limits::TEXT_BYTES_MAX;

const WHOLE: &str = r#"
nqn = "nqn.2026-01.org.example:v0"
serial = "S1"
model = "M"
cntlid = [1, 999]
hosts = ["nqn.2026-01.org.example:host"]
transfer_size = "128KiB"
in_capsule = "16KiB"
queue_entries = 128
io_queues = 8
connections = 16
buffers = "64MiB"
cqt = "3s"
socket = "/tmp/t.sock"
cpu = 1
spin = true

[[namespace]]
nsid = 2
backend = "file:/srv/v0"
size = "1GiB"
block_size = 512
uuid = "5a1c2a3e-7e0f-4c0a-9d54-0d1c6c1f0a77"
nguid = "00112233445566778899aabbccddeeff"
read_only = true

[[port]]
listen = "[::1]:4420"
delay = "30ms"
jitter = "1ms"
bandwidth = "300MiB/s"
servers = 4
service_time = "50us"
large_from = "64KiB"
large_delay = "5ms"
tail = "0.01:5ms"
ana = "non-optimized"
faults = { error = "media-read:0.01", until_kato = "on" }
"#;

fn error(text: &str) -> String {
    Config::parse(text).unwrap_err()
}

#[test]
fn every_key_is_taken() {
    let config = Config::parse(WHOLE).unwrap();
    assert_eq!((config.serial().as_str(), config.cntlid), ("S1", [1, 999]));
    assert_eq!(
        (config.transfer_size, config.buffers),
        (Size(128 << 10), Size(64 << 20))
    );
    let namespace = &config.namespaces[0];
    assert_eq!((namespace.nsid, namespace.block_shift().unwrap()), (2, 9));
    assert_eq!(namespace.nguid("")[..3], [0, 0x11, 0x22]);
    let port = &config.ports[0];
    assert_eq!(config.cqt, Some(Duration(3_000_000_000)));
    let mut faults = engine::target::Faults::default();
    port.faults.apply(&mut faults, 0);
    assert!(faults.until_keep_alive && faults.errors.len() == 1);
    assert_eq!(port.ana.to_string(), "non-optimized");
    let shape = shape::Config {
        delay_ns: 30_000_000,
        jitter_ns: 1_000_000,
        bytes_per_s: 300 << 20,
        servers: 4,
        service_ns: 50_000,
        large_from: 65_536,
        large_delay_ns: 5_000_000,
        stall_until_ns: 0,
        tail_per_million: 10_000,
        tail_ns: 5_000_000,
    };
    assert_eq!(port.shape, shape);
}

#[test]
fn t31_two_processes_derive_the_same_identifiers() {
    let text = r#"
        nqn = "nqn.2026-01.org.example:v0"
        namespace = [{ backend = "mem:1MiB" }, { nsid = 2, backend = "mem:1MiB" }]
        port = [{ listen = "127.0.0.1:0" }]
    "#;
    let (one, two) = (Config::parse(text).unwrap(), Config::parse(text).unwrap());
    let ids = |config: &Config, i: usize| {
        let namespace = &config.namespaces[i];
        (namespace.uuid(&config.nqn), namespace.nguid(&config.nqn))
    };
    assert_eq!(ids(&one, 0), ids(&two, 0));
    assert_ne!(ids(&one, 0), ids(&one, 1));
    assert_ne!(ids(&one, 0).0, ids(&one, 0).1);
    assert_eq!(one.serial(), two.serial());
    assert_eq!(one.serial().len(), 20);
    let uuid = Uuid::from_bytes(ids(&one, 0).0);
    assert_eq!(uuid.get_version_num(), 5);
    // Pinned: a later braid must come to the same, or a namespace changes its identity.
    assert_eq!(uuid.to_string(), "8e2cb647-4c0e-56a7-a3fd-8d2f52677bee");
    let (nguid, uuid) = crate::volume_identifiers(&one.nqn, "a");
    assert_ne!(nguid, uuid);
    let uuid = Uuid::from_bytes(uuid);
    assert_eq!(uuid.to_string(), "55f89a9d-d988-5834-8cc0-b0e7b5f2322f");
}

#[test]
fn an_unknown_key_is_shown_with_its_place_and_the_known_ones() {
    let text = WHOLE.replace("jitter", "jiter");
    let error = error(&text);
    for part in [
        "line 30",
        "column 1",
        "jiter = ",
        "unknown key `jiter`",
        "`large_delay`",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn a_wrong_value_is_shown_with_its_place_and_what_is_right() {
    for (right, wrong, parts) in [
        (
            "\"30ms\"",
            "\"30\"",
            [
                "line 29",
                "\"30\" is not a duration: a number with ns, us, ms",
            ],
        ),
        (
            "\"30ms\"",
            "30",
            ["line 29", "must be a duration in quotes, as in \"30ms\""],
        ),
        ("\"1GiB\"", "\"1PB\"", ["line 21", "\"1PB\" is not a size"]),
        (
            "\"file:/srv/v0\"",
            "\"/srv/v0\"",
            ["line 20", "write file:/srv/v0"],
        ),
        (
            "\"non-optimized\"",
            "\"slow\"",
            ["line 37", "one of optimized, non-optimized"],
        ),
        (
            "[1, 999]",
            "[1, 99999]",
            ["line 5", "must be a whole number from 0 to 65535"],
        ),
    ] {
        let error = error(&WHOLE.replacen(right, wrong, 1));
        for part in parts {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}

#[test]
fn a_target_needs_a_port_and_a_namespace() {
    let nqn = "nqn = \"nqn.2026-01.org.example:v0\"\n";
    let namespace = "[[namespace]]\nbackend = \"mem:1MiB\"\n";
    assert!(error("").contains("there is no nqn: write nqn = "));
    assert!(error(nqn).starts_with("there is no [[port]]: write one with listen"));
    assert!(error(&format!("{nqn}{namespace}")).starts_with("there is no [[port]]"));
    let port = "[[port]]\nlisten = \"127.0.0.1:0\"\n";
    assert!(error(&format!("{nqn}{port}")).starts_with("there is no [[namespace]]: write"));
    assert!(error(&format!("{nqn}namespace = []\nport = []")).contains("there is no [[port]]"));
}

#[test]
fn more_ports_or_namespaces_than_a_subsystem_has_are_counted() {
    let (port, namespace) = (
        "[[port]]\nlisten = \"[::1]:0\"\n",
        "[[namespace]]\nbackend = \"null:1t\"\n",
    );
    let of = |ports: usize, namespaces: usize| {
        let nqn = "nqn = \"nqn.2026-01.org.example:v0\"\n".to_owned();
        Config::parse(&(nqn + &port.repeat(ports) + &namespace.repeat(namespaces)))
    };
    assert!(of(64, 1024).is_ok());
    assert_eq!(of(65, 1).unwrap_err(), "there are 65 [[port]]; 64 at most");
    assert_eq!(
        of(1, 1025).unwrap_err(),
        "there are 1025 [[namespace]]; 1024 at most"
    );
}

#[test]
fn a_file_that_is_not_there_or_too_large_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.toml");
    let missing = format!("{:#}", Config::read(&path).unwrap_err());
    assert!(
        missing.contains("cannot read") && missing.contains("No such file"),
        "{missing}"
    );
    std::fs::write(&path, vec![b'#'; TEXT_BYTES_MAX as usize + 1]).unwrap();
    let large = format!("{:#}", Config::read(&path).unwrap_err());
    assert!(large.contains("more than 1 MiB"), "{large}");
}

#[test]
fn groups_have_a_state_each_and_one_without_a_namespace_is_refused() {
    let namespaces = "namespace = [{ backend = \"null:1MiB\" }, \
                      { backend = \"null:1MiB\", ana_group = 7 }]";
    let with = |ana: &str| [&with_namespaces(namespaces), "ana = \"", ana, "\"\n"].concat();
    for (ana, want) in [
        ("change", [AnaState::Change; 2]),
        ("7:change", [AnaState::Optimized, AnaState::Change]),
        (
            "1:inaccessible+7:change",
            [AnaState::Inaccessible, AnaState::Change],
        ),
        ("1:change+inaccessible", [AnaState::Inaccessible; 2]),
    ] {
        let config = Config::parse(&with(ana)).unwrap();
        assert_eq!(
            [1, 7].map(|group| config.ports[0].ana.of(group)),
            want,
            "{ana}"
        );
    }
    let unknown = error(&with("2:change"));
    let want = "listen \"127.0.0.1:0\": ana: no namespace is in group 2, only in 1, 7";
    assert_eq!(unknown, want);
    for (ana, part) in [
        ("0:change", "\"0\" is no ANA group: a number from 1 on"),
        ("1:", "\"\" is no ANA state; one of"),
        ("change+", "\"\" is no ANA state; one of"),
    ] {
        let error = error(&with(ana));
        assert!(error.contains(part), "{error}");
    }
    let zero = error(&with_namespaces(&namespaces.replace("= 7", "= 0")));
    assert!(zero.starts_with("namespace 2: ana_group 0"), "{zero}");
}

#[test]
fn the_control_socket_may_be_anothers() {
    let keys = "socket_owner = \"root\"\nsocket_group = \"0\"\nsocket_mode = \"0660\"\n";
    let config = Config::parse(&[keys, WHOLE].concat()).unwrap();
    let want = Access {
        owner: Some(Name::Word("root".into())),
        group: Some(Name::Id(0)),
        mode: Some(Mode(0o660)),
    };
    assert_eq!(config.access(), want);
    let error = error(&[&keys.replace("0660", "0777"), WHOLE].concat());
    assert!(
        error.contains("line 3") && error.contains("octal"),
        "{error}"
    );
}

fn with_namespaces(namespaces: &str) -> String {
    format!(
        "nqn = \"nqn.2026-01.org.example:v0\"\n{namespaces}\n[[port]]\nlisten = \"127.0.0.1:0\"\n"
    )
}

#[test]
fn namespaces_without_nsid_get_the_next_free_one() {
    let text = with_namespaces(
        "namespace = [{ backend = \"null:1MiB\" }, { nsid = 2, backend = \"null:1MiB\" }, \
         { backend = \"null:1MiB\" }, { backend = \"null:1MiB\" }]",
    );
    let config = Config::parse(&text).unwrap();
    let nsids: Vec<_> = config.namespaces.iter().map(|of| of.nsid).collect();
    assert_eq!(nsids, [1, 2, 3, 4]);
}

#[test]
fn an_nsid_that_is_there_twice_is_shown_with_its_line() {
    let one = "[[namespace]]\nnsid = 1\nbackend = \"null:1MiB\"\n";
    assert_eq!(
        error(&with_namespaces(&format!("{one}{one}"))),
        "line 6: namespace 2 also has nsid 1: give each its own, or leave nsid out"
    );
    for nsid in ["0", "4294967295"] {
        let error = error(&with_namespaces(&one.replace("= 1", &format!("= {nsid}"))));
        assert!(
            error.contains("line 3") && error.contains("1 to 4294967294"),
            "{error}"
        );
    }
}

#[test]
fn what_needs_no_look_at_the_machine_is_told_first() {
    for (right, wrong, part) in [
        (
            "\"[::1]:4420\"",
            "\"foo\"",
            "listen \"foo\": write ADDRESS:PORT",
        ),
        (
            "[::1]:4420",
            "[::1]:99999",
            "\"99999\" is no port from 0 to 65535",
        ),
        (
            "nqn.2026-01.org.example:v0",
            "foo",
            "nqn \"foo\" must begin with",
        ),
        (
            "nqn.2026-01.org.example:host",
            "foo",
            "hosts \"foo\" must begin with",
        ),
        (
            "[1, 999]",
            "[999, 1]",
            "cntlid [999, 1] is not [first, last]",
        ),
        (
            "\"S1\"",
            "\"123456789012345678901\"",
            "serial is not at most 20",
        ),
        ("\"S1\"", "\"Sé\"", "serial is not at most 20"),
        ("\"128KiB\"", "\"100KiB\"", "transfer_size 100 KiB is not"),
        ("\"3s\"", "\"70s\"", "cqt 70000 ms is more than"),
        (
            "block_size = 512",
            "block_size = 1024",
            "namespace 1: block_size 1024",
        ),
        (
            "\"1GiB\"",
            "\"1000\"",
            "namespace 1: size 1000 is not a multiple",
        ),
        (
            "file:/srv/v0",
            "null:1MiB",
            "namespace 1: size 1 GiB is more than the 1 MiB",
        ),
        (
            "read_only = true",
            "read_only = true\nsparse = true",
            "namespace 1: sparse is for a file",
        ),
    ] {
        let error = error(&WHOLE.replacen(right, wrong, 1));
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn a_directory_or_another_encoding_is_said_with_advice() {
    let directory = tempfile::tempdir().unwrap();
    let said = |path: &Path| format!("{:#}", Config::read(path).unwrap_err());
    assert!(said(directory.path()).contains("give the file in it"));
    let path = directory.path().join("t.toml");
    assert!(said(&path).contains("check the name"));
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(said(&path).contains("save it as UTF-8"), "{}", said(&path));
}

#[test]
fn hostile_files_get_an_error_with_a_place_or_a_key() {
    hostile::attack("target_config", |text| match Config::parse(text) {
        Ok(config) => {
            assert_eq!(config.check(), Ok(()));
            assert!(config.namespaces.iter().all(|it| it.nsid != 0));
            assert_eq!(config.serial().len().min(20), config.serial().len());
        }
        Err(error) => {
            let keys = "nqn hosts cntlid transfer_size in_capsule buffers connections cqt listen \
                        namespace port there serial model tables discovery_nqn referral \
                        referrals";
            let first = error.split([' ', ':']).next().unwrap();
            let named = keys.split(' ').any(|key| key == first);
            assert!(named || error.contains("line "), "{error}");
        }
    });
}
