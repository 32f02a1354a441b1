//! Peers that send garbage, nothing, or a byte now and then: an error, no hang.
use crate::cli::common::{Place, code, stderr};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Message of braid for a peer that behaves so.
fn against(behave: fn(TcpStream)) -> String {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the test's process; braid may connect any number of times.
    thread::spawn(move || listener.incoming().flatten().for_each(behave));
    let uri = format!("nvme-tcp://{address}/nqn.2026-01.org.example:v0");
    let output = place.braid(&["bench", &uri, "--connect-timeout", "500ms"]);
    let text = stderr(&output);
    assert_eq!(code(&output), 1, "{text}");
    assert!(text.starts_with("braid: ") && text.contains(&uri), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    text
}

#[test]
fn t25_garbage_is_no_answer() {
    let text = against(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.write_all(&[0xa5; 4096]);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(
        !text.contains("no answer"),
        "an answer came, and it was wrong: {text}"
    );
}

#[test]
fn silence_has_an_end() {
    let text = against(|mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(text.contains("answer"), "{text}");
}

#[test]
fn a_peer_that_drips_is_no_peer() {
    against(|mut stream| {
        // One more byte of an ICResp whenever a tenth of a second brought nothing.
        let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
        let icresp = [1_u8, 0, 128, 0, 128, 0, 0, 0]
            .into_iter()
            .chain(std::iter::repeat(0));
        for byte in icresp {
            let end = match stream.read(&mut [0; 256]) {
                Ok(0) => true,
                Ok(_) => false,
                Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            };
            if end || stream.write_all(&[byte]).is_err() {
                return;
            }
        }
    });
}

#[test]
fn a_peer_that_hangs_up_at_once_is_named() {
    let text = against(drop);
    assert!(text.contains("clos") || text.contains("reset"), "{text}");
}
