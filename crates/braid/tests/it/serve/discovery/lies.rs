//! Discovery controllers that lie: a real target behind somebody who changes what its log says. An
//! error or a line for what can't be, whatever is left is used, and little memory is taken.
use crate::serve::no_io_uring;
use crate::serve::process;
use crate::serve::process::{Process, engine, two_ports};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const UNIT: usize = 1024;
/// Subsystem of the target.
const NQN: &str = "nqn.2026-01.org.braid:v0";
/// Address space that a process under test may have, KiB.
const MEMORY_KIB: u32 = 1 << 20;

/// Answer for a piece of the log.
#[derive(Clone, Copy, PartialEq)]
enum Answer {
    /// It is sent.
    Sent,
    /// Half of it, and then the connection ends.
    Cut,
    /// Nothing of it, ever.
    Withheld,
}

/// Changes a piece: where in the log it begins, how many were asked for before it, its bytes.
type Lie = fn(u64, u64, &mut [u8]) -> Answer;

/// A target, and the one before it.
struct Liar {
    target: Process,
    address: SocketAddr,
    /// The target's first port.
    first: String,
    directory: tempfile::TempDir,
}

impl Liar {
    /// Before a target with so many ports; `None`: there is no io_uring here.
    fn start(ports: usize, lie: Lie) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("t.sock");
        let socket = socket.to_str().unwrap();
        let mut words = vec!["target", "--mem", "64MiB", "--socket", socket];
        words.extend(["--nqn", NQN]);
        for _ in 0..ports {
            words.extend(["--listen", "127.0.0.1:0"]);
        }
        words.extend(["--listen", "127.0.0.1:0,offer=discovery"]);
        let mut target = Process::start(directory.path(), &words);
        let first = target.says("port 1: ").unwrap_or_default();
        let first = first.split_whitespace().nth(2).unwrap_or_default();
        let own = format!("port {}: ", ports + 1);
        let Some(line) = target.says(&own) else {
            target.notes("io_uring");
            no_io_uring::skip(&target.seen);
            return None;
        };
        let uri = line.split_whitespace().nth(2).unwrap();
        let behind = uri.strip_prefix("nvme-tcp://").unwrap();
        let behind: SocketAddr = behind.split('/').next().unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let reads = Arc::new(AtomicU64::new(0));
        // Ends with the test's process.
        thread::spawn(move || {
            for host in listener.incoming().flatten() {
                between(host, TcpStream::connect(behind).unwrap(), lie, &reads);
            }
        });
        Some(Self {
            target,
            address,
            first: first.to_owned(),
            directory,
        })
    }

    /// The program with these words and the liar's address, in little memory.
    fn braid(&self, words: &str) -> Output {
        let program = env!("CARGO_BIN_EXE_braid");
        let address = self.address;
        let line = format!("ulimit -v {MEMORY_KIB} && exec {program} {words} nvme-tcp://{address}");
        let mut command = Command::new("sh");
        command.env("XDG_STATE_HOME", self.directory.path());
        command.args(["-c", &line]).output().unwrap()
    }

    /// It ends with an error that names the controller and says this.
    fn fails(&self, words: &str, why: &str) {
        let output = self.braid(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(!text.contains("panicked"), "{text}");
        assert!(text.contains(why), "{why:?} is not in {text}");
        assert!(text.contains(&self.address.to_string()), "{text}");
    }
}

/// Carries PDUs both ways; pieces of the log are changed.
fn between(host: TcpStream, target: TcpStream, lie: Lie, reads: &Arc<AtomicU64>) {
    let pieces = Arc::new(Mutex::new(BTreeMap::new()));
    let (mut from, mut to) = (host.try_clone().unwrap(), target.try_clone().unwrap());
    let (asked, count) = (pieces.clone(), reads.clone());
    thread::spawn(move || {
        while let Some(mut pdu) = pdu(&mut from) {
            ask(&mut pdu, &asked);
            if to.write_all(&pdu).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
    let (mut from, mut to) = (target, host);
    thread::spawn(move || {
        while let Some(mut pdu) = pdu(&mut from) {
            let answer = tell(&mut pdu, &pieces, lie, &count);
            let some = match answer {
                Answer::Sent => &pdu[..],
                Answer::Cut => &pdu[..pdu.len() / 2],
                Answer::Withheld => &[],
            };
            if to.write_all(some).is_err() || answer == Answer::Cut {
                break;
            }
            if answer == Answer::Withheld {
                // Also no end of the command, until the host goes.
                let _ = to.read_to_end(&mut Vec::new());
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}

fn pdu(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut pdu = vec![0; 8];
    from.read_exact(&mut pdu).ok()?;
    let len = u32::from_le_bytes(pdu[4..].try_into().unwrap()) as usize;
    pdu.resize(len, 0);
    from.read_exact(&mut pdu[8..]).ok()?;
    Some(pdu)
}

fn le16(pdu: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([pdu[at], pdu[at + 1]])
}

/// Handles a host's PDU: which commands ask for the log; whatever subsystem it wants is there.
fn ask(pdu: &mut [u8], asked: &Mutex<BTreeMap<u16, u64>>) {
    if pdu[0] != 4 {
        return;
    }
    let (opcode, cid, data) = (pdu[8], le16(pdu, 10), usize::from(pdu[3]));
    if opcode == 0x02 && pdu[48] == 0x70 {
        let offset = u64::from_le_bytes(pdu[56..64].try_into().unwrap());
        asked.lock().unwrap().insert(cid, offset);
    } else if opcode == 0x7f && pdu[12] == 1 {
        let name = nvme::wire::fabrics::DISCOVERY_NQN.as_bytes();
        put(&mut pdu[data + 256..data + 512], name);
    }
}

/// Changes a target's PDU.
fn tell(pdu: &mut [u8], asked: &Mutex<BTreeMap<u16, u64>>, lie: Lie, count: &AtomicU64) -> Answer {
    if pdu[0] != 7 {
        return Answer::Sent;
    }
    let (cid, data) = (le16(pdu, 8), usize::from(pdu[3]));
    match asked.lock().unwrap().remove(&cid) {
        Some(offset) => {
            let before = count.fetch_add(1, Ordering::Relaxed);
            lie(offset, before, &mut pdu[data..])
        }
        None => Answer::Sent,
    }
}

/// Bytes and zeroes after them.
fn put(field: &mut [u8], bytes: &[u8]) {
    field.fill(0);
    field[..bytes.len()].copy_from_slice(bytes);
}

fn entries(offset: u64, piece: &mut [u8]) -> impl Iterator<Item = (u64, &mut [u8])> {
    let all = (offset / UNIT as u64..).zip(piece.chunks_exact_mut(UNIT));
    all.filter(|(number, _)| *number > 0)
}

/// So many records are told of, whatever there is.
fn header(offset: u64, piece: &mut [u8], records: u64) {
    if offset == 0 {
        piece[8..16].copy_from_slice(&records.to_le_bytes());
    }
}

#[test]
fn a_log_without_end_is_refused_and_takes_no_memory() {
    for records in [u64::MAX, 1 << 54, 1025] {
        let lie: Lie = match records {
            u64::MAX => |offset, _, piece| {
                header(offset, piece, u64::MAX);
                Answer::Sent
            },
            1025 => |offset, _, piece| {
                header(offset, piece, 1025);
                Answer::Sent
            },
            _ => |offset, _, piece| {
                header(offset, piece, 1 << 54);
                Answer::Sent
            },
        };
        let Some(liar) = Liar::start(1, lie) else {
            return;
        };
        liar.fails("discover", "1024");
        // An engine that is told to ask it refuses, and goes on.
        let root = liar.directory.path();
        let keys = "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:16MiB\"\n";
        std::fs::write(root.join("b.toml"), keys).unwrap();
        let mut engine = engine(root);
        let socket = root.join("c.sock").display().to_string();
        for _ in 0..2 {
            liar.fails(&format!("connect-all --socket {socket}"), "1024");
        }
        assert!(engine.child.try_wait().unwrap().is_none());
    }
}

#[test]
fn a_log_that_changes_whenever_it_is_read_is_given_up() {
    let Some(liar) = Liar::start(1, |offset, before, piece| {
        if offset == 0 {
            piece[..8].copy_from_slice(&(before + 7).to_le_bytes());
        }
        Answer::Sent
    }) else {
        return;
    };
    liar.fails("discover", "chang");
}

#[test]
fn slow_answers_are_waited_for_no_longer() {
    process::at_once(&[log_that_comes_too_slowly, answers_that_never_come]);
}

fn log_that_comes_too_slowly() {
    let Some(liar) = Liar::start(1, |offset, before, piece| {
        // Each answer comes well before its command's time is over, `connect_timeout`; the log has
        // six times as long.
        thread::sleep(Duration::from_millis(1500));
        if offset == 0 {
            piece[..8].copy_from_slice(&(before + 7).to_le_bytes());
        }
        Answer::Sent
    }) else {
        return;
    };
    let root = liar.directory.path();
    let keys = "connect_timeout = \"2500ms\"\n[[volume]]\nname = \"v0\"\n\
                [[volume.path]]\nuri = \"mem:16MiB\"\n";
    std::fs::write(root.join("b.toml"), keys).unwrap();
    let _engine = engine(root);
    let socket = root.join("c.sock").display().to_string();
    let words = format!("connect-all --socket {socket}");
    liar.fails(&words, "its log was not there in time");
}

#[test]
fn answers_that_end_in_the_middle_end_it() {
    let cut: Lie = |_, _, _| Answer::Cut;
    let Some(liar) = Liar::start(1, cut) else {
        return;
    };
    liar.fails("discover", "connection lost");
}

fn answers_that_never_come() {
    let withheld: Lie = |_, _, _| Answer::Withheld;
    let Some(liar) = Liar::start(1, withheld) else {
        return;
    };
    liar.fails("discover", "answer");
}

/// The first entry is as it was.
fn foreign(offset: u64, _: u64, piece: &mut [u8]) -> Answer {
    for (number, entry) in entries(offset, piece) {
        match number {
            2 => entry[0] = 1,
            3 => entry[1] = 3,
            4 => put(&mut entry[32..64], b"0"),
            5 => entry[256..512].fill(b'n'),
            6 => put(&mut entry[512..768], b"target.example"),
            7 => put(&mut entry[256..512], b"nqn.\x1b[2J"),
            8 => entry[2] = 77,
            _ => {}
        }
    }
    Answer::Sent
}

#[test]
fn entries_that_nobody_can_use_are_shown_with_the_reason() {
    let Some(liar) = Liar::start(8, foreign) else {
        return;
    };
    let output = liar.braid("discover");
    let (text, notes) = (output.stdout, output.stderr);
    let text = String::from_utf8(text).unwrap() + &String::from_utf8(notes).unwrap();
    assert!(output.status.success(), "{text}");
    for why in [
        "only TCP",
        "none to connect to",
        "no TCP port",
        "NQN can't be one",
        "kind 77",
    ] {
        assert!(text.contains(why), "{why:?} is not in {text}");
    }
    assert!(!text.contains('\x1b'), "{text:?}");
    let output = liar.braid("discover -o json");
    let log: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(log["records"].as_array().unwrap().len(), 9, "{log}");
}

/// Every entry is a referral to the liar itself, each time by another name.
fn endless(offset: u64, before: u64, piece: &mut [u8]) -> Answer {
    for (number, entry) in entries(offset, piece) {
        let name = format!("nqn.2026-01.org.braid:d{before}-{number}");
        entry[2] = 1;
        put(&mut entry[256..512], name.as_bytes());
        // Of the port that it came through.
        put(&mut entry[32..64], PORT.lock().unwrap().as_bytes());
    }
    Answer::Sent
}

/// Where [`endless`] refers to.
static PORT: Mutex<String> = Mutex::new(String::new());

#[test]
fn referrals_without_end_are_followed_to_a_depth_and_a_number() {
    let Some(liar) = Liar::start(8, endless) else {
        return;
    };
    *PORT.lock().unwrap() = liar.address.port().to_string();
    let output = liar.braid("discover -o json");
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{notes}");
    assert!(
        notes.contains("too many") || notes.contains("too far"),
        "{notes}"
    );
    let log: Value = serde_json::from_slice(&output.stdout).unwrap();
    let controllers = log["controllers"].as_array().unwrap();
    let asked = controllers
        .iter()
        .filter(|it| it["error"].is_null())
        .count();
    assert!((2..=16).contains(&asked), "{asked} were asked");
    assert!(controllers.len() <= 32, "{} are named", controllers.len());
    let mut target = liar.target;
    assert!(target.child.try_wait().unwrap().is_none());
}

/// All entries but the first are ways to where nobody is; they sort before it.
fn bogus(offset: u64, _: u64, piece: &mut [u8]) -> Answer {
    for (number, entry) in entries(offset, piece).filter(|(number, _)| *number > 1) {
        entry[2] = 2;
        put(&mut entry[256..512], NQN.as_bytes());
        put(&mut entry[32..64], (number - 1).to_string().as_bytes());
    }
    Answer::Sent
}

#[test]
fn a_path_behind_more_bogus_ones_than_a_volume_has_places_joins() {
    let Some(liar) = Liar::start(63, bogus) else {
        return;
    };
    let root = liar.directory.path();
    let socket = root.join("t.sock").display().to_string();
    let mut referrals = Command::new(env!("CARGO_BIN_EXE_braid"));
    referrals.args(["target", "referrals"]);
    referrals.args((1..=8).map(|port| format!("127.0.0.1:{port}")));
    let output = referrals.args(["--socket", &socket]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let keys = format!(
        "discovery_keep_alive_tmo = \"2s\"\n[[discovery]]\nuri = \"nvme-tcp://{}\"\n\
         [[volume]]\nname = \"v0\"\nsubsystem = \"{NQN}\"\n",
        liar.address
    );
    std::fs::write(root.join("b.toml"), keys).unwrap();
    let mut engine = engine(root);
    engine.notes("connected, 72 entries");
    let note = engine.notes("in use");
    assert!(note.contains(&liar.address.to_string()), "{note}");
    // Why one of the others doesn't join is said once, though it is tried again and again.
    let lines = engine.seen.lines();
    let lines = lines.filter(|line| line.contains("nvme-tcp://127.0.0.1:1/"));
    assert_eq!(lines.count(), 1, "{}", engine.seen);
}

#[test]
fn a_volume_that_waits_for_its_first_path_says_why() {
    let Some(liar) = Liar::start(1, |_, _, _| Answer::Sent) else {
        return;
    };
    let root = liar.directory.path();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = listener.local_addr().unwrap();
    drop(listener);
    let keys = format!(
        "[[discovery]]\nuri = \"nvme-tcp://{}\"\n[[discovery]]\nuri = \"nvme-tcp://{dead}\"\n\
         [[volume]]\nname = \"v0\"\nsubsystem = \"nqn.2026-01.org.braid:other\"\n",
        liar.address
    );
    std::fs::write(root.join("b.toml"), keys).unwrap();
    let [config, socket] = ["b.toml", "c.sock"].map(|it| root.join(it).display().to_string());
    let mut engine = Process::start(root, &["run", "-c", &config, "--socket", &socket]);
    engine.notes("entries");
    let braid = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        let output = command.args(words).args(["--socket", &socket]).output();
        let output = output.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), text)
    };
    let (code, text) = process::wait_until(|| {
        let (code, text) = braid(&["check", "-o", "json"]);
        text.contains("refused").then_some((code, text))
    });
    assert_eq!(code, 2, "{text}");
    let check: Value = serde_json::from_str(&text).unwrap();
    let awaits = check["volumes"][0]["awaits"].as_array().unwrap();
    let about = |address: SocketAddr| {
        let mut all = awaits.iter().map(|it| it.as_str().unwrap());
        let found = all.find(|it| it.contains(&address.to_string()));
        found.unwrap_or_else(|| panic!("nothing of {address}: {text}"))
    };
    assert!(about(liar.address).contains("no path to it"), "{text}");
    assert!(about(dead).contains("refused"), "{text}");
    for verb in ["check", "stat"] {
        let (_, text) = braid(&[verb]);
        assert!(text.contains("awaits: "), "{verb}: {text}");
    }
}

/// Where nobody says anything, though connections are taken.
static MUTE: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());

/// All entries but the first are ways to there.
fn mute(offset: u64, _: u64, piece: &mut [u8]) -> Answer {
    let listeners = MUTE.lock().unwrap();
    let last = listeners.len() as u64 + 1;
    for (number, entry) in entries(offset, piece).filter(|it| (2..=last).contains(&it.0)) {
        let port = listeners[number as usize - 2].local_addr().unwrap().port();
        entry[2] = 2;
        put(&mut entry[256..512], NQN.as_bytes());
        put(&mut entry[32..64], port.to_string().as_bytes());
    }
    Answer::Sent
}

/// Asks an engine for all that the liar tells; whoever asks may go away then.
fn connect_all(socket: &Path, liar: &Liar) -> UnixStream {
    let mut client = UnixStream::connect(socket).unwrap();
    let uri = format!("nvme-tcp://{}", liar.address);
    let params = serde_json::json!({"uri": uri});
    let call =
        serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "connect-all", "params": params});
    // A client that is turned away may find that out here.
    let _ = client.write_all(format!("{call}\n").as_bytes());
    client
}

/// Six ways of seven say nothing. They are asked side by side, and users who want that and go away
/// leave the control socket to others.
#[test]
fn ways_that_say_nothing_are_asked_side_by_side_and_keep_no_other_user_waiting() {
    let listeners = (0..6).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    *MUTE.lock().unwrap() = listeners.collect();
    let Some(liar) = Liar::start(7, mute) else {
        return;
    };
    let root = liar.directory.path();
    let spare = two_ports(root, "spare").unwrap();
    let keys = format!(
        "connect_timeout = \"20s\"\n[[volume]]\nname = \"v0\"\n\
         [[volume.path]]\nuri = \"{}\"\n[[volume]]\nname = \"v1\"\n[[volume.path]]\n\
         uri = \"{}\"\n",
        liar.first, spare.1[0]
    );
    std::fs::write(root.join("b.toml"), keys).unwrap();
    let _engine = engine(root);
    let socket = root.join("c.sock");
    let braid = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(words).arg("--socket").arg(&socket);
        command.output().unwrap()
    };
    // No controller is given up before all are asked.
    let client = connect_all(&socket, &liar);
    let again = |listener: &TcpListener| listener.try_clone().unwrap();
    let listeners: Vec<TcpListener> = MUTE.lock().unwrap().iter().map(again).collect();
    let accept = |listener: &TcpListener| listener.accept().unwrap().0;
    let asked: Vec<TcpStream> = listeners.iter().map(accept).collect();
    for mut way in asked {
        way.set_nonblocking(true).unwrap();
        let mut bytes = [0; 256];
        let open = loop {
            match way.read(&mut bytes) {
                Ok(0) => break false,
                Ok(_) => {}
                Err(error) => break error.kind() == std::io::ErrorKind::WouldBlock,
            }
        };
        assert!(open, "a way was given up before the last was asked");
        // An end is found out at once.
    }
    drop(client);
    // More than there are places for clients.
    for _ in 0..4 {
        let clients: Vec<UnixStream> = (0..8).map(|_| connect_all(&socket, &liar)).collect();
        drop(clients);
    }
    let answered = |words: &[&str]| {
        process::wait_until(|| {
            let output = braid(words);
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(
                output.status.success() || text.contains("try again"),
                "{text}"
            );
            output.status.success().then_some(())
        });
    };
    answered(&["stat"]);
    answered(&["path", "add", "v1", &spare.1[1]]);
}
