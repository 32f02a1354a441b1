//! Clients that ask for much, or take their time: they wait themselves, nobody beside them does.
use crate::common::{LONG, Stage, finish, pattern, read, until, write};
use broker::local::LocalNamespace;
use broker::{Grant, NamespaceRight, Trust};
use cores::local::LocalServer;
use queue::protocol::{Answer, Operation, Request};
use queue::{Kind, Queue, Range, Status};
use runtime::{Device, MemoryDevice};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use sys::passing;

/// Keeps the thread of all queues busy until `over`.
fn be_busy(mut queue: Queue, over: &AtomicBool) {
    let piece = queue.data().unwrap().piece(0, 1 << 20);
    while !over.load(Ordering::Acquire) {
        while queue.read(5, 0, 256, &[piece], 0).is_ok() {}
        queue.submit().unwrap();
        queue.reap(256, drop).unwrap();
    }
}

#[test]
fn memory_is_known_before_its_address_is_told_however_busy_the_thread() {
    let stage = Stage::plain();
    let over = AtomicBool::new(false);
    let busy = [(); 2].map(|()| stage.open(Kind::UserPoll, 512).unwrap());
    let mut queue = stage.poll();
    write(&mut queue, 1, 0, 0, &pattern(1, 4096)).unwrap();
    std::thread::scope(|scope| {
        for queue in busy {
            scope.spawn(|| be_busy(queue, &over));
        }
        let mut wrong = 0;
        for round in 0..100 {
            let own = queue.register(4096).unwrap();
            own.write(0, &[round; 4096]);
            queue.read(1, 0, 1, &[own.piece(0, 4096)], 0).unwrap();
            let done = finish(&mut queue);
            let mut bytes = vec![0; 4096];
            own.read(0, &mut bytes);
            wrong += u32::from(!done.status.is_success() || bytes != pattern(1, 4096));
            queue.unregister(&own).unwrap();
            // The address is free: commands that name it are refused from now on.
            queue.read(1, 0, 1, &[own.piece(0, 4096)], 0).unwrap();
            wrong += u32::from(finish(&mut queue).status.is_success());
        }
        over.store(true, Ordering::Release);
        assert_eq!(wrong, 0);
    });
}

/// A socket whose last close waits for a peer that reads nothing; and that peer.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    one.set_nonblocking(true).unwrap();
    while (&one).write(&[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&one, Some(2 * LONG)).unwrap();
    (one, peer)
}

#[test]
fn a_descriptor_whose_close_waits_holds_nobody_up() {
    let stage = Stage::plain();
    let mut queue = stage.poll();
    let mut peers = Vec::new();
    let register = Request::new(Operation::Register, 0, 0, 4096, 0).emit();
    // With a request, with a part of one, and more than anybody takes.
    for (bytes, copies) in [(32, 1), (7, 1), (32, 40)] {
        let (lingers, peer) = lingering();
        peers.push(peer);
        let socket = UnixStream::connect(stage.path()).unwrap();
        let all = vec![lingers.as_fd(); copies.min(passing::DESCRIPTORS_MAX)];
        // More of them in a row: they are waiting in the socket when it is closed.
        for _ in 0..copies.div_ceil(all.len()) {
            // The broker ends a connection that sends too many, at any moment.
            let _ = passing::send(&socket, &register[..bytes], &all, true);
        }
        // Where the broker has ended the connection before, ours is the last close, and waits.
        std::thread::spawn(move || drop((lingers, socket)));
    }
    for _ in 0..20 {
        assert!(stage.queues().contains("\"queues\""));
    }
    assert!(read(&mut queue, 1, 0, 1).is_ok());
    drop((queue, stage));
    // No thread has read anything: the one that closes them waits yet.
    drop(peers);
}

#[test]
fn many_requests_of_one_client_keep_no_other_waiting() {
    let stage = Stage::plain();
    let over = AtomicBool::new(false);
    let flood = UnixStream::connect(stage.path()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let requests: Vec<_> = std::iter::repeat_n(Operation::List, 1000)
                .flat_map(|list| Request::new(list, 0, 0, 0, 0).emit())
                .collect();
            while !over.load(Ordering::Acquire) {
                if (&flood).write_all(&requests).is_err() {
                    return;
                }
            }
        });
        scope.spawn(|| while matches!((&flood).read(&mut [0; 65_536]), Ok(1..)) {});
        for _ in 0..100 {
            let mut queue = stage.open(Kind::UserPoll, 16).unwrap();
            assert!(queue.namespace(1).is_ok());
            drop(queue);
            stage.until_free();
        }
        over.store(true, Ordering::Release);
        flood.shutdown(std::net::Shutdown::Both).unwrap();
    });
}

#[test]
fn who_connects_and_says_nothing_makes_room_for_others() {
    let stage = Stage::new(|config| {
        (config.user_poll, config.user_irq) = (1, 0);
        config.patience_ns = 200_000_000;
    });
    let mut queue = stage.poll();
    let silent: Vec<_> = (0..30)
        .map(|_| UnixStream::connect(stage.path()).unwrap())
        .collect();
    // Some say a little.
    (&silent[0]).write_all(&[1; 7]).unwrap();
    until("there is room, though nobody has left", || {
        queue::list(&stage.path()).is_ok()
    });
    for mut one in silent {
        // The end, or that it was one too many, and then the end.
        let mut said = Vec::new();
        let _ = one.read_to_end(&mut said);
        let answer = said.first_chunk().map(Answer::parse);
        assert!(answer.map_or(said.is_empty(), |answer| answer.turns_away()));
    }
    // A client with a queue may be silent.
    assert!(queue.is_alive().is_ok());
    assert!(queue.namespace(1).is_ok());
}

#[test]
fn all_memory_of_a_client_is_bounded_not_each_piece() {
    let stage = Stage::new(|config| config.memory_max = 4 << 20);
    let mut queue = stage.poll();
    let first = queue.register(2 << 20).unwrap();
    let _second = queue.register(1 << 20).unwrap();
    let refused = queue.register(4096).unwrap_err().to_string();
    assert!(refused.contains("4194304 bytes at most"), "{refused}");
    // Memory that was released counts no more.
    queue.unregister(&first).unwrap();
    queue.register(2 << 20).unwrap();
    assert!(queue.register(4096).is_err());
    // Another queue has its own.
    stage.poll().register(2 << 20).unwrap();
}

#[test]
fn all_memory_of_a_user_is_bounded_over_all_queues() {
    let stage = Stage::new(|config| {
        config.rights.others = Some(Grant {
            memory_max: 3 << 20,
            ..crate::common::EVERYTHING
        });
    });
    let mut queues = [(); 2].map(|()| stage.poll());
    queues[0].register(1 << 20).unwrap();
    let refused = queues[1].register(1 << 20).unwrap_err().to_string();
    assert!(refused.contains("all its queues"), "{refused}");
    let refused = stage.open(Kind::UserPoll, 16).unwrap_err().to_string();
    assert!(refused.contains("all its queues"), "{refused}");
    // It comes back with the queue that had it.
    drop(queues);
    until("memory came back", || {
        stage.open(Kind::UserPoll, 16).is_ok()
    });
}

#[test]
fn two_rights_to_one_namespace_are_refused() {
    let right = NamespaceRight {
        nsid: 1,
        first: 0,
        end: 1,
        read_only: false,
    };
    let directory = tempfile::tempdir().unwrap();
    let config = broker::Config {
        listener: std::os::unix::net::UnixListener::bind(directory.path().join("q")).unwrap(),
        namespaces: Vec::new(),
        identity: None,
        user_poll: 1,
        user_irq: 0,
        memory_max: 4096,
        patience_ns: 1,
        spin_ns: 0,
        trust: Trust::Mediated,
        rights: broker::Rights {
            users: vec![(
                7,
                Grant {
                    namespaces: Some(vec![right; 2]),
                    ..crate::common::EVERYTHING
                },
            )],
            others: None,
        },
    };
    let namespace = LocalNamespace {
        device: Device::Null,
        block_shift: 12,
        blocks: 1,
        read_only: false,
    };
    let refused = LocalServer::start(config, &[namespace], &[None], drop)
        .err()
        .unwrap();
    assert!(refused.contains("two rights to namespace 1"), "{refused}");
}

#[test]
fn a_range_is_a_right_of_trusted_clients_too() {
    let right = |first, end| NamespaceRight {
        nsid: 1,
        first,
        end,
        read_only: false,
    };
    let stage = Stage::new(|config| {
        config.trust = Trust::Trusted;
        config.rights.others = Some(Grant {
            namespaces: Some(vec![right(10, 20)]),
            ..crate::common::EVERYTHING
        });
    });
    let mut queue = stage.poll();
    for (slba, blocks, well) in [(10, 10, true), (9, 1, false), (19, 2, false)] {
        let done = read(&mut queue, 1, slba, blocks);
        assert_eq!(done.is_ok(), well, "{slba} {blocks}");
        assert!(done.is_ok() || done.unwrap_err().is(Status::ACCESS_DENIED));
    }
    queue
        .deallocate(
            1,
            &[Range {
                slba: 9,
                blocks: 2,
                attributes: 0,
            }],
            0,
        )
        .unwrap();
    assert!(finish(&mut queue).status.is(Status::ACCESS_DENIED));
}

#[test]
fn a_deallocate_without_end_keeps_no_other_queue_waiting() {
    let stage = Stage::new(|config| {
        let device = Device::Memory(Arc::new(MemoryDevice::new(1 << 40).unwrap()));
        config.namespaces.push(LocalNamespace {
            device,
            blocks: 1 << 28,
            ..config.namespaces[0].clone()
        });
    });
    let (mut greedy, mut other) = (stage.poll(), stage.poll());
    let all = Range {
        slba: 0,
        blocks: 1 << 28,
        attributes: 0,
    };
    greedy.deallocate(6, &[all; 256], 0).unwrap();
    greedy.submit().unwrap();
    for round in 0..100 {
        let data = pattern(round, 4096);
        write(&mut other, 6, round, 0, &data).unwrap();
        assert!(read(&mut other, 1, 0, 1).is_ok());
    }
    assert_eq!(greedy.poll().unwrap(), None, "256 TiB in no time");
    // The rest of it goes with its client.
    drop(greedy);
    until("its place is free", || {
        stage.queues().matches("\"number\"").count() == 1
    });
    // A write that ends has been done.
    write(&mut other, 6, 77, 0, &[7; 4096]).unwrap();
    let some = Range {
        slba: 77,
        blocks: 1000,
        attributes: 0,
    };
    other.deallocate(6, &[some], 0).unwrap();
    assert!(finish(&mut other).status.is_success());
    assert!(read(&mut other, 6, 77, 1).unwrap() == [0; 4096]);
    write(&mut other, 6, 60_000, 0, &[7; 4096]).unwrap();
    other.write_zeroes((6, false), 0, 65_536, 0).unwrap();
    assert!(finish(&mut other).status.is_success());
    assert!(read(&mut other, 6, 60_000, 1).unwrap() == [0; 4096]);
}

/// So that no access of the broker has to allocate a page.
#[test]
fn registered_memory_is_allocated_at_once() {
    let stage = Stage::plain();
    let mut queue = stage.poll();
    let own = queue.register(3 << 20).unwrap();
    let sparse = sys::memory_file("sparse", 64 << 10).unwrap();
    let given = queue.register_file(sparse, 64 << 10).unwrap();
    for region in [queue.data().unwrap(), &own, &given] {
        let allocated = rustix::fs::fstat(region.file()).unwrap().st_blocks * 512;
        assert_eq!(allocated, region.len() as i64);
    }
}
