use super::*;
use crate::{Namespace, Rights, Trust};

/// A core that hangs: it hears what it is told, and does nothing.
#[test]
fn t10_server_does_not_wait_for_ever_for_a_core_that_hangs() {
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
