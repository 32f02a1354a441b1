//! What can be done with this program about what the layers below report in general words.
//!
//! # Contract
//! A text that says nothing of the kind comes back as it is.
use std::borrow::Cow;

/// What a Connect to a subsystem that isn't there is answered with advises.
const GENERAL: &str = "ask the target which it has (nvme-cli: nvme discover)";

/// The same, in verbs of this program. Who refused it is named by the last URI before it.
pub fn in_our_words(text: &str) -> Cow<'_, str> {
    let Some((before, _)) = text.split_once(GENERAL) else {
        return Cow::Borrowed(text);
    };
    let uri = before.rfind(SCHEME).map_or("", |at| &before[at..]);
    Cow::Owned(of_target(text, uri))
}

/// The same of what a target says that this path leads to.
pub fn of_target(text: &str, uri: &str) -> String {
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
