//! Which part of an engine issued a request.
use crate::Key;

/// The issuer of a request to a device, with its own name of the request. The completion goes back
/// there, by one match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issuer {
    /// A front end, by its number (31 bits), and the number of the request there.
    FrontEnd(u32, u32),
    /// A device of higher number: the key of the request in the table of what devices have issued.
    Device(Key),
}

/// Set in the cookies of devices.
const OF_DEVICE: u64 = 1 << 63;

impl Issuer {
    /// As a cookie: 64 bits that come back with the completion. The cookie of front end 0 is the
    /// number of the request.
    #[inline]
    pub fn to_cookie(self) -> u64 {
        match self {
            Self::FrontEnd(front_end, request) => {
                debug_assert!(front_end >> 31 == 0, "front end {front_end}");
                u64::from(front_end) << 32 | u64::from(request)
            }
            Self::Device(key) => OF_DEVICE | key.to_bits(),
        }
    }

    /// The issuer that [`Self::to_cookie`] made this cookie of.
    #[inline]
    pub fn of_cookie(cookie: u64) -> Self {
        if cookie & OF_DEVICE == 0 {
            Self::FrontEnd((cookie >> 32) as u32, cookie as u32)
        } else {
            Self::Device(Key::from_bits(cookie & !OF_DEVICE))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SlotMap;

    #[test]
    fn each_issuer_has_a_cookie_of_its_own() {
        let mut map = SlotMap::new(2);
        let first = map.insert(());
        map.remove(first);
        for issuer in [
            Issuer::FrontEnd(0, 0),
            Issuer::FrontEnd(0, u32::MAX),
            Issuer::FrontEnd(1, 7),
            Issuer::FrontEnd(u32::MAX >> 1, 7),
            Issuer::Device(first),
            Issuer::Device(map.insert(())),
            Issuer::Device(map.insert(())),
        ] {
            assert_eq!(Issuer::of_cookie(issuer.to_cookie()), issuer);
        }
        assert_eq!(Issuer::FrontEnd(0, 7).to_cookie(), 7);
    }
}
