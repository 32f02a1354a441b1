//! Lists that turn from good to bad and back while commands that use them run.
use crate::common::{Stage, finish, pattern, read, until};
use queue::layout::region_address;
use queue::{Kind, Queue, Region, Status};
use std::sync::atomic::{AtomicBool, Ordering};
use sys::Shared;

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Pages of a list that are in the client's memory now and outside of it then.
fn turn_coats(lists: &Region, own: u64, over: &AtomicBool) {
    let outside = [
        own + GUARDED as u64,
        own - 4096,
        region_address(1) + (1 << 20),
        region_address(15),
        0,
        !4095,
    ];
    let mut random = random(3);
    while !over.load(Ordering::Relaxed) {
        let n = random() as usize % 15;
        let (prp, sgl) = (8 * n, 2048 + 16 * n);
        let bad = outside[random() as usize % outside.len()];
        let own = own + 4096 * (n as u64 + 1);
        for address in [bad, own] {
            lists.write(prp, &address.to_le_bytes());
            lists.write(sgl, &address.to_le_bytes());
            // For a while.
            for _ in 0..random() % 200 {
                std::hint::spin_loop();
            }
        }
    }
}

/// Registered bytes of a file; as many behind them aren't.
const GUARDED: usize = 1 << 16;

/// Lists of the client's own pages: of PRPs, and an SGL.
fn good(lists: &Region, own: u64) {
    for n in 0..16 {
        let address = (own + 4096 * n).to_le_bytes();
        let at = 2048 + 16 * n as usize;
        lists.write(at, &address);
        lists.write(at + 8, &4096_u64.to_le_bytes());
        lists.write(8 * n as usize, &(own + 4096 * (n + 1)).to_le_bytes());
    }
}

/// Writes what is in the client's pages, so that what is read is known, whichever command is the
/// first that is done.
fn write_both(queue: &mut Queue, own: u64, lists: &Region) {
    for nsid in [1, 3] {
        let entry = [1 | nsid << 32, 0, 0, own, lists.address(), 0, 15, 0];
        queue.raw(&entry, 0).unwrap();
        assert!(finish(queue).status.is_success());
    }
}

#[test]
fn a_list_that_leads_outside_now_and_then_moves_nothing_but_registered_memory() {
    let stage = Stage::plain();
    let (bystander, theirs) = (stage.poll(), pattern(77, 1 << 20));
    bystander.data().unwrap().write(0, &theirs);
    let mut queue = stage.open(Kind::UserPoll, 8).unwrap();
    queue.data().unwrap().write(0, &[0x33; 1 << 20]);
    let file = sys::memory_file("half", 2 * GUARDED as u64).unwrap();
    let whole = Shared::map(&file, 2 * GUARDED).unwrap();
    whole.write(0, &[0xa5; GUARDED]);
    whole.write(GUARDED, &[0x5a; GUARDED]);
    let own = queue.register_file(file, GUARDED as u64).unwrap();
    let lists = queue.register(4096).unwrap();
    good(&lists, own.address());
    write_both(&mut queue, own.address(), &lists);
    let over = AtomicBool::new(false);
    let (mut well, mut refused, mut round) = (0, 0, 0_u64);
    std::thread::scope(|scope| {
        scope.spawn(|| turn_coats(&lists, own.address(), &over));
        until("lists of both kinds were read", || {
            let (opcode, nsid) = ([1, 2][round as usize % 2], [1, 3][round as usize / 2 % 2]);
            let (psdt, first, second) = match round / 4 % 2 {
                0 => (0, own.address(), lists.address()),
                _ => (1, lists.address() + 2048, 256 | 0x30 << 56),
            };
            let entry = [
                opcode | psdt << 14 | nsid << 32,
                0,
                0,
                first,
                second,
                0,
                15,
                0,
            ];
            queue.raw(&entry, 0).unwrap();
            match finish(&mut queue).status {
                status if status.is_success() => well += 1,
                status => {
                    assert!(status.is(Status::DATA_TRANSFER_ERROR), "{status}");
                    refused += 1;
                }
            }
            round += 1;
            round >= 4000 && well >= 50 && refused >= 50
        });
        over.store(true, Ordering::Relaxed);
    });
    println!("{round} commands, {well} well");
    let all = |memory: &Shared, at: usize, wanted: &[u8]| {
        let mut bytes = vec![0; wanted.len()];
        memory.read(at, &mut bytes);
        assert!(
            bytes == wanted,
            "bytes of another's memory, or another's bytes"
        );
    };
    // Nothing came from elsewhere, nothing went elsewhere.
    all(&whole, 0, &[0xa5; GUARDED]);
    all(&whole, GUARDED, &[0x5a; GUARDED]);
    let mut bytes = vec![0; 1 << 20];
    bystander.data().unwrap().read(0, &mut bytes);
    assert!(bytes == theirs);
    queue.data().unwrap().read(0, &mut bytes);
    assert!(bytes == [0x33; 1 << 20]);
    for nsid in [1, 3] {
        assert!(read(&mut queue, nsid, 0, 16).unwrap() == [0xa5; GUARDED]);
    }
}
