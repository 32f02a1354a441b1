//! A target's discovery log, as it is written: offers of ports, and other discovery
//! controllers that hosts are referred to.
use super::quantity::{FromText, from_text};
use nvme::controller::{PortOffer, Referral};
use nvme::wire::fabrics::DISCOVERY_NQN;
use paths::uri::discovery::DISCOVERY_PORT;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Offer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer(pub PortOffer);

const OFFERS: [(&str, PortOffer); 3] = [
    ("subsystem", PortOffer::Subsystem),
    ("withdrawn", PortOffer::Withdrawn),
    ("discovery", PortOffer::Discovery),
];

impl Default for Offer {
    fn default() -> Self {
        Self(PortOffer::Subsystem)
    }
}

impl FromText for Offer {
    const WANTED: &'static str = "\"subsystem\", \"withdrawn\" or \"discovery\"";
    fn from_text(text: &str) -> Result<Self, String> {
        let found = OFFERS.iter().find(|(word, _)| *word == text);
        let found = found.map(|(_, offer)| Offer(*offer));
        found.ok_or_else(|| format!("\"{text}\" is none of subsystem, withdrawn, discovery"))
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = OFFERS.iter().find(|(_, offer)| *offer == self.0);
        f.write_str(found.map_or("", |(word, _)| word))
    }
}

impl<'de> Deserialize<'de> for Offer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from_text(from)
    }
}

/// Where another discovery controller is: an address in numbers, and its port unless it is the
/// usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferralAddress(pub SocketAddr);

impl FromText for ReferralAddress {
    const WANTED: &'static str = "an address in quotes, as in \"10.0.0.2:8009\"";
    fn from_text(text: &str) -> Result<Self, String> {
        let alone = || {
            Some(SocketAddr::new(
                text.parse::<IpAddr>().ok()?,
                DISCOVERY_PORT,
            ))
        };
        let address = text.parse().ok().or_else(alone);
        let usable = |it: &SocketAddr| it.port() > 0 && !it.ip().is_unspecified();
        address.filter(usable).map(Self).ok_or_else(|| {
            format!("\"{text}\" is no address to connect to, as 10.0.0.2:8009 or [fd00::2]:8009")
        })
    }
}

impl Serialize for ReferralAddress {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

/// One `[[referral]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferralKeys {
    /// Where it is.
    #[serde(deserialize_with = "from_text")]
    pub address: ReferralAddress,
    /// Its discovery subsystem's own NQN; the well-known one where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
}

/// Referrals as the subsystem has them.
pub fn referrals(all: &[ReferralKeys]) -> Vec<Referral> {
    let referral = |(keys, number): (&ReferralKeys, u16)| {
        let ReferralAddress(address) = keys.address;
        Referral {
            port_id: number,
            traddr: address.ip().to_string(),
            trsvcid: address.port().to_string(),
            ipv6: address.is_ipv6(),
            nqn: keys.nqn.clone().unwrap_or_else(|| DISCOVERY_NQN.into()),
        }
    };
    all.iter().zip(1..).map(referral).collect()
}
