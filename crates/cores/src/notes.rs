//! Lines for people about what happens on a core.
use engine::ClientError;
use engine::machine::DeviceError;
use multipath::Outcome;

/// An error that a client of a volume was answered with.
pub fn client_error(volume: &str, of: &ClientError) -> String {
    let range = match of.op {
        "flush" => String::new(),
        _ => format!(" of {} bytes at {}", of.length, of.offset),
    };
    let path = of.path.as_ref().map(|(uri, error)| {
        let error = match error {
            DeviceError::Nvme(status) => status.to_string(),
            DeviceError::Os(errno) => std::io::Error::from_raw_os_error(*errno).to_string(),
            DeviceError::Mismatch => "the data differ".into(),
            DeviceError::Full => "no space left".into(),
            DeviceError::ReadOnly => "read-only".into(),
            DeviceError::Unsupported => "not supported".into(),
            DeviceError::CutShort => "its file was cut short".into(),
            DeviceError::Lost => "the way to it was lost".into(),
            DeviceError::NotBegun => "no room to begin it".into(),
        };
        format!("; path {uri}: {error}")
    });
    let (client, op, error) = (&of.client, of.op, &of.error);
    let path = path.unwrap_or_else(|| match of.outcome {
        Some(Outcome::PathError) => "; no path was usable".to_owned(),
        _ => String::new(),
    });
    format!("{volume}: {op}{range} by {client} failed: {error}{path}")
}

/// Errors of clients of a volume that were not described.
pub fn more_errors(volume: &str, count: u32) -> String {
    format!("{volume}: {count} more errors were returned to clients, and are not described")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: &str = "nvme-tcp://127.0.0.1:4420/nqn.2026-01.org.example:v0";

    #[test]
    fn errors_of_clients_name_what_whom_and_which_path() {
        let mut error = ClientError {
            volume: 0,
            client: "process 7 of user 0".into(),
            op: "write",
            offset: 8192,
            length: 4096,
            error: nbd::Errno::Io.to_string().into(),
            outcome: Some(Outcome::MediaError),
            path: Some((
                REMOTE.to_owned(),
                DeviceError::Nvme(nvme::wire::Status::WRITE_FAULT.with_dnr()),
            )),
        };
        let text = client_error("v0", &error);
        let begin = "v0: write of 4096 bytes at 8192 by process 7 of user 0 failed: \
                     input/output error (EIO); path nvme-tcp://";
        assert!(text.starts_with(begin), "{text}");
        assert!(
            text.ends_with(", do not retry)") && text.contains("2h/80h"),
            "{text}"
        );
        (error.path, error.outcome, error.op) = (None, Some(Outcome::PathError), "flush");
        let text = client_error("v0", &error);
        assert!(text.starts_with("v0: flush by process 7"), "{text}");
        assert!(text.ends_with("; no path was usable"), "{text}");
    }
}
