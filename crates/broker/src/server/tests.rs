use super::*;
use crate::{Namespace, Rights, Trust};
use runtime::Device;

#[test]
fn t10_who_stops_does_not_wait_for_ever_for_a_thread_that_does_not_end() {
    let directory = tempfile::tempdir().unwrap();
    let listener = std::os::unix::net::UnixListener::bind(directory.path().join("q")).unwrap();
    let config = Config {
        listener,
        namespaces: vec![Namespace {
            device: Device::Null.into(),
            block_shift: 12,
            blocks: 1,
            read_only: false,
        }],
        identity: None,
        workers: vec![None],
        user_poll: 1,
        user_irq: 0,
        memory_max: 4096,
        patience_ns: 0,
        spin_ns: 0,
        trust: Trust::Mediated,
        rights: Rights::default(),
    };
    let event = Arc::new(Event::new().unwrap());
    let mut server = Server::new(config, Arc::new(AtomicBool::new(false)), event).unwrap();
    server.hire().unwrap();
    // As one that hangs, it was not told to stop.
    let error = server.part(Duration::ZERO).unwrap_err();
    assert!(error.contains("have not returned for 0 s"), "{error}");
    server.crews[0].send(Message::Stop);
    assert_eq!(server.part(Duration::from_secs(60)), Ok(()));
}
