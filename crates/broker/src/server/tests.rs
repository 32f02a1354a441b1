use super::room::RoomCore;
use super::*;
use crate::local::Local;
use crate::{Namespace, Rights, Trust};

fn config() -> (tempfile::TempDir, Config) {
    let directory = tempfile::tempdir().unwrap();
    let listener = std::os::unix::net::UnixListener::bind(directory.path().join("q")).unwrap();
    let config = Config {
        listener,
        namespaces: vec![Namespace {
            store: Store::Null,
            block_shift: 12,
            blocks: 1,
            read_only: false,
        }],
        identity: None,
        user_poll: 1,
        user_irq: 0,
        memory_max: 4096,
        patience_ns: 0,
        spin_ns: 0,
        trust: Trust::Mediated,
        rights: Rights::default(),
    };
    (directory, config)
}

/// A core that hangs: it hears what it is told, and does nothing.
#[test]
fn t10_server_does_not_wait_for_ever_for_a_core_that_hangs() {
    let (_directory, config) = config();
    let (post, heard) = mpsc::channel();
    let core = ServerCore {
        post: Box::new(move |message| drop(post.send(message))),
        waits: Box::new(CoreWaits::default),
    };
    let event = Arc::new(Event::new().unwrap());
    let mut server = Server::new(config, vec![core], Arc::default(), event).unwrap();
    let attach = heard.recv().unwrap();
    let error = server.part(Duration::ZERO).unwrap_err();
    assert!(error.contains("have not returned for 0 s"), "{error}");
    server.cores[0].send(Message::Stop);
    heard.recv().unwrap().take().0.tell(News::Ended);
    assert_eq!(server.part(Duration::from_secs(60)), Ok(()));
    // One that is gone has nothing left.
    drop(heard);
    server.serving = 1;
    drop(attach);
    assert_eq!(server.dismiss(), Ok(()));
}

/// A core without queues ends: clients that come would be given to it. The server ends at once,
/// and waits for the other core, of which it has not heard.
#[test]
fn core_that_ends_without_queues_ends_the_server() {
    let (_directory, config) = config();
    let local = Local::new(&[]).unwrap();
    let mut made: Vec<_> = (0..2)
        .map(|_| RoomCore::new(&local, Vec::new()).unwrap())
        .collect();
    let (mut other, second) = made.pop().unwrap();
    let (mut core, first) = made.pop().unwrap();
    let event = Arc::new(Event::new().unwrap());
    let cores = vec![first, second];
    let mut server = Server::new(config, cores, Arc::default(), event).unwrap();
    for core in [&mut core, &mut other] {
        core.turn();
    }
    assert_eq!(server.read_news(), Ok(()));
    drop(core);
    assert_eq!(server.read_news(), Err("a core has ended".to_owned()));
    for core in &server.cores {
        core.send(Message::Stop);
    }
    assert!(
        server.part(Duration::ZERO).is_err(),
        "the other one has not"
    );
    other.turn();
    assert_eq!(server.part(Duration::ZERO), Ok(()));
}

/// The mailbox of a core that ended before it heard of the server ends with it.
#[test]
fn core_that_ended_before_the_server_ends_it() {
    let (_directory, config) = config();
    let (core, served) = RoomCore::new(&Local::new(&[]).unwrap(), Vec::new()).unwrap();
    let event = Arc::new(Event::new().unwrap());
    let mut server = Server::new(config, vec![served], Arc::default(), event).unwrap();
    drop(core);
    assert_eq!(server.read_news(), Err("a core has ended".to_owned()));
    assert_eq!(server.dismiss(), Ok(()));
}

/// Its ear may say so after the next client has asked for a queue on another core.
#[test]
fn t09_connection_that_has_ended_leaves_before_its_ear_says_so() {
    let (_directory, config) = config();
    let event = Arc::new(Event::new().unwrap());
    let core = ServerCore {
        post: Box::new(drop),
        waits: Box::new(CoreWaits::default),
    };
    let mut server = Server::new(config, vec![core], Arc::default(), event).unwrap();
    let mut ends = Vec::new();
    for id in 0..3 {
        let (socket, end) = std::os::unix::net::UnixStream::pair().unwrap();
        let (replies, _) = mpsc::channel();
        ends.push(end);
        server.sessions.insert(
            id,
            Session {
                uid: 0,
                pid: 1,
                queue: (id < 2).then_some(id),
                given_up: false,
                waiting: None,
                socket: Arc::new(socket.into()),
                replies,
            },
        );
    }
    server.notice_ends();
    assert_eq!(server.sessions.len(), 3);
    ends.swap_remove(1);
    server.notice_ends();
    assert!(server.sessions.keys().eq(&[0, 2]));
}
