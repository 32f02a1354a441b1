//! Advice in this program's words for general messages of the layers below.
//!
//! # Contract
//! A text that says nothing of the kind comes back as it is.
use std::borrow::Cow;

/// Advice in the answer to a Connect to a missing subsystem.
const GENERAL: &str = "ask the target which it has (nvme-cli: nvme discover)";

/// Message about a device whose I/O takes too long.
const DEVICE: &str = "see the device";
/// And how that begins.
const PROBATION: &str = ": on probation: ";
/// A path to a queue server.
const QUEUE: &str = "queue:";

/// Returns `text` with advice in verbs of this program. The last URI before the advice names the
/// target that refused.
pub fn in_our_words(text: &str) -> Cow<'_, str> {
    if let Some((before, _)) = text.split_once(PROBATION)
        && let Some(at) = before.rfind(QUEUE)
    {
        return Cow::Owned(of_target(text, &before[at..]));
    }
    let Some((before, _)) = text.split_once(GENERAL) else {
        return Cow::Borrowed(text);
    };
    let uri = before.rfind(SCHEME).map_or("", |at| &before[at..]);
    Cow::Owned(of_target(text, uri))
}

/// As `of`, for a message of the target about this path's subsystem.
pub fn of_target(text: &str, uri: &str) -> String {
    if let Some(rest) = uri.strip_prefix(QUEUE) {
        let socket = rest.split(['?', ' ']).next().unwrap_or_default();
        let advice = format!(
            "see whether the process of the queue server on {socket} stands still (`braid queue \
             list --socket {socket}` asks it), and its storage"
        );
        return text.replace(DEVICE, &advice);
    }
    let address = uri.strip_prefix(SCHEME).unwrap_or_default();
    let end = address.find(['/', ' ', '?', ',', ';']);
    let address = end.map_or(address, |at| &address[..at]);
    let verb = match address {
        "" => "braid discover".to_owned(),
        some => format!("braid discover {SCHEME}{some}"),
    };
    text.replace(GENERAL, &format!("see what the target has: `{verb}`"))
}

const SCHEME: &str = "nvme-tcp://";

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::host::HostError;
    use nvme::wire::fabrics::connect_status;

    #[test]
    fn a_queue_server_that_says_nothing_leads_to_its_process_and_not_to_a_network() {
        let line = "v0: path queue:/run/q.sock?nsid=1: on probation: it answers nothing; see the \
                    device";
        let want = "it answers nothing; see whether the process of the queue server on \
                    /run/q.sock stands still (`braid queue list --socket /run/q.sock` asks it), \
                    and its storage";
        assert!(in_our_words(line).ends_with(want), "{}", in_our_words(line));
        let of_path = of_target(
            "it answers nothing; see the device",
            "queue:/run/q.sock?nsid=1",
        );
        assert_eq!(of_path, want);
        let other = "v0: path file:/d: on probation: it answers nothing; see the device";
        assert_eq!(in_our_words(other), other);
    }

    #[test]
    fn a_subsystem_that_is_not_there_leads_to_discover() {
        // Offset 256 of the data: SUBNQN (Base 2.0, 6.3).
        let error = HostError::Connect {
            status: connect_status::INVALID_PARAMETERS,
            result: 1 << 16 | 256,
        };
        let uri = "nvme-tcp://[fd00::1]:4420/nqn.2026-01.org.example:v0?nsid=1";
        let want = "see what the target has: `braid discover nvme-tcp://[fd00::1]:4420`";
        let line = format!("v0: path {uri}: {error}");
        assert!(in_our_words(&line).contains(want), "{line}");
        assert!(of_target(&error.to_string(), uri).contains(want));
        assert!(in_our_words(&error.to_string()).contains("`braid discover`"));
        let other = "nvme-tcp://h/n: connection refused";
        assert_eq!(in_our_words(other), other);
        assert_eq!(of_target(other, uri), other);
    }
}
