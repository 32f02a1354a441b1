//! This host's identity: one host NQN and host identifier for every path (trap T35).
//!
//! Decided from the options, else `/etc/nvme/hostnqn` and `/etc/nvme/hostid`, else an identifier
//! that is made once and kept in the state directory.
//!
//! # Contract
//! Two processes that start at once for the first time come to the same identifier: the file is
//! linked into place whole, and who comes second takes what is there.
use crate::text;
use anyhow::{Context, bail};
use nvme::host::HostIdentity;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Options of every verb that connects.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct IdentityArgs {
    /// Host NQN [default: /etc/nvme/hostnqn, else made once and kept]
    #[arg(long, value_name = "NQN", value_parser = parse_nqn)]
    pub hostnqn: Option<String>,
    /// Host identifier, a UUID [default: /etc/nvme/hostid, else that of the host NQN]
    #[arg(long, value_name = "UUID", value_parser = parse_uuid)]
    pub hostid: Option<Uuid>,
}

const NQN_UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";
const NQN_BYTES_MAX: usize = 223;

/// The identity that the options and the machine's files come to.
///
/// # Errors
/// A file that is there holds no NQN or UUID, or the state directory can't be written.
pub fn identity(args: &IdentityArgs) -> anyhow::Result<HostIdentity> {
    identity_in(args, Path::new("/etc/nvme"), &state_directory()?)
}

/// A fresh identity that is kept nowhere, for a host and target in one process.
pub fn ephemeral() -> HostIdentity {
    let id = Uuid::new_v4();
    HostIdentity {
        nqn: format!("{NQN_UUID_PREFIX}{id}"),
        id: *id.as_bytes(),
    }
}

/// Where braid keeps what must survive it: `$XDG_STATE_HOME/braid`, `~/.local/state/braid`, or
/// `/var/lib/braid` for root.
///
/// # Errors
/// There is no home directory.
pub fn state_directory() -> anyhow::Result<PathBuf> {
    let variable = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    if let Some(state) = variable("XDG_STATE_HOME") {
        return Ok(state.join("braid"));
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/braid".into());
    }
    let home = variable("HOME")
        .context("no state directory: HOME is not set (set XDG_STATE_HOME, or give --hostnqn)")?;
    Ok(home.join(".local/state/braid"))
}

fn identity_in(args: &IdentityArgs, system: &Path, state: &Path) -> anyhow::Result<HostIdentity> {
    let nqn = match &args.hostnqn {
        Some(nqn) => Some(nqn.clone()),
        None => read_system(&system.join("hostnqn"), parse_nqn)?,
    };
    let of_nqn = nqn
        .as_deref()
        .and_then(|nqn| nqn.strip_prefix(NQN_UUID_PREFIX));
    let id = match (args.hostid, of_nqn.and_then(|id| Uuid::parse_str(id).ok())) {
        (Some(id), _) => id,
        // A given NQN that names its host wins over the file of a machine that has another one.
        (None, Some(id)) if args.hostnqn.is_some() => id,
        (None, of_nqn) => match (read_system(&system.join("hostid"), parse_uuid)?, of_nqn) {
            (Some(id), _) | (None, Some(id)) => id,
            (None, None) => kept(state).context(
                "no host identifier (give --hostid, or set XDG_STATE_HOME to where one may be)",
            )?,
        },
    };
    let nqn = nqn.unwrap_or_else(|| format!("{NQN_UUID_PREFIX}{id}"));
    Ok(HostIdentity {
        nqn,
        id: *id.as_bytes(),
    })
}

/// The identifier in the state directory, made if there is none.
fn kept(state: &Path) -> anyhow::Result<Uuid> {
    let path = state.join("hostid");
    if let Some(id) = read(&path, parse_uuid)? {
        return Ok(id);
    }
    let made = Uuid::new_v4();
    place(state, &path, &format!("{made}\n"))
        .with_context(|| format!("cannot write {}", path.display()))?;
    read(&path, parse_uuid)?.with_context(|| format!("{} has vanished", path.display()))
}

/// Puts `text` at `path` whole, unless something is there already.
fn place(directory: &Path, path: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let temporary = directory.join(format!(".hostid.{}", Uuid::new_v4()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&temporary)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    let linked = written.and_then(|()| match fs::hard_link(&temporary, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    });
    fs::remove_file(&temporary)?;
    linked?;
    // The name too: after a power cut this host must not be another one.
    fs::File::open(directory)?.sync_all()
}

/// A one-line file of the system, parsed. `None`: there is none, or it is empty, as packages leave
/// it that could not make an identity.
fn read_system<T>(path: &Path, parse: fn(&str) -> Result<T, String>) -> anyhow::Result<Option<T>> {
    match text::if_there(path)? {
        Some(text) if !text.trim().is_empty() => read(path, parse),
        _ => Ok(None),
    }
}

/// A one-line file, parsed; `None` if there is none.
fn read<T>(path: &Path, parse: fn(&str) -> Result<T, String>) -> anyhow::Result<Option<T>> {
    let Some(text) = text::if_there(path)? else {
        return Ok(None);
    };
    match parse(text.trim()) {
        Ok(value) => Ok(Some(value)),
        Err(why) => bail!("{}: {why}", path.display()),
    }
}

/// An NQN, or why it is none.
pub fn parse_nqn(text: &str) -> Result<String, String> {
    if !text.starts_with("nqn.") || text.len() > NQN_BYTES_MAX || text.contains(char::is_control) {
        return Err(format!(
            "\"{text}\" is not an NQN (nqn.…, {NQN_BYTES_MAX} bytes at most)"
        ));
    }
    Ok(text.to_owned())
}

/// A UUID other than zero, or why it is none.
pub fn parse_uuid(text: &str) -> Result<Uuid, String> {
    match Uuid::parse_str(text) {
        // An all-zero host identifier is not allowed (NVMe/TCP and Fabrics Connect).
        Ok(id) if !id.is_nil() => Ok(id),
        _ => Err(format!("\"{text}\" is not a UUID other than zero")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "5a1c2a3e-7e0f-4c0a-9d54-0d1c6c1f0a77";

    fn directories() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let (system, state) = (root.path().join("etc"), root.path().join("state/braid"));
        fs::create_dir_all(&system).unwrap();
        (root, system, state)
    }

    #[test]
    fn t35_one_identity_is_made_once_and_kept() {
        let (_root, system, state) = directories();
        let first = identity_in(&IdentityArgs::default(), &system, &state).unwrap();
        assert_eq!(
            first,
            identity_in(&IdentityArgs::default(), &system, &state).unwrap()
        );
        let id = Uuid::from_bytes(first.id);
        assert_eq!(first.nqn, format!("{NQN_UUID_PREFIX}{id}"));
        assert_eq!(
            fs::read_dir(&state).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn who_comes_second_takes_what_is_there() {
        let (_root, _, state) = directories();
        let path = state.join("hostid");
        place(&state, &path, ID).unwrap();
        place(&state, &path, "another").unwrap();
        assert_eq!(kept(&state).unwrap().to_string(), ID);
    }

    #[test]
    fn the_systems_files_come_before_ours_and_options_before_both() {
        let (_root, system, state) = directories();
        fs::write(system.join("hostnqn"), "nqn.2026-01.org.example:host\n").unwrap();
        fs::write(system.join("hostid"), format!("{ID}\n")).unwrap();
        let ours = identity_in(&IdentityArgs::default(), &system, &state).unwrap();
        assert_eq!(ours.nqn, "nqn.2026-01.org.example:host");
        assert_eq!(Uuid::from_bytes(ours.id).to_string(), ID);
        assert!(!state.exists());

        let other = Uuid::new_v4();
        let args = IdentityArgs {
            hostnqn: Some(format!("{NQN_UUID_PREFIX}{other}")),
            hostid: None,
        };
        assert_eq!(
            identity_in(&args, &system, &state).unwrap().id,
            *other.as_bytes()
        );
        let args = IdentityArgs {
            hostid: Some(other),
            ..args
        };
        assert_eq!(
            identity_in(&args, &system, &state).unwrap().id,
            *other.as_bytes()
        );
    }

    #[test]
    fn an_empty_system_file_counts_as_none() {
        for empty in ["", "\n", "  \n\n"] {
            let (_root, system, state) = directories();
            fs::write(system.join("hostnqn"), empty).unwrap();
            fs::write(system.join("hostid"), empty).unwrap();
            let made = identity_in(&IdentityArgs::default(), &system, &state).unwrap();
            let id = Uuid::from_bytes(made.id);
            assert_eq!(made.nqn, format!("{NQN_UUID_PREFIX}{id}"));
            // It is kept as if there were no files.
            let again = identity_in(&IdentityArgs::default(), &system, &state).unwrap();
            assert_eq!(again, made);
            // The other file still counts.
            fs::write(system.join("hostnqn"), "nqn.2026-01.org.example:host\n").unwrap();
            let named = identity_in(&IdentityArgs::default(), &system, &state).unwrap();
            assert_eq!(named.nqn, "nqn.2026-01.org.example:host");
            assert_eq!(named.id, made.id);
        }
    }

    #[test]
    fn a_file_without_an_identity_is_named() {
        let (_root, system, state) = directories();
        fs::write(system.join("hostid"), "not a uuid").unwrap();
        let error = identity_in(&IdentityArgs::default(), &system, &state).unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("hostid: \"not a uuid\" is not a UUID"),
            "{text}"
        );
    }
}
