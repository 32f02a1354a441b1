//! Instructions that one side of an NBD connection spends on one 4 KiB request, payload and driver
//! excluded.
//!
//! ```text
//! cargo build --profile dist -p braid-nbd --example nbd_cost
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
//!     --toggle-collect='nbd_cost::measured_server*' \
//!     target/dist/examples/nbd_cost [write]
//! ```
//! The count that callgrind prints, divided by the requests that this program prints, is the
//! result; `measured_client*` counts the other side.
use nbd::{BlockSizes, Export, Exports, Features, Kind, Request, Transmit, client, server};

const ROUNDS: u32 = 1_000;
const BATCH: u32 = 32;
const BYTES: u32 = 4096;

/// Bytes that one side sent, cut where payload stood, which is left out.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    /// Ends of the parts in `bytes`, and bytes of payload behind each.
    parts: Vec<(usize, u32)>,
}

impl Stream {
    fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
    }

    #[inline(always)]
    fn sent(&mut self, transmit: Transmit) {
        let payload = transmit.payload.map_or(0, |payload| payload.len);
        self.parts.push((self.bytes.len(), payload));
    }
}

fn sessions() -> (server::Session, client::Session) {
    let export = Export {
        id: 0,
        name: "disk".into(),
        description: String::new(),
        size: 1 << 30,
        block_sizes: BlockSizes {
            minimum: BYTES,
            preferred: BYTES,
            maximum: 32 << 20,
        },
        features: Features {
            flush: true,
            fua: true,
            multi_conn: true,
            ..Features::default()
        },
    };
    let Ok(exports) = Exports::new(vec![export], Some(0)) else {
        unreachable!("an export that can be");
    };
    let client = client::Config::default();
    (
        server::Session::new(server::Config::default(), exports, 0),
        client::Session::new(client),
    )
}

/// The server's part of a round: requests in, replies out. Payload and its storage take no time.
#[inline(never)]
fn measured_server(session: &mut server::Session, received: &Stream, sent: &mut Stream) {
    let mut from = 0;
    for &(end, payload) in &received.parts {
        while from < end {
            let taken = session.handle_bytes(&received.bytes[from..end], 0);
            from += taken;
            if serve(session) == 0 && taken == 0 {
                break;
            }
        }
        if payload > 0 {
            session.handle_payload(payload, 0);
        }
    }
    while serve(session) > 0 {}
    while let Some(transmit) = session.poll_transmit(&mut sent.bytes) {
        sent.sent(transmit);
        if let Some(payload) = transmit.payload {
            session.handle_sent(payload.token);
        }
    }
    while serve(session) > 0 {}
}

/// Answers all requests of the session at once; returns how many.
#[inline(always)]
fn serve(session: &mut server::Session) -> u32 {
    let mut events = 0;
    while let Some(event) = session.poll_event() {
        events += 1;
        match event {
            server::Event::NeedBuffer { token, .. } => session.buffer_ready(token),
            server::Event::Request(request) => session.complete(request.token, Ok(()), 0),
            _ => {}
        }
    }
    events
}

/// The client's part before the server's: requests out.
#[inline(never)]
fn measured_client_submit(session: &mut client::Session, kind: Kind, sent: &mut Stream) {
    for token in 0..BATCH {
        let request = Request::new(token, kind, u64::from(token * BYTES), BYTES);
        assert!(session.submit(&request).is_ok());
    }
    client_transmit(session, sent);
}

#[inline(always)]
fn client_transmit(session: &mut client::Session, sent: &mut Stream) {
    while let Some(transmit) = session.poll_transmit(&mut sent.bytes) {
        sent.sent(transmit);
        if let Some(payload) = transmit.payload {
            session.handle_sent(payload.token);
        }
    }
}

/// The client's part after it: replies in. Returns the requests that succeeded.
#[inline(never)]
fn measured_client_receive(session: &mut client::Session, received: &Stream) -> u32 {
    let (mut from, mut done) = (0, 0);
    for &(end, payload) in &received.parts {
        while from < end {
            from += session.handle_bytes(&received.bytes[from..end], 0);
            done += completed(session);
        }
        if payload > 0 {
            session.handle_payload(payload, 0);
        }
    }
    done + completed(session)
}

#[inline(always)]
fn completed(session: &mut client::Session) -> u32 {
    let mut done = 0;
    while let Some(event) = session.poll_event() {
        if let client::Event::Completed(end) = event {
            done += u32::from(end.result.is_ok());
        }
    }
    done
}

fn main() {
    let kind = match std::env::args().any(|arg| arg == "write") {
        true => Kind::Write,
        false => Kind::Read,
    };
    let (mut server, mut client) = sessions();
    let (mut up, mut down) = (Stream::default(), Stream::default());
    client.handle_connected(0);
    // The handshake takes fewer turns than this; submitting fails if it was not over.
    for _ in 0..20 {
        up.clear();
        client_transmit(&mut client, &mut up);
        down.clear();
        measured_server(&mut server, &up, &mut down);
        measured_client_receive(&mut client, &down);
    }
    let mut done = 0;
    for _ in 0..ROUNDS {
        up.clear();
        down.clear();
        measured_client_submit(&mut client, kind, &mut up);
        measured_server(&mut server, &up, &mut down);
        done += measured_client_receive(&mut client, &down);
    }
    assert_eq!(done, ROUNDS * BATCH);
    println!("{done} requests");
}
