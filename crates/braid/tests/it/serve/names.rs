//! Paths by the name of a host. The resolver is the system's: the engine runs in a mount namespace
//! with a hosts file of its own, and with no name server.
use crate::serve::process::{Client, Process, two_ports, wait_until};
use rustix::process::Signal;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Starts a process that sees other files of hosts and name servers.
const ENTER: &str = "mount --bind \"$1\" /etc/hosts && mount --bind \"$2\" /etc/resolv.conf && \
                     shift 2 && exec \"$@\"";

const BRAID: &str = env!("CARGO_BIN_EXE_braid");

struct Place(tempfile::TempDir);

impl Place {
    /// A verb of the target, which succeeds.
    fn ask_target(&self, words: &[&str]) {
        let mut command = Command::new(BRAID);
        command.args(words).arg("--socket").arg(self.path("t.sock"));
        assert!(command.output().unwrap().status.success(), "{words:?}");
    }

    /// `None`: no mount namespace can be had here.
    fn new(test: &str) -> Option<Self> {
        let place = Self(tempfile::tempdir().unwrap());
        place.hosts("");
        // No server answers there, and that is known at once.
        let servers = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n";
        std::fs::write(place.path("resolv.conf"), servers).unwrap();
        let tried = place.entered(&["true"]).output();
        if tried.as_ref().is_ok_and(|it| it.status.success()) {
            return Some(place);
        }
        let line = format!("SKIP {test}: no mount namespace: {tried:?}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        None
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// In place: the file is mounted.
    fn hosts(&self, text: &str) {
        std::fs::write(self.path("hosts"), format!("127.0.0.1 localhost\n{text}")).unwrap();
    }

    fn entered(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c", ENTER, "sh"]);
        command
            .arg(self.path("hosts"))
            .arg(self.path("resolv.conf"));
        command.args(words);
        command
    }

    fn engine(&self) -> Process {
        let [config, socket] = ["b.toml", "c.sock"].map(|name| self.path(name));
        let [config, socket] = [&config, &socket].map(|it| it.to_str().unwrap());
        self.begun(self.entered(&[BRAID, "run", "-c", config, "--socket", socket]))
    }

    fn begun(&self, command: Command) -> Process {
        Process::spawn(self.0.path(), command, Stdio::piped())
    }

    fn ask(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(words).arg("--socket").arg(self.path("c.sock"));
        command.output().unwrap()
    }

    /// Exit code, and what is said.
    fn check(&self, words: &[&str]) -> (i32, String) {
        let output = self.ask(&[&["check"], words].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), text)
    }
}

/// A name server of one test, for as long as the test process is there: every name has these
/// addresses, `after` so long. `None`: it can't have its port.
fn name_server(test: &str, at: Ipv4Addr, all: &'static [Ipv4Addr], after: Duration) -> Option<()> {
    let socket = match UdpSocket::bind((at, 53)) {
        Ok(socket) => socket,
        Err(error) => {
            let line = format!("SKIP {test}: no port 53 at {at}: {error}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        }
    };
    std::thread::spawn(move || {
        let mut packet = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut packet) {
            std::thread::sleep(after);
            let _ = socket.send_to(&answer(&packet[..length], all), from);
        }
    });
    Some(())
}

/// The answer to a question (RFC 1035, 4.1): a header of 12 bytes, a name, type and class.
fn answer(asked: &[u8], all: &[Ipv4Addr]) -> Vec<u8> {
    let end_of_name = 12 + asked[12..].iter().position(|it| *it == 0).unwrap() + 1;
    let question = &asked[12..end_of_name + 4];
    let is_a = asked[end_of_name..end_of_name + 2] == [0, 1];
    let all = if is_a { all } else { &[] };
    let mut packet = asked[..2].to_vec();
    packet.extend([0x81, 0x80, 0, 1, 0, all.len() as u8, 0, 0, 0, 0]);
    packet.extend(question);
    for address in all {
        // The name of the question, A, IN, no time to live, 4 bytes.
        packet.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        packet.extend(address.octets());
    }
    packet
}

/// A target with one namespace, and this port at both addresses.
fn target_at(place: &Place, name: &str, addresses: [Ipv4Addr; 2]) -> Option<(Process, u16)> {
    let of = |at| TcpListener::bind((at, 0)).ok();
    let port = (0..16).find_map(|_| {
        let first = of(addresses[0])?;
        let port = first.local_addr().ok()?.port();
        TcpListener::bind((addresses[1], port)).ok().map(|_| port)
    });
    let port = port.expect("a port that is free at both");
    let listen = addresses.map(|at| format!("{at}:{port}"));
    let nqn = format!("nqn.2026-01.org.braid:{name}");
    let socket = place.path("t.sock");
    let mut words = vec!["target", "--mem", "64MiB", "--nqn", &nqn];
    for listen in &listen {
        words.extend(["--listen", listen]);
    }
    words.extend(["--socket", socket.to_str().unwrap()]);
    let mut target = Process::start(place.0.path(), &words);
    match target.says("port 2: ") {
        Some(_) => Some((target, port)),
        None => {
            target.notes("io_uring");
            crate::serve::no_io_uring::skip(&target.seen);
            None
        }
    }
}

/// A volume by the name "storage.test" beside one in memory, `v1`.
fn write_config(place: &Place, port: u16, name: &str, [engine, keys]: [&str; 2]) {
    let uri = format!("nvme-tcp://storage.test:{port}/nqn.2026-01.org.braid:{name}");
    let volume = |name: &str, uri: &str, keys: &str| {
        let socket = place.path(&format!("{name}.sock"));
        format!(
            "[[volume]]\nname = \"{name}\"\n{keys}\n[[volume.path]]\nuri = \"{uri}\"\n\
             [[volume.export]]\nnbd = \"unix:{}\"\n",
            socket.display()
        )
    };
    let (v0, v1) = (volume("v0", &uri, keys), volume("v1", "mem:64MiB", ""));
    let text = format!("drain_timeout = \"5s\"\n{engine}\n{v0}{v1}");
    std::fs::write(place.path("b.toml"), text).unwrap();
}

/// Names of threads of a process.
fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).map(|it| it.trim().into()).collect()
}

/// Words of a paragraph, however its lines were broken.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A volume by a name that nobody knows, beside another one; the name comes to stand for an address
/// where nobody listens, and then for the target's.
#[test]
fn path_waits_for_its_name_and_others_serve() {
    let Some(place) = Place::new("path_waits_for_its_name_and_others_serve") else {
        return;
    };
    let Some((_target, uris)) = two_ports(place.0.path(), "names") else {
        return;
    };
    let uri = uris[0].replace("127.0.0.1", "storage.test");
    let volume = |name: &str, uri: &str| {
        format!(
            "[[volume]]\nname = \"{name}\"\n[[volume.path]]\nuri = \"{uri}\"\n\
             [[volume.export]]\nnbd = \"unix:{}\"\n",
            place.path(&format!("{name}.sock")).display()
        )
    };
    let text = format!(
        "drain_timeout = \"5s\"\n{}{}",
        volume("v0", &uri),
        volume("v1", "mem:64MiB")
    );
    std::fs::write(place.path("b.toml"), text).unwrap();
    let mut engine = place.engine();
    let line = engine.notes("waits for its name");
    assert!(
        line.contains("v0: path") && line.contains("\"storage.test\""),
        "{line}"
    );
    assert!(engine.says("v1: ready").is_some());
    assert_eq!(
        Client::open_named(&place.path("v1.sock"), "v1").write(0, 1),
        0
    );
    wait_until(|| place.path("c.sock").exists().then_some(()));
    assert_eq!(place.check(&["v1"]).0, 0);
    let (code, text) = place.check(&[]);
    let text = flat(&text);
    assert_eq!(code, 2, "{text}");
    assert!(
        text.contains("waits for its name: cannot resolve the host \"storage.test\""),
        "{text}"
    );
    let stat = place.ask(&["stat", "-o", "json"]);
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
    let why = stat["volumes"][0]["paths"][0]["hindrance"]
        .as_str()
        .unwrap();
    assert!(why.starts_with("waits for its name: "), "{why}");

    place.hosts("127.0.0.3 storage.test\n");
    engine.notes("its host is 127.0.0.3:");
    wait_until(|| flat(&place.check(&[]).1).contains("refused").then_some(()));
    // Resolved again at the next attempts, though it has an address.
    place.hosts("127.0.0.1 storage.test\n");
    engine.notes("its host is 127.0.0.1:");
    assert!(engine.says("v0: ready").is_some());
    assert_eq!(place.check(&[]), (0, "v0: ok\nv1: ok\n".into()));
    assert_eq!(Client::open(&place.path("v0.sock")).write(0, 1), 0);

    // A path that is live is left alone, and one that is lost has its address while no name server
    // answers.
    place.hosts("");
    assert_eq!(Client::open(&place.path("v0.sock")).write(4096, 2), 0);
    engine.signal(Signal::TERM);
    assert!(engine.ended().success(), "{}", engine.seen);
}

/// The only path of a volume is lost, and its name server takes questions without an answer: until
/// that is over, all else goes on, and the path returns to the address that it had.
#[test]
fn resolver_that_hangs_stops_nothing_else() {
    const TEST: &str = "resolver_that_hangs_stops_nothing_else";
    let Some(place) = Place::new(TEST) else {
        return;
    };
    let server = Ipv4Addr::new(127, 0, 0, 77);
    if name_server(TEST, server, &[], Duration::from_secs(3600)).is_none() {
        return;
    }
    let servers = format!("nameserver {server}\noptions timeout:30 attempts:5\n");
    std::fs::write(place.path("resolv.conf"), servers).unwrap();
    place.hosts("127.0.0.1 storage.test\n");
    let at = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 4)];
    let Some((_target, port)) = target_at(&place, "hangs", at) else {
        return;
    };
    write_config(&place, port, "hangs", ["", "reconnect_delay = \"1s\""]);
    let mut engine = place.engine();
    assert!(engine.says("v0: ready").is_some());
    place.hosts("");
    place.ask_target(&["target", "set", "--port", "1", "offer=withdrawn"]);
    place.ask_target(&["target", "drop", "--port", "1"]);
    let pid = engine.child.id();
    let hangs = || threads(pid).contains(&"resolve".into());
    wait_until(|| hangs().then_some(()));
    wait_until(|| (place.check(&["v0"]).0 == 2).then_some(()));
    assert_eq!(
        Client::open_named(&place.path("v1.sock"), "v1").write(0, 1),
        0
    );
    assert_eq!(place.check(&["v1"]), (0, "v1: ok\n".into()));
    for words in [
        &["stat"][..],
        &["reload"],
        &["path", "add", "v1", "mem:64MiB"],
        &["policy", "set", "v1", "round-robin"],
    ] {
        let output = place.ask(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // A second memory is no path to the first one, and that is said.
        assert!(output.status.success() || words[0] == "path", "{said}");
    }
    assert!(hangs(), "its answer would take an hour");
    // The target is there again, where it was.
    place.ask_target(&["target", "set", "--port", "1", "offer=subsystem"]);
    assert!(!engine.notes("live again").is_empty());
    assert_eq!(Client::open(&place.path("v0.sock")).write(0, 1), 0);
    assert!(hangs());
    engine.signal(Signal::TERM);
    assert!(engine.ended().success(), "{}", engine.seen);
}

/// The address in use refuses its host: the other one of the name is used.
#[test]
fn path_moves_to_the_other_address_of_its_name() {
    const TEST: &str = "path_moves_to_the_other_address_of_its_name";
    const AT: [Ipv4Addr; 2] = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 5)];
    let Some(place) = Place::new(TEST) else {
        return;
    };
    let server = Ipv4Addr::new(127, 0, 0, 78);
    if name_server(TEST, server, &AT, Duration::ZERO).is_none() {
        return;
    }
    std::fs::write(place.path("resolv.conf"), format!("nameserver {server}\n")).unwrap();
    let Some((_target, port)) = target_at(&place, "several", AT) else {
        return;
    };
    write_config(&place, port, "several", ["", "reconnect_delay = \"1s\""]);
    let mut engine = place.engine();
    assert!(engine.says("v0: ready").is_some());
    assert_eq!(Client::open(&place.path("v0.sock")).write(0, 1), 0);
    assert_eq!(Client::open(&place.path("v0.sock")).flush(), 0);
    // Both ways: the resolver of the system chooses the order.
    for (from, to) in [("1", 1), ("2", 0)] {
        let port_of = ["--port", from];
        let other = ["--port", if from == "1" { "2" } else { "1" }];
        place.ask_target(&[&["target", "set"], &other[..], &["offer=subsystem"]].concat());
        place.ask_target(&[&["target", "set"], &port_of[..], &["offer=withdrawn"]].concat());
        place.ask_target(&[&["target", "drop"], &port_of[..]].concat());
        engine.notes(&format!("its host is {}:{port} now", AT[to]));
        engine.notes("live again");
        assert_eq!(Client::open(&place.path("v0.sock")).flush(), 0);
    }
    engine.signal(Signal::TERM);
    assert!(engine.ended().success(), "{}", engine.seen);
}

/// Attempts follow each other after 100 ms and take 1 s, and the name server answers after 0.3 s:
/// hardly any answer comes while the path waits.
#[test]
fn slow_resolver_is_followed_between_short_waits() {
    const TEST: &str = "slow_resolver_is_followed_between_short_waits";
    const AT: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 6), Ipv4Addr::new(127, 0, 0, 7)];
    let Some(place) = Place::new(TEST) else {
        return;
    };
    let server = Ipv4Addr::new(127, 0, 0, 79);
    let after = Duration::from_millis(300);
    if name_server(TEST, server, &AT[..1], after).is_none() {
        return;
    }
    std::fs::write(place.path("resolv.conf"), format!("nameserver {server}\n")).unwrap();
    let Some((_target, port)) = target_at(&place, "slow", AT) else {
        return;
    };
    // Takes connections and says nothing.
    let mute = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 8), port)).unwrap();
    place.hosts("127.0.0.8 storage.test\n");
    let keys = ["connect_timeout = \"1s\"", "reconnect_delay = \"100ms\""];
    write_config(&place, port, "slow", keys);
    let mut engine = place.engine();
    let (_first, _) = mute.accept().unwrap();
    place.hosts("");
    engine.notes(&format!("its host is {}:{port} now", AT[0]));
    assert!(engine.says("v0: ready").is_some());
    engine.signal(Signal::TERM);
    assert!(engine.ended().success(), "{}", engine.seen);
}

/// Two network namespaces with a cable between them, for as long as this is there.
struct Cable([Child; 2]);

impl Cable {
    /// `None`: none can be had here.
    fn new() -> Option<Self> {
        let hold = || {
            let mut command = Command::new("unshare");
            command.args(["-n", "sleep", "600"]).spawn()
        };
        let cable = Self([hold().ok()?, hold().ok()?]);
        let own = std::fs::read_link("/proc/self/ns/net").ok()?;
        let apart = |it: &Child| {
            let link = std::fs::read_link(format!("/proc/{}/ns/net", it.id()));
            link.is_ok_and(|it| it != own)
        };
        let begun = std::time::Instant::now();
        while !cable.0.iter().all(apart) {
            if begun.elapsed().as_secs() > 5 {
                return None;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let [a, b] = [0, 1].map(|at| cable.0[at].id().to_string());
        let mut link = Command::new("ip");
        link.args(["link", "add", "v0", "netns", &a, "type", "veth"]);
        link.args(["peer", "name", "v1", "netns", &b]);
        let made = link.output().is_ok_and(|it| it.status.success());
        let up = made
            && [0, 1].into_iter().all(|at| {
                let (address, device) = (["fe80::a/64", "fe80::b/64"][at], ["v0", "v1"][at]);
                let mut add = cable.inside(at, "ip");
                add.args(["addr", "add", address, "dev", device, "nodad"]);
                let mut up = cable.inside(at, "ip");
                up.args(["link", "set", device, "up"]);
                [add, up]
                    .iter_mut()
                    .all(|it| it.output().is_ok_and(|it| it.status.success()))
            });
        up.then_some(cable)
    }

    fn inside(&self, at: usize, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.0[at].id().to_string(), "-n", program]);
        command
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A target listens on a link-local address, a path leads there and discovery tells of another one.
#[test]
fn link_local_addresses_are_used_with_their_interface() {
    let Some(cable) = Cable::new() else {
        let line = "SKIP link_local_addresses_are_used_with_their_interface: no veth\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    };
    let place = Place(tempfile::tempdir().unwrap());
    let nqn = "nqn.2026-01.org.braid:zone";
    let mut command = cable.inside(0, BRAID);
    command.args(["target", "--mem", "64MiB", "--nqn", nqn, "--open"]);
    command.args([
        "--listen",
        "[fe80::a%v0]:4420",
        "--listen",
        "[fe80::a%v0]:4421",
    ]);
    command.arg("--socket").arg(place.path("t.sock"));
    let mut target = place.begun(command);
    let Some(line) = target.says("port 1: ") else {
        target.notes("io_uring");
        return crate::serve::no_io_uring::skip(&target.seen);
    };
    assert!(line.contains("nvme-tcp://[fe80::a%25v0]:4420/"), "{line}");
    assert!(target.says("port 2: ").is_some());
    let text = format!(
        "drain_timeout = \"5s\"\n[[discovery]]\nuri = \"nvme-tcp://[fe80::a%25v1]:4420\"\n\
         [[volume]]\nname = \"v0\"\nsubsystem = \"{nqn}\"\n\
         [[volume.path]]\nuri = \"nvme-tcp://[fe80::a%v1]:4420/{nqn}\"\n\
         [[volume.export]]\nnbd = \"tcp:[fe80::b%v1]:0\"\nopen = true\n",
    );
    std::fs::write(place.path("b.toml"), text).unwrap();
    let mut command = cable.inside(1, BRAID);
    command.arg("run").arg("-c").arg(place.path("b.toml"));
    command.arg("--socket").arg(place.path("c.sock"));
    let mut engine = place.begun(command);
    assert!(
        engine.says("v0: nbd://[fe80::b%25").is_some(),
        "{}",
        engine.seen
    );
    wait_until(|| {
        let stat = place.ask(&["stat", "-o", "json"]);
        let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).ok()?;
        let paths = stat["volumes"][0]["paths"].as_array()?.clone();
        let live = |it: &serde_json::Value| it["state"] == "live";
        let told = |it: &serde_json::Value| {
            let uri = it["uri"].as_str().unwrap_or_default();
            uri.starts_with("nvme-tcp://[fe80::a%25") && uri.contains(":4421/")
        };
        (paths.len() == 2 && paths.iter().all(live) && paths.iter().any(told)).then_some(())
    });
    for mut it in [engine, target] {
        it.signal(Signal::TERM);
        assert!(it.ended().success(), "{}", it.seen);
    }
}
