//! Owner of a socket's file, and users that may connect.
//!
//! # Contract
//! The file is ours alone (0600) from its first moment; then owner and group change, and the mode
//! last. So at no moment may anybody connect who may not at the end. The file is held by descriptor
//! meanwhile: whoever may write its directory can't put another in its place.
use anyhow::{Context, bail};
use rustix::fs::{AtFlags, CWD, Gid, OFlags, Uid};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::fs::Permissions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;

/// Name or number of a user or group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// As in /etc/passwd or /etc/group.
    Word(String),
    /// Number.
    Id(u32),
}

/// Permission bits: read and write for owner, group, others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

/// For its owner alone.
pub const PRIVATE: Mode = Mode(0o600);

/// Access to a socket; a part that is not set stays: ours, 0600.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Owner.
    pub owner: Option<Name>,
    /// Group.
    pub group: Option<Name>,
    /// Permissions.
    pub mode: Option<Mode>,
}

impl FromStr for Name {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(id) = text.parse() {
            // All ones means "no change" to the kernel.
            return match id {
                u32::MAX => Err("is no number of a user or group"),
                id => Ok(Self::Id(id)),
            };
        }
        match text.is_empty() || text.contains(['\0', ':', '\n']) {
            true => Err("write the name or the number of a user or group"),
            false => Ok(Self::Word(text.to_owned())),
        }
    }
}

impl FromStr for Mode {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = "write octal digits, 0 to 7, with read and write for the owner and execute \
                      for nobody: 0600, 0660 or 0666 (in a configuration in quotes)";
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode & !0o666 == 0 && mode & 0o600 == 0o600 => Ok(Self(mode)),
            _ => Err(wanted),
        }
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        parsed(from)
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        parsed(from)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Word(word) => to.serialize_str(word),
            Self::Id(id) => to.collect_str(id),
        }
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:04o}", self.0))
    }
}

/// From a text, which an error quotes.
fn parsed<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = &'static str>,
{
    let text = String::deserialize(from)?;
    let wrong = |why| D::Error::custom(format!("\"{text}\": {why}"));
    text.parse().map_err(wrong)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "\"{word}\""),
            Self::Id(id) => write!(f, "{id}"),
        }
    }
}

impl Access {
    /// Gives the socket at `path` to whom it is for.
    ///
    /// # Errors
    /// There is no such user or group, or we may not.
    pub fn apply(&self, path: &Path) -> anyhow::Result<()> {
        if *self == Self::default() {
            return Ok(());
        }
        let shown = path.display();
        let owner = self.owner.as_ref().map(user).transpose()?;
        let group = self.group.as_ref().map(group).transpose()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, path, flags, rustix::fs::Mode::empty())
            .with_context(|| format!("cannot open {shown}"))?;
        let kind = rustix::fs::fstat(&file).with_context(|| format!("cannot examine {shown}"))?;
        if !rustix::fs::FileType::from_raw_mode(kind.st_mode).is_socket() {
            bail!("{shown} has been replaced by something that is no socket");
        }
        rustix::fs::chownat(&file, "", owner, group, AtFlags::EMPTY_PATH).with_context(|| {
            let to = [("user", &self.owner), ("group", &self.group)];
            let to = to.map(|(what, name)| name.as_ref().map(|name| format!("{what} {name}")));
            let to = to.into_iter().flatten().collect::<Vec<_>>().join(", ");
            format!("cannot give {shown} to {to} (root may; others only to a group of theirs)")
        })?;
        if let Some(Mode(mode)) = self.mode {
            // A descriptor of this kind has no other way to its mode before Linux 6.6.
            let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
            std::fs::set_permissions(by_descriptor, Permissions::from_mode(mode))
                .with_context(|| format!("cannot set the mode of {shown}"))?;
        }
        Ok(())
    }
}

impl Access {
    /// Gives a socket that is in use to whom it is for now, and to nobody else: what is not said
    /// is what it is of a new one. It is private meanwhile.
    ///
    /// # Errors
    /// As [`Access::apply`]: where there is no such user or group, nothing has changed; else it
    /// may be private.
    pub fn change(&self, path: &Path) -> anyhow::Result<()> {
        self.owner.as_ref().map(user).transpose()?;
        self.group.as_ref().map(group).transpose()?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let private = Self {
            mode: Some(PRIVATE),
            ..Self::default()
        };
        private.apply(path)?;
        let whole = Self {
            owner: self.owner.clone().or(Some(Name::Id(uid.as_raw()))),
            group: self.group.clone().or(Some(Name::Id(gid.as_raw()))),
            mode: self.mode.or(Some(PRIVATE)),
        };
        whole.apply(path)
    }
}

impl Name {
    /// Returns the number of the user.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn uid(&self) -> anyhow::Result<u32> {
        match self {
            Self::Id(id) => Ok(*id),
            Self::Word(word) => {
                let found = nix::unistd::User::from_name(word);
                let found = found.with_context(|| format!("cannot look up user {self}"))?;
                let found =
                    found.with_context(|| format!("there is no user {self}: make one first"))?;
                Ok(found.uid.as_raw())
            }
        }
    }
}

fn user(name: &Name) -> anyhow::Result<Uid> {
    name.uid().map(Uid::from_raw)
}

fn group(name: &Name) -> anyhow::Result<Gid> {
    let id = match name {
        Name::Id(id) => *id,
        Name::Word(word) => {
            let found = nix::unistd::Group::from_name(word);
            let found = found.with_context(|| format!("cannot look up group {name}"))?;
            let found =
                found.with_context(|| format!("there is no group {name}: make one first"))?;
            found.gid.as_raw()
        }
    };
    Ok(Gid::from_raw(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::socket::PrivateSocket;
    use std::os::unix::fs::MetadataExt;

    fn made(access: &Access) -> anyhow::Result<(u32, u32, u32)> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("s.sock");
        let socket = PrivateSocket::bind(&path, "server", access);
        if socket.is_err() {
            assert!(!path.exists(), "what can't be given away is removed");
        }
        let _socket = socket?;
        let of = std::fs::metadata(&path)?;
        Ok((of.uid(), of.gid(), of.mode() & 0o7777))
    }

    #[test]
    fn a_socket_has_the_owner_and_mode_that_were_asked_for() {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let (uid, gid) = (uid.as_raw(), gid.as_raw());
        assert_eq!(made(&Access::default()).unwrap(), (uid, gid, 0o600));
        let ours = nix::unistd::User::from_uid(uid.into()).unwrap().unwrap();
        let access = Access {
            owner: Some(ours.name.parse().unwrap()),
            group: Some(Name::Id(gid)),
            mode: Some("0660".parse().unwrap()),
        };
        assert_eq!(made(&access).unwrap(), (uid, gid, 0o660));
        let other = Access {
            owner: Some(Name::Id(uid + 1)),
            ..access
        };
        match (uid, made(&other)) {
            (0, made) => assert_eq!(made.unwrap(), (1, gid, 0o660)),
            (_, made) => {
                let error = format!("{:#}", made.unwrap_err());
                assert!(error.contains("cannot give"), "{error}");
            }
        }
    }

    #[test]
    fn what_is_said_no_more_is_as_of_a_new_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let open = Access {
            mode: Some("0666".parse().unwrap()),
            ..Access::default()
        };
        let socket = PrivateSocket::bind(&path, "server", &open).unwrap();
        let now = || std::fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(now(), 0o666);
        let nobody = Access {
            group: Some("no-such-user-or-group".parse().unwrap()),
            ..Access::default()
        };
        assert!(socket.set_access(&nobody).is_err());
        assert_eq!(now(), 0o666, "nothing has changed");
        socket.set_access(&Access::default()).unwrap();
        assert_eq!(now(), 0o600);
        std::fs::remove_file(&path).unwrap();
        let _other = PrivateSocket::bind(&path, "server", &open).unwrap();
        let error = socket.set_access(&Access::default()).unwrap_err();
        assert!(format!("{error:#}").contains("is no longer"), "{error:#}");
        assert_eq!(now(), 0o666, "another's");
    }

    #[test]
    fn who_is_not_there_is_named() {
        let nobody = Some("no-such-user-or-group".parse().unwrap());
        let owner = Access {
            owner: nobody.clone(),
            ..Access::default()
        };
        let group = Access {
            group: nobody,
            ..Access::default()
        };
        for (access, part) in [(owner, "no user \"no-"), (group, "no group \"no-")] {
            let error = format!("{:#}", made(&access).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_mode_leaves_the_owner_his_socket() {
        for text in ["0600", "660", "0666", "0620"] {
            assert!(text.parse::<Mode>().is_ok(), "{text}");
        }
        for text in ["", "0060", "0700", "1600", "rw", "0o660", "99999999999"] {
            assert!(text.parse::<Mode>().is_err(), "{text}");
        }
        for text in ["", "4294967295", "a:b"] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }
}
