//! Names of paths, and of legs: given in a configuration, or made of what a URI leads to.
//!
//! # Contract
//! A name is safe in a shell, is no option, and is never taken for a number or a URI. A made name
//! depends on the URI alone (its host, file, device or socket), but for what others of the same
//! volume have: then it is longer, or ends in a number.
use super::{PathUri, UriKind};
use std::path::Path;

/// Longest name, bytes.
const NAME_MAX: usize = 64;
/// Longest made name before what makes it another one than others.
const MADE_MAX: usize = 56;
/// Left out of made names.
const PORT: u16 = 4420;

/// Rule for names.
pub const WANTED: &str = "a name has 1 to 64 letters, digits, \".\", \"_\" or \"-\", begins with a \
                          letter or digit, and is no number";

/// Whether a path or leg may be called so.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    begins && !is_number && name.len() <= NAME_MAX && name.chars().all(allowed)
}

/// Names of paths in their order: those that are given, the others made.
pub fn names<'a>(paths: impl Iterator<Item = (Option<&'a str>, &'a PathUri)>) -> Vec<String> {
    let paths: Vec<_> = paths.collect();
    let given = paths.iter().filter_map(|(name, _)| *name);
    let mut taken: Vec<String> = given.map(str::to_owned).collect();
    let name = |(given, uri): &(Option<&str>, &PathUri)| match given {
        Some(name) => (*name).to_owned(),
        None => {
            let name = made(uri, |name| taken.iter().any(|it| it == name));
            taken.push(name.clone());
            name
        }
    };
    paths.iter().map(name).collect()
}

/// A name of this URI that is not taken.
pub fn made(uri: &PathUri, is_taken: impl Fn(&str) -> bool) -> String {
    let [short, long] = parts(uri).map(|it| clean(&it));
    let numbered = (2..).map(|number: u32| format!("{short}-{number}"));
    let all = [short.clone(), long].into_iter().chain(numbered);
    let mut free = all.filter(|name| !is_taken(name));
    free.next().unwrap_or(short)
}

/// Parts by which a URI differs from others: in short, and with more.
fn parts(uri: &PathUri) -> [String; 2] {
    let file = |path: &Path| {
        let name = |path: &Path| {
            let name = path.file_name().unwrap_or(path.as_os_str());
            name.to_string_lossy().into_owned()
        };
        let long = path.parent().filter(|it| it.file_name().is_some());
        let long = long.map(|parent| format!("{}-{}", name(parent), name(path)));
        [name(path), long.unwrap_or_else(|| name(path))]
    };
    match uri.kind() {
        UriKind::NvmeTcp(tcp) => {
            let short = match tcp.port {
                PORT => tcp.host.clone(),
                port => format!("{}-{port}", tcp.host),
            };
            let subsystem = tcp.subsystem.rsplit(':').next().unwrap_or_default();
            let long = format!("{short}-{subsystem}");
            [short, long]
        }
        UriKind::File(path) => file(path),
        UriKind::NvmeNg(ng) => file(&ng.device),
        UriKind::Queue { socket, nsid } => {
            let [short, _] = file(socket);
            let long = format!("{short}-{nsid}");
            [short, long]
        }
        UriKind::Memory(_) => ["memory".into(), "memory".into()],
        UriKind::Null(_) => ["null".into(), "null".into()],
    }
}

/// The same with characters of names only.
fn clean(text: &str) -> String {
    let allowed = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' => c,
        _ => '-',
    };
    let name: String = text.chars().map(allowed).take(MADE_MAX).collect();
    let name = name.trim_start_matches(['.', '_', '-']);
    match is_name(name) {
        true => name.to_owned(),
        false => format!("path-{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_of(uris: &[(Option<&str>, &str)]) -> Vec<String> {
        let parsed: Vec<PathUri> = uris.iter().map(|(_, uri)| uri.parse().unwrap()).collect();
        let all = uris.iter().zip(&parsed);
        names(all.map(|((name, _), uri)| (*name, uri)))
    }

    #[test]
    fn names_are_made_of_host_file_device_or_socket() {
        for (uri, name) in [
            (
                "nvme-tcp://10.0.0.1:4420/nqn.2026-01.org.example:s",
                "10.0.0.1",
            ),
            (
                "nvme-tcp://10.0.0.1:4421/nqn.2026-01.org.example:s",
                "10.0.0.1-4421",
            ),
            (
                "nvme-tcp://array-a.example:4420/nqn.2026-01.org.example:s",
                "array-a.example",
            ),
            (
                "nvme-tcp://[fe80::1]:4420/nqn.2026-01.org.example:s",
                "fe80--1",
            ),
            ("nvme-tcp://[::1]:4420/nqn.2026-01.org.example:s", "path-1"),
            ("file:/srv/left.img", "left.img"),
            ("file:/srv/a $(b)", "a---b-"),
            ("file:/srv/0", "path-0"),
            ("file:/srv/-f", "f"),
            ("nvme-ng:/dev/ng0n1", "ng0n1"),
            ("queue:/run/braid/q.sock?nsid=1", "q.sock"),
            ("mem:1MiB", "memory"),
            ("null:1MiB", "null"),
        ] {
            assert_eq!(made_of(&[(None, uri)]), [name], "{uri}");
            assert!(is_name(name), "{name}");
        }
        let long = format!("file:/srv/{}", "x".repeat(200));
        let twice = made_of(&[(None, &long), (None, &long)]);
        assert!(twice.iter().all(|name| is_name(name)), "{twice:?}");
        assert_ne!(twice[0], twice[1]);
    }

    #[test]
    fn names_of_one_volume_differ_and_given_ones_come_first() {
        let files = [
            (None, "file:/a/leg"),
            (None, "file:/b/leg"),
            (None, "file:/c/b/leg"),
            (None, "file:/leg"),
        ];
        assert_eq!(made_of(&files), ["leg", "b-leg", "leg-2", "leg-3"]);
        let given = [(None, "file:/a/leg"), (Some("leg"), "file:/b/leg")];
        assert_eq!(made_of(&given), ["a-leg", "leg"]);
    }

    #[test]
    fn numbers_options_and_other_words_are_no_names() {
        for name in ["", "0", "17", "-f", ".a", "a b", "a/b", "a:b", "$a", "ä"] {
            assert!(!is_name(name), "{name}");
        }
        assert!(!is_name(&"a".repeat(65)));
        for name in ["a", "0a", "10.0.0.1", "left_2", "1-2"] {
            assert!(is_name(name), "{name}");
        }
    }
}
