//! The server's session and the client's, wired to each other: each must understand the other in
//! every combination of options and for any split of the stream.
mod world;

use nbd::client::{CommandError, Completed, Error};
use nbd::server::CloseReason;
use nbd::{Errno, Features, Kind, Request};
use std::collections::BTreeMap;
use world::{BAD_BYTE, BLOCK, MS, Options, Rng, SIZE, World, export};

fn all_options() -> Vec<Options> {
    let mut all = Vec::new();
    for (structured, block_status) in [(false, false), (false, true), (true, false), (true, true)] {
        for export in ["disk", ""] {
            for (client_piece, server_piece) in [(4096, 4096), (32 << 10, 8 << 10), (4096, 1 << 20)]
            {
                all.push(Options {
                    structured,
                    block_status,
                    export,
                    client_piece,
                    server_piece,
                    ..Options::default()
                });
            }
        }
    }
    all
}

#[test]
fn client_and_server_agree_field_by_field() {
    for (seed, options) in all_options().iter().enumerate() {
        for read_only in [false, true] {
            let mut offered = export();
            offered.features.read_only = read_only;
            let mut world = World::open(offered.clone(), options, seed as u64);
            world.run_until(|world| world.opened.is_some());
            let (opened, ready) = (world.opened.unwrap(), world.ready.unwrap());
            let status = options.structured && options.block_status;
            assert_eq!((opened.export, ready.size), (42, offered.size));
            assert!(opened.negotiated_block_size);
            assert_eq!(ready.block_sizes, Some(offered.block_sizes));
            assert_eq!(opened.structured, options.structured);
            assert_eq!(ready.structured, options.structured);
            assert_eq!(opened.block_status, status);
            let want = Features {
                block_status: status,
                read_only,
                fua: !read_only,
                trim: !read_only,
                write_zeroes: !read_only,
                fast_zero: !read_only,
                ..offered.features
            };
            assert_eq!(ready.features, want);
        }
    }
}

/// The contents that the disk must have, and the ranges that requests in flight may be changing.
struct Model {
    disk: Vec<u8>,
    in_flight: BTreeMap<u32, Request>,
    next: u32,
    done: [u32; 7],
}

impl Model {
    fn new() -> Self {
        Self {
            disk: vec![0; SIZE],
            in_flight: BTreeMap::new(),
            next: 0,
            done: [0; 7],
        }
    }

    fn range(request: &Request) -> std::ops::Range<usize> {
        let start = request.offset as usize;
        start..start + request.length as usize
    }

    /// A range that no request in flight touches.
    fn pick(&self, rng: &mut Rng) -> Option<(u64, u32)> {
        // Often one block or 4 KiB, sometimes the largest request.
        let blocks = match rng.below(4) {
            0 => 1,
            1 => 8,
            2 => 1 + rng.below(64),
            _ => 1 + rng.below(256),
        };
        let start = rng.below(SIZE / BLOCK - blocks + 1) * BLOCK;
        let end = start + blocks * BLOCK;
        let busy = |request: &Request| {
            let range = Self::range(request);
            start < range.end && range.start < end
        };
        let free = !self.in_flight.values().any(busy);
        free.then_some((start as u64, (blocks * BLOCK) as u32))
    }

    /// Submits one request, if there is room for it and its range.
    fn submit(&mut self, world: &mut World) {
        let Some((offset, length)) = self.pick(&mut world.rng) else {
            return;
        };
        let features = world.ready.unwrap().features;
        let kind = match world.rng.below(10) {
            0..=3 => Kind::Write,
            4..=6 => Kind::Read,
            7 => Kind::WriteZeroes,
            8 if features.block_status => Kind::BlockStatus {
                one: world.rng.below(2) == 0,
            },
            8 => Kind::Trim,
            _ => Kind::Flush,
        };
        let token = self.next;
        let mut request = Request::new(token, kind, offset, length);
        if kind == Kind::Flush {
            request = Request::flush(token);
        }
        request.fua = kind.is_change() && world.rng.below(4) == 0;
        request.fast_zero = kind == Kind::WriteZeroes && world.rng.below(4) == 0;
        let stamp = |i: u32| (i ^ token.wrapping_mul(31) ^ (i >> 8)) as u8;
        let buffer = match kind {
            Kind::Write => (0..length).map(stamp).collect(),
            _ => vec![0xdd; request.length as usize],
        };
        if world.submit(&request, buffer) {
            self.in_flight.insert(token, request);
            self.next += 1;
        }
    }

    /// Checks what has ended.
    fn check(&mut self, world: &mut World) {
        for end in std::mem::take(&mut world.completed) {
            let request = self.in_flight.remove(&end.token).expect("ended twice");
            let buffer = world.client_buffers.remove(&end.token).unwrap();
            let range = Self::range(&request);
            let bad = range.contains(&(BAD_BYTE as usize));
            let want = match request.kind {
                Kind::Read if bad => Err(CommandError::Server(Errno::Io)),
                Kind::WriteZeroes if request.fast_zero => Err(CommandError::Server(Errno::NotSup)),
                _ => Ok(()),
            };
            assert_eq!(end.result, want, "{request:?}");
            self.done[usize::from(kind_number(request.kind))] += 1;
            match request.kind {
                Kind::Write => self.disk[range].copy_from_slice(&buffer),
                Kind::Read if !bad => assert_eq!(buffer, self.disk[range], "{request:?}"),
                Kind::WriteZeroes if !request.fast_zero => self.disk[range].fill(0),
                Kind::Trim => self.disk[range].fill(0),
                _ => {}
            }
        }
    }
}

fn kind_number(kind: Kind) -> u8 {
    match kind {
        Kind::Read => 0,
        Kind::Write => 1,
        Kind::Flush => 2,
        Kind::Trim => 3,
        Kind::Cache => 4,
        Kind::WriteZeroes => 5,
        Kind::BlockStatus { .. } => 6,
    }
}

/// Submits `count` requests and waits for the last completion.
fn load(world: &mut World, model: &mut Model, count: u32) {
    while model.next < count {
        for _ in 0..3 {
            model.submit(world);
        }
        let steps = world.rng.below(60);
        world.run_for(steps);
        model.check(world);
    }
    while !model.in_flight.is_empty() {
        world.run_until(|world| !world.completed.is_empty());
        model.check(world);
    }
}

#[test]
fn contents_survive_every_combination_of_options_and_splits() {
    let mut done = [0; 7];
    for (seed, options) in all_options().iter().enumerate() {
        let mut world = World::open(export(), options, 1000 + seed as u64);
        let mut model = Model::new();
        load(&mut world, &mut model, 120);
        assert_eq!(world.disk, model.disk);
        done.iter_mut()
            .zip(model.done)
            .for_each(|(sum, n)| *sum += n);
        world.client.disconnect();
        world.run_until(|world| !world.server_closed.is_empty());
        assert_eq!(world.server_closed, [CloseReason::Finished]);
        assert_eq!(world.client_closed, Some(None));
        world.cut();
        world.finish();
    }
    let [read, write, flush, trim, _, zeroes, status] = done;
    let least = [read, write, flush, trim, zeroes, status].into_iter().min();
    assert!(least > Some(40), "{done:?}");
}

#[test]
fn depths_of_one_and_of_many_and_either_side_the_narrower() {
    for (seed, (client, server)) in [(1, 1), (1, 64), (64, 1), (64, 3), (3, 64)]
        .iter()
        .enumerate()
    {
        let options = Options {
            client_requests: *client,
            server_requests: *server,
            ..Options::default()
        };
        let mut world = World::open(export(), &options, 2000 + seed as u64);
        let mut model = Model::new();
        load(&mut world, &mut model, 150);
        assert_eq!(world.disk, model.disk);
    }
}

#[test]
fn a_cut_at_any_moment_ends_every_request_once_and_frees_every_buffer() {
    for seed in 0..60 {
        let options = Options {
            structured: seed % 2 == 0,
            ..Options::default()
        };
        let mut world = World::new(export(), &options, 3000 + seed);
        let mut model = Model::new();
        for _ in 0..world.rng.below(400) {
            if world.ready.is_some() {
                model.submit(&mut world);
            }
            world.run_for(1);
        }
        let answered = world.completed.len();
        world.cut();
        let lost = |end: &Completed| end.result == Err(CommandError::Lost);
        assert!(world.completed[answered..].iter().all(lost));
        assert_eq!(world.client_closed, Some(Some(Error::Closed)));
        world.finish();
        let mut tokens: Vec<u32> = world.completed.iter().map(|end| end.token).collect();
        tokens.sort();
        assert!(tokens.into_iter().eq(0..model.next));
    }
}

#[test]
fn a_server_that_shuts_down_under_load_answers_everything() {
    for seed in 0..20 {
        let mut world = World::open(export(), &Options::default(), 4000 + seed);
        let mut model = Model::new();
        for _ in 0..20 {
            model.submit(&mut world);
            world.run_for(10);
        }
        world.server.shutdown(10_000 * MS, world.now);
        world.run_until(|world| !world.server_closed.is_empty());
        assert_eq!(world.server_closed, [CloseReason::Shutdown]);
        // Queued replies are sent; bytes that the client had not sent are lost.
        world.run_for(3000);
        world.cut();
        world.finish();
        for end in &world.completed {
            let said = [Errno::Shutdown, Errno::Io, Errno::NotSup].map(CommandError::Server);
            let expected = |error| error == CommandError::Lost || said.contains(&error);
            assert!(end.result.err().is_none_or(expected), "{end:?}");
        }
        assert_eq!(world.completed.len() as u32, model.next);
    }
}

#[test]
fn an_export_that_does_not_exist_is_refused_and_both_part_in_peace() {
    for structured in [false, true] {
        let options = Options {
            export: "disc",
            structured,
            ..Options::default()
        };
        let mut world = World::new(export(), &options, 5);
        world.run_until(|world| !world.server_closed.is_empty());
        let refused = Error::Refused(nbd::wire::rep::ERR_UNKNOWN);
        assert_eq!(world.client_closed, Some(Some(refused)));
        assert_eq!(world.server_closed, [CloseReason::Finished]);
        assert_eq!(world.opened, None);
    }
}

#[test]
fn block_status_tells_what_was_written() {
    let mut world = World::open(export(), &Options::default(), 6);
    let write = Request::new(1, Kind::Write, 1024, 1024);
    assert!(world.submit(&write, vec![7; 1024]));
    world.run_until(|world| world.completed.len() == 1);
    let status = Request::new(2, Kind::BlockStatus { one: false }, 0, 4096);
    assert!(world.submit(&status, vec![]));
    world.run_until(|world| world.completed.len() == 2);
    let runs = world.extents.iter().map(|it| (it.length, it.flags));
    let runs: Vec<(u32, u32)> = runs.collect();
    assert_eq!(
        runs,
        [(1024, 3), (1024, 0), (2048, 3)],
        "neighbours are one"
    );
    let one = Request::new(3, Kind::BlockStatus { one: true }, 1024, 4096);
    assert!(world.submit(&one, vec![]));
    world.run_until(|world| world.completed.len() == 3);
    assert_eq!(world.extents.len(), 1);
    assert_eq!((world.extents[0].length, world.extents[0].flags), (512, 0));
}
