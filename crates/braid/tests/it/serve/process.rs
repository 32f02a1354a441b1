//! Processes of ours, and clients of theirs.
use crate::serve::{nbd, no_io_uring};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Long enough for anything that is to happen soon, on the slowest machine.
pub const SOON: Duration = Duration::from_secs(60);
/// A process of ours that prints what it does.
pub struct Process {
    pub child: Child,
    out: mpsc::Receiver<String>,
    notes: mpsc::Receiver<String>,
    /// All that was printed and looked at.
    pub seen: String,
}

pub fn lines(from: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (to, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = to.send(line);
        }
    });
    lines
}

impl Process {
    pub fn start(directory: &Path, words: &[&str]) -> Self {
        Self::start_with(directory, words, Stdio::piped())
    }

    /// With another place for its notes.
    pub fn start_with(directory: &Path, words: &[&str], notes: Stdio) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(words);
        Self::spawn(directory, command, notes)
    }

    /// Of a command that becomes ours.
    pub fn spawn(directory: &Path, mut command: Command, notes: Stdio) -> Self {
        command.env("XDG_STATE_HOME", directory.join("state"));
        command.stdout(Stdio::piped()).stderr(notes);
        let mut child = command.spawn().unwrap();
        let out = lines(child.stdout.take().unwrap());
        let notes = match child.stderr.take() {
            Some(notes) => lines(notes),
            None => mpsc::channel().1,
        };
        Self {
            child,
            out,
            notes,
            seen: String::new(),
        }
    }

    /// The next printed line with `what` in it; `None`: it ended without.
    pub fn says(&mut self, what: &str) -> Option<String> {
        Self::find(&self.out, &mut self.seen, what)
    }

    /// The next note with `what` in it.
    pub fn notes(&mut self, what: &str) -> String {
        let found = Self::find(&self.notes, &mut self.seen, what);
        found.unwrap_or_else(|| panic!("no \"{what}\" in {}", self.seen))
    }

    /// Whether it has noted `what` by now, of what nobody has looked at.
    pub fn has_noted(&mut self, what: &str) -> bool {
        let mut found = false;
        for line in self.notes.try_iter() {
            found |= line.contains(what);
            self.seen.push_str(&line);
            self.seen.push('\n');
        }
        found
    }

    pub fn find(lines: &mpsc::Receiver<String>, seen: &mut String, what: &str) -> Option<String> {
        let end = Instant::now() + SOON;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = match lines.recv_timeout(left) {
                Ok(line) => line,
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("no \"{what}\" in {seen}"),
            };
            seen.push_str(&line);
            seen.push('\n');
            if line.contains(what) {
                return Some(line);
            }
        }
    }

    /// Reads notes up to its end.
    pub fn read_rest(&mut self) {
        for line in self.notes.iter() {
            self.seen.push_str(&line);
            self.seen.push('\n');
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stands still from now on: a signal alone leaves its threads time to answer some more.
    pub fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
        let stands = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            stat.is_ok_and(|it| it.rsplit(") ").next().unwrap().starts_with('T'))
        };
        let tasks = format!("/proc/{}/task", self.child.id());
        wait_until(|| {
            let mut tasks = std::fs::read_dir(&tasks).unwrap();
            tasks.all(stands).then_some(())
        });
    }

    pub fn ended(&mut self) -> ExitStatus {
        wait_until(|| self.child.try_wait().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Of the connections that lead to this address, in how many ticks the kernel asks whether the peer
/// is still there; 0: it does not, or the connection waits for something else just now.
pub fn ask_in_ticks(address: &str) -> Vec<u64> {
    let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace());
    let rows = rows.map(|row| row.collect::<Vec<_>>());
    let to = format!(":{port:04X}");
    let open = rows.filter(|row| row[2].ends_with(&to) && row[3] == "01");
    let ticks = open.map(|row| {
        let when = row[5].strip_prefix("02:");
        when.map_or(0, |when| u64::from_str_radix(when, 16).unwrap())
    });
    ticks.collect()
}

/// An engine whose volume v0 is ready. `None`: this machine has no io_uring.
pub fn begun_with_v0(directory: &Path) -> Option<Process> {
    let mut engine = begun(directory);
    if engine.says("v0: ready").is_none() {
        engine.notes("io_uring");
        super::no_io_uring::skip(&engine.seen);
        return None;
    }
    Some(engine)
}

/// Output for people as one line: where its lines end depends on names.
pub fn one_line(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Asks until there is an answer.
pub fn wait_until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "it never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs tests that do little but wait, beside each other: as one test of the harness, which runs
/// as many at a time as there are processors.
pub fn at_once(cases: &[fn()]) {
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(case);
        }
    });
}

/// Requests of [`Client::write_blocks`] and [`Client::read_blocks`] under way.
const DEPTH: u64 = 64;

/// One connection that names the export, and no structured replies.
pub struct Client(pub UnixStream);

impl Client {
    pub fn open(socket: &Path) -> Self {
        Self(nbd::open(socket, SOON))
    }

    /// The same of an export of another name.
    pub fn open_named(socket: &Path, name: &str) -> Self {
        Self(nbd::open_named(socket, name, SOON))
    }

    /// 4 KiB of `fill` at `offset`.
    pub fn send_write(&mut self, offset: u64, fill: u8) {
        self.send(0, offset, fill);
    }

    /// The same, durable when it is answered.
    pub fn write_fua(&mut self, offset: u64, fill: u8) -> u32 {
        self.send(1, offset, fill);
        self.answer()
    }

    pub fn flush(&mut self) -> u32 {
        let head = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 3];
        self.0.write_all(&[&head[..], &[0; 20]].concat()).unwrap();
        self.answer()
    }

    fn send(&mut self, flags: u8, offset: u64, fill: u8) {
        let head = [0x25, 0x60, 0x95, 0x13, 0, flags, 0, 1];
        let mut bytes = [&head[..], &[7; 8], &offset.to_be_bytes()].concat();
        bytes.extend(4096_u32.to_be_bytes());
        bytes.resize(bytes.len() + 4096, fill);
        self.0.write_all(&bytes).unwrap();
    }

    /// The error of the next answer; 0: none.
    pub fn answer(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]])
    }

    /// Asks for 4 KiB at `offset`.
    pub fn send_read(&mut self, offset: u64) {
        self.ask(offset, 7);
    }

    fn ask(&mut self, offset: u64, cookie: u64) {
        let head = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0];
        let numbers = [cookie.to_be_bytes(), offset.to_be_bytes()].concat();
        let bytes = [&head[..], &numbers, &4096_u32.to_be_bytes()].concat();
        self.0.write_all(&bytes).unwrap();
    }

    /// Writes every block of 4 KiB below `count`, full of the lower half of its number.
    pub fn write_blocks(&mut self, count: u64) {
        for first in (0..count).step_by(DEPTH as usize) {
            let lot = first..count.min(first + DEPTH);
            lot.clone()
                .for_each(|block| self.send_write(block << 12, block as u8));
            lot.for_each(|_| assert_eq!(self.answer(), 0));
        }
    }

    /// Every block of 4 KiB below `count`, with its number.
    pub fn read_blocks(&mut self, count: u64, mut found: impl FnMut(u64, &[u8])) {
        for first in (0..count).step_by(DEPTH as usize) {
            let lot = first..count.min(first + DEPTH);
            lot.clone().for_each(|block| self.ask(block << 12, block));
            for _ in lot {
                let mut reply = [0; 16 + 4096];
                self.0.read_exact(&mut reply[..16]).unwrap();
                assert_eq!(reply[4..8], [0; 4], "a read has failed");
                self.0.read_exact(&mut reply[16..]).unwrap();
                let cookie = reply[8..16].try_into().unwrap();
                found(u64::from_be_bytes(cookie), &reply[16..]);
            }
        }
    }

    /// 4 KiB at `offset`.
    pub fn read(&mut self, offset: u64) -> Vec<u8> {
        self.send_read(offset);
        assert_eq!(self.answer(), 0);
        let mut data = vec![0; 4096];
        self.0.read_exact(&mut data).unwrap();
        data
    }

    /// Whether the engine ends the connection; what it says before is of no interest.
    pub fn is_over(&mut self) -> bool {
        match self.0.read_to_end(&mut Vec::new()) {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// As [`Client::write`]. Its error, or `None`: the connection is over.
    pub fn try_write(&mut self, offset: u64, fill: u8) -> Result<(), Option<u32>> {
        let head = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1];
        let mut bytes = [&head[..], &[7; 8], &offset.to_be_bytes()].concat();
        bytes.extend(4096_u32.to_be_bytes());
        bytes.resize(bytes.len() + 4096, fill);
        let mut reply = [0; 16];
        let sent = self.0.write_all(&bytes);
        sent.and_then(|()| self.0.read_exact(&mut reply))
            .map_err(|_| None)?;
        match u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]) {
            0 => Ok(()),
            error => Err(Some(error)),
        }
    }

    pub fn write(&mut self, offset: u64, fill: u8) -> u32 {
        self.send_write(offset, fill);
        self.answer()
    }
}

/// An engine with the configuration `b.toml` and the socket `c.sock`.
pub fn begun(directory: &Path) -> Process {
    let [config, socket] = ["b.toml", "c.sock"].map(|name| directory.join(name));
    let words = [
        "run",
        "-c",
        config.to_str().unwrap(),
        "--socket",
        socket.to_str().unwrap(),
    ];
    Process::start(directory, &words)
}

/// As [`begun`]; its volume v0 is ready.
pub fn engine(directory: &Path) -> Process {
    let mut engine = begun(directory);
    let ready = engine.says("v0: ready").is_some();
    assert!(ready, "{}", engine.seen);
    engine
}

/// A target with two ports and identifiers of its own: it, and their URIs.
pub fn two_ports(directory: &Path, name: &str) -> Option<(Process, [String; 2])> {
    let socket = directory.join(format!("{name}.sock"));
    let nqn = format!("nqn.2026-01.org.braid:{name}");
    let listen = ["--listen", "127.0.0.1:0"];
    let words = [
        &["target", "--mem", "64MiB", "--nqn", &nqn][..],
        &listen,
        &listen,
        &["--socket"],
    ];
    let mut words = words.concat();
    words.push(socket.to_str().unwrap());
    let mut target = Process::start(directory, &words);
    let mut uri = |port: &str| {
        let line = target.says(port)?;
        Some(line.split_whitespace().nth(2).unwrap().to_owned())
    };
    let uris = uri("port 1: ").and_then(|one| Some([one, uri("port 2: ")?]));
    match uris {
        Some(uris) => Some((target, uris)),
        None => {
            target.notes("io_uring");
            no_io_uring::skip(&target.seen);
            None
        }
    }
}
