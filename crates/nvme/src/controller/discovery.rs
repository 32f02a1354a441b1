//! The discovery log and its changes (Base 2.0, 5.16.1.23).
//!
//! Decides which ports and referrals a host sees in the log, the generation of the log, and which
//! hosts get the notice of a change.
//!
//! # Contract
//! A port that accepts hosts of the subsystem is listed for hosts that may connect, and only for
//! those; a port for discovery alone, and referrals, are listed for all hosts. Every change counts
//! one generation. Existing associations go on: an entry that disappears only prevents new ones.
//!
//! # Limits
//! [`REFERRALS_MAX`].
use super::association::{Controller, Notice};
use super::config::{ConfigError, Shared, is_nqn};
use super::{DiscoveryChange, PortOffer, Referral, Subsystem};
use crate::limits::{ADMIN_ENTRIES_MAX, REFERRALS_MAX};
use crate::wire::fabrics::DISCOVERY_NQN;
use crate::wire::layout::{padded, terminated};
use crate::wire::log::{
    self, DISCOVERY_UNIT, DiscoveryEntry, DiscoveryHeader, eflags, subtype, treq,
};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// Entries of the log, without the ports' addresses.
#[derive(Debug)]
pub(super) struct Discovery {
    generation: u64,
    /// By port index.
    offers: Vec<PortOffer>,
    referrals: Vec<Referral>,
    /// A name of its own, beside the well-known one.
    nqn: Option<String>,
}

impl Discovery {
    pub fn new(ports: usize) -> Self {
        Self {
            generation: 1,
            offers: vec![PortOffer::Subsystem; ports],
            referrals: Vec::new(),
            nqn: None,
        }
    }

    /// Whether a host asks for discovery by this name.
    pub fn is_named(&self, subnqn: &[u8]) -> bool {
        let own = self.nqn.as_ref();
        subnqn == DISCOVERY_NQN.as_bytes() || own.is_some_and(|nqn| subnqn == nqn.as_bytes())
    }

    /// Name that the discovery subsystem reports.
    pub fn nqn(&self) -> &str {
        self.nqn.as_deref().unwrap_or(DISCOVERY_NQN)
    }

    /// A port more, which accepts no host yet.
    pub fn add_port(&mut self) {
        self.offers.push(PortOffer::Withdrawn);
    }

    /// Whether a port (index) accepts hosts of the subsystem.
    pub fn takes_hosts(&self, port: u16) -> bool {
        self.offers[usize::from(port)] == PortOffer::Subsystem
    }
}

/// Whether a change concerns a host, by whether it was allowed to connect before, and is now.
type Concerns = fn(bool, bool) -> bool;

impl Shared {
    /// Makes a change; `None`: nothing changed.
    fn apply(&mut self, change: DiscoveryChange) -> Option<Concerns> {
        let discovery = &mut self.discovery;
        match change {
            DiscoveryChange::Offer(port, offer) => {
                let old = set(&mut discovery.offers[usize::from(port)], offer)?;
                let for_all = [old, offer].contains(&PortOffer::Discovery);
                Some(if for_all { |_, _| true } else { |_, may| may })
            }
            DiscoveryChange::Referrals(all) => {
                set(&mut discovery.referrals, all).map(|_| -> Concerns { |_, _| true })
            }
            DiscoveryChange::Name(nqn) => {
                set(&mut discovery.nqn, nqn).map(|_| -> Concerns { |_, _| true })
            }
            DiscoveryChange::Hosts(hosts) => set(&mut self.config.hosts, hosts)
                .map(|_| -> Concerns { |might, may| might != may }),
        }
    }
}

/// Replaces a value; returns the old one, if it was different.
fn set<T: PartialEq>(there: &mut T, value: T) -> Option<T> {
    (*there != value).then(|| core::mem::replace(there, value))
}

impl Subsystem {
    /// Changes discovery; hosts that asked for it get the notice.
    ///
    /// # Errors
    /// An invalid port, name or referral; then nothing has changed.
    pub fn change_discovery(&mut self, change: DiscoveryChange) -> Result<(), ConfigError> {
        check(&self.shared, &change)?;
        let before = self.admitted();
        let Some(concerns) = self.shared.apply(change) else {
            return Ok(()); // it is so already
        };
        self.shared.discovery.generation += 1;
        let after = self.admitted();
        for (index, (before, after)) in before.into_iter().zip(after).enumerate() {
            if concerns(before, after) {
                self.tell_discovery(index);
            }
        }
        Ok(())
    }

    /// By controller: whether it is a discovery controller whose host may connect.
    fn admitted(&self) -> Vec<bool> {
        let may = |c: &Controller| c.discovery && self.shared.admits(&c.hostnqn);
        let all = self.controllers.iter();
        all.map(|c| c.as_deref().is_some_and(may)).collect()
    }

    fn tell_discovery(&mut self, index: usize) {
        let controller = self.controllers[index].as_deref_mut();
        if let Some(controller) = controller.filter(|c| c.discovery) {
            controller.notify(Notice::Discovery);
            self.post_events(index);
        }
    }
}

fn check(shared: &Shared, change: &DiscoveryChange) -> Result<(), ConfigError> {
    let wrong = |field, why| Err(ConfigError { field, why });
    let name = |nqn: &str| is_nqn(nqn) && nqn != shared.config.nqn;
    match change {
        DiscoveryChange::Offer(port, _) if usize::from(*port) >= shared.config.ports.len() => {
            wrong("port", "there is no such port")
        }
        DiscoveryChange::Hosts(hosts) if !hosts.iter().all(|host| is_nqn(host)) => {
            let why = "each must begin with \"nqn.\" and have at most 223 bytes";
            wrong("hosts", why)
        }
        DiscoveryChange::Name(Some(nqn)) if !name(nqn) => {
            let why =
                "must begin with \"nqn.\", have at most 223 bytes, and not be the subsystem's";
            wrong("discovery_nqn", why)
        }
        DiscoveryChange::Referrals(all) if all.len() > REFERRALS_MAX => {
            wrong("referrals", "there may be at most 64")
        }
        DiscoveryChange::Referrals(all) => {
            let fits =
                |it: &Referral| it.traddr.len() < 256 && it.trsvcid.len() < 32 && is_nqn(&it.nqn);
            match all.iter().all(fits) {
                true => Ok(()),
                false => wrong("referrals", "an address, service or name is too long"),
            }
        }
        _ => Ok(()),
    }
}

/// The log as a controller's host may see it.
pub(super) fn page(shared: &Shared, controller: &Controller, out: &mut Vec<u8>) {
    let discovery = &shared.discovery;
    let admitted = shared.admits(&controller.hostnqn);
    let common = DiscoveryEntry {
        trtype: log::TRTYPE_TCP,
        cntlid: 0xffff,
        asqsz: ADMIN_ENTRIES_MAX,
        // SQ flow control may be switched off. A secure channel is "not specified": hosts of
        // libnvme take "not required" (10b) for TLS, and then find no key.
        treq: treq::NO_SQ_FLOW_CONTROL,
        ..DiscoveryEntry::default()
    };
    let ports = shared.config.ports.iter().zip(&discovery.offers);
    let ports = ports.filter_map(|(port, offer)| {
        let (subtype, eflags, subnqn) = match offer {
            PortOffer::Subsystem if admitted => (subtype::NVM, 0, &*shared.config.nqn),
            PortOffer::Discovery => (subtype::CURRENT, eflags::EPCSD, discovery.nqn()),
            _ => return None,
        };
        Some(DiscoveryEntry {
            adrfam: family(port.ipv6),
            subtype,
            portid: port.id,
            eflags,
            trsvcid: padded(&port.trsvcid),
            subnqn: terminated(subnqn),
            traddr: padded(&port.traddr),
            ..common
        })
    });
    let referrals = discovery.referrals.iter().map(|referral| DiscoveryEntry {
        adrfam: family(referral.ipv6),
        subtype: subtype::REFERRAL,
        portid: referral.port_id,
        trsvcid: padded(&referral.trsvcid),
        subnqn: terminated(&referral.nqn),
        traddr: padded(&referral.traddr),
        ..common
    });
    let entries: Vec<_> = ports.chain(referrals).collect();
    let header = DiscoveryHeader {
        generation: discovery.generation,
        records: entries.len() as u64,
        format: 0,
    };
    out.extend_from_slice(&header.emit());
    for entry in &entries {
        out.extend_from_slice(&entry.emit());
    }
    debug_assert!(out.len() == DISCOVERY_UNIT * (1 + entries.len()));
    debug_assert!(log::discovery_entries(out).is_ok());
}

fn family(ipv6: bool) -> u8 {
    if ipv6 {
        log::ADRFAM_IPV6
    } else {
        log::ADRFAM_IPV4
    }
}
