//! Every method against a target that only writes down what it is told; and clients that misbehave.
use super::*;
use crate::config;
use crate::quantity::Size;
use service::control::call::parse;
use service::control::rpc;
use service::control::server::serve;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

const SHOW: TargetCall = TargetCall::Show(Nothing);

struct Fixture {
    control: Arc<Control>,
    sent: Arc<Mutex<Vec<TargetControl>>>,
}

fn fixture() -> Fixture {
    grouped(&[1])
}

/// A namespace in each of these groups.
fn grouped(groups: &[u32]) -> Fixture {
    over("mem:1MiB", None, groups)
}

fn over(backend: &str, size: Option<Size>, groups: &[u32]) -> Fixture {
    let ports = ["127.0.0.1:4420", "[::1]:4421"]
        .map(|listen| crate::config::Port::new(listen.into(), &Settings::default()));
    let nqn = "nqn.2026-01.org.example:v 0".into();
    let mut config = Config::quick(nqn, backend.parse().unwrap(), ports.into());
    config.ports[0].shape.delay_ns = 7;
    let first = config.namespaces[0].clone();
    let namespaces = (1..)
        .zip(groups)
        .map(|(nsid, &ana_group)| config::Namespace {
            nsid,
            ana_group,
            size,
            ..first.clone()
        });
    config.namespaces = namespaces.collect();
    begun(&config)
}

/// A target of this configuration.
fn begun(config: &Config) -> Fixture {
    let backends = config
        .namespaces
        .iter()
        .map(|of| Backend::open(of).unwrap());
    let backends = backends.collect();
    let addresses = config.ports.iter().map(|port| port.listen.parse().unwrap());
    let addresses: Vec<SocketAddr> = addresses.collect();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let log = sent.clone();
    let send = Box::new(move |change| {
        log.lock().unwrap().push(change);
        true
    });
    let board = Arc::new(Board::new(2));
    let control = Arc::new(Control::new(
        config,
        &addresses,
        backends,
        board,
        send,
        Box::new(Default::default),
    ));
    Fixture { control, sent }
}

impl Fixture {
    fn refused(&self, method: &str, params: Value) -> String {
        let error = self.call(method, params).unwrap_err();
        assert!(self.sent.lock().unwrap().is_empty(), "nothing was changed");
        error.to_string()
    }

    fn call(&self, method: &str, params: Value) -> Result<Value, ControlError> {
        let call = parse(method, params)?;
        self.control.call(&Caller::NONE, call)
    }
}

/// `open` is the configuration's: a verb does not say it.
#[test]
fn hosts_any_off_loopback_needs_open() {
    let ports = ["127.0.0.1:4420", "0.0.0.0:4421"]
        .map(|listen| crate::config::Port::new(listen.into(), &Settings::default()));
    let nqn = "nqn.2026-01.org.example:v0".into();
    let mut config = Config::quick(nqn, "mem:1MiB".parse().unwrap(), ports.into());
    let (any, one) = (json!({"hosts": []}), json!({"hosts": ["nqn.x:h"]}));
    config.hosts = vec!["nqn.x:h".into()];
    let fixture = begun(&config);
    let why = fixture.refused("target.hosts", any.clone());
    assert!(
        why.contains("\"0.0.0.0:4421\": other machines reach it"),
        "{why}"
    );
    assert!(fixture.call("target.hosts", one).is_ok());
    config.open = true;
    assert!(begun(&config).call("target.hosts", any).is_ok());
}

#[test]
fn set_changes_what_it_names_and_shows_the_port() {
    let fixture = fixture();
    let params = json!({"port": 1, "settings": {"bandwidth": "1MiB/s", "ana": "inaccessible"}});
    let shown = fixture.call("target.set", params).unwrap();
    assert_eq!(shown["shape"]["delay_ns"], 7);
    assert_eq!(shown["shape"]["bandwidth_bytes_per_s"], 1 << 20);
    assert_eq!(shown["ana_state"], "inaccessible");
    let sent = fixture.sent.lock().unwrap();
    let [
        TargetControl::Shape(0, shape),
        TargetControl::Ana(0, AnaState::Inaccessible),
    ] = &sent[..]
    else {
        panic!("{sent:?}");
    };
    assert_eq!((shape.delay_ns, shape.bytes_per_s), (7, 1 << 20));
}

#[test]
fn one_group_of_several_changes() {
    let fixture = grouped(&[1, 4]);
    let set = |ana: &str| {
        let params = json!({"port": 1, "settings": {"delay": "1ms", "ana": ana}});
        fixture.call("target.set", params)
    };
    let unknown = set("1:change+2:change").unwrap_err().to_string();
    assert_eq!(unknown, "ana: no namespace is in group 2, only in 1, 4");
    assert!(
        fixture.sent.lock().unwrap().is_empty(),
        "nothing was changed"
    );
    let shown = set("4:change").unwrap();
    assert_eq!(shown["ana_state"], "1:optimized+4:change");
    let groups = json!([{"group": 1, "state": "optimized"}, {"group": 4, "state": "change"}]);
    assert_eq!(shown["ana_groups"], groups);
    let sent = fixture.sent.lock().unwrap();
    let ana = TargetControl::AnaGroup(0, 4, AnaState::Change);
    assert_eq!(format!("{:?}", sent.last().unwrap()), format!("{ana:?}"));
    drop(sent);
    assert_eq!(set("change").unwrap()["ana_state"], "change");
}

#[test]
fn what_is_wrong_changes_nothing_and_is_named() {
    let fixture = fixture();
    for (method, params, message) in [
        (
            "target.set",
            json!({"port": 3, "settings": {}}),
            "there is no port 3; ports are 1…2",
        ),
        (
            "target.set",
            json!({"port": 0, "settings": {}}),
            "there is no port 0; ports are 1…2",
        ),
        (
            "target.set",
            json!({"port": 1, "settings": {"delay": "x"}}),
            "delay: \"x\" is not a duration: a number with ns, us, ms, s, m or h",
        ),
        (
            "target.drop",
            json!({"prot": 1}),
            "unknown key `prot`; known here: `port`",
        ),
        (
            "target.resize",
            json!({"nsid": 9, "size": "1MiB"}),
            "there is no namespace 9, only 1",
        ),
        (
            "target.resize",
            json!({"nsid": 1, "size": "5000"}),
            "5000 bytes are no multiple of 4096 above 0",
        ),
        (
            "target.resize",
            json!({"nsid": 1, "size": "2MiB"}),
            "2 MiB is more than the 1 MiB of its backend",
        ),
        ("target.fly", json!({}), "there is no method \"target.fly\""),
    ] {
        assert_eq!(fixture.refused(method, params), message);
    }
}

#[test]
fn a_resize_that_a_restart_would_forget_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let backend = format!("file:{}", directory.path().join("v0").display());
    let fixture = over(&backend, Some(Size(512 << 10)), &[1]);
    let params = json!({"nsid": 1, "size": "1MiB"});
    let message = fixture.refused("target.resize", params);
    assert!(message.contains("change its size key"), "{message}");
}

#[test]
fn drop_and_resize_reach_the_engine() {
    let fixture = fixture();
    fixture.call("target.drop", json!({"port": 2})).unwrap();
    let shown = fixture
        .call("target.resize", json!({"nsid": 1, "size": "512KiB"}))
        .unwrap();
    assert_eq!(shown["bytes"], 512 << 10);
    let sent = fixture.sent.lock().unwrap();
    assert!(
        matches!(
            sent[..],
            [TargetControl::Drop(1), TargetControl::Resize(1, 128)]
        ),
        "{sent:?}"
    );
}

#[test]
fn show_gives_uris_that_a_host_can_use() {
    let shown = fixture().control.show();
    let uri = |port: usize| shown["ports"][port]["uri"].as_str().unwrap().to_owned();
    assert_eq!(
        uri(0),
        "nvme-tcp://127.0.0.1:4420/nqn.2026-01.org.example:v%200"
    );
    assert_eq!(
        uri(1),
        "nvme-tcp://[::1]:4421/nqn.2026-01.org.example:v%200"
    );
    for port in [0, 1] {
        uri(port).parse::<paths::uri::PathUri>().unwrap();
    }
    assert_eq!(shown["namespaces"][0]["bytes"], 1 << 20);
}

/// A served control socket.
fn served() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let control = fixture().control;
    std::thread::spawn(move || serve(&listener, &control));
    (directory, path)
}

#[test]
fn a_client_is_answered_and_told_what_was_wrong() {
    let (_directory, path) = served();
    let mut stream = UnixStream::connect(&path).unwrap();
    let wait = Duration::from_secs(60);
    let shown = rpc::call(&mut stream, &SHOW, wait).unwrap();
    assert_eq!(shown["ports"][0]["port"], 1);
    let error =
        rpc::call(&mut stream, &TargetCall::Drop(DropParams { port: 7 }), wait).unwrap_err();
    assert_eq!(error.to_string(), "there is no port 7; ports are 1…2");
}

#[test]
fn hostile_clients_hinder_nobody() {
    let (_directory, path) = served();
    let mut silent = UnixStream::connect(&path).unwrap();
    silent.write_all(b"{").unwrap();
    let mut endless = UnixStream::connect(&path).unwrap();
    let _ = endless.write_all(&vec![b'['; 1 << 20]);
    let mut rest = Vec::new();
    let _ = endless.read_to_end(&mut rest);
    assert!(rest.is_empty(), "closed without an answer");
    let mut deep = UnixStream::connect(&path).unwrap();
    deep.write_all(&[b"[".repeat(60_000), b"\n".to_vec()].concat())
        .unwrap();
    let mut stream = UnixStream::connect(&path).unwrap();
    rpc::call(&mut stream, &SHOW, Duration::from_secs(60)).unwrap();
}

#[test]
fn one_client_too_many_is_told_why() {
    let (_directory, path) = served();
    let wait = Duration::from_secs(60);
    let clients = (0..service::control::limits::CLIENTS_MAX).map(|_| {
        let mut stream = UnixStream::connect(&path).unwrap();
        // An answer shows that it has its place.
        rpc::call(&mut stream, &SHOW, wait).unwrap();
        stream
    });
    let clients: Vec<_> = clients.collect();
    let mut late = UnixStream::connect(&path).unwrap();
    let error = rpc::call(&mut late, &SHOW, wait).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("there are 16 control clients"),
        "{error}"
    );
    drop(clients);
}

#[test]
fn hostile_requests_are_answered_and_change_only_what_can_be() {
    let fixture = fixture();
    hostile::attack("target_control", |text| {
        fixture.sent.lock().unwrap().clear();
        for line in text.lines() {
            let call = |it: rpc::Request<'_>| fixture.call(it.method, it.params);
            let Some(answer) = rpc::answer(line.as_bytes(), call) else {
                continue;
            };
            assert_eq!(answer["jsonrpc"], "2.0");
            assert_ne!(answer["result"].is_null(), answer["error"].is_null());
        }
        let shown = fixture.control.show();
        assert_eq!(shown["ports"].as_array().unwrap().len(), 2);
        // Errors and states that are shown can be given back.
        for port in shown["ports"].as_array().unwrap() {
            let errors: Vec<_> = port["faults"]["errors"]
                .as_array()
                .unwrap()
                .iter()
                .collect();
            let errors: Vec<_> = errors.iter().map(|it| it.as_str().unwrap()).collect();
            let words = match errors.is_empty() {
                true => "error=0".to_owned(),
                false => format!("error={}", errors.join("+")),
            };
            let ana = format!("ana={}", port["ana_state"].as_str().unwrap());
            let settings = Settings::from_words([words.as_str(), &ana]).unwrap();
            let shown = settings.faults.error.unwrap().0;
            assert_eq!(shown.iter().map(show_rule).collect::<Vec<_>>(), errors);
        }
    });
}
