use super::*;
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
    let error = server.part(Duration::ZERO).unwrap_err();
    assert!(error.contains("have not returned for 0 s"), "{error}");
    server.cores[0].send(Message::Stop);
    heard.recv().unwrap().take().0.tell(News::Ended);
    assert_eq!(server.part(Duration::from_secs(60)), Ok(()));
    // One that is gone has nothing left.
    drop(heard);
    server.serving = 1;
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
