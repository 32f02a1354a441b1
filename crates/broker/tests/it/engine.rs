//! An engine's export that does as it is told, and a broker over it.
use crate::common::{Stage, finish, read, until};
use broker::{Namespace, Store, Volume, VolumeAddress};
use queue::{Queue, Status};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

/// NSID of the volume; those before it are [`Stage`]'s.
pub const NSID: u32 = 6;
pub const BYTES: usize = 2 << 20;

/// Commands and transmission flags of NBD.
pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const ZEROES: u16 = 6;
pub const HAS_FLAGS: u16 = 1;
pub const READ_ONLY: u16 = 1 << 1;
pub const SEND_FLUSH: u16 = 1 << 2;
pub const SEND_FUA: u16 = 1 << 3;
pub const SEND_TRIM: u16 = 1 << 5;
pub const SEND_ZEROES: u16 = 1 << 6;
pub const SEND_DF: u16 = 1 << 7;
pub const ALL: u16 = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_ZEROES;
/// Flag of a read: one chunk.
pub const DF: u16 = 1 << 2;
pub const EIO: u32 = 5;
pub const ENOTSUP: u32 = 95;
pub const ESHUTDOWN: u32 = 108;

/// Deed of an engine for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    Do,
    Fail(u32),
    /// Nothing, nor with the requests behind it, until it is told to go on.
    Hang,
    Close,
    Say(Vec<u8>),
}

/// A request that came: command, flags, offset, length.
pub type Came = (u16, u16, u64, u32);

/// An engine's export, with manners as they are wanted.
pub struct Engine {
    address: PathBuf,
    state: Mutex<State>,
    /// It may go on.
    going: Condvar,
}

pub struct State {
    pub size: u64,
    pub flags: u16,
    pub longest: u32,
    pub data: Vec<u8>,
    pub came: Vec<Came>,
    /// Deeds for the next requests of a command; those behind them are done.
    pub plan: Vec<(u16, Deed)>,
    pub hangs: bool,
    /// Bytes that greet instead of an NBD server.
    pub greeting: Option<Vec<u8>>,
    pub connections: usize,
    /// It sends structured replies, and has an unreadable block: as qemu-nbd it fails a read of it
    /// that has DF, and for any other one it closes the connection in the middle of the reply.
    pub unreadable: Option<u64>,
}

impl Engine {
    pub fn start(directory: &tempfile::TempDir, change: impl FnOnce(&mut State)) -> Arc<Self> {
        let mut state = State {
            size: BYTES as u64,
            flags: ALL,
            longest: 32 << 20,
            data: vec![0; BYTES],
            came: Vec::new(),
            plan: Vec::new(),
            hangs: false,
            greeting: None,
            connections: 0,
            unreadable: None,
        };
        change(&mut state);
        let engine = Arc::new(Self {
            address: directory.path().join("v0.sock"),
            state: Mutex::new(state),
            going: Condvar::new(),
        });
        let listener = UnixListener::bind(&engine.address).unwrap();
        let this = Arc::clone(&engine);
        // Both end with the process: nobody connects any more then.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let this = Arc::clone(&this);
                std::thread::spawn(move || this.serve(stream));
            }
        });
        engine
    }

    pub fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.state.lock().unwrap())
    }

    pub fn expect(&self, plan: &[(u16, Deed)]) {
        self.state(|state| state.plan.extend_from_slice(plan));
    }

    pub fn go_on(&self) {
        self.state(|state| state.hangs = false);
        self.going.notify_all();
    }

    pub fn came(&self, command: u16) -> Vec<Came> {
        let came = self.state(|state| state.came.clone());
        came.into_iter().filter(|it| it.0 == command).collect()
    }

    pub fn connect(&self) -> Result<Volume, String> {
        Volume::connect(VolumeAddress::Unix(self.address.clone()), String::new())
    }

    fn serve(&self, mut stream: UnixStream) -> Option<()> {
        self.state(|state| state.connections += 1);
        if let Some(greeting) = self.state(|state| state.greeting.clone()) {
            stream.write_all(&greeting).ok()?;
            return stream.read_to_end(&mut Vec::new()).ok().map(drop);
        }
        self.shake_hands(&mut stream)?;
        loop {
            let mut header = [0; 28];
            stream.read_exact(&mut header).ok()?;
            let field = |at: usize, len: usize| {
                let bytes = &header[at..at + len];
                bytes.iter().fold(0, |sum, &it| sum << 8 | u64::from(it))
            };
            assert_eq!(field(0, 4), 0x2560_9513);
            let came = (
                field(6, 2) as u16,
                field(4, 2) as u16,
                field(16, 8),
                field(24, 4) as u32,
            );
            let mut payload = vec![0; if came.0 == WRITE { came.3 as usize } else { 0 }];
            stream.read_exact(&mut payload).ok()?;
            let deed = self.meet(came);
            if came.0 == DISC {
                return stream.read_to_end(&mut Vec::new()).ok().map(drop);
            }
            let unreadable = self.state(|state| state.unreadable);
            if let Some(at) = unreadable.filter(|_| came.0 == READ) {
                let data = self.execute(came, &[]);
                let is_bad = (came.2..came.2 + u64::from(came.3)).contains(&at);
                stream
                    .write_all(&chunk(&header[8..16], came, &data, is_bad))
                    .ok()?;
                if is_bad && came.1 & DF == 0 {
                    return None;
                }
                continue;
            }
            let (error, data) = match deed {
                Deed::Do => (0, self.execute(came, &payload)),
                Deed::Fail(error) => (error, Vec::new()),
                Deed::Hang => {
                    let state = self.state.lock().unwrap();
                    let state = self.going.wait_while(state, |state| state.hangs).unwrap();
                    drop(state);
                    (0, self.execute(came, &payload))
                }
                Deed::Close => return None,
                Deed::Say(bytes) => {
                    stream.write_all(&bytes).ok()?;
                    return stream.read_to_end(&mut Vec::new()).ok().map(drop);
                }
            };
            let mut reply = 0x6744_6698_u32.to_be_bytes().to_vec();
            reply.extend(u32::to_be_bytes(error));
            reply.extend(&header[8..16]);
            reply.extend(data);
            stream.write_all(&reply).ok()?;
        }
    }

    /// Simple replies, or structured ones, and the sizes of blocks.
    fn shake_hands(&self, stream: &mut UnixStream) -> Option<()> {
        let (size, flags, longest) = self.state(|state| (state.size, state.flags, state.longest));
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").ok()?;
        stream.read_exact(&mut [0; 4]).ok()?;
        loop {
            let mut header = [0; 16];
            stream.read_exact(&mut header).ok()?;
            let option = u32::from_be_bytes(header[8..12].try_into().unwrap());
            let len = u32::from_be_bytes(header[12..16].try_into().unwrap());
            stream.read_exact(&mut vec![0; len as usize]).ok()?;
            let mut reply = |kind: u32, data: &[u8]| {
                let mut out = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
                out.extend(option.to_be_bytes());
                out.extend(kind.to_be_bytes());
                out.extend((data.len() as u32).to_be_bytes());
                out.extend(data);
                stream.write_all(&out).ok()
            };
            if option != 7 {
                let structured = self.state(|state| state.unreadable.is_some());
                let takes = option == 8 && structured;
                reply(if takes { 1 } else { 0x8000_0001 }, &[])?;
                continue;
            }
            let export = [&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat();
            reply(3, &export)?;
            let sizes = [512_u32, 4096, longest].map(u32::to_be_bytes).concat();
            reply(3, &[&[0, 3][..], &sizes].concat())?;
            return reply(1, &[]);
        }
    }

    fn meet(&self, came: Came) -> Deed {
        self.state(|state| {
            state.came.push(came);
            let at = state.plan.iter().position(|it| it.0 == came.0);
            let deed = at.map_or(Deed::Do, |at| state.plan.remove(at).1);
            state.hangs |= deed == Deed::Hang;
            deed
        })
    }

    fn execute(&self, (command, _, offset, len): Came, payload: &[u8]) -> Vec<u8> {
        let range = offset as usize..offset as usize + len as usize;
        self.state(|state| match command {
            READ => state.data[range].to_vec(),
            WRITE => {
                state.data[range].copy_from_slice(payload);
                Vec::new()
            }
            ZEROES | TRIM => {
                state.data[range].fill(0);
                Vec::new()
            }
            _ => Vec::new(),
        })
    }
}

/// The reply to a read in one chunk: of data, of an error, or (without DF) the beginning of data.
fn chunk(cookie: &[u8], (_, flags, offset, _): Came, data: &[u8], is_bad: bool) -> Vec<u8> {
    let head = |kind: u16, len: usize| {
        let mut bytes = 0x668e_33ef_u32.to_be_bytes().to_vec();
        bytes.extend([0, 1]);
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie);
        bytes.extend((len as u32).to_be_bytes());
        bytes
    };
    if is_bad && flags & DF != 0 {
        let error = [&EIO.to_be_bytes()[..], &[0, 0]].concat();
        return [head(0x8001, error.len()), error].concat();
    }
    let len = if is_bad { 0 } else { data.len() };
    let at = offset.to_be_bytes();
    [&head(1, 8 + data.len()), &at[..], &data[..len]].concat()
}

/// A broker of two threads with the engine's export as its last namespace.
pub fn stage(engine: &Engine) -> Stage {
    let volume = engine.connect().unwrap();
    Stage::new(|config| {
        config.workers = vec![None, None];
        config.namespaces.push(Namespace {
            block_shift: 12,
            blocks: volume.bytes() >> 12,
            read_only: volume.read_only(),
            device: Store::Volume(volume),
        });
    })
}

pub fn flush(queue: &mut Queue) -> Status {
    queue.flush(Some(NSID), 0).unwrap();
    finish(queue).status
}

pub fn until_back(queue: &mut Queue) {
    until("the engine is there again", || {
        read(queue, NSID, 0, 1).is_ok()
    });
}
