//! A file system of one file whose reads, writes and changes of size are not answered while it is
//! told to hang (T52): FUSE's protocol, as far as the kernel needs it for that.
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// The name of its file, and the node of that; the root is node 1.
const NAME: &str = "l";
const NODE: u64 = 2;
/// Most bytes of a write.
const WRITE_MAX: u32 = 128 << 10;
const ENOENT: i32 = -2;
const ENOSYS: i32 = -38;

/// Requests of the kernel (linux/fuse.h).
mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const INTERRUPT: u32 = 36;
    pub const BATCH_FORGET: u32 = 42;
}

/// Mounted until it is dropped.
pub struct HangFs {
    on: PathBuf,
    device: File,
    state: Arc<Mutex<State>>,
}

struct State {
    data: Vec<u8>,
    hangs: bool,
    /// Nor are names and attributes answered while it hangs.
    hides: bool,
    /// Requests without an answer.
    held: Vec<Vec<u8>>,
}

impl HangFs {
    /// Makes the directory and mounts on it, with a file of so many zeroes. The error is why it
    /// can't be.
    pub fn mount(on: &Path, bytes: usize) -> Result<Self, String> {
        std::fs::create_dir(on).unwrap();
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|error| format!("/dev/fuse: {error}"))?;
        let mut mount = Command::new("mount");
        mount.args(["-i", "-t", "fuse", "-o"]);
        mount.arg("fd=0,rootmode=40000,user_id=0,group_id=0,allow_other");
        mount.stdin(Stdio::from(device.try_clone().unwrap()));
        match mount.arg("hangfs").arg(on).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => return Err(String::from_utf8_lossy(&output.stderr).trim().into()),
            Err(error) => return Err(error.to_string()),
        }
        let state = Arc::new(Mutex::new(State {
            data: vec![0; bytes],
            hangs: false,
            hides: false,
            held: Vec::new(),
        }));
        let (mut from, shared) = (device.try_clone().unwrap(), Arc::clone(&state));
        // Ends with the mount.
        std::thread::spawn(move || {
            let mut request = vec![0; WRITE_MAX as usize + 4096];
            while let Ok(count) = from.read(&mut request) {
                let mut state = shared.lock().unwrap();
                state.take(&request[..count], &mut from);
            }
        });
        Ok(Self {
            on: on.to_owned(),
            device,
            state,
        })
    }

    /// Its file.
    pub fn file(&self) -> PathBuf {
        self.on.join(NAME)
    }

    /// Bytes of its file.
    pub fn len(&self) -> usize {
        self.state.lock().unwrap().data.len()
    }

    /// Nothing is answered from now on.
    pub fn hang(&self) {
        self.state.lock().unwrap().hangs = true;
    }

    /// The same, of names and attributes too.
    pub fn hang_whole(&self) {
        let mut state = self.state.lock().unwrap();
        (state.hangs, state.hides) = (true, true);
    }

    /// Requests that are not answered.
    pub fn held(&self) -> usize {
        self.state.lock().unwrap().held.len()
    }

    /// Names of the threads that wait for them.
    pub fn waiting(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        // The header of a request: length, opcode, unique, node, user, group, then the thread.
        let thread = |it: &Vec<u8>| u32::from_ne_bytes(it[32..36].try_into().unwrap());
        let name = |id: u32| std::fs::read_to_string(format!("/proc/{id}/comm"));
        let threads = state.held.iter().map(thread);
        threads
            .filter_map(|id| Some(name(id).ok()?.trim().to_owned()))
            .collect()
    }

    /// All is answered, and what comes is.
    pub fn go_on(&self) {
        let mut state = self.state.lock().unwrap();
        (state.hangs, state.hides) = (false, false);
        for request in std::mem::take(&mut state.held) {
            state.answer(&request, &mut &self.device);
        }
    }
}

impl Drop for HangFs {
    fn drop(&mut self) {
        self.go_on();
        let _ = Command::new("umount").arg("-l").arg(&self.on).status();
    }
}

impl State {
    /// Answers a request, or keeps it.
    fn take(&mut self, request: &[u8], to: &mut impl Write) {
        let waits = [op::SETATTR, op::READ, op::WRITE, op::FSYNC];
        let names = [op::LOOKUP, op::GETATTR, op::OPEN];
        let opcode = u32_at(request, 4);
        let held = waits.contains(&opcode) || (self.hides && names.contains(&opcode));
        match self.hangs && held {
            true => self.held.push(request.to_vec()),
            false => self.answer(request, to),
        }
    }

    fn answer(&mut self, request: &[u8], to: &mut impl Write) {
        let (opcode, node) = (u32_at(request, 4), u64_at(request, 16));
        let body = &request[40..];
        let answer = match opcode {
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT => return,
            op::INIT => Ok(init()),
            op::LOOKUP if body.strip_suffix(&[0]) == Some(NAME.as_bytes()) => {
                // Nothing is kept of it: entry and attributes are asked for anew.
                let entry = [NODE, 0, 0, 0, 0];
                Ok([&words(&entry)[..], &self.attributes(NODE)].concat())
            }
            op::LOOKUP => Err(ENOENT),
            op::GETATTR => Ok([&words(&[0, 0])[..], &self.attributes(node)].concat()),
            op::SETATTR => {
                if u32_at(body, 0) & 1 << 3 != 0 {
                    self.data.resize(u64_at(body, 16) as usize, 0);
                }
                Ok([&words(&[0, 0])[..], &self.attributes(node)].concat())
            }
            op::OPEN => Ok(vec![0; 16]),
            op::READ => {
                let from = (u64_at(body, 8) as usize).min(self.data.len());
                let to = (from + u32_at(body, 16) as usize).min(self.data.len());
                Ok(self.data[from..to].to_vec())
            }
            op::WRITE => {
                let (from, count) = (u64_at(body, 8) as usize, u32_at(body, 16));
                let data = &body[40..40 + count as usize];
                let end = (from + data.len()).max(self.data.len());
                self.data.resize(end, 0);
                self.data[from..from + data.len()].copy_from_slice(data);
                Ok(words(&[count.into()]))
            }
            op::STATFS => Ok(vec![0; 80]),
            op::RELEASE | op::FSYNC | op::FLUSH => Ok(Vec::new()),
            _ => Err(ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(error) => (error, Vec::new()),
        };
        let len = 16 + body.len() as u32;
        let head = [
            &len.to_ne_bytes()[..],
            &error.to_ne_bytes(),
            &request[8..16],
        ];
        // One that was interrupted is not waited for any more.
        let _ = to.write(&[&head.concat()[..], &body].concat());
    }

    /// `struct fuse_attr`.
    fn attributes(&self, node: u64) -> Vec<u8> {
        let (size, mode, links): (u64, u32, u32) = match node {
            NODE => (self.data.len() as u64, 0o100_600, 1),
            _ => (0, 0o040_755, 2),
        };
        let first = words(&[node, size, size.div_ceil(512), 0, 0, 0]);
        let rest = [0, 0, 0, mode, links, 0, 0, 0, 4096, 0];
        let rest = rest.iter().flat_map(|it: &u32| it.to_ne_bytes());
        first.into_iter().chain(rest).collect()
    }
}

/// `struct fuse_init_out` of version 7.31.
fn init() -> Vec<u8> {
    let mut out = vec![0; 64];
    for (at, value) in [
        (0, 7_u32),
        (4, 31),
        (8, WRITE_MAX),
        (20, WRITE_MAX),
        (24, 1),
    ] {
        out[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    // Of requests in the background: as many as are wanted.
    out[16..18].copy_from_slice(&64_u16.to_ne_bytes());
    out[18..20].copy_from_slice(&48_u16.to_ne_bytes());
    out
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|it| it.to_ne_bytes()).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}
