//! Queues of an engine: over volumes of each kind, which come and go while queues are open.
use crate::serve::mirror::place::Place;
use crate::serve::process::{Process, engine, two_ports, wait_until};
use ::queue::{Kind, Options, Queue};
use nvme::wire::Status;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mirror v0, and beside it memory, a file, and two paths to a target.
struct Volumes {
    place: Place,
    target: Process,
    uris: [String; 2],
}

/// Namespaces: NSID and volume.
const ALL: [(u32, &str); 4] = [(1, "v0"), (2, "memory"), (3, "file"), (5, "paths")];

impl Volumes {
    /// `None`: this machine has no io_uring.
    fn new() -> Option<Self> {
        let place = Place::new()?;
        let (target, uris) = two_ports(place.0.path(), "t")?;
        let file = fs::File::create(place.path("blocks")).unwrap();
        file.set_len(8 << 20).unwrap();
        Some(Self {
            place,
            target,
            uris,
        })
    }

    fn socket(&self) -> PathBuf {
        self.place.path("q.sock")
    }

    /// With the volumes of these namespaces, and v0.
    fn config(&self, namespaces: &[(u32, &str)], keys: &str) {
        self.place.config("");
        let mut text = fs::read_to_string(self.place.path("b.toml")).unwrap();
        for (_, volume) in namespaces.iter().filter(|it| it.1 != "v0") {
            let paths = match *volume {
                "memory" => vec!["mem:8MiB".to_owned()],
                "file" => vec![self.place.leg("blocks")],
                _ => self.uris.to_vec(),
            };
            text += &format!("[[volume]]\nname = \"{volume}\"\n");
            for uri in paths {
                text += &format!("[[volume.path]]\nuri = \"{uri}\"\n");
            }
        }
        let socket = self.socket();
        text += &format!("[[queue]]\nsocket = \"{}\"\n{keys}", socket.display());
        for (nsid, volume) in namespaces {
            text += &format!("[[queue.namespace]]\nvolume = \"{volume}\"\nnsid = {nsid}\n");
        }
        fs::write(self.place.path("b.toml"), text).unwrap();
    }

    fn bench(&self, words: &[&str]) -> Value {
        let socket = self.socket();
        let words = [
            &["queue", "bench", "-o", "json", "--socket"][..],
            &[socket.to_str().unwrap()],
            words,
        ];
        let output = self.place.braid(&words.concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn open(&self) -> Queue {
        // A volume's size is known once it is ready.
        wait_until(|| {
            let mut queue = Queue::open(&self.socket(), &Options::default()).ok()?;
            let known = ALL.iter().all(|it| queue.namespace(it.0).is_ok());
            known.then_some(queue)
        })
    }

    /// A queue with a write under way, whose target stands still.
    fn open_with_a_write_that_waits(&self) -> Queue {
        let mut queue = self.open();
        let known = shifts(&mut queue, &[5]);
        self.target.signal(Signal::STOP);
        let pieces = [queue.data().unwrap().piece(0, 4096)];
        let written = queue.write((5, false), 8, 4096 >> known[&5], &pieces, 0);
        written.unwrap();
        queue.submit().unwrap();
        queue
    }
}

/// log2 of the block sizes, by NSID.
fn shifts(queue: &mut Queue, nsids: &[u32]) -> BTreeMap<u32, u8> {
    let shift = |nsid: &u32| (*nsid, queue.namespace(*nsid).unwrap().block_shift);
    nsids.iter().map(shift).collect()
}

/// Writes 4 KiB.
fn write(queue: &mut Queue, shifts: &BTreeMap<u32, u8>, nsid: u32, byte: u8) -> Status {
    let data = queue.data().unwrap().clone();
    data.write(0, &[byte; 4096]);
    let (pieces, blocks) = ([data.piece(0, 4096)], 4096 >> shifts[&nsid]);
    let written = queue.write((nsid, false), 8, blocks, &pieces, 0);
    written.unwrap();
    queue.submit().unwrap();
    wait_until(|| queue.poll().unwrap()).status
}

fn end(mut engine: Process) {
    engine.signal(Signal::TERM);
    assert!(engine.ended().success(), "{}", engine.seen);
}

#[test]
fn loads_are_verified_on_volumes_of_each_kind() {
    let Some(volumes) = Volumes::new() else {
        return;
    };
    volumes.config(&ALL, "spin_us = 20\n");
    let engine = engine(volumes.place.0.path());
    drop(volumes.open());
    for (kind, (nsid, volume)) in ALL
        .iter()
        .flat_map(|it| [("user_poll", it), ("user_irq", it)])
    {
        let nsid = nsid.to_string();
        let facts = volumes.bench(&[
            "--kind",
            kind,
            "--nsid",
            &nsid,
            "--rw",
            "randrw",
            "--bs",
            "4k",
            "--iodepth",
            "16",
            "--size",
            "4m",
            "--verify",
        ]);
        assert_eq!(facts["errors"], 0, "{volume}: {facts}");
        let verified = facts["verified_bytes"].as_u64().unwrap();
        assert!(verified > 1 << 20, "{volume}: {facts}");
    }
    let stat = volumes.place.told(&["stat"]);
    let all = stat["volumes"].as_array().unwrap();
    for of in all.iter().filter(|of| of["leg_of"].is_null()) {
        let exports = of["exports"].as_array().unwrap();
        let queues = exports.iter().find(|it| {
            let uri = it["uri"].as_str().unwrap();
            uri.starts_with("queue:/") && uri.contains("q.sock?nsid=")
        });
        let queues = queues.unwrap_or_else(|| panic!("{of}"));
        assert_eq!(
            (&queues["clients"], &queues["errors"]),
            (&0.into(), &0.into())
        );
        assert!(queues["requests"].as_u64().unwrap() > 100, "{queues}");
    }
    end(engine);
    let [a, b] = ["a", "b"].map(|leg| volumes.place.data(leg));
    assert!(a == b, "legs of the mirror differ");
}

/// Errors that a queue is answered with are lines; its process, its bytes and its errors are shown.
#[test]
fn errors_of_queues_are_lines_and_their_clients_shown() {
    let Some(volumes) = Volumes::new() else {
        return;
    };
    volumes.config(&ALL, "");
    let mut engine = engine(volumes.place.0.path());
    let mut queue = volumes.open();
    let known = shifts(&mut queue, &[5]);
    assert!(write(&mut queue, &known, 5, 1).is_success());
    for port in ["1", "2"] {
        let mut set = Command::new(env!("CARGO_BIN_EXE_braid"));
        set.args(["target", "set", "--port", port]);
        set.args(["error=media-write:dnr:op=write", "--socket"]);
        let set = set.arg(volumes.place.path("t.sock")).output().unwrap();
        assert!(set.status.success(), "{set:?}");
    }
    assert!(write(&mut queue, &known, 5, 1).is(Status::WRITE_FAULT));
    let us = format!("process {} of user ", std::process::id());
    let offset = 8 << known[&5];
    let line = engine.notes(&format!("paths: write of 4096 bytes at {offset} by {us}"));
    assert!(volumes.uris.iter().any(|it| line.contains(it)), "{line}");
    let stat = volumes.place.told(&["stat"]);
    let all = stat["volumes"].as_array().unwrap();
    let of = all.iter().find(|it| it["name"] == "paths").unwrap();
    let client = &of["exports"][0]["connected"][0];
    assert!(client["client"].as_str().unwrap().starts_with(&us), "{of}");
    for (key, want) in [("bytes_written", 4096), ("errors", 1), ("requests", 2)] {
        assert_eq!(client[key], want, "{of}");
    }
    end(engine);
}

/// A volume that leaves is an error by name for queues that are open; others go on.
#[test]
fn removed_volume_ends_its_commands_by_name() {
    let Some(volumes) = Volumes::new() else {
        return;
    };
    volumes.config(&ALL, "");
    let engine = engine(volumes.place.0.path());
    let mut queue = volumes.open();
    let known = shifts(&mut queue, &ALL.map(|it| it.0));
    for (nsid, _) in ALL {
        let status = write(&mut queue, &known, nsid, 1);
        assert!(status.is_success(), "{nsid}: {status}");
    }
    assert!(Queue::open(&volumes.socket(), &Options::default()).is_ok());
    // NSID 2 is none any more, 3 is another volume.
    volumes.config(&[(1, "v0"), (3, "paths"), (4, "file")], "");
    let refused = volumes.place.ask(&["reload"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("clients of it are connected: 1"), "{said}");
    let reloaded = volumes.place.ask(&["reload", "--force"]);
    let said = String::from_utf8_lossy(&reloaded.stdout).into_owned();
    assert!(reloaded.status.success(), "{reloaded:?}");
    assert!(said.contains("changed namespaces of queues"), "{said}");
    for (nsid, is_served) in [(1, true), (2, false), (3, false), (5, false)] {
        let status = write(&mut queue, &known, nsid, 2);
        let gone = status.is(Status::INVALID_NAMESPACE) && status.dnr();
        assert_eq!(
            (status.is_success(), gone),
            (is_served, !is_served),
            "{nsid}: {status}"
        );
    }
    let mut next = Queue::open(&volumes.socket(), &Options::default()).unwrap();
    assert!(next.namespace(2).is_err());
    let nsids = [1, 3, 4];
    let known = shifts(&mut next, &nsids);
    for nsid in nsids {
        let status = write(&mut next, &known, nsid, 3);
        assert!(status.is_success(), "{nsid}: {status}");
    }
    drop((queue, next));
    end(engine);
}

/// A server that changes begins anew on its socket; one that is no more has none.
#[test]
fn reload_ends_and_begins_servers() {
    let Some(volumes) = Volumes::new() else {
        return;
    };
    volumes.config(&[], "");
    let text = fs::read_to_string(volumes.place.path("b.toml")).unwrap();
    let (none, _) = text.split_once("[[queue]]").unwrap();
    fs::write(volumes.place.path("b.toml"), none).unwrap();
    let engine = engine(volumes.place.0.path());
    let reload = || {
        let reloaded = volumes.place.ask(&["reload"]);
        assert!(reloaded.status.success(), "{reloaded:?}");
        String::from_utf8_lossy(&reloaded.stdout).into_owned()
    };
    volumes.config(&ALL, "user_irq = 0\n");
    assert!(reload().contains("added queues"));
    let mut queue = volumes.open();
    let options = Options {
        kind: Kind::UserIrq,
        ..Options::default()
    };
    let refused = Queue::open(&volumes.socket(), &options);
    assert!(refused.is_err(), "there is none of this kind");
    volumes.config(&ALL, "user_irq = 1\nuser_poll = 1\n");
    assert!(reload().contains("changed queues"));
    wait_until(|| queue.is_alive().is_err().then_some(()));
    let mut queue = wait_until(|| Queue::open(&volumes.socket(), &options).ok());
    let known = shifts(&mut queue, &[1]);
    assert!(write(&mut queue, &known, 1, 1).is_success());
    fs::write(volumes.place.path("b.toml"), none).unwrap();
    let gone = volumes.place.ask(&["reload", "--force"]);
    let said = String::from_utf8_lossy(&gone.stdout).into_owned();
    assert!(said.contains("removed queues"), "{said}");
    wait_until(|| queue.is_alive().is_err().then_some(()));
    wait_until(|| (!volumes.socket().exists()).then_some(()));
    end(engine);
}

/// A server may change again while commands of the one before it have not ended.
#[test]
fn reload_changes_server_that_waits() {
    let Some(volumes) = Volumes::new() else {
        return;
    };
    volumes.config(&ALL, "user_irq = 0\n");
    let engine = engine(volumes.place.0.path());
    let queue = volumes.open_with_a_write_that_waits();
    for keys in ["user_irq = 1\n", "user_irq = 2\n"] {
        volumes.config(&ALL, keys);
        let reloaded = volumes.place.ask(&["reload"]);
        let said = String::from_utf8_lossy(&reloaded.stdout);
        assert!(said.contains("changed queues"), "{reloaded:?}");
    }
    volumes.target.signal(Signal::CONT);
    let options = Options {
        kind: Kind::UserIrq,
        ..Options::default()
    };
    let next = wait_until(|| Queue::open(&volumes.socket(), &options).ok());
    // The server of the first reload had one.
    let mut another = Queue::open(&volumes.socket(), &options).unwrap();
    let known = shifts(&mut another, &[1]);
    assert!(write(&mut another, &known, 1, 1).is_success());
    drop((queue, next, another));
    end(engine);
}

/// It can't have its socket again, as there is a directory in its place.
#[test]
fn failed_server_is_shown_until_a_reload_begins_it() {
    let Some(volumes) = Volumes::new() else {
        return;
    };
    volumes.config(&ALL, "user_irq = 0\n");
    let engine = engine(volumes.place.0.path());
    // The server that runs waits for its command before it ends.
    let queue = volumes.open_with_a_write_that_waits();
    volumes.config(&ALL, "user_irq = 1\n");
    let reloaded = volumes.place.ask(&["reload"]);
    assert!(reloaded.status.success(), "{reloaded:?}");
    fs::remove_file(volumes.socket()).unwrap();
    fs::create_dir(volumes.socket()).unwrap();
    volumes.target.signal(Signal::CONT);
    let why = || {
        let output = volumes.place.ask(&["check", "memory", "-o", "json"]);
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let of = &value["volumes"][0];
        (
            of["state"] == "degraded",
            of["why"].as_str().map(str::to_owned),
        )
    };
    wait_until(|| {
        let (is_degraded, why) = why();
        let is_told = why.is_some_and(|it| it.contains("has failed; braid reload"));
        is_told.then(|| assert!(is_degraded))
    });
    let shown = volumes.place.ask(&["stat", "memory"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("?nsid=2: its server has failed"), "{shown}");
    fs::remove_dir(volumes.socket()).unwrap();
    let reloaded = volumes.place.ask(&["reload"]);
    let said = String::from_utf8_lossy(&reloaded.stdout);
    assert!(said.contains("anew, which had failed"), "{reloaded:?}");
    wait_until(|| Queue::open(&volumes.socket(), &Options::default()).ok());
    assert_eq!(why(), (false, None));
    drop(queue);
    end(engine);
}

/// A control group whose processes may have so much memory together.
struct Group(PathBuf);

impl Group {
    /// # Errors
    /// This machine, or its user, can't have one.
    fn new(bytes: u64) -> std::io::Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(root.join("cgroup.subtree_control"));
        let of_two = controllers.is_ok_and(|it| it.contains("memory"));
        let (above, limit) = match of_two {
            true => (root.to_owned(), "memory.max"),
            false => (root.join("memory"), "memory.limit_in_bytes"),
        };
        let it = Self(above.join(format!("braid-test-{}", std::process::id())));
        fs::create_dir(&it.0)?;
        fs::write(it.0.join(limit), bytes.to_string())?;
        Ok(it)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// It is killed, as it has more memory than its control group may; the others go on.
#[test]
fn client_beyond_its_memory_limit_ends_alone() {
    let group = match Group::new(24 << 20) {
        Ok(group) => group,
        Err(why) => {
            let name = "client_beyond_its_memory_limit_ends_alone";
            let _ = writeln!(std::io::stderr(), "SKIP {name}: no control group: {why}");
            return;
        }
    };
    let Some(volumes) = Volumes::new() else {
        return;
    };
    volumes.config(&ALL, "");
    let engine = engine(volumes.place.0.path());
    let mut queue = volumes.open();
    let known = shifts(&mut queue, &[2]);
    let mut client = Command::new("sh");
    client.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
    client.arg(group.0.join("cgroup.procs"));
    client.arg(env!("CARGO_BIN_EXE_braid"));
    client.args(["queue", "bench", "--socket"]);
    client.arg(volumes.socket());
    // 64 MiB, which it populates before it has a queue.
    client.args("--nsid 2 --rw randwrite --bs 256k --iodepth 256 --runtime 60".split(' '));
    let ended = client.output().unwrap();
    assert_eq!(ended.status.signal(), Some(9), "{ended:?}");
    assert!(write(&mut queue, &known, 2, 1).is_success());
    wait_until(|| {
        let stat = volumes.place.told(&["stat", "memory"]);
        let export = &stat["volumes"][0]["exports"][0];
        (export["clients"] == 1 && export["failed"] == false).then_some(())
    });
    drop(queue);
    end(engine);
}
