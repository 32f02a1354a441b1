//! Suggests a key for one that isn't there.
//!
//! # Contract
//! Only keys of the configuration, and words that stand here, get into a hint.
use super::mirror::RawLeg;
use super::{
    AlarmKeys, Config, DiscoveryKeys, ExportKeys, PathKeys, QueueKeys, QueueNamespace, Volume,
};
use crate::text;
use serde::de::DeserializeOwned;

/// Names of our keys in other multipath stacks, and common misspellings.
const ALSO: [(&str, &str); 9] = [
    ("dev_loss_tmo", "ctrl_loss_tmo"),
    ("kato", "keep_alive_tmo"),
    ("keep_alive", "keep_alive_tmo"),
    ("keep_alive_timeout", "keep_alive_tmo"),
    ("no_path_retry", "fast_io_fail_tmo"),
    ("no_path_timeout", "fast_io_fail_tmo"),
    ("reconnect_delay_max", "reconnect_delay"),
    ("tcp_keepalive", "tcp_keep_alive"),
    ("timeout", "io_timeout"),
];

/// The error, with what was meant by the key that it doesn't know and where that belongs.
pub(super) fn add(error: String) -> String {
    let unknown = error.rsplit_once("unknown key `");
    let unknown = unknown.and_then(|(_, rest)| rest.split_once('`'));
    let hint = unknown.and_then(|(key, here)| hint(key, here));
    match hint {
        Some(hint) => format!("{error}\n{hint}"),
        None => error,
    }
}

fn hint(key: &str, here: &str) -> Option<String> {
    let mut known = key.to_lowercase().replace('-', "_");
    if let Some((_, ours)) = ALSO.iter().find(|(theirs, _)| *theirs == known) {
        known = (*ours).to_owned();
    }
    let name = format!("`{known}`");
    let belongs = [
        (unknown::<Config>(), "before the first [[volume]]"),
        (unknown::<Volume>(), "in [[volume]], before what it has"),
        (unknown::<PathKeys>(), "in [[volume.path]]"),
        (unknown::<RawLeg>(), "in [[volume.leg]]"),
        (unknown::<ExportKeys>(), "in [[volume.export]]"),
        (unknown::<AlarmKeys>(), "in [alarms]"),
        (unknown::<DiscoveryKeys>(), "in [[discovery]]"),
        (unknown::<QueueKeys>(), "in [[queue]]"),
        (unknown::<QueueNamespace>(), "in [[queue.namespace]]"),
    ];
    let mean = match known == key {
        true => format!("{name} stands"),
        false => format!("did you mean {name}? It stands"),
    };
    if here.contains(&name) {
        return (known != key).then(|| format!("did you mean {name}?"));
    }
    let place = belongs.iter().find(|(keys, _)| keys.contains(&name));
    place.map(|(_, place)| format!("{mean} {place}"))
}

/// The reader's error about a key that nothing has, which lists those of this place.
fn unknown<T: DeserializeOwned>() -> String {
    text::toml::<T>("\"\" = 0").err().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::Config;

    #[test]
    fn a_key_that_is_not_there_gets_the_one_that_was_meant() {
        let volume = "[[volume]]\nname = \"v\"\n";
        let path = "[[volume.path]]\nuri = \"mem:64MiB\"\n";
        for (text, hint) in [
            (
                "keep_alive = 5\n".to_owned(),
                "did you mean `keep_alive_tmo`?",
            ),
            (
                format!("{volume}ctrl-loss-tmo = 5\n"),
                "did you mean `ctrl_loss_tmo`?",
            ),
            (
                format!("{volume}reconnect_delay_max = 5\n"),
                "did you mean `reconnect_delay`?",
            ),
            (
                format!("{volume}{path}no_path_timeout = 5\n"),
                "did you mean `fast_io_fail_tmo`? It stands in [[volume]], before what it has",
            ),
            (
                format!("{volume}io_timeout = \"5s\"\n"),
                "`io_timeout` stands before the first [[volume]]",
            ),
            (
                format!("hedge = \"on\"\n{volume}"),
                "`hedge` stands in [[volume]], before what it has",
            ),
            (
                format!("{volume}uri = \"mem:64MiB\"\n"),
                "`uri` stands in [[volume.path]]",
            ),
            (
                format!("{volume}read-only = true\n"),
                "did you mean `read_only`? It stands in [[volume.export]]",
            ),
        ] {
            let error = Config::parse(&text).unwrap_err();
            assert_eq!(error.lines().last(), Some(hint), "{error}");
        }
        let error = Config::parse("nonsense = 1\n").unwrap_err();
        let last = error.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("unknown key `nonsense`; known here: `socket`"),
            "{error}"
        );
    }
}
