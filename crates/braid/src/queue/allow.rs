//! `--allow`: what the users of a queue server may do, as options say it.
use crate::control::access::Name;
use crate::units::parse_size;
use broker::{Grant, NamespaceRight, Rights};

/// One `--allow`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allow {
    /// `None`: everybody who is not named.
    uid: Option<u32>,
    namespace: Option<NamespaceRight>,
    depth: Option<u16>,
    queues: Option<u32>,
    memory: Option<u64>,
    /// As it was written.
    text: String,
}

impl Allow {
    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Limit of a queue's commands in flight: one less than its entries.
const DEPTH_MAX: u16 = nvme::limits::QUEUE_ENTRIES_MAX - 1;

/// How a right is written.
const SYNTAX: &str = "a right is uid=USER (a name or a number) or uid=any, then nsid=N with \
                      first=BLOCK, blocks=N and read-only, then depth=N, queues=N, memory=SIZE, as \
                      far as they are wanted, with commas and no blanks: \
                      --allow uid=1000,nsid=1,depth=64,memory=1GiB";

/// Reads `uid=1000,nsid=1,first=0,blocks=2048,read-only,depth=64,queues=2,memory=1GiB`.
///
/// # Errors
/// What is wrong, in words, and how a right is written.
pub fn parse(text: &str) -> Result<Allow, String> {
    read(text).map_err(|why| format!("{why}; {SYNTAX}"))
}

fn read(text: &str) -> Result<Allow, String> {
    let mut allow = Allow {
        uid: None,
        namespace: None,
        depth: None,
        queues: None,
        memory: None,
        text: text.to_owned(),
    };
    let (mut nsid, mut first, mut blocks, mut read_only, mut uid) =
        (None, None, None, false, false);
    let mut seen = Vec::new();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        if seen.contains(&key) {
            return Err(format!("{key} is there twice: which of them counts?"));
        }
        seen.push(key);
        match key {
            "uid" => {
                uid = true;
                allow.uid = (value != "any").then(|| user(value)).transpose()?;
            }
            "nsid" => nsid = Some(number(key, value)?),
            "first" => first = Some(number(key, value)?),
            "blocks" => blocks = Some(number(key, value)?),
            "read-only" if value.is_empty() => read_only = true,
            "read-write" => {
                return Err(
                    "\"read-write\": leave it out; what is not read-only may be written".into(),
                );
            }
            "depth" => allow.depth = Some(number(key, value)?),
            "queues" => allow.queues = Some(number(key, value)?),
            "memory" => allow.memory = Some(parse_size(value).map_err(|why| why.to_string())?),
            _ => {
                return Err(format!("\"{part}\" is none of its words"));
            }
        }
    }
    if !uid {
        return Err("say whom: uid=1000, uid=alice, or uid=any".into());
    }
    if allow
        .depth
        .is_some_and(|depth| depth == 0 || depth > DEPTH_MAX)
    {
        return Err(format!("depth is 1 to {DEPTH_MAX}"));
    }
    nothing(&allow, blocks)?;
    match nsid {
        None if first.is_some() || blocks.is_some() || read_only => {
            return Err("first, blocks and read-only are of a namespace: say nsid= too".into());
        }
        None => {}
        Some(0) => return Err("nsid counts from 1".into()),
        Some(nsid) => {
            let first: u64 = first.unwrap_or(0);
            allow.namespace = Some(NamespaceRight {
                nsid,
                first,
                end: blocks.map_or(u64::MAX, |blocks: u64| first.saturating_add(blocks)),
                read_only,
            });
        }
    }
    Ok(allow)
}

/// A right to nothing is a slip: who is not named has none.
fn nothing(allow: &Allow, blocks: Option<u64>) -> Result<(), String> {
    let none = [
        ("blocks", blocks == Some(0)),
        ("queues", allow.queues == Some(0)),
        ("memory", allow.memory == Some(0)),
    ];
    match none.iter().find(|(_, none)| *none) {
        None => Ok(()),
        Some((key, _)) => Err(format!(
            "{key}=0 is a right to nothing: leave {key}= out for no bound, or the whole right for \
             no right"
        )),
    }
}

fn user(value: &str) -> Result<u32, String> {
    if value.parse() == Ok(u32::MAX) {
        return Err(format!("uid={value} is no user: all ones mean none"));
    }
    let name = value.parse::<Name>();
    let name = name.map_err(|why| format!("uid={value}: {why}"))?;
    name.uid().map_err(|why| format!("uid={value}: {why:#}"))
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, String> {
    let wrong = |_| format!("{key}=\"{value}\" is not a number that it can have");
    value.parse().map_err(wrong)
}

/// All of them together; without any, everybody who may connect may do everything. Limits that are
/// given several times for a user add up in namespaces.
///
/// # Errors
/// A user has two rights to one namespace, or two depths, numbers of queues or sizes of memory.
pub fn rights(all: &[Allow]) -> Result<Rights, String> {
    let everything = Grant {
        namespaces: None,
        depth_max: DEPTH_MAX,
        queues_max: u32::MAX,
        memory_max: u64::MAX,
    };
    if all.is_empty() {
        return Ok(Rights {
            users: Vec::new(),
            others: Some(everything),
        });
    }
    let mut rights = Rights::default();
    let mut said = Vec::new();
    for allow in all {
        said_once(allow, &mut said)?;
        let grant = match allow.uid {
            None => rights.others.get_or_insert_with(|| everything.clone()),
            Some(uid) => {
                let at = rights.users.iter().position(|(user, _)| *user == uid);
                let at = at.unwrap_or_else(|| {
                    rights.users.push((uid, everything.clone()));
                    rights.users.len() - 1
                });
                &mut rights.users[at].1
            }
        };
        if let Some(namespace) = allow.namespace {
            let namespaces = grant.namespaces.get_or_insert_default();
            if namespaces.iter().any(|it| it.nsid == namespace.nsid) {
                let user = allow.uid.map_or("any".into(), |uid| uid.to_string());
                return Err(format!(
                    "--allow uid={user},nsid={} is there twice: a user has one range of a \
                     namespace; put both into one, or make it two namespaces",
                    namespace.nsid
                ));
            }
            namespaces.push(namespace);
        }
        grant.depth_max = allow.depth.unwrap_or(grant.depth_max);
        grant.queues_max = allow.queues.unwrap_or(grant.queues_max);
        grant.memory_max = allow.memory.unwrap_or(grant.memory_max);
    }
    Ok(rights)
}

/// Of two bounds of one kind for one user nobody knows which counts; `said`: those before.
fn said_once(allow: &Allow, said: &mut Vec<(Option<u32>, &'static str)>) -> Result<(), String> {
    let bounds = [
        ("depth", allow.depth.is_some()),
        ("queues", allow.queues.is_some()),
        ("memory", allow.memory.is_some()),
    ];
    for (bound, _) in bounds.into_iter().filter(|(_, is_said)| *is_said) {
        if said.contains(&(allow.uid, bound)) {
            let user = allow.uid.map_or("any".into(), |uid| uid.to_string());
            return Err(format!(
                "--allow uid={user} has two of {bound}=: which of them counts?"
            ));
        }
        said.push((allow.uid, bound));
    }
    Ok(())
}

/// Whether all rights are about namespaces that there are; `blocks`: how many each has.
///
/// # Errors
/// One is not.
pub fn check(rights: &Rights, blocks: &[u64]) -> Result<(), String> {
    let grants = rights.users.iter().map(|(_, grant)| grant);
    let all = grants.chain(&rights.others);
    for right in all.flat_map(|grant| grant.namespaces.iter().flatten()) {
        let (nsid, first) = (right.nsid, right.first);
        let index = (nsid as usize).checked_sub(1);
        let Some(&blocks) = index.and_then(|index| blocks.get(index)) else {
            return Err(format!("--allow nsid={nsid}: there is no such namespace"));
        };
        if first >= blocks {
            return Err(format!(
                "--allow nsid={nsid},first={first}: the namespace has {blocks} blocks"
            ));
        }
        // Else it ends with the namespace, whatever it has.
        if right.end < u64::MAX && right.end > blocks {
            return Err(format!(
                "--allow nsid={nsid},first={first},blocks={}: the namespace has {blocks} blocks; \
                 leave blocks= out for all from {first} on",
                right.end - first
            ));
        }
    }
    Ok(())
}

/// Users who have rights and can't connect: the socket is for its owner only, unless somebody
/// changes that.
pub fn shut_out(rights: &Rights, owner: u32) -> Vec<u32> {
    let users = rights.users.iter().map(|(uid, _)| *uid);
    users.filter(|uid| ![0, owner].contains(uid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_is_to_blocks_that_there_are_and_of_users_who_may_come() {
        let rights = |text| rights(&[parse(text).unwrap()]).unwrap();
        assert_eq!(
            check(&rights("uid=7,nsid=1,first=6,blocks=250"), &[256]),
            Ok(())
        );
        assert_eq!(check(&rights("uid=7,nsid=1,first=6"), &[256]), Ok(()));
        let error = check(&rights("uid=7,nsid=1,first=6,blocks=251"), &[256]).unwrap_err();
        let want = "nsid=1,first=6,blocks=251: the namespace has 256 blocks";
        assert!(error.contains(want), "{error}");
        assert_eq!(shut_out(&rights("uid=7,nsid=1"), 8), [7]);
        assert_eq!(shut_out(&rights("uid=7,nsid=1"), 7), [0; 0]);
        assert_eq!(shut_out(&rights("uid=any"), 7), [0; 0]);
    }

    #[test]
    fn users_get_what_is_said_of_them() {
        let said = [
            "uid=7,nsid=1,first=10,blocks=5",
            "uid=7,nsid=2,read-only,depth=3",
            "uid=any,queues=1,memory=1MiB",
        ];
        let all: Vec<_> = said.iter().map(|text| parse(text).unwrap()).collect();
        let rights = rights(&all).unwrap();
        let seven = rights.of(7).unwrap();
        let right = |nsid, first, end, read_only| NamespaceRight {
            nsid,
            first,
            end,
            read_only,
        };
        let namespaces = vec![right(1, 10, 15, false), right(2, 0, u64::MAX, true)];
        assert_eq!(seven.namespaces, Some(namespaces));
        assert_eq!((seven.depth_max, seven.queues_max), (3, u32::MAX));
        let other = rights.of(8).unwrap();
        assert_eq!((other.queues_max, &other.namespaces), (1, &None));
        assert_eq!((other.memory_max, seven.memory_max), (1 << 20, u64::MAX));
        assert!(super::rights(&[]).unwrap().of(8).is_some());
        assert!(super::rights(&all[..1]).unwrap().of(8).is_none());
    }

    #[test]
    fn two_bounds_of_one_kind_are_refused() {
        for (bound, other) in [("depth=3", "depth=4"), ("queues=1", "queues=1")] {
            let both = |second: &str| {
                let all = [format!("uid=7,{bound}"), format!("{second},{other}")];
                rights(&all.map(|text| parse(&text).unwrap()))
            };
            let error = both("uid=7,nsid=1").unwrap_err();
            assert!(error.contains("uid=7 has two of "), "{error}");
            assert!(both("uid=any").is_ok());
        }
    }

    #[test]
    fn two_rights_to_one_namespace_are_refused() {
        for (said, name) in [
            (["uid=7,nsid=1,blocks=5", "uid=7,nsid=1,first=9"], "uid=7"),
            (["uid=any,nsid=1", "uid=any,nsid=1"], "uid=any"),
        ] {
            let error = rights(&said.map(|text| parse(text).unwrap())).unwrap_err();
            assert!(
                error.contains("is there twice") && error.contains(name),
                "{error}"
            );
        }
        let apart = [
            "uid=7,nsid=1",
            "uid=8,nsid=1",
            "uid=any,nsid=1",
            "uid=7,nsid=2",
        ];
        assert!(rights(&apart.map(|text| parse(text).unwrap())).is_ok());
    }

    #[test]
    fn user_is_named_by_name_or_number() {
        let of = |text: &str| parse(text).map(|it| it.uid);
        assert_eq!(of("uid=root,nsid=1"), of("uid=0,nsid=1"));
        let error = of("uid=no-such-user").unwrap_err();
        assert!(
            error.contains("there is no user \"no-such-user\""),
            "{error}"
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, part) in [
            ("nsid=1", "say whom"),
            ("uid=a:b", "uid=a:b"),
            ("uid=4294967295", "is no user"),
            ("uid=1,first=2", "say nsid= too"),
            ("uid=1,nsid=0", "counts from 1"),
            ("uid=1,depth=0", "1 to 4095"),
            ("uid=1,blocks=0,nsid=1", "blocks=0 is a right to nothing"),
            ("uid=1,queues=0", "queues=0 is a right to nothing"),
            ("uid=1,memory=0", "memory=0 is a right to nothing"),
            ("uid=1,nsid=1,read-only,read-write", "leave it out"),
            ("uid=1,depth=3,depth=4", "depth is there twice"),
            ("uid=1,uid=2", "uid is there twice"),
            ("uid=1,colour=red", "\"colour=red\" is none of"),
            ("", "\"\" is none of"),
            ("uid=1, nsid=1", "\" nsid=1\" is none of"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
            assert!(error.contains("read-only, then depth=N"), "{error}");
            // The example in the error is right.
            let example = error.rsplit_once("--allow ").unwrap().1;
            assert!(parse(example).is_ok(), "{example}");
        }
    }
}
