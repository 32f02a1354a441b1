//! A connection's life: connected, refused, closed in every way.
use crate::recorder::{Command, Event, Options, Recording};
use engine::machine::{Closed, ConnId, Output, Send, Span};
use runtime::{Kept, PeerLimit};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, TryRecvError};

const C0: ConnId = ConnId(0);

/// A recorder with one accepted connection, and the peer's end of it.
pub fn accepted() -> (Recording, TcpStream) {
    let (recording, address) = Recording::listening(Options::default());
    let peer = TcpStream::connect(address).unwrap();
    recording.expect(Event::Accepted(0, C0));
    (recording, peer)
}

fn reset(peer: &mut TcpStream) -> bool {
    matches!(peer.read(&mut [0; 16]), Err(error) if error.raw_os_error() == Some(104))
}

#[test]
fn open_connects_and_bytes_flow_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = vec![listener.local_addr().unwrap()];
    let recording = Recording::start(Options {
        addresses,
        ..Options::default()
    });
    recording.output(Output::Open {
        conn: C0,
        address: 0,
    });
    // A message from before the connection stands is sent once it does.
    recording.command(Command::Say(C0, b"hello".to_vec(), None));
    let (mut peer, _) = listener.accept().unwrap();
    recording.expect(Event::Connected(C0));
    let mut read = [0; 5];
    peer.read_exact(&mut read).unwrap();
    assert_eq!(read, *b"hello");
    peer.write_all(b"and you").unwrap();
    assert_eq!(recording.bytes(7), b"and you");
    recording.output(Output::Close {
        conn: C0,
        abort: false,
    });
    assert_eq!(peer.read(&mut read).unwrap(), 0);
    drop(peer);
    recording.expect(Event::Closed(C0, Closed::ByUs));
}

#[test]
fn a_refused_connect_is_reported_and_the_id_is_free_again() {
    // Bound but not listening: no other socket can take the port meanwhile.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let recording = Recording::start(Options {
        addresses: vec![address],
        ..Options::default()
    });
    for _ in 0..3 {
        recording.output(Output::Open {
            conn: C0,
            address: 0,
        });
        recording.expect(Event::Closed(C0, Closed::Error(111)));
    }
}

#[test]
fn address_that_is_not_known_yet_ends_a_connect() {
    let recording = Recording::start(Options {
        addresses: vec![runtime::NOWHERE],
        ..Options::default()
    });
    for _ in 0..3 {
        recording.output(Output::Open {
            conn: C0,
            address: 0,
        });
        recording.expect(Event::Closed(C0, Closed::Error(89)));
    }
}

#[test]
fn a_connect_that_takes_too_long_can_be_closed() {
    // Documentation addresses (RFC 5737) answer nothing, or are unreachable at once.
    let address: SocketAddr = "192.0.2.1:9".parse().unwrap();
    let recording = Recording::start(Options {
        addresses: vec![address],
        ..Options::default()
    });
    recording.output(Output::Open {
        conn: C0,
        address: 0,
    });
    recording.output(Output::Close {
        conn: C0,
        abort: false,
    });
    match recording.next() {
        Event::Closed(C0, Closed::ByUs | Closed::Error(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_peers_end_is_reported_after_its_bytes() {
    let (recording, mut peer) = accepted();
    peer.write_all(b"last words").unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(recording.bytes(10), b"last words");
    recording.expect(Event::Closed(C0, Closed::ByPeer));
    // The id may be used again.
    drop(peer);
}

#[test]
fn a_peer_that_vanishes_is_an_error() {
    let (recording, peer) = accepted();
    sys::os::set_abortive_close(&peer).unwrap();
    drop(peer);
    recording.expect(Event::Closed(C0, Closed::Error(104)));
}

#[test]
fn closing_in_order_sends_what_is_queued_and_does_not_reset() {
    let (recording, mut peer) = accepted();
    // Unread bytes would make a plain close reset the connection.
    peer.write_all(&[1; 1000]).unwrap();
    recording.bytes(1000);
    recording.command(Command::Say(C0, vec![7; 100_000], None));
    recording.output(Output::Close {
        conn: C0,
        abort: false,
    });
    peer.write_all(&[2; 1000]).unwrap();
    let mut read = Vec::new();
    peer.read_to_end(&mut read).unwrap();
    assert!(read == vec![7; 100_000]);
    drop(peer);
    loop {
        match recording.next() {
            Event::Bytes(..) => {}
            event => break assert_eq!(event, Event::Closed(C0, Closed::ByUs)),
        }
    }
}

#[test]
fn a_peer_that_never_closes_is_reset_after_a_while() {
    let (recording, mut peer) = accepted();
    recording.output(Output::Close {
        conn: C0,
        abort: false,
    });
    recording.expect(Event::Closed(C0, Closed::ByUs));
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn t09_aborting_resets_and_sends_nothing_more() {
    let (recording, mut peer) = accepted();
    // More than the sockets hold, so that much of it is still ours.
    let payload = Span {
        at: 0,
        len: 4 << 20,
    };
    let send = Send {
        span: payload,
        digest: false,
        cookie: 5,
        read: None,
    };
    for _ in 0..16 {
        recording.command(Command::Say(C0, vec![0; 8], Some(send)));
    }
    recording.output(Output::Close {
        conn: C0,
        abort: true,
    });
    let mut sent = 0;
    loop {
        match recording.next() {
            Event::Sent(C0, 5) => sent += 1,
            event => break assert_eq!(event, Event::Closed(C0, Closed::ByUs)),
        }
    }
    assert!(
        sent <= 1,
        "the first message of one payload at most was taken from the machine"
    );
    let mut read = Vec::new();
    let error = peer.read_to_end(&mut read).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(104));
    assert!(read.len() < 16 * (4 << 20));
}

#[test]
fn a_machine_that_refuses_closes_the_connection() {
    let options = Options {
        refuse: true,
        ..Options::default()
    };
    let (recording, address) = Recording::listening(options);
    for _ in 0..10 {
        let mut peer = TcpStream::connect(address).unwrap();
        assert!(matches!(peer.read(&mut [0; 1]), Ok(0)) || reset(&mut peer));
    }
    assert_eq!(recording.stop().0, []);
}

#[test]
fn closing_twice_or_what_is_gone_does_nothing() {
    let (recording, peer) = accepted();
    drop(peer);
    recording.expect(Event::Closed(C0, Closed::ByPeer));
    recording.output(Output::Close {
        conn: C0,
        abort: true,
    });
    recording.output(Output::Close {
        conn: C0,
        abort: false,
    });
    recording.output(Output::Transmit(C0));
    recording.output(Output::Resume(C0));
    assert_eq!(recording.stop().0, []);
}

#[test]
fn many_connections_at_once_each_get_their_own() {
    let options = Options {
        connections: 300,
        ..Options::default()
    };
    let (recording, address) = Recording::listening(options);
    // All first, so that they are there at once.
    let connect = |number| {
        let peer = TcpStream::connect(address).unwrap();
        recording.expect(Event::Accepted(0, ConnId(number)));
        peer
    };
    let mut peers: Vec<TcpStream> = (0..300).map(connect).collect();
    for (number, peer) in (0..300_u32).zip(&mut peers) {
        peer.write_all(&(number * 7).to_le_bytes()).unwrap();
    }
    let mut said = vec![Vec::new(); 300];
    while said.iter().any(|said| said.len() < 4) {
        match recording.next() {
            Event::Bytes(conn, bytes) => said[conn.0 as usize].extend(bytes),
            other => panic!("{other:?}"),
        }
    }
    for (conn, said) in said.iter().enumerate() {
        recording.command(Command::Say(ConnId(conn as u32), said.clone(), None));
    }
    for (number, peer) in peers.iter_mut().enumerate() {
        let mut read = [0; 4];
        peer.read_exact(&mut read).unwrap();
        assert_eq!(u32::from_le_bytes(read), 7 * number as u32);
    }
}

#[test]
fn a_unix_socket_accepted_elsewhere_is_adopted_in_order() {
    let (ours, mut peer) = UnixStream::pair().unwrap();
    let recording = Recording::start(Options::default());
    assert!(recording.sender().adopt(7, ours.into(), None));
    recording.expect(Event::Accepted(7, C0));
    peer.write_all(b"hello").unwrap();
    assert_eq!(recording.bytes(5), b"hello");
    recording.command(Command::Say(C0, b"and you".to_vec(), None));
    let mut read = [0; 7];
    peer.read_exact(&mut read).unwrap();
    assert_eq!(read, *b"and you");
    recording.output(Output::Close {
        conn: C0,
        abort: true,
    });
    assert_eq!(peer.read(&mut read).unwrap(), 0);
    recording.expect(Event::Closed(C0, Closed::ByUs));
}

#[test]
fn what_is_kept_goes_with_its_connection() {
    for refuse in [false, true] {
        let recording = Recording::start(Options {
            refuse,
            ..Options::default()
        });
        let (ours, peer) = UnixStream::pair().unwrap();
        let (kept, gone) = mpsc::channel::<()>();
        let kept: Kept = Box::new(kept);
        assert!(recording.sender().adopt(7, ours.into(), Some(kept)));
        if !refuse {
            recording.expect(Event::Accepted(7, C0));
            assert_eq!(gone.try_recv(), Err(TryRecvError::Empty));
            drop(peer);
            recording.expect(Event::Closed(C0, Closed::ByPeer));
        }
        assert!(gone.recv().is_err(), "dropped");
    }
}

#[test]
fn one_address_has_its_share_of_connections_and_no_more() {
    let (recording, address) = Recording::listening(Options {
        per_peer_max: Some(PeerLimit::new(2)),
        ..Options::default()
    });
    let mut peers: Vec<TcpStream> = (0..2)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    recording.expect(Event::Accepted(0, C0));
    recording.expect(Event::Accepted(0, ConnId(1)));
    let mut third = TcpStream::connect(address).unwrap();
    assert_eq!(third.read(&mut [0; 16]).unwrap(), 0, "turned away at once");
    // Another address has a share of its own.
    let socket = sys::os::tcp_socket(&address).unwrap();
    let from = SocketAddr::from(([127, 0, 0, 2], 0));
    rustix::net::bind(&socket, &from).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    recording.expect(Event::Accepted(0, ConnId(2)));
    peers.pop();
    recording.expect(Event::Closed(ConnId(1), Closed::ByPeer));
    let _fourth = TcpStream::connect(address).unwrap();
    recording.expect(Event::Accepted(0, ConnId(1)));
}
