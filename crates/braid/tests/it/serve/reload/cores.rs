//! Clients of one volume on several cores: spread, served, told when their export ends or changes,
//! and ended with the engine.
use super::{QUICK, Rig, V0, Volume};
use crate::serve::nbd;
use crate::serve::process::{Client, Process, SOON, two_ports, wait_until};
use rustix::process::Signal;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};

const TWO: &str = "cores = 2\n";

/// A figure of the first export of a volume, of each core.
fn of_cores(rig: &Rig, volume: &str, key: &str) -> Vec<u64> {
    let stat = rig.stat(volume);
    let cores = stat["exports"][0]["cores"].as_array().unwrap().iter();
    cores.map(|it| it[key].as_u64().unwrap()).collect()
}

/// Clients on each core, once that is what it is to be.
fn wait_clients(rig: &Rig, volume: &str, want: &[u64]) {
    wait_until(|| (of_cores(rig, volume, "clients") == want).then_some(()));
}

/// Makes the mirror m0 of the files a and b.
fn create(rig: &Rig) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.env("XDG_STATE_HOME", rig.path("state"));
    command.args(["mirror", "create", "m0"]);
    command.args(["a", "b"].map(|name| format!("file:{}", rig.path(name).display())));
    command.arg("--force").output().unwrap()
}

/// An engine with two cores, and two ports of a target; `None`: this machine has no io_uring.
fn over_two_ports() -> Option<(Process, Rig, [String; 2])> {
    let directory = tempfile::tempdir().unwrap();
    let (target, ports) = two_ports(directory.path(), "t")?;
    let rig = Rig::new(directory, &format!("{QUICK}{TWO}"));
    Some((target, rig, ports))
}

fn four(rig: &Rig, volume: &str) -> Vec<Client> {
    (0..4).map(|_| rig.client(volume)).collect()
}

#[test]
fn clients_of_a_volume_are_served_on_all_cores() {
    let Some((_target, mut rig, [one, two])) = over_two_ports() else {
        return;
    };
    let paths = [one.as_str(), two.as_str()];
    rig.start(&[("v0", &paths, "policy = \"round-robin\"\n")]);
    let mut clients = four(&rig, "v0");
    assert_eq!(of_cores(&rig, "v0", "clients"), [2, 2]);
    assert_eq!(of_cores(&rig, "v0", "core"), [0, 1]);
    let stat = rig.stat("v0");
    assert_eq!(stat["exports"][0]["clients"], 4);
    for (at, client) in (0..).zip(&mut clients) {
        assert_eq!(client.write(at << 12, at as u8 + 1), 0);
    }
    for client in &mut clients {
        for at in 0..4 {
            assert!(client.read(at << 12) == [at as u8 + 1; 4096], "block {at}");
        }
        assert_eq!(client.flush(), 0);
        assert_eq!(client.write_fua(4 << 12, 9), 0);
    }
    let requests = of_cores(&rig, "v0", "requests");
    assert_eq!(
        requests,
        [14, 14],
        "one write, four reads, a flush, a write of each"
    );
    // The ones that left make room for the next.
    clients.truncate(1);
    wait_clients(&rig, "v0", &[1, 0]);
    clients.extend(four(&rig, "v0"));
    let mut counts = of_cores(&rig, "v0", "clients");
    counts.sort_unstable();
    assert_eq!(counts, [2, 3]);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

/// An engine whose file says nothing of cores has one for each CPU, 4 at most.
#[test]
fn default_cores_are_the_cpus_up_to_four() {
    let directory = tempfile::tempdir().unwrap();
    if two_ports(directory.path(), "t").is_none() {
        return; // no io_uring
    }
    let mut rig = Rig::new(directory, "");
    rig.start(&[V0]);
    let clients = four(&rig, "v0");
    let usable = std::thread::available_parallelism().unwrap().get() as u64;
    let cores: Vec<u64> = (0..usable.min(4)).collect();
    assert_eq!(of_cores(&rig, "v0", "core"), cores);
    drop(clients);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn one_core_has_all_clients_and_a_mirror_is_on_one() {
    let directory = tempfile::tempdir().unwrap();
    if two_ports(directory.path(), "t").is_none() {
        return; // no io_uring
    }
    let mut rig = Rig::new(directory, "cores = 1\n");
    rig.start(&[V0]);
    let mut clients = four(&rig, "v0");
    assert_eq!(of_cores(&rig, "v0", "clients"), [4]);
    assert_eq!(clients[0].write(0, 1), 0);
    assert!(clients[3].read(0) == [1; 4096]);
    assert_eq!(rig.end(Signal::TERM), Some(0));
    let legs = ["a", "b"].map(|name| {
        let file = rig.path(name);
        std::fs::write(&file, vec![0; 16 << 20]).unwrap();
        format!("[[volume.leg]]\nuri = \"file:{}\"\n", file.display())
    });
    rig.keys = TWO.to_owned();
    let keys = format!("kind = \"mirror\"\n{}", legs.concat());
    rig.configure(&[V0, ("m0", &[], &keys)]);
    let created = create(&rig);
    assert!(created.status.success(), "{created:?}");
    rig.start(&[V0, ("m0", &[], &keys)]);
    let mut clients = four(&rig, "m0");
    assert_eq!(of_cores(&rig, "m0", "clients"), [4], "its home alone");
    assert_eq!(clients[0].write(0, 1), 0);
    assert!(clients[3].read(0) == [1; 4096]);
    drop(clients);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn export_changes_and_goes_for_clients_of_all_cores() {
    let Some((_target, mut rig, [one, two])) = over_two_ports() else {
        return;
    };
    let paths = [one.as_str(), two.as_str()];
    let v1: Volume = ("v1", &paths, "");
    rig.start(&[V0, v1]);
    let mut clients = four(&rig, "v1");
    assert_eq!(of_cores(&rig, "v1", "clients"), [2, 2]);
    assert!(clients.iter_mut().all(|it| it.write(0, 5) == 0));
    // All are told, and may come again.
    let file = rig.path("b.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    let at = before.rfind("nbd = ").unwrap();
    let read_only = format!("{}read_only = true\n{}", &before[..at], &before[at..]);
    std::fs::write(&file, read_only).unwrap();
    let changed = rig.ask(&["reload"])["changed"].to_string();
    assert!(changed.contains("changed nbd"), "{changed}");
    assert!(clients.iter_mut().all(Client::is_over));
    wait_clients(&rig, "v1", &[0, 0]);
    let mut clients = four(&rig, "v1");
    assert_eq!(of_cores(&rig, "v1", "clients"), [2, 2]);
    for client in &mut clients {
        assert!(client.read(0) == [5; 4096]);
        assert_eq!(client.write(0, 6), 1, "EPERM");
    }
    // An export is not gone before its clients on all cores are, nor is its volume.
    let why = rig.refused_reload(&[V0]);
    assert!(why.contains("v1") && why.contains("connected: 4"), "{why}");
    rig.configure(&[V0]);
    let changed = rig.ask(&["reload", "--force"])["changed"].to_string();
    assert!(changed.contains("removed volume v1"), "{changed}");
    assert!(clients.iter_mut().all(Client::is_over));
    assert_eq!(rig.names(), ["v0"]);
    // The numbers of both are another's.
    rig.reload(&[V0, ("v2", &["mem:1MiB"], "")]);
    let mut clients = four(&rig, "v2");
    assert_eq!(of_cores(&rig, "v2", "clients"), [2, 2]);
    assert!(clients.iter_mut().all(|it| it.write(0, 7) == 0));
    // By verb, while clients on both have writes under way.
    let loads = [0, 64].map(|first| rig.load_from("v0", first));
    for client in &mut clients {
        (0..32).for_each(|at| client.send_write(at << 12, 8));
    }
    let export = format!("unix:{}", rig.path("v2.sock").display());
    rig.ask(&["export", "remove", "v2", &export]);
    for client in &mut clients {
        // ESHUTDOWN: it was not read yet.
        (0..32).for_each(|_| assert!(matches!(client.answer(), 0 | 108)));
        assert!(client.is_over());
    }
    loads.into_iter().for_each(super::Load::end);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn engine_stops_under_load_on_all_cores() {
    let Some((_target, mut rig, [one, two])) = over_two_ports() else {
        return;
    };
    rig.start(&[("v0", &[&one, &two], "")]);
    let busy = four(&rig, "v0").into_iter().map(|mut client| {
        std::thread::spawn(move || {
            (0_u64..)
                .map(|round| client.try_write((round % 64) << 12, round as u8))
                .find_map(Result::err)
        })
    });
    let busy: Vec<_> = busy.collect();
    wait_until(|| {
        let requests = of_cores(&rig, "v0", "requests");
        requests.iter().all(|it| *it > 100).then_some(())
    });
    assert_eq!(rig.end(Signal::TERM), Some(0), "nothing failed");
    for client in busy {
        // ESHUTDOWN, or the connection's end between two requests.
        let ended = client.join().unwrap();
        assert!(matches!(ended, Some(None | Some(108))), "{ended:?}");
    }
}

#[test]
fn places_and_shares_are_kept_over_all_cores() {
    let directory = tempfile::tempdir().unwrap();
    if two_ports(directory.path(), "t").is_none() {
        return; // no io_uring
    }
    let mut rig = Rig::new(
        directory,
        &format!("{TWO}clients = 2\nclients_per_host = 3\n"),
    );
    let tcp = "[[volume.export]]\nnbd = \"tcp:127.0.0.1:0\"\n";
    rig.start(&[V0, ("v1", &["mem:1MiB"], tcp)]);
    // Each core has two places: the fifth client finds none.
    let there = four(&rig, "v0");
    assert_eq!(of_cores(&rig, "v0", "clients"), [2, 2]);
    let is_refused = |stream: &mut dyn Read| !matches!(stream.read(&mut [0; 16]), Ok(1..));
    let mut fifth = UnixStream::connect(rig.path("v0.sock")).unwrap();
    fifth.set_read_timeout(Some(SOON)).unwrap();
    assert!(is_refused(&mut fifth));
    drop(there);
    wait_clients(&rig, "v0", &[0, 0]);
    // One address has three of the four.
    let stat = rig.stat("v1");
    let uri = stat["exports"][0]["uri"].as_str().unwrap();
    let address = uri.strip_prefix("nbd://").unwrap().to_owned();
    let connect = || {
        let stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    };
    let mut three: Vec<TcpStream> = (0..3).map(|_| connect()).collect();
    for stream in &mut three {
        nbd::choose(stream, "v1");
    }
    assert!(is_refused(&mut connect()));
    three.pop();
    wait_until(|| (rig.stat("v1")["exports"][0]["clients"] == 2).then_some(()));
    nbd::choose(&mut connect(), "v1");
    drop(three);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

/// The next engine, with more cores or fewer, serves data that was flushed on any core, also if
/// the last one was killed.
#[test]
fn restart_with_other_cores_serves_what_was_flushed() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    let mut rig = Rig::new(directory, &format!("{QUICK}{TWO}"));
    let paths = [one.as_str(), two.as_str()];
    let volume: Volume = ("v0", &paths, "");
    let rounds: [(usize, &[u64], Signal); 4] = [
        (2, &[2, 2], Signal::KILL),
        (1, &[4], Signal::TERM),
        (2, &[2, 2], Signal::TERM),
        (1, &[4], Signal::KILL),
    ];
    for (round, (cores, spread, signal)) in (1..).zip(rounds) {
        rig.keys = format!("{QUICK}cores = {cores}\n");
        rig.start(&[volume]);
        let mut clients = four(&rig, "v0");
        assert_eq!(of_cores(&rig, "v0", "clients"), spread);
        for (at, client) in (0..).zip(&mut clients) {
            // Of another client, and so of another core where there are two, of the last engine.
            let other: u64 = (at + 1) % 4;
            assert!(
                client.read(other << 12) == [round - 1; 4096],
                "round {round}"
            );
        }
        for (at, client) in (0..).zip(&mut clients) {
            assert_eq!(client.write(at << 12, round), 0);
        }
        // Of all cores.
        assert_eq!(clients[3].flush(), 0);
        let ended = rig.end(signal);
        assert_eq!(ended, (signal == Signal::TERM).then_some(0));
    }
}
