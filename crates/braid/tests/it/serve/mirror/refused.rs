//! Clients of a mirror that does not start: who waits, and who is told that nothing comes of it.
use super::place::{LEG_BYTES, Place, end};
use crate::serve::process::{Client, Process, begun, wait_until};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The reply that a requested export is not available.
pub const UNKNOWN: u32 = 1 << 31 | 6;
/// So long nothing is heard by who waits.
const QUIET: Duration = Duration::from_millis(300);

/// A client that says nothing until it is greeted.
fn connected(place: &Place) -> UnixStream {
    UnixStream::connect(place.path("v0.sock")).unwrap()
}

/// Reply to a client about the export `v0`, once it is greeted.
fn asked(stream: &mut UnixStream) -> (u32, String) {
    asked_of(stream, "v0")
}

/// Reply to a client about an export, once it is greeted: its type, and its words.
pub fn asked_of(stream: &mut UnixStream, name: &str) -> (u32, String) {
    let wait = Duration::from_secs(60);
    stream.set_read_timeout(Some(wait)).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&3_u32.to_be_bytes()).unwrap();
    go(stream, name)
}

/// The same, once more.
fn go(stream: &mut UnixStream, name: &str) -> (u32, String) {
    let length = name.len() as u32;
    let name = [&length.to_be_bytes()[..], name.as_bytes(), &[0, 0]].concat();
    let bytes = (name.len() as u32).to_be_bytes();
    let head = [&b"IHAVEOPT"[..], &7_u32.to_be_bytes(), &bytes];
    stream
        .write_all(&[&head.concat()[..], &name].concat())
        .unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    let number = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().unwrap());
    let mut words = vec![0; number(16) as usize];
    stream.read_exact(&mut words).unwrap();
    (number(12), String::from_utf8_lossy(&words).into_owned())
}

/// Whether nothing is heard.
fn waits(stream: &mut UnixStream) -> bool {
    stream.set_read_timeout(Some(QUIET)).unwrap();
    let heard = stream.read(&mut [0; 18]);
    heard.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

fn why(place: &Place) -> String {
    let status = place.told(&["mirror", "status", "v0"]);
    status["why"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn t45_a_client_of_a_mirror_that_only_its_user_can_start_is_told_why() {
    let Some(place) = Place::new() else {
        return;
    };
    place.config("assemble_wait = \"500ms\"\n");
    std::fs::rename(place.path("b"), place.path("away")).unwrap();
    let mut engine = begun(place.0.path());
    wait_until(|| place.path("v0.sock").exists().then_some(()));
    let mut early = connected(&place);
    let (reply, words) = asked(&mut early);
    assert_eq!(reply, UNKNOWN, "{words}");
    assert!(words.contains("--without-missing"), "{words}");
    let line = engine.notes("not started");
    assert!(line.contains("its clients are refused meanwhile"), "{line}");
    assert_eq!(why(&place), words);
    let status = place.ask(&["mirror", "status", "v0", "--wait", "-o", "json"]);
    assert_eq!(
        status.status.code(),
        Some(1),
        "nothing comes by itself: {status:?}"
    );
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["phase"], "refused");
    let mut late = connected(&place);
    assert_eq!(asked(&mut late), (UNKNOWN, words));
    // A client that is still there may have it then, and so may a new one.
    place.told(&["mirror", "assemble", "v0", "--without-missing"]);
    assert!(engine.says("v0: ready").is_some());
    let (reply, _) = go(&mut late, "v0");
    assert_eq!(reply, 3, "facts of the export");
    assert_eq!(place.client().write(0, 7), 0);
    end(engine);
}

#[test]
fn t45_a_client_of_a_mirror_whose_legs_are_of_two_is_told_why() {
    let Some(place) = Place::new() else {
        return;
    };
    File::create(place.path("c"))
        .unwrap()
        .set_len(LEG_BYTES)
        .unwrap();
    std::fs::remove_file(place.path("b")).unwrap();
    File::create(place.path("b"))
        .unwrap()
        .set_len(LEG_BYTES)
        .unwrap();
    let (b, c) = (place.leg("b"), place.leg("c"));
    let made = place.braid(&["mirror", "create", "v1", &b, &c]);
    assert!(made.status.success(), "{made:?}");
    let engine = begun(place.0.path());
    wait_until(|| place.path("v0.sock").exists().then_some(()));
    let (reply, words) = asked(&mut connected(&place));
    assert_eq!(reply, UNKNOWN, "{words}");
    assert!(words.contains("are of different mirrors"), "{words}");
    end(engine);
}

#[test]
fn t45_a_client_of_a_mirror_whose_leg_may_come_waits_and_the_reason_is_shown() {
    let Some(place) = Place::new() else {
        return;
    };
    // No server listens there yet.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let nqn = "nqn.2026-01.org.braid:b";
    let text = format!(
        "keep_alive_tmo = \"1s\"\n[[volume]]\nname = \"v0\"\nkind = \"mirror\"\n\
         assemble_wait = \"100ms\"\nreconnect_delay = \"500ms\"\n\
         [[volume.leg]]\nuri = \"{}\"\n\
         [[volume.leg]]\nuri = \"nvme-tcp://127.0.0.1:{port}/{nqn}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        place.leg("a"),
        place.path("v0.sock").display(),
    );
    std::fs::write(place.path("b.toml"), text).unwrap();
    let mut engine = begun(place.0.path());
    let line = engine.notes("not started");
    assert!(!line.contains("refused meanwhile"), "{line}");
    let mut client = connected(&place);
    assert!(waits(&mut client), "it may start by itself");
    assert!(why(&place).contains("newer writes"), "{}", why(&place));
    let text = format!(
        "nqn = \"{nqn}\"\n[[namespace]]\nbackend = \"{}\"\nblock_size = 512\n\
         [[port]]\nlisten = \"127.0.0.1:{port}\"\n",
        place.leg("b")
    );
    std::fs::write(place.path("t.toml"), text).unwrap();
    let [config, socket] = ["t.toml", "t.ctl"].map(|name| place.path(name));
    let [config, socket] = [&config, &socket].map(|path| path.to_str().unwrap());
    let words = ["target", "-c", config, "--socket", socket];
    let target = Process::start(place.0.path(), &words);
    let (reply, words) = asked(&mut client);
    assert_eq!(reply, 3, "facts of the export: {words}");
    drop(client);
    assert_eq!(Client::open(&place.path("v0.sock")).write(0, 7), 0);
    end(engine);
    end(target);
}

#[test]
fn t14_a_leg_in_sync_that_was_put_back_to_a_snapshot_is_told_of_and_rebuilt_by_word() {
    let Some(place) = Place::new() else {
        return;
    };
    end(place.start());
    std::fs::copy(place.path("a"), place.path("snapshot")).unwrap();
    let engine = place.start();
    assert_eq!(place.client().write(0, 7), 0);
    end(engine);
    end(place.start());
    std::fs::copy(place.path("snapshot"), place.path("a")).unwrap();
    let mut engine = begun(place.0.path());
    let line = engine.notes("not started");
    let named = format!(
        "leg 0 ({}) shows an older state than it once had",
        place.leg("a")
    );
    assert!(line.contains(&named), "{line}");
    assert!(line.contains("--without-missing"), "{line}");
    place.told(&["mirror", "assemble", "v0", "--without-missing"]);
    assert!(engine.says("v0: ready").is_some());
    place.until_in_sync();
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
    assert_eq!(place.data("a")[0], 7, "what the snapshot lacks");
}
