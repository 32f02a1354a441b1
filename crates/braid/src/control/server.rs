//! Serving control clients: threads with bounds on how many, how long and how much.
use super::limits::{ACCEPT_PAUSE, CLIENT_SILENCE, CLIENTS_MAX};
use super::rpc::{self, Failure, Lines};
use serde_json::Value;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

/// What answers calls.
pub trait Methods: Send + Sync + 'static {
    /// One call.
    ///
    /// # Errors
    /// As the answer tells them.
    fn call(&self, method: &str, params: Value) -> Result<Value, Failure>;
}

/// Serves control clients for as long as the process lives.
pub fn serve(listener: &UnixListener, control: &Arc<impl Methods>) {
    let clients = Arc::new(());
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors, most likely: they come back.
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let (control, client) = (control.clone(), clients.clone());
        if Arc::strong_count(&clients) > CLIENTS_MAX + 1 {
            turn_away(stream);
            continue;
        }
        let builder = std::thread::Builder::new().name("control".into());
        // Where there can be no thread, the client is closed too.
        let _ = builder.spawn(move || {
            serve_client(&stream, &*control);
            drop(client);
        });
    }
}

/// Says why, as far as the socket takes it at once, and closes.
fn turn_away(mut stream: UnixStream) {
    let text = format!(
        "there are {CLIENTS_MAX} control clients, the most there may be: close one, or try \
         again when those that say nothing have been closed ({} s)",
        CLIENT_SILENCE.as_secs()
    );
    let _ = stream.set_nonblocking(true);
    let _ = rpc::write_line(&mut stream, &rpc::refusal(&text));
}

fn serve_client(stream: &UnixStream, control: &impl Methods) {
    let Ok(mut writer) = stream.try_clone() else {
        return;
    };
    let _ = writer.set_write_timeout(Some(CLIENT_SILENCE));
    let mut lines = Lines::new(stream, CLIENT_SILENCE);
    // An error ends the client: it was too slow, too long, or is gone.
    while let Ok(Some(line)) = lines.next_line() {
        let answer = rpc::answer(&line, |method, params| control.call(method, params));
        if answer.is_some_and(|answer| rpc::write_line(&mut writer, &answer).is_err()) {
            return;
        }
    }
}
