//! Advice with a warning: descriptors that will not do. That of errors is [`terminal::advice`]'s.
pub use terminal::advice::of_target;

/// Files that are open beside those of clients and connections, at least.
const SPARE_FILES: u64 = 32;

/// That fewer files may be open than `key` has places for, where that is so.
pub fn of_few_files(key: &str, places: u64) -> Option<String> {
    few_files(key, places, runtime::raise_open_files())
}

fn few_files(key: &str, places: u64, limit: Option<u64>) -> Option<String> {
    let needed = places.saturating_add(SPARE_FILES);
    let limit = limit.filter(|limit| *limit < needed)?;
    Some(format!(
        "{key} allows {places} and each needs a descriptor, but at most {limit} files may be \
         open: those who come when all are used wait until others have gone; raise the limit \
         (ulimit -Hn, LimitNOFILE= of systemd) to {needed}, or lower {key}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_for_many_clients_are_told_with_the_key() {
        assert_eq!(few_files("clients", 64, None), None);
        assert_eq!(few_files("clients", 64, Some(96)), None);
        let line = few_files("clients", 2000, Some(1024)).unwrap();
        for part in ["clients allows 2000", "at most 1024 files", "to 2032"] {
            assert!(line.contains(part), "{line}");
        }
    }
}
