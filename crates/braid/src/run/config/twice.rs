//! Checks that two volumes, or two paths of one, have nothing in common that they can't share.
//!
//! # Contract
//! Two volumes over one namespace would know nothing of each other: neither orders its writes after
//! the other's that are held (T9), nor flushes what the other wrote (T13). A namespace is that of
//! its subsystem, by whatever address; one without a number is the only one of its subsystem, so it
//! is any other's too. Local things are the same by their names.
use super::Volume;
use super::check::Step::{At, Key};
use super::check::{Step, Wrong};
use super::mirror::end;
use crate::uri::{NvmeTcp, PathUri, UriKind};

/// The volume of the paths, and their place in the file.
struct Head<'a> {
    name: String,
    place: Vec<Step>,
    of: &'a Volume,
    paths: Vec<&'a PathUri>,
}

/// # Errors
/// The first two that can't be, with the place of the second.
pub(super) fn check(volumes: &[Volume]) -> Result<(), Wrong> {
    let heads: Vec<Head> = volumes.iter().enumerate().flat_map(heads).collect();
    check_names(volumes)?;
    for (number, head) in heads.iter().enumerate() {
        for (at, uri) in head.paths.iter().enumerate() {
            let place = || [&head.place[..], &[Key("path"), At(at), Key("uri")]].concat();
            if let Some(before) = head.paths[..at].iter().find(|it| is_same_way(it, uri)) {
                let twice = match before.to_string() == uri.to_string() {
                    true => format!("{uri} is there twice"),
                    false => format!("{uri} and {before} are one path"),
                };
                let text = format!(
                    "volume \"{}\": {twice}: leave one out; every core has a queue of its own \
                     anyway",
                    head.name
                );
                return Err((place(), text));
            }
            for other in &heads[..number] {
                if let Some(theirs) = meeting(other.paths.iter().copied(), other.of, uri) {
                    return Err((place(), line(&uri.to_string(), &other.name, &theirs)));
                }
            }
        }
        if let Some(nqn) = &head.of.subsystem {
            let own = (nqn.as_str(), head.of.nsid);
            let meets = |other: &&Head| meets_discovered(other, own);
            if let Some(other) = heads[..number].iter().find(meets) {
                let place = [&head.place[..], &[Key("subsystem")]].concat();
                return Err((place, line(nqn, &other.name, nqn)));
            }
        }
    }
    Ok(())
}

/// Paths of one volume or leg, and legs of one mirror, have different names.
fn check_names(volumes: &[Volume]) -> Result<(), Wrong> {
    for (number, of) in volumes.iter().enumerate() {
        let here = [Key("volume"), At(number)];
        different(&of.name, &here, "path", of.paths.iter().map(|it| &it.name))?;
        different(&of.name, &here, "leg", of.legs.iter().map(|it| &it.name))?;
        for ((leg, keys), name) in of.legs.iter().enumerate().zip(of.leg_names()) {
            let here = [&here[..], &[Key("leg"), At(leg)]].concat();
            different(&name, &here, "path", keys.paths.iter().map(|it| &it.name))?;
        }
    }
    Ok(())
}

fn different<'a>(
    of: &str,
    here: &[Step],
    what: &'static str,
    names: impl Iterator<Item = &'a Option<String>>,
) -> Result<(), Wrong> {
    let mut before: Vec<&str> = Vec::new();
    for (at, name) in names.enumerate() {
        let Some(name) = name else { continue };
        if before.contains(&name.as_str()) {
            let place = [here, &[Key(what), At(at), Key("name")]].concat();
            let text = format!("volume \"{of}\": name \"{name}\": another {what} is called so");
            return Err((place, text));
        }
        before.push(name);
    }
    Ok(())
}

/// The path of a volume, or what it has discovered, that leads to the namespace of a path.
pub fn shared(of: &Volume, uri: &PathUri) -> Option<String> {
    meeting(of.paths.iter().map(|keys| &keys.uri), of, uri)
}

/// That both lead to one namespace; `theirs` is what the other volume has.
pub fn line(own: &str, other: &str, theirs: &str) -> String {
    let what = match own == theirs {
        true => format!("{own} is volume \"{other}\"'s already"),
        false => format!("{own} leads to what volume \"{other}\" has: {theirs}"),
    };
    format!(
        "{what}; two volumes over one namespace know nothing of each other's writes and flushes: \
         give one volume all paths and several exports, or name another namespace (nsid)"
    )
}

/// A volume, or each leg of a mirror.
fn heads((number, of): (usize, &Volume)) -> Vec<Head<'_>> {
    let place = vec![Key("volume"), At(number)];
    let legs = of.legs.iter().enumerate().zip(of.leg_names());
    let legs = legs.map(|((leg, keys), name)| Head {
        name,
        place: [&place[..], &[Key("leg"), At(leg)]].concat(),
        of,
        paths: keys.paths.iter().map(|keys| &keys.uri).collect(),
    });
    let mut all: Vec<Head<'_>> = legs.collect();
    if all.is_empty() {
        all.push(Head {
            name: of.name.clone(),
            place,
            of,
            paths: of.paths.iter().map(|keys| &keys.uri).collect(),
        });
    }
    all
}

/// One of these paths, or of the subsystems that the volume discovers, that leads to the namespace
/// of a path.
fn meeting<'a>(
    mut paths: impl Iterator<Item = &'a PathUri>,
    of: &Volume,
    uri: &PathUri,
) -> Option<String> {
    let path = paths.find(|it| is_same(it, uri)).map(PathUri::to_string);
    path.or_else(|| {
        let nqn = of.subsystem.as_ref()?;
        let same = namespace(uri).is_some_and(|it| may_be_one(it, (nqn, of.nsid)));
        same.then(|| nqn.clone())
    })
}

fn meets_discovered(head: &Head<'_>, own: (&str, Option<u32>)) -> bool {
    let theirs = head.of.subsystem.as_deref();
    let theirs = theirs.map(|nqn| (nqn, head.of.nsid));
    let paths = head.paths.iter().filter_map(|uri| namespace(uri));
    paths.chain(theirs).any(|it| may_be_one(it, own))
}

/// Whether two paths lead to the same data.
fn is_same(a: &PathUri, b: &PathUri) -> bool {
    match (namespace(a), namespace(b)) {
        (Some(a), Some(b)) => may_be_one(a, b),
        _ => end(a) == end(b),
    }
}

/// Whether they do so by the same way.
fn is_same_way(a: &PathUri, b: &PathUri) -> bool {
    match (a.kind(), b.kind()) {
        (UriKind::NvmeTcp(a_tcp), UriKind::NvmeTcp(b_tcp)) => {
            let port = |it: &NvmeTcp| (it.host.to_ascii_lowercase(), it.port);
            port(a_tcp) == port(b_tcp) && is_same(a, b)
        }
        _ => is_same(a, b),
    }
}

fn namespace(uri: &PathUri) -> Option<(&str, Option<u32>)> {
    match uri.kind() {
        UriKind::NvmeTcp(tcp) => Some((&tcp.subsystem, tcp.nsid)),
        _ => None,
    }
}

fn may_be_one(a: (&str, Option<u32>), b: (&str, Option<u32>)) -> bool {
    let any = a.1.is_none() || b.1.is_none();
    a.0 == b.0 && (any || a.1 == b.1)
}
