//! Threads, messages, timeouts, panics, errors of the set-up.
use crate::recorder::{Command, Event, Options, Recording, config, span};
use engine::machine::{Closed, ConnId, Output};
use runtime::{Device, FileDevice, Mailbox, Polling, RuntimeError};
use std::io::Read;
use std::net::TcpStream;

const C0: ConnId = ConnId(0);

#[test]
fn messages_from_many_threads_all_arrive() {
    for polling in [Polling::default(), Polling::Always, Polling::Never] {
        let recording = Recording::start(Options {
            polling,
            ..Options::default()
        });
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let sender = recording.sender();
                scope.spawn(move || {
                    for _ in 0..5000 {
                        assert!(sender.send(Command::Read(span(0, 1))));
                    }
                });
            }
            for _ in 0..20_000 {
                recording.expect(Event::Data(vec![0]));
            }
        });
    }
}

#[test]
fn messages_before_the_start_wait_in_the_mailbox() {
    let mailbox = Mailbox::new("recorder").unwrap();
    let sender = mailbox.0.clone();
    for _ in 0..100 {
        assert!(sender.send(Command::Read(span(0, 1))));
    }
    let config = config(Options::default());
    let recording = Recording::with_mailbox(config, 1, false, mailbox).unwrap();
    for _ in 0..100 {
        recording.expect(Event::Data(vec![0]));
    }
}

#[test]
fn stop_closes_connections_in_order_and_listeners() {
    let (recording, address) = Recording::listening(Options::default());
    let mut peer = TcpStream::connect(address).unwrap();
    recording.expect(Event::Accepted(0, C0));
    recording.command(Command::Say(C0, vec![1; 200_000], None));
    recording.output(Output::Stop);
    let mut read = Vec::new();
    peer.read_to_end(&mut read).unwrap();
    assert_eq!(read.len(), 200_000);
    drop(peer);
    recording.expect(Event::Closed(C0, Closed::ByUs));
    let sender = recording.sender();
    recording.handle().join().unwrap();
    assert!(!sender.send(Command::Panic), "the reactor has ended");
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_panic_of_the_machine_comes_back_from_join_and_closes_everything() {
    let (recording, address) = Recording::listening(Options::default());
    let mut peer = TcpStream::connect(address).unwrap();
    recording.expect(Event::Accepted(0, C0));
    recording.command(Command::Panic);
    match recording.handle().join() {
        Err(RuntimeError::Panicked { name, message }) => {
            assert_eq!(
                (name.as_str(), message.as_str()),
                ("recorder", "as the test said")
            );
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it went well"),
    }
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn touching_memory_in_flight_panics_instead_of_racing() {
    let (recording, _peer) = crate::connections::accepted();
    let place = engine::machine::Place {
        span: span(0, 65536),
        crc: None,
    };
    recording.command(Command::Take(C0, 1));
    recording.command(Command::Place(C0, place));
    recording.data(span(65536, 1));
    std::io::Write::write_all(&mut &_peer, b"x").unwrap();
    assert_eq!(recording.bytes(1), b"x");
    // The rest is received into place from the next submission on.
    recording.command(Command::Fill(span(0, 4096), 1));
    match recording.handle().join() {
        Err(RuntimeError::Panicked { message, .. }) => {
            assert!(message.contains("in use"), "{message}")
        }
        _ => panic!("not noticed"),
    }
}

#[test]
fn a_timeout_comes_when_it_is_due_and_an_idle_reactor_sleeps() {
    let recording = Recording::start(Options::default());
    let now = runtime::now_ns();
    recording.command(Command::TimeoutAt(now + 20_000_000));
    recording.expect(Event::Timeout);
    assert!(runtime::now_ns() >= now + 20_000_000);
    let (_, stats) = recording.stop();
    // Start, command, timeout, stop; nothing in between.
    assert!(stats.turns <= 8, "{stats:?}");
    assert!(stats.wakeups <= 8, "{stats:?}");
}

#[test]
fn a_cpu_that_is_not_there_is_refused_with_those_that_are() {
    let mut config = config(Options::default());
    config.cpu = Some(5000);
    let error = spawned(config).unwrap_err();
    assert!(
        matches!(error, RuntimeError::Pin { cpu: 5000, .. }),
        "{error}"
    );
    assert!(
        error.to_string().contains("CPU 5000") && error.to_string().contains("[0"),
        "{error}"
    );
}

#[test]
fn pinning_works_where_it_is_allowed() {
    let mut config = config(Options::default());
    config.cpu = sys::os::cpus().unwrap().pop();
    spawned(config).unwrap();
}

#[test]
fn more_than_the_machine_has_is_refused_with_numbers() {
    let mut config = config(Options::default());
    config.arena_bytes = 1 << 60;
    let error = spawned(config).unwrap_err();
    assert!(matches!(error, RuntimeError::Memory { .. }), "{error}");
    let options = Options {
        connections: 70_000,
        ..Options::default()
    };
    let recorder = Recording::try_start(options);
    assert!(matches!(
        recorder,
        Err(RuntimeError::Limit {
            value: 70_000,
            limit: 16384,
            ..
        })
    ));
}

fn spawned(config: runtime::ReactorConfig) -> Result<(), RuntimeError> {
    let recording = Recording::with(config, 4, false)?;
    recording.stop();
    Ok(())
}

#[test]
fn a_missing_file_is_an_error_with_its_name() {
    let error = FileDevice::open("/nonexistent/file".into(), false, None)
        .map(|file| Device::File(std::sync::Arc::new(file)));
    let text = error.unwrap_err().to_string();
    assert!(text.contains("/nonexistent/file"), "{text}");
}
