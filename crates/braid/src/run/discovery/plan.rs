//! Plans the changes of a volume's paths: which are to join, and which are not announced any more.
use crate::run::config::{PathKeys, Volume};
use crate::uri::discovery::in_words;
use crate::uri::{PathUri, UriKind, escaped, zone};
use engine::discovery::{Endpoint, Offer};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// All that is told, and who tells of each.
pub type Offers = BTreeMap<Offer, Vec<Endpoint>>;

/// Source of a path that an earlier engine had from discovery, until it is announced again.
pub const BEFORE: &str = "an earlier engine";

/// Changes of a volume's paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Paths that are told and not there, and who tells of each.
    pub missing: Vec<(PathUri, Vec<Endpoint>)>,
    /// Paths that came from discovery and are not told any more, by URI.
    pub surplus: Vec<String>,
}

impl Plan {
    /// All paths that are to join or to leave, by URI.
    pub fn named(&self) -> impl Iterator<Item = String> {
        let missing = self.missing.iter().map(|(uri, _)| uri.to_string());
        missing.chain(self.surplus.iter().cloned())
    }
}

/// Of a volume with these paths; those in `found` came from discovery, those in `fixed` stay
/// whoever tells of them. `named`: all addresses that the name in a path stands for.
pub fn plan(
    of: &Volume,
    found: &BTreeMap<String, String>,
    fixed: &[PathKeys],
    all: &Offers,
    named: impl Fn(&PathUri) -> Vec<SocketAddr>,
) -> Plan {
    let Some(nqn) = &of.subsystem else {
        // It was asked for discovery before, and isn't now: what came stays.
        return Plan::default();
    };
    let told = || all.iter().filter(|(offer, _)| offer.nqn == *nqn);
    let there: BTreeSet<SocketAddr> = (of.paths.iter())
        .flat_map(|keys| addresses(&keys.uri, nqn, &named))
        .collect();
    let missing = told().filter(|(offer, _)| !there.contains(&offer.address));
    let missing = missing.filter_map(|(offer, by)| Some((uri(offer, of.nsid)?, by.clone())));
    let addresses: BTreeSet<SocketAddr> = told().map(|(offer, _)| offer.address).collect();
    let surplus = of.paths.iter().map(|keys| &keys.uri).filter(|uri| {
        let told = address(uri, nqn).is_some_and(|it| addresses.contains(&it));
        let stays = fixed.iter().any(|keys| keys.uri == **uri);
        found.contains_key(&uri.to_string()) && !told && !stays
    });
    Plan {
        missing: missing.collect(),
        surplus: surplus.map(PathUri::to_string).collect(),
    }
}

/// Controller that would bring a path back at once if it left, whoever added it: it announces the
/// place where the path leads, and no other path does.
pub fn teller<'a>(
    of: &Volume,
    path: &PathUri,
    all: &'a Offers,
    named: impl Fn(&PathUri) -> Vec<SocketAddr>,
) -> Option<&'a Endpoint> {
    let nqn = of.subsystem.as_ref()?;
    let others = of.paths.iter().filter(|keys| keys.uri != *path);
    let others: BTreeSet<SocketAddr> = others
        .flat_map(|keys| addresses(&keys.uri, nqn, &named))
        .collect();
    let mut places = addresses(path, nqn, &named).into_iter();
    places.find_map(|address| {
        let nqn = nqn.clone();
        let tellers = all.get(&Offer { nqn, address })?;
        tellers.first().filter(|_| !others.contains(&address))
    })
}

/// Of paths that an earlier engine knew, and that are told now: who tells of them.
pub fn adopt(of: &Volume, found: &mut BTreeMap<String, String>, all: &Offers) {
    let Some(nqn) = &of.subsystem else { return };
    for (uri, by) in found.iter_mut().filter(|(_, by)| *by == BEFORE) {
        let uri: Option<PathUri> = uri.parse().ok();
        let address = uri.and_then(|uri| address(&uri, nqn));
        let offer = address.map(|address| Offer {
            nqn: nqn.clone(),
            address,
        });
        let tellers = offer.and_then(|offer| all.get(&offer));
        if let Some(teller) = tellers.and_then(|tellers| tellers.first()) {
            *by = in_words(teller);
        }
    }
}

/// A path as discovery would tell a volume of it; `None`: it would not.
pub fn offered(of: &Volume, text: &str) -> Option<PathUri> {
    let nqn = of.subsystem.clone()?;
    let address = address(&text.parse().ok()?, &nqn)?;
    let told = uri(&Offer { nqn, address }, of.nsid);
    told.filter(|uri| uri.to_string() == text)
}

/// The path that an offer stands for.
pub fn uri(offer: &Offer, nsid: Option<u32>) -> Option<PathUri> {
    let nsid = nsid.map_or(String::new(), |nsid| format!("?nsid={nsid}"));
    let at = zone::authority(&offer.address);
    let text = format!("nvme-tcp://{at}/{}{nsid}", escaped(&offer.nqn));
    text.parse().ok()
}

/// Where a path to this subsystem leads, if that is written in numbers.
pub fn address(uri: &PathUri, nqn: &str) -> Option<SocketAddr> {
    match uri.kind() {
        UriKind::NvmeTcp(tcp) if tcp.subsystem == nqn => tcp.written(),
        _ => None,
    }
}

/// Where a path to this subsystem leads, also by a name: to each address that this stands for.
pub fn addresses(
    uri: &PathUri,
    nqn: &str,
    named: impl Fn(&PathUri) -> Vec<SocketAddr>,
) -> Vec<SocketAddr> {
    match (address(uri, nqn), uri.kind()) {
        (Some(only), _) => vec![only],
        (None, UriKind::NvmeTcp(it)) if it.subsystem == nqn => named(uri),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::tests::parsed;

    const NQN: &str = "nqn.2026-01.org.example:v0";

    fn volume(paths: &[&str], keys: &str) -> Volume {
        let paths = paths
            .iter()
            .map(|uri| format!("[[volume.path]]\nuri = \"{uri}\"\n"));
        let text = format!(
            "[[discovery]]\nuri = \"nvme-tcp://127.0.0.1\"\n[[volume]]\nname = \"v0\"\n{keys}{}",
            paths.collect::<String>()
        );
        parsed(&text).volumes.remove(0)
    }

    fn offers(all: &[(&str, &str)]) -> Offers {
        let by = Endpoint {
            address: "127.0.0.1:8009".parse().unwrap(),
            nqn: nvme::wire::fabrics::DISCOVERY_NQN.into(),
        };
        let offer = |(nqn, address): &(&str, &str)| Offer {
            nqn: (*nqn).to_owned(),
            address: address.parse().unwrap(),
        };
        all.iter().map(|it| (offer(it), vec![by.clone()])).collect()
    }

    fn missing(plan: &Plan) -> Vec<String> {
        plan.missing
            .iter()
            .map(|(uri, _)| uri.to_string())
            .collect()
    }

    fn unnamed(_: &PathUri) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// Whether or not it is the one that was connected.
    #[test]
    fn a_path_by_name_is_each_of_the_addresses_that_the_name_stands_for() {
        let of = volume(
            &[&format!("nvme-tcp://there:4421/{NQN}")],
            &format!("subsystem = \"{NQN}\"\n"),
        );
        let told = ["10.0.0.1:4421", "[fd00::1]:4421", "10.0.0.2:4421"];
        let all = offers(&told.map(|address| (NQN, address)));
        let named = |_: &PathUri| told[..2].iter().map(|it| it.parse().unwrap()).collect();
        let plan = plan(&of, &BTreeMap::new(), &of.paths, &all, named);
        assert_eq!(missing(&plan), [format!("nvme-tcp://10.0.0.2:4421/{NQN}")]);
    }

    #[test]
    fn what_is_told_of_the_subsystem_and_not_there_is_missing() {
        let keys = format!("subsystem = \"{NQN}\"\nnsid = 3\n");
        let there = format!("nvme-tcp://10.0.0.1/{NQN}?nsid=3");
        let of = volume(&[&there], &keys);
        let told = offers(&[
            (NQN, "10.0.0.1:4420"),
            (NQN, "[fd00::1]:4421"),
            ("nqn.2026-01.org.example:other", "10.0.0.3:4420"),
        ]);
        let plan = plan(&of, &BTreeMap::new(), &[], &told, unnamed);
        assert_eq!(
            missing(&plan),
            [format!("nvme-tcp://[fd00::1]:4421/{NQN}?nsid=3")]
        );
        assert_eq!(plan.surplus, [""; 0]);
    }

    #[test]
    fn only_what_came_from_discovery_is_surplus() {
        let keys = format!("subsystem = \"{NQN}\"\n");
        let [a, b, c] = [1, 2, 3].map(|it| format!("nvme-tcp://10.0.0.{it}:4420/{NQN}"));
        let of = volume(&[&a, &b, &c], &keys);
        let found = [a.clone(), b.clone()]
            .map(|uri| (uri, String::new()))
            .into();
        let none = plan(&of, &found, &[], &offers(&[]), unnamed);
        assert_eq!(none.surplus, [a.clone(), b.clone()]);
        let fixed = &of.paths[..1];
        let fixed = plan(&of, &found, fixed, &offers(&[]), unnamed);
        assert_eq!(fixed.surplus, [b], "what the file has stays");
        let of = volume(&[&a, &c], "");
        assert_eq!(
            plan(&of, &found, &[], &offers(&[]), unnamed),
            Plan::default()
        );
    }

    /// Also for a path that was added by hand; but not where the volume is not asked for, or
    /// another path leads there.
    #[test]
    fn what_is_told_and_nowhere_else_would_come_again() {
        let [a, b] = [1, 2].map(|it| format!("nvme-tcp://10.0.0.{it}:4420/{NQN}"));
        let name = format!("nvme-tcp://there:4420/{NQN}");
        let named = |uri: &PathUri| match uri.to_string().contains("there") {
            true => vec!["10.0.0.1:4420".parse().unwrap()],
            false => Vec::new(),
        };
        let keys = format!("subsystem = \"{NQN}\"\n");
        let told = offers(&[(NQN, "10.0.0.1:4420")]);
        let again = |paths: &[&str], keys: &str, path: &str, told: &Offers| {
            let of = volume(paths, keys);
            teller(&of, &path.parse().unwrap(), told, named).is_some()
        };
        assert!(again(&[&a, &b], &keys, &a, &told));
        assert!(again(&[&name, &b], &keys, &name, &told));
        assert!(!again(&[&a, &b], &keys, &b, &told));
        assert!(!again(&[&a, &name], &keys, &name, &told), "the other stays");
        assert!(!again(&[&a, &b], "", &a, &told), "nobody asked for it");
        assert!(!again(&[&a, &b], &keys, &a, &offers(&[])));
    }

    #[test]
    fn what_an_earlier_engine_knew_is_the_controllers_that_tells_of_it() {
        let (a, b) = ("nvme-tcp://10.0.0.1/", "nvme-tcp://10.0.0.2/");
        let [a, b] = [a, b].map(|start| format!("{start}{NQN}"));
        let of = volume(&[&a, &b], &format!("subsystem = \"{NQN}\"\n"));
        let told_by =
            |by: [&str; 2]| BTreeMap::from([(a.clone(), by[0].into()), (b.clone(), by[1].into())]);
        let mut found = told_by([BEFORE, BEFORE]);
        adopt(&of, &mut found, &offers(&[]));
        assert_eq!(found, told_by([BEFORE, BEFORE]));
        adopt(
            &of,
            &mut found,
            &offers(&[(NQN, "10.0.0.2:4420"), ("nqn.x:y", "10.0.0.1:4420")]),
        );
        assert_ne!(found[&b], BEFORE);
        assert_eq!(found[&a], BEFORE);
    }
}
