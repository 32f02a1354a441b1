//! JSON-RPC 2.0, one message per line: framing with bounds, requests, answers.
//!
//! # Contract
//! Every byte from the other side is hostile until parsed. A line is read whole or not at all:
//! longer than [`MESSAGE_BYTES_MAX`], or slower than
//! [`CLIENT_SILENCE`](super::limits::CLIENT_SILENCE), ends the connection. Batches are refused.
use super::call::Call;
use super::limits::MESSAGE_BYTES_MAX;
use anyhow::Context;
use serde_json::{Value, json};
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use terminal::exit::Usage;

/// Why a call failed. Each has one line of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// The line is no JSON.
    Syntax(String),
    /// The JSON is no request.
    Request(String),
    /// There is no such method.
    Method(String),
    /// The parameters are wrong.
    Params(String),
    /// The service can't do it, or not now.
    Refused(String),
}

impl ControlError {
    /// The parameters are wrong.
    pub fn params(message: impl Into<String>) -> Self {
        Self::Params(message.into())
    }

    /// The service can't do it.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Refused(message.into())
    }

    /// There is no method of this name.
    pub fn method(name: &str) -> Self {
        Self::Method(format!("there is no method \"{name}\""))
    }

    /// The error of an answer.
    fn of_answer(code: i64, message: String) -> Self {
        let kinds = [Self::Syntax, Self::Request, Self::Method, Self::Params];
        let kinds: [fn(String) -> Self; 4] = kinds;
        let mut kinds = kinds.into_iter().map(|kind| kind(message.clone()));
        let found = kinds.find(|kind| kind.code() == code);
        found.unwrap_or(Self::Refused(message))
    }

    /// Its code on the socket (JSON-RPC 2.0, 5.1).
    pub fn code(&self) -> i64 {
        match self {
            Self::Syntax(_) => -32700,
            Self::Request(_) => -32600,
            Self::Method(_) => -32601,
            Self::Params(_) => -32602,
            Self::Refused(_) => -32000,
        }
    }

    /// As a verb ends with it: [`Usage`] where the caller asked for something that can't be.
    pub fn into_verb_error(self) -> anyhow::Error {
        match self {
            Self::Refused(message) => anyhow::anyhow!(message),
            wrong => Usage::error(wrong.to_string()),
        }
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(text)
            | Self::Request(text)
            | Self::Method(text)
            | Self::Params(text)
            | Self::Refused(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for ControlError {}

/// One request as it came.
pub struct Request<'a> {
    /// Name of the method.
    pub method: &'a str,
    /// Its parameters, unchecked.
    pub params: Value,
    /// The caller waits for an answer: it is no notification.
    pub is_awaited: bool,
    /// The verb as a user has typed it, by the caller's word: an extension of ours.
    pub typed: Option<&'a str>,
}

/// Answers one line; `None` for a notification, which gets no answer.
pub fn answer(
    line: &[u8],
    call: impl FnOnce(Request<'_>) -> Result<Value, ControlError>,
) -> Option<Value> {
    let request: Value = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => {
            let error = ControlError::Syntax(format!("not JSON: {error}"));
            return Some(failed(Value::Null, &error));
        }
    };
    let id = request.get("id").cloned();
    let valid_id = matches!(
        id,
        None | Some(Value::Null | Value::String(_) | Value::Number(_))
    );
    let method = request.get("method").and_then(Value::as_str);
    let (true, Some(method), Some("2.0")) = (
        valid_id,
        method,
        request.get("jsonrpc").and_then(Value::as_str),
    ) else {
        let id = id.filter(|_| valid_id).unwrap_or_default();
        let why = "not a JSON-RPC 2.0 request (batches aren't taken)";
        return Some(failed(id, &ControlError::Request(why.to_owned())));
    };
    let params = request.get("params").cloned().unwrap_or_else(|| json!({}));
    let result = call(Request {
        method,
        params,
        is_awaited: id.is_some(),
        typed: request.get("typed").and_then(Value::as_str),
    });
    let id = id?;
    Some(match result {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(error) => failed(id, &error),
    })
}

/// An error that answers no request.
pub fn refusal(message: &str) -> Value {
    failed(Value::Null, &ControlError::refused(message))
}

/// Calls a method over a connected socket and waits for its answer.
///
/// # Errors
/// The connection fails, the answer is none, with the socket's name; or the other side says why
/// not, in its words alone ([`ControlError::into_verb_error`]).
pub fn call(stream: &mut UnixStream, call: &impl Call, wait: Duration) -> anyhow::Result<Value> {
    let mut request = serde_json::to_value(call)?;
    (request["jsonrpc"], request["id"]) = ("2.0".into(), 1.into());
    request["typed"] = typed().into();
    let who = peer(stream);
    let broken = |error: io::Error| {
        anyhow::Error::new(error).context(format!("{who}: the connection broke: has it ended?"))
    };
    stream.set_write_timeout(Some(wait)).map_err(broken)?;
    // A server that turns us away has said why and closed, maybe before we have written.
    let written = write_line(stream, &request);
    let line = Lines::new(stream, wait)
        .next_line()
        .map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                anyhow::anyhow!(
                    "{who}: no answer within {wait:?}: is it stopped, or busy? It does not begin \
                     this any more"
                )
            }
            _ => broken(error),
        })?;
    let Some(line) = line else {
        written.map_err(broken)?;
        anyhow::bail!("{who} has closed the connection without an answer: is it ending?");
    };
    let answer = serde_json::from_slice(&line);
    let mut answer: Value = answer.with_context(|| format!("{who}: the answer is no JSON"))?;
    if let Some(message) = answer.pointer("/error/message").and_then(Value::as_str) {
        let code = answer.pointer("/error/code").and_then(Value::as_i64);
        let error = ControlError::of_answer(code.unwrap_or_default(), message.to_owned());
        return Err(error.into_verb_error());
    }
    match answer.get_mut("result") {
        Some(result) => Ok(result.take()),
        None => anyhow::bail!("{who}: the answer is no JSON-RPC 2.0 answer"),
    }
}

/// The command line of this program.
fn typed() -> String {
    let words = std::env::args_os().skip(1);
    let words = words.map(|it| it.to_string_lossy().into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// Name of the socket at the other end.
fn peer(stream: &UnixStream) -> String {
    let address = stream.peer_addr().ok();
    let path = address.as_ref().and_then(|it| it.as_pathname());
    path.map_or("the other side".into(), |it| it.display().to_string())
}

/// Writes one message.
///
/// # Errors
/// Of the socket.
pub fn write_line(stream: &mut UnixStream, message: &Value) -> io::Result<()> {
    let mut line = message.to_string();
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// Lines from a socket, each in bounds of length and time.
pub struct Lines<'a> {
    stream: &'a UnixStream,
    wait: Duration,
    buffer: Vec<u8>,
}

impl<'a> Lines<'a> {
    /// `wait`: for one whole line.
    pub fn new(stream: &'a UnixStream, wait: Duration) -> Self {
        Lines {
            stream,
            wait,
            buffer: Vec::new(),
        }
    }

    /// The next line without its end; `None` at the end of the stream.
    ///
    /// # Errors
    /// `TimedOut` or `WouldBlock`: it took too long. `InvalidData`: it is too long. Else of the
    /// socket.
    pub fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + self.wait;
        let mut seen = 0;
        loop {
            if let Some(end) = self.buffer[seen..].iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(seen + end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(Some(line));
            }
            seen = self.buffer.len();
            if seen >= MESSAGE_BYTES_MAX {
                let text = format!("a message of more than {MESSAGE_BYTES_MAX} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk)? {
                0 => return Ok(None),
                n => self.buffer.extend_from_slice(&chunk[..n]),
            }
        }
    }
}

fn failed(id: Value, error: &ControlError) -> Value {
    let error = json!({"code": error.code(), "message": error.to_string()});
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    crate::calls! {
        /// Of a test.
        enum Asked {
            "stat" => Stat(crate::control::call::Nothing),
        }
    }

    const STAT: Asked = Asked::Stat(crate::control::call::Nothing);

    fn echo(request: Request<'_>) -> Result<Value, ControlError> {
        match request.method {
            "echo" => Ok(request.params),
            "refuse" => Err(ControlError::refused("no")),
            other => Err(ControlError::method(other)),
        }
    }

    #[test]
    fn who_does_not_answer_is_told_so_and_how_long_it_was_waited() {
        let (mut ours, _silent) = UnixStream::pair().unwrap();
        let wait = Duration::from_millis(20);
        let error = call(&mut ours, &STAT, wait).unwrap_err();
        assert!(
            error.to_string().contains("no answer within 20ms"),
            "{error}"
        );
    }

    #[test]
    fn a_connection_that_ends_without_an_answer_is_told_of_with_its_socket() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("c.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // Where some of what was sent is unread it is a reset, else an end.
        for (whole, answer, words) in [
            (false, "", "the connection broke"),
            (true, "", "closed the connection without an answer"),
            (true, "?\n", "the answer is no JSON"),
            (true, "{}\n", "no JSON-RPC 2.0 answer"),
        ] {
            let mut ours = UnixStream::connect(&path).unwrap();
            let (mut theirs, _) = listener.accept().unwrap();
            let server = std::thread::spawn(move || {
                match whole {
                    true => drop(Lines::new(&theirs, Duration::from_secs(9)).next_line()),
                    false => theirs.read_exact(&mut [0]).unwrap(),
                }
                theirs.write_all(answer.as_bytes()).unwrap();
            });
            let error = call(&mut ours, &STAT, Duration::from_secs(9)).unwrap_err();
            server.join().unwrap();
            let said = format!("{error:#}");
            let named = said.starts_with(&path.display().to_string());
            assert!(named && said.contains(words), "{words}: {said}");
        }
    }

    fn code(line: &str) -> (Value, Value) {
        let answer = answer(line.as_bytes(), echo).unwrap();
        (answer["id"].clone(), answer["error"]["code"].clone())
    }

    #[test]
    fn requests_are_answered_with_their_id() {
        let line = br#"{"jsonrpc":"2.0","id":"a","method":"echo","params":{"x":1}}"#;
        let expected = json!({"jsonrpc": "2.0", "id": "a", "result": {"x": 1}});
        assert_eq!(answer(line, echo), Some(expected));
        assert_eq!(
            answer(br#"{"jsonrpc":"2.0","method":"echo"}"#, echo),
            None,
            "a notification"
        );
    }

    #[test]
    fn errors_have_the_codes_of_the_specification() {
        assert_eq!(code("nonsense"), (Value::Null, json!(-32700)));
        assert_eq!(code("[]"), (Value::Null, json!(-32600)));
        assert_eq!(
            code(r#"{"id":1,"method":"echo"}"#),
            (json!(1), json!(-32600))
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","id":[],"method":"echo"}"#).1,
            json!(-32600)
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#),
            (json!(1), json!(-32601))
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","id":1,"method":"refuse"}"#).1,
            json!(-32000)
        );
    }

    #[test]
    fn error_of_usage_is_one_for_the_client_too() {
        for (code, is_usage) in [
            (-32700, true),
            (-32600, true),
            (-32601, true),
            (-32602, true),
            (-32000, false),
            (7, false),
        ] {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            let error = json!({"code": code, "message": "no"});
            write_line(&mut theirs, &json!({"id": 1, "error": error})).unwrap();
            let error = call(&mut ours, &STAT, Duration::from_secs(9)).unwrap_err();
            assert_eq!((error.is::<Usage>(), &*error.to_string()), (is_usage, "no"));
        }
    }

    #[test]
    fn lines_are_found_whatever_the_pieces() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"one\ntwo\nthr").unwrap();
        let mut lines = Lines::new(&ours, Duration::from_secs(10));
        assert_eq!(lines.next_line().unwrap().unwrap(), b"one");
        assert_eq!(lines.next_line().unwrap().unwrap(), b"two");
        theirs.write_all(b"ee\n").unwrap();
        assert_eq!(lines.next_line().unwrap().unwrap(), b"three");
        drop(theirs);
        assert_eq!(lines.next_line().unwrap(), None);
    }

    #[test]
    fn a_line_without_end_is_cut_off() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            let _ = theirs.write_all(&vec![b'x'; 2 * MESSAGE_BYTES_MAX]);
        });
        let error = Lines::new(&ours, Duration::from_secs(10))
            .next_line()
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(ours);
        writer.join().unwrap();
    }

    proptest! {
        #[test]
        fn hostile_lines_are_answered_or_dropped(line: Vec<u8>, text in "[\\[\\]{}\":,0-9a-z.]*") {
            let _ = answer(&line, echo);
            let _ = answer(text.as_bytes(), echo);
        }
    }
}
