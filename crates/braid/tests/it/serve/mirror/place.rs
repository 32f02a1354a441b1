//! A mirror over two files, and an engine with it.
use crate::serve::no_io_uring;
use crate::serve::process::{Client, Process, engine, wait_until};
use mirror::Superblock;
use mirror::layout::COPIES_AT;
use mirror::superblock::SUPERBLOCK_BYTES;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output};

pub const LEG_BYTES: u64 = 16 << 20;
/// Where the mirror's data begin on such a leg.
pub const DATA_AT: u64 = 1 << 20;

pub struct Place(pub tempfile::TempDir);

impl Place {
    /// Two files that are a mirror, and the configuration of an engine with it; `None`: this
    /// machine has no io_uring.
    pub fn new() -> Option<Self> {
        let place = Self(tempfile::tempdir().unwrap());
        for name in ["a", "b"] {
            let file = File::create(place.path(name)).unwrap();
            file.set_len(LEG_BYTES).unwrap();
        }
        place.config("");
        let (a, b) = (place.leg("a"), place.leg("b"));
        let made = place.braid(&["mirror", "create", "v0", &a, &b, "--force"]);
        assert!(made.status.success(), "{made:?}");
        let bench = ["bench", "--runtime", "1ms", &place.leg("a")];
        let tried = place.braid(&bench);
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        if !tried.status.success() {
            no_io_uring::skip(&said);
            return None;
        }
        Some(place)
    }

    pub fn config(&self, keys: &str) {
        let text = format!(
            "drain_timeout = \"5s\"\n[[volume]]\nname = \"v0\"\nkind = \"mirror\"\n{keys}\
             [[volume.leg]]\nuri = \"{}\"\n[[volume.leg]]\nuri = \"{}\"\n\
             [[volume.export]]\nnbd = \"unix:{}\"\n",
            self.leg("a"),
            self.leg("b"),
            self.path("v0.sock").display()
        );
        std::fs::write(self.path("b.toml"), text).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn leg(&self, name: &str) -> String {
        format!("file:{}", self.path(name).display())
    }

    pub fn start(&self) -> Process {
        engine(self.0.path())
    }

    pub fn client(&self) -> Client {
        Client::open(&self.path("v0.sock"))
    }

    pub fn braid(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.env("XDG_STATE_HOME", self.path("state"));
        command.args(words).output().unwrap()
    }

    /// Asks the engine.
    pub fn ask(&self, words: &[&str]) -> Output {
        let socket = self.path("c.sock");
        self.braid(&[words, &["--socket", socket.to_str().unwrap()]].concat())
    }

    pub fn told(&self, words: &[&str]) -> Value {
        // On a busy machine legs may be told later than the verb waits; it can be said again.
        let is_later =
            |it: &Output| String::from_utf8_lossy(&it.stderr).contains("that holds, but");
        let ask = || self.ask(&[words, &["-o", "json"]].concat());
        let output = wait_until(|| Some(ask()).filter(|it| !is_later(it)));
        assert!(output.status.success(), "{words:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// States of the legs, by their numbers.
    pub fn legs(&self) -> Vec<String> {
        let stat = self.told(&["stat"]);
        let legs = stat["volumes"][0]["legs"].as_array().unwrap().clone();
        let state = |leg: &Value| leg["state"].as_str().unwrap().to_owned();
        legs.iter().map(state).collect()
    }

    pub fn until_in_sync(&self) {
        let in_sync = |legs: &Vec<String>| legs.iter().all(|leg| leg == "in-sync");
        wait_until(|| Some(self.legs()).filter(in_sync));
    }

    /// The leg's identity is another one from now on.
    pub fn says(&self, leg: &str, change: impl Fn(&mut Superblock)) {
        let mut open = OpenOptions::new();
        let file = open.read(true).write(true).open(self.path(leg)).unwrap();
        for (copy, at) in (0..).zip(COPIES_AT) {
            let mut block = [0; SUPERBLOCK_BYTES];
            file.read_exact_at(&mut block, at).unwrap();
            let mut said = Superblock::parse(&block, copy, crc32c).unwrap();
            change(&mut said);
            file.write_all_at(&said.encode(copy, crc32c), at).unwrap();
        }
    }

    /// The mirror's data on a leg.
    pub fn data(&self, leg: &str) -> Vec<u8> {
        let mut bytes = vec![0; (LEG_BYTES - DATA_AT) as usize];
        let file = File::open(self.path(leg)).unwrap();
        file.read_exact_at(&mut bytes, DATA_AT).unwrap();
        bytes
    }
}

/// A controller that takes connections and says nothing, and a leg there.
pub fn silent() -> (TcpListener, String) {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let leg = format!("nvme-tcp://127.0.0.1:{port}/nqn.2026-01.org.example:silent");
    (silent, leg)
}

fn crc32c(bytes: &[u8]) -> u32 {
    nvme::crc32c(0, bytes)
}

/// SIGTERM, and its end.
pub fn end(mut engine: Process) {
    engine.signal(rustix::process::Signal::TERM);
    let status = engine.ended();
    engine.read_rest();
    assert!(status.success(), "{status}: {}", engine.seen);
}

pub fn kill(mut engine: Process) {
    engine.signal(rustix::process::Signal::KILL);
    engine.ended();
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every block is full of its number.
pub fn verify(client: &mut Client, blocks: u64) {
    client.read_blocks(blocks, |block, found| {
        let is_right = found.iter().all(|&byte| byte == block as u8);
        assert!(is_right, "block {block}");
    });
}
