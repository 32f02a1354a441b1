//! `base:allocation` of exports: which parts of a volume are holes, as a client is told.
use crate::serve::mirror::place::{DATA_AT, LEG_BYTES, Place, end};
use crate::serve::nbd;
use crate::serve::no_io_uring;
use crate::serve::process::{Process, SOON, at_once, begun, begun_with_v0, wait_until};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

const READ: u16 = 0;
const WRITE: u16 = 1;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;
const STATUS: u16 = 7;
const REQ_ONE: u16 = 1 << 3;
const HOLE_ZERO: u32 = 3;

/// A client with structured replies and the context `base:allocation`.
struct Client(UnixStream);

impl Client {
    fn open(socket: &Path) -> Self {
        Self::open_named(socket, b"v0")
    }

    fn open_named(socket: &Path, export: &[u8; 2]) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut client = Self(stream);
        client.take(18);
        client.0.write_all(&3_u32.to_be_bytes()).unwrap();
        client.option(8, &[]);
        let (name, query) = (
            &[0, 0, 0, 2, export[0], export[1]],
            &b"\0\0\0\x0fbase:allocation"[..],
        );
        client.option(10, &[&name[..], &1_u32.to_be_bytes(), query].concat());
        client.option(7, &[&name[..], &[0, 0]].concat());
        client
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.0.write_all(&bytes).unwrap();
        loop {
            let head = self.take(20);
            let kind = word(&head, 12);
            assert!(kind < 1 << 31, "option {option} was refused: {kind:#x}");
            self.take(word(&head, 16) as usize);
            if kind == 1 {
                return;
            }
        }
    }

    /// A request and its whole reply: the content of its chunks, without their offset or context.
    fn ask(&mut self, (command, flags): (u16, u16), range: (u64, u32), data: &[u8]) -> Vec<u8> {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend([7; 8]);
        bytes.extend(range.0.to_be_bytes());
        bytes.extend(range.1.to_be_bytes());
        bytes.extend(data);
        self.0.write_all(&bytes).unwrap();
        let mut content = Vec::new();
        loop {
            let head = self.take(16);
            if word(&head, 0) == 0x6744_6698 {
                assert_eq!(word(&head, 4), 0, "command {command} of {range:?}");
                return content;
            }
            let kind = word(&head, 4) & 0xffff;
            assert!(kind < 1 << 15, "command {command} of {range:?}");
            let len = self.take(4);
            let body = self.take(word(&len, 0) as usize);
            let skipped = if kind == 5 { 4 } else { 8 };
            content.extend(body.iter().skip(skipped));
            if word(&head, 4) >> 16 & 1 == 1 {
                return content;
            }
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.ask((WRITE, 0), (offset, data.len() as u32), data);
    }

    fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        let mut read = Vec::new();
        while read.len() < len as usize {
            let at = read.len() as u64;
            let piece = (len - at as u32).min(4 << 20);
            read.extend(self.ask((READ, 0), (offset + at, piece), &[]));
        }
        read
    }

    /// Extents from `offset` on: length, and whether it is a hole.
    fn status(&mut self, offset: u64, len: u32, flags: u16) -> Vec<(u32, bool)> {
        let content = self.ask((STATUS, flags), (offset, len), &[]);
        let kind = |at: usize| match word(&content, at + 4) {
            0 => false,
            HOLE_ZERO => true,
            other => panic!("an extent with the flags {other:#x}"),
        };
        let each = (0..content.len()).step_by(8);
        each.map(|at| (word(&content, at), kind(at))).collect()
    }

    /// All extents of the volume, as a client puts them together.
    fn map(&mut self, bytes: u64) -> Vec<(u64, bool)> {
        let mut map: Vec<(u64, bool)> = Vec::new();
        let mut at = 0;
        while at < bytes {
            let said = self.status(at, (bytes - at) as u32, 0);
            assert!(!said.is_empty());
            for (len, is_hole) in said {
                at += u64::from(len);
                match map.last_mut().filter(|last| last.1 == is_hole) {
                    Some(last) => last.0 += u64::from(len),
                    None => map.push((len.into(), is_hole)),
                }
            }
        }
        assert_eq!(at, bytes, "nothing beyond the end");
        map
    }

    /// Whatever the map calls a hole reads as zeroes, and is none by the model.
    fn check(&mut self, model: &[u8]) {
        self.holes(model);
    }

    /// The same, and how many bytes are holes.
    fn holes(&mut self, model: &[u8]) -> u64 {
        let (mut at, mut holes) = (0, 0);
        for (len, is_hole) in self.map(model.len() as u64) {
            if is_hole {
                let read = self.read(at, len as u32);
                assert!(read.iter().all(|&byte| byte == 0), "at {at}, {len} bytes");
                let model = &model[at as usize..][..len as usize];
                assert!(model.iter().all(|&byte| byte == 0), "at {at}, {len} bytes");
                holes += len;
            }
            at += len;
        }
        holes
    }

    /// A range amid data is a hole once it was trimmed, and no more when it was written.
    fn trim_and_write(&mut self, model: &mut [u8]) {
        const KIB_64: u32 = 64 << 10;
        let range = KIB_64 as usize..4 * KIB_64 as usize;
        self.write(0, &vec![3; 5 * KIB_64 as usize]);
        model[..5 * KIB_64 as usize].fill(3);
        self.ask((TRIM, 0), (KIB_64.into(), 3 * KIB_64), &[]);
        model[range.clone()].fill(0);
        let (data, hole) = ((KIB_64, false), (3 * KIB_64, true));
        assert_eq!(self.status(0, 5 * KIB_64, 0), [data, hole, data]);
        assert!(self.holes(model) >= u64::from(3 * KIB_64));
        self.write(KIB_64.into(), &vec![4; 3 * KIB_64 as usize]);
        model[range].fill(4);
        assert_eq!(self.status(0, 5 * KIB_64, 0), [(5 * KIB_64, false)]);
        self.check(model);
    }

    /// Changes of any length, each followed by a look at the map.
    fn change_at_random(&mut self, model: &mut [u8], seed: u64) {
        let mut state = seed;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for round in 0..60_u8 {
            let len = random(96 << 10) + 1;
            let offset = random(model.len() as u64 - len);
            let range = offset as usize..(offset + len) as usize;
            match random(3) {
                0 => {
                    self.ask((ZEROES, 0), (offset, len as u32), &[]);
                    model[range].fill(0);
                }
                1 => {
                    self.ask((TRIM, 0), (offset, len as u32), &[]);
                    // A hint: what is there is known when it is read.
                    let read = self.read(offset, len as u32);
                    model[range].copy_from_slice(&read);
                }
                _ => {
                    let data = vec![round | 1; len as usize];
                    self.write(offset, &data);
                    model[range].copy_from_slice(&data);
                }
            }
            self.check(model);
        }
        assert!(self.read(0, model.len() as u32) == model);
        assert!(self.holes(model) > 0, "all of it is called data");
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Whether the file system of the tests is one of those whose holes are believed.
pub fn knows_holes(directory: &Path, test: &str) -> bool {
    let kind = rustix::fs::statfs(directory).unwrap().f_type;
    let known = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994];
    let is_known = known.contains(&i128::from(kind));
    if !is_known {
        let _ = writeln!(std::io::stderr(), "SKIP {test}: file system {kind:#x}");
    }
    is_known
}

/// Extents of a file, from SEEK_DATA and SEEK_HOLE.
fn extents_of(file: &File, from: u64, bytes: u64) -> Vec<(u64, bool)> {
    let (mut map, mut at, mut is_hole) = (Vec::new(), from, true);
    while at < bytes {
        let next = if is_hole {
            SeekFrom::Data(at)
        } else {
            SeekFrom::Hole(at)
        };
        let next = rustix::fs::seek(file, next).unwrap_or(bytes).min(bytes);
        if next > at {
            map.push((next - at, is_hole));
        }
        (at, is_hole) = (next, !is_hole);
    }
    map
}

/// An engine with an export of one path; `None`: this machine has no io_uring.
fn exported(directory: &Path, uri: &str) -> Option<Process> {
    let text = format!(
        "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"{uri}\"\n\
         [[volume.export]]\nnbd = \"unix:{}/v0.sock\"\n",
        directory.display()
    );
    std::fs::write(directory.join("b.toml"), text).unwrap();
    begun_with_v0(directory)
}

#[test]
fn map_of_a_volume_over_a_file_is_the_files() {
    const BYTES: u64 = 64 << 20;
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    if !knows_holes(directory, "map_of_a_volume_over_a_file_is_the_files") {
        return;
    }
    let file = File::create_new(directory.join("disk")).unwrap();
    file.set_len(BYTES).unwrap();
    // More extents than one answer has.
    for number in 0..40_u64 {
        file.write_all_at(&[7; 64 << 10], (1 + number) << 20)
            .unwrap();
    }
    let Some(engine) = exported(directory, &format!("file:{}/disk", directory.display())) else {
        return;
    };
    let mut client = Client::open(&directory.join("v0.sock"));
    let map = client.map(BYTES);
    assert_eq!(map, extents_of(&file, 0, BYTES));
    assert_eq!(map.len(), 81);
    assert_eq!(client.status(0, 4 << 20, REQ_ONE), [(1 << 20, true)]);
    assert_eq!(client.status(1 << 20, 4096, 0), [(4096, false)]);
    let first = [(512, false), ((1 << 20) - (64 << 10), true), (512, false)];
    let at = (1 << 20) + (64 << 10) - 512;
    assert_eq!(client.status(at, (1 << 20) - (64 << 10) + 1024, 0), first);
    // Read from the volume, not from what was asked before.
    client.write(BYTES - 4096, &[9; 4096]);
    assert_eq!(client.map(BYTES).last(), Some(&(4096, false)));
    drop(client);
    let mut client = Client::open(&directory.join("v0.sock"));
    let mut model = client.read(0, 8 << 20);
    client.ask((ZEROES, 0), (8 << 20, (BYTES - (8 << 20)) as u32), &[]);
    model.resize(BYTES as usize, 0);
    client.check(&model);
    end(engine);
}

/// Of other devices nothing is known: all of it is data, in one extent.
#[test]
fn map_without_knowledge_is_one_extent_of_data() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some(engine) = exported(directory, "mem:8GiB") else {
        return;
    };
    let mut client = Client::open(&directory.join("v0.sock"));
    let most = u32::MAX - 511;
    assert_eq!(client.status(4096, most, 0), [(most, false)]);
    assert_eq!(client.status(0, most, REQ_ONE), [(most, false)]);
    end(engine);
}

/// Holes read as zeroes on such legs, so a trim goes to all of them.
#[test]
fn mirror_of_files_offers_trim_and_fast_zeroes() {
    const SEND_TRIM: u16 = 1 << 5;
    const SEND_FAST_ZERO: u16 = 1 << 11;
    let Some(place) = Place::new() else {
        return;
    };
    if !knows_holes(
        place.0.path(),
        "mirror_of_files_offers_trim_and_fast_zeroes",
    ) {
        return;
    }
    let engine = place.start();
    place.until_in_sync();
    let mut stream = UnixStream::connect(place.path("v0.sock")).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let flags = nbd::choose(&mut stream, "v0");
    assert!(
        flags & SEND_TRIM != 0 && flags & SEND_FAST_ZERO != 0,
        "{flags:#b}"
    );
    let mut client = Client::open(&place.path("v0.sock"));
    client.write(0, &vec![7; 4 << 20]);
    let allocated = |leg: &str| std::fs::metadata(place.path(leg)).unwrap().blocks() * 512;
    let before = ["a", "b"].map(allocated);
    client.ask((TRIM, 0), (1 << 20, 2 << 20), &[]);
    let after = ["a", "b"].map(allocated);
    for (before, after) in before.into_iter().zip(after) {
        // The mirror's own records may get blocks meanwhile.
        assert!(
            before + (64 << 10) >= after + (2 << 20),
            "{before} bytes, then {after}"
        );
    }
    let trimmed = [(1 << 20, false), (2 << 20, true), (1 << 20, false)];
    assert_eq!(client.status(0, 4 << 20, 0), trimmed);
    assert!(client.read(1 << 20, 2 << 20).iter().all(|&byte| byte == 0));
    assert_eq!(place.legs(), ["in-sync", "in-sync"]);
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

#[test]
fn hole_of_a_mirror_is_one_on_all_legs_in_sync() {
    let Some(place) = Place::new() else {
        return;
    };
    if !knows_holes(
        place.0.path(),
        "hole_of_a_mirror_is_one_on_all_legs_in_sync",
    ) {
        return;
    }
    // The creation of the mirror has overwritten the end of the legs.
    let bytes = (LEG_BYTES - DATA_AT) / 2;
    let engine = place.start();
    place.until_in_sync();
    let mut client = Client::open(&place.path("v0.sock"));
    assert_eq!(client.map(bytes), [(bytes, true)]);
    client.write(1 << 20, &[5; 4096]);
    let rest = bytes - (1 << 20) - 4096;
    let want = [(1 << 20, true), (4096, false), (rest, true)];
    assert_eq!(client.map(bytes), want);
    // A leg that lacks what was written since has a hole there: it is not asked.
    place.told(&["mirror", "fail", "v0", "1"]);
    wait_until(|| (place.legs() == ["in-sync", "stale"]).then_some(()));
    client.write(2 << 20, &[6; 4096]);
    client.ask((ZEROES, 0), (1 << 20, 4096), &[]);
    let extents = client.status(2 << 20, 4096, 0);
    assert_eq!(extents, [(4096, false)]);
    let mut model = vec![0; bytes as usize];
    model[2 << 20..(2 << 20) + 4096].fill(6);
    client.check(&model);
    place.told(&["mirror", "restore", "v0", "1"]);
    // Also while it is being rebuilt.
    client.check(&model);
    place.until_in_sync();
    assert!(client.holes(&model) > bytes / 2, "most was never written");
    client.trim_and_write(&mut model);
    client.change_at_random(&mut model, 0x5eed);
    client.trim_and_write(&mut model);
    assert_eq!(place.legs(), ["in-sync", "in-sync"]);
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

/// Of the one nothing is known, so the other's holes say nothing.
#[test]
fn mirror_of_a_file_and_memory_is_all_data() {
    let Some(place) = Place::new() else {
        return;
    };
    let bytes = (LEG_BYTES - DATA_AT) / 2;
    let engine = place.start();
    place.until_in_sync();
    let mut client = Client::open(&place.path("v0.sock"));
    client.write(1 << 20, &[5; 4096]);
    place.told(&["mirror", "remove", "v0", "1"]);
    let leg = format!("mem:{LEG_BYTES}");
    place.told(&["mirror", "add", "v0", &leg, "--wait"]);
    client.write(2 << 20, &[6; 4096]);
    assert_eq!(client.map(bytes), [(bytes, false)]);
    let mut model = vec![0; bytes as usize];
    model[1 << 20..(1 << 20) + 4096].fill(5);
    model[2 << 20..(2 << 20) + 4096].fill(6);
    assert!(client.read(0, bytes as u32) == model);
    end(engine);
}

/// A target with two ports over one file of a directory: it, and the URIs of its ports.
fn target_of(directory: &Path, name: &str) -> Option<(Process, Vec<String>)> {
    let text = format!(
        "nqn = \"nqn.2026-01.org.braid:{name}\"\ncqt = \"0\"\n[[namespace]]\n\
         backend = \"file:{}\"\nblock_size = 512\n[[port]]\nlisten = \"127.0.0.1:0\"\n\
         [[port]]\nlisten = \"127.0.0.1:0\"\n",
        directory.join(name).display()
    );
    let [config, socket] = ["toml", "ctl"].map(|kind| directory.join(format!("{name}.{kind}")));
    std::fs::write(&config, text).unwrap();
    let [config, socket] = [&config, &socket].map(|path| path.to_str().unwrap());
    let mut target = Process::start(directory, &["target", "-c", config, "--socket", socket]);
    let mut uris = Vec::new();
    for port in ["port 1: ", "port 2: "] {
        let Some(line) = target.says(port) else {
            target.notes("io_uring");
            no_io_uring::skip(&target.seen);
            return None;
        };
        uris.push(line.split_whitespace().nth(2).unwrap().to_owned());
    }
    Some((target, uris))
}

/// Volumes over NVMe/TCP, one on each of two cores: their controllers are asked, by core 0. Where
/// an entry of a list ends is not certain to a block, which is data then.
#[test]
fn map_of_volumes_over_namespaces_is_their_files() {
    const BYTES: u64 = 64 << 20;
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    if !knows_holes(directory, "map_of_volumes_over_namespaces_is_their_files") {
        return;
    }
    let mut text = "cores = 2\n".to_owned();
    let mut targets = Vec::new();
    for name in ["v0", "v1"] {
        let file = File::create_new(directory.join(name)).unwrap();
        file.set_len(BYTES).unwrap();
        for number in 0..40_u64 {
            file.write_all_at(&[7; 64 << 10], (1 + number) << 20)
                .unwrap();
        }
        let Some((target, uris)) = target_of(directory, name) else {
            return;
        };
        targets.push(target);
        text += &format!("[[volume]]\nname = \"{name}\"\n");
        for uri in uris {
            text += &format!("[[volume.path]]\nuri = \"{uri}\"\n");
        }
        let socket = directory.join(name).with_extension("sock");
        text += &format!("[[volume.export]]\nnbd = \"unix:{}\"\n", socket.display());
    }
    std::fs::write(directory.join("b.toml"), text).unwrap();
    let mut engine = begun(directory);
    // In whichever order.
    engine.says(": ready").unwrap();
    engine.says(": ready").unwrap();
    let block = 512;
    let (data, hole) = (
        ((64 << 10) + block, false),
        ((1 << 20) - (64 << 10) - block, true),
    );
    let mut want = vec![(1 << 20, true)];
    for _ in 0..39 {
        want.extend([data, hole]);
    }
    want.extend([data, (BYTES - (40 << 20) - (64 << 10) - block, true)]);
    for name in [b"v0", b"v1"] {
        let socket = directory.join(std::str::from_utf8(name).unwrap());
        let mut client = Client::open_named(&socket.with_extension("sock"), name);
        assert_eq!(client.map(BYTES), want);
        let at = (1 << 20) + (64 << 10) - 512;
        let said = client.status(at, 1 << 20, 0);
        assert_eq!(
            said[..2],
            [(1024, false), ((1 << 20) - (64 << 10) - 512, true)]
        );
        // From the volume as it is now.
        client.write(BYTES - 4096, &[9; 4096]);
        assert_eq!(client.map(BYTES).last(), Some(&(4096, false)));
        let mut model = client.read(0, 8 << 20);
        client.ask((ZEROES, 0), (8 << 20, (BYTES - (8 << 20)) as u32), &[]);
        model.resize(BYTES as usize, 0);
        assert!(client.holes(&model) > BYTES / 2);
    }
    // One path is enough.
    let words = ["path", "fail", "v0", "1", "--socket"];
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_braid"));
    let told = command.args(words).arg(directory.join("c.sock")).output();
    assert!(told.as_ref().unwrap().status.success(), "{told:?}");
    let mut client = Client::open(&directory.join("v0.sock"));
    assert!(client.map(BYTES).iter().any(|it| it.1));
    // A target that stands still: the answer comes all the same, and says nothing.
    targets[0].freeze();
    assert_eq!(client.status(0, 1 << 20, 0), [(1 << 20, false)]);
    targets[0].signal(rustix::process::Signal::CONT);
    end(engine);
}

/// Legs behind targets, and one beside a file: a hole is one where all say so.
#[test]
fn hole_of_a_mirror_over_namespaces_is_one_on_all_legs() {
    at_once(&[
        || hole_over_namespaces(&["a", "b"]),
        || hole_over_namespaces(&["b"]),
    ]);
}

fn hole_over_namespaces(far: &[&str]) {
    let Some(place) = Place::new() else {
        return;
    };
    if !knows_holes(
        place.0.path(),
        "hole_of_a_mirror_over_namespaces_is_one_on_all_legs",
    ) {
        return;
    }
    let mut targets = Vec::new();
    let mut legs = String::new();
    for leg in ["a", "b"] {
        let uri = if far.contains(&leg) {
            let (target, mut uris) = target_of(place.0.path(), leg).unwrap();
            targets.push(target);
            uris.remove(0)
        } else {
            place.leg(leg)
        };
        legs += &format!("[[volume.leg]]\nuri = \"{uri}\"\n");
    }
    let text = format!(
        "[[volume]]\nname = \"v0\"\nkind = \"mirror\"\nquiesce_time = \"100ms\"\n{legs}\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        place.path("v0.sock").display()
    );
    std::fs::write(place.path("b.toml"), text).unwrap();
    let bytes = (LEG_BYTES - DATA_AT) / 2;
    let engine = place.start();
    place.until_in_sync();
    let mut client = Client::open(&place.path("v0.sock"));
    let mut model = vec![0; bytes as usize];
    // Not before it is certain that nothing of an owner before this one comes.
    wait_until(|| (client.map(bytes) == [(bytes, true)]).then_some(()));
    client.write(1 << 20, &[5; 4096]);
    model[1 << 20..(1 << 20) + 4096].fill(5);
    assert!(client.holes(&model) > bytes / 2);
    client.change_at_random(&mut model, 0x5eed);
    assert_eq!(place.legs(), ["in-sync", "in-sync"]);
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}
