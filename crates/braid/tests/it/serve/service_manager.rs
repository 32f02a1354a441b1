//! Messages to a service manager: READY=1 when clients are served, WATCHDOG=1 again and again,
//! STOPPING=1 when the end begins. All programs that serve do the same.
use crate::serve::no_io_uring;
use crate::serve::process::{SOON, wait_until};
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The socket of a service manager.
pub struct Manager(UnixDatagram);

impl Manager {
    pub fn bind(at: &Path) -> Self {
        let socket = UnixDatagram::bind(at).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Self(socket)
    }

    /// The next message; an error when the process says nothing for long.
    fn next(&self) -> Result<String, std::io::Error> {
        let mut bytes = [0; 256];
        let len = self.0.recv(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
    }

    /// Whether nothing was said that was not heard.
    pub fn is_silent(&self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let heard = self.next();
        self.0.set_nonblocking(false).unwrap();
        heard.is_err()
    }

    /// Messages until one has this line.
    pub fn until(&self, line: &str) {
        while !self.next().unwrap().lines().any(|it| it == line) {}
    }
}

/// The program as a unit with WatchdogSec=0.2 starts it. WATCHDOG_PID is its own.
fn start(directory: &Path, words: &str) -> Child {
    let script = "WATCHDOG_PID=$$ exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_braid")]);
    command
        .args(words.split(' '))
        .current_dir(directory)
        .env("XDG_STATE_HOME", directory.join("state"))
        .env("NOTIFY_SOCKET", directory.join("notify"))
        .env("WATCHDOG_USEC", "200000")
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn every_server_reports_to_its_service_manager() {
    for words in [
        "run -c engine.toml --socket s",
        "target --mem 1MiB --listen 127.0.0.1:0 --socket s",
        "queue serve mem:1MiB --socket s",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let engine = "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n";
        std::fs::write(directory.path().join("engine.toml"), engine).unwrap();
        let manager = Manager::bind(&directory.path().join("notify"));
        let mut child = start(directory.path(), words);
        // The first messages are the watchdog's and READY, in either order.
        let first = [manager.next(), manager.next()];
        if let Some(status) = child.try_wait().unwrap()
            && !status.success()
        {
            let mut said = String::new();
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut said)
                .unwrap();
            return no_io_uring::skip(&said);
        }
        let mut first = first.map(Result::unwrap);
        first.sort();
        assert_eq!(
            first.map(|it| it.trim().to_owned()),
            ["READY=1", "WATCHDOG=1"],
            "{words}"
        );
        manager.until("WATCHDOG=1");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        manager.until("STOPPING=1");
        assert!(
            wait_until(|| child.try_wait().unwrap()).success(),
            "{words}"
        );
    }
}
