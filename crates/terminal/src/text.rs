//! Files of text that are read whole.
//!
//! # Limits
//! [`TEXT_BYTES_MAX`]: what is longer is none of ours, and may have no end (a device, a pipe).
use crate::limits::TEXT_BYTES_MAX;
use crate::units::format_bytes;
use anyhow::Context;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::path::Path;

/// Returns the content of the file.
///
/// # Errors
/// It can't be read, is too long or no UTF-8: its name, and what to do.
pub fn read(path: &Path) -> anyhow::Result<String> {
    if_there(path)?.with_context(|| {
        let path = path.display();
        format!("cannot read {path} (check the name): No such file or directory")
    })
}

/// Returns the content of the file; `None` if there is none.
///
/// # Errors
/// As [`read`].
pub fn if_there(path: &Path) -> anyhow::Result<Option<String>> {
    match bounded(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) => {
            let advice = match error.kind() {
                ErrorKind::NotFound => return Ok(None),
                ErrorKind::IsADirectory => " (give the file in it)",
                ErrorKind::PermissionDenied => " (check its permissions)",
                ErrorKind::InvalidData => " (save it as UTF-8 text)",
                _ => "",
            };
            Err(error).with_context(|| format!("cannot read {}{advice}", path.display()))
        }
    }
}

fn bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let mut file = File::open(path)?.take(TEXT_BYTES_MAX + 1);
    if file.read_to_string(&mut text)? as u64 > TEXT_BYTES_MAX {
        let why = format!("it has more than {}", format_bytes(TEXT_BYTES_MAX));
        return Err(Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

/// TOML, as what it says.
///
/// # Errors
/// Line and column, and what could stand there; or that it is nested too deeply.
pub fn toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| match error.message() {
        // The one error that has no place.
        "recursion limit" => "tables or arrays lie too deep in each other".to_owned(),
        _ => error.to_string().trim_end().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_or_is_no_file_is_said() {
        let error = |path: &str| format!("{:#}", read(Path::new(path)).unwrap_err());
        let endless = error("/dev/zero");
        assert_eq!(endless, "cannot read /dev/zero: it has more than 1 MiB");
        assert!(error("/").starts_with("cannot read / (give the file in it)"));
        assert!(error("/no/such").starts_with("cannot read /no/such (check the name)"));
    }
}
