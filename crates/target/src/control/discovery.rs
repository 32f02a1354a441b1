//! Discovery log of a running target: `target.hosts {"hosts": [NQN…]}` and
//! `target.referrals {"referrals": [{"address": "10.0.0.2:8009"}]}`, each the whole list.
use super::Control;
use crate::config::check_nqn;
use crate::discovery::{ReferralKeys, referrals};
use engine::target::TargetControl;
use nvme::controller::DiscoveryChange;
use nvme::limits::REFERRALS_MAX;
use nvme::wire::fabrics::DISCOVERY_NQN;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use service::control::rpc::ControlError;
use std::net::SocketAddr;

/// Of `target.hosts`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostsParams {
    /// Host NQNs; none: any host.
    pub hosts: Vec<String>,
}

/// Of `target.referrals`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferralsParams {
    /// All of them.
    pub referrals: Vec<ReferralKeys>,
}

impl Control {
    pub(super) fn set_hosts(&self, params: HostsParams) -> Result<Value, ControlError> {
        let checked = params
            .hosts
            .iter()
            .try_for_each(|it| check_nqn("hosts", it));
        checked.map_err(ControlError::params)?;
        if let (true, Some(listen)) = (params.hosts.is_empty(), &self.closed_port) {
            return Err(ControlError::refused(format!(
                "listen \"{listen}\": other machines reach it: name the hosts that may connect, or \
                 restart the target with open = true (without a file --open)"
            )));
        }
        let mut state = self.state();
        let change = DiscoveryChange::Hosts(params.hosts.clone());
        self.send(TargetControl::Discovery(change))?;
        state.hosts = params.hosts;
        Ok(json!({"hosts": state.hosts}))
    }

    pub(super) fn set_referrals(&self, params: ReferralsParams) -> Result<Value, ControlError> {
        check_referrals(&params.referrals).map_err(ControlError::params)?;
        let mut state = self.state();
        let change = DiscoveryChange::Referrals(referrals(&params.referrals));
        self.send(TargetControl::Discovery(change))?;
        state.referrals = params.referrals;
        Ok(json!({"referrals": show_referrals(&state.referrals)}))
    }
}

pub(super) fn show_referrals(all: &[ReferralKeys]) -> Vec<Value> {
    let show = |it: &ReferralKeys| json!({"address": it.address.0.to_string(), "nqn": it.nqn});
    all.iter().map(show).collect()
}

/// Whether a subsystem takes them.
pub fn check_referrals(all: &[ReferralKeys]) -> Result<(), String> {
    if all.len() > REFERRALS_MAX {
        return Err(format!(
            "there are {} referrals; {REFERRALS_MAX} at most",
            all.len()
        ));
    }
    let mut each = all.iter().enumerate();
    let is_twice = |(at, it): &(usize, &ReferralKeys)| {
        all[..*at].iter().any(|before| place(before) == place(it))
    };
    if let Some((_, it)) = each.find(is_twice) {
        return Err(format!("referral {} is given twice", it.address.0));
    }
    let mut names = all.iter().filter_map(|it| it.nqn.as_deref());
    names.try_for_each(|nqn| check_nqn("referral: nqn", nqn))
}

/// Whom it refers to.
fn place(of: &ReferralKeys) -> (SocketAddr, &str) {
    (of.address.0, of.nqn.as_deref().unwrap_or(DISCOVERY_NQN))
}
