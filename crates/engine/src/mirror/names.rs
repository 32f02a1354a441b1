//! Which leg of a mirror is meant by a URI.
//!
//! # Contract
//! A leg's identity is its slot with its identifier. A URI is compared whole with the URIs of legs
//! that are configured, or by the hash in a label. A label of an older version, which may be only
//! the beginning of a URI, names a leg only where no other leg can be meant.
use super::types::LegReport;
use alloc::string::String;
use mirror::superblock::Superblock;
use mirror::{Label, Named};

/// How a label names one of these URIs.
fn named(label: &Label, uris: &[String]) -> Option<Named> {
    let mut found = None;
    for named in uris.iter().filter_map(|uri| label.names(uri)) {
        found = match named {
            Named::Whole => return Some(named),
            Named::Beginning => Some(named),
        };
    }
    found
}

/// Returns the slot whose label names the leg with the URIs `legs[at]`, of all legs that are
/// configured; `None` where it names none, or more than one may be meant.
pub(super) fn slot_of<'a>(
    state: &Superblock,
    legs: impl Iterator<Item = &'a [String]> + Clone,
    at: usize,
) -> Option<u8> {
    let uris = legs.clone().nth(at)?;
    for wanted in [Named::Whole, Named::Beginning] {
        let entries = state.entries();
        let mut slots = entries.filter(|(_, entry)| named(&entry.label, uris) == Some(wanted));
        let Some((slot, entry)) = slots.next() else {
            continue;
        };
        let mut others = legs.clone().enumerate().filter(|(other, _)| *other != at);
        let is_rival = |(_, uris): (usize, &[String])| match named(&entry.label, uris) {
            Some(Named::Whole) => true,
            other => other == Some(wanted),
        };
        let only = slots.next().is_none() && !others.any(is_rival);
        return only.then_some(slot);
    }
    None
}

impl LegReport {
    /// Whether `uri` is one of its own; of a leg that is not configured, whether its label is that
    /// of this URI, or is shown so.
    pub fn is_called(&self, uri: &str) -> bool {
        let is_label = || Label::of_uri(uri).as_str() == self.name;
        self.name == uri
            || self.uris.iter().any(|it| it == uri)
            || self.uris.is_empty() && is_label()
    }

    /// Whether a leg that is not configured may be what one of these URIs leads to, by its label.
    pub fn names(&self, uris: &[String]) -> Option<Named> {
        let label = Label::new(&self.name).ok()?;
        named(&label, uris)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::parts::superblock as mirror;
    use alloc::vec;
    use alloc::vec::Vec;

    fn slots(state: &Superblock, legs: &[Vec<String>]) -> Vec<Option<u8>> {
        let all = || legs.iter().map(Vec::as_slice);
        let slots = (0..legs.len()).map(|at| slot_of(state, all(), at));
        slots.collect()
    }

    fn long(name: &str) -> String {
        alloc::format!("file:/{}/{name}", "kubelet/".repeat(12))
    }

    #[test]
    fn long_uris_name_their_own_leg() {
        let uris = [long("0"), long("1"), long("2")];
        let state = mirror(&uris.clone().map(|uri| Label::of_uri(&uri)));
        // In another order than the slots, and the first one with a second path.
        let legs = [
            vec!["nvme-tcp://other".into(), uris[0].clone()],
            vec![uris[2].clone()],
            vec![uris[1].clone()],
            vec![long("3")],
        ];
        let found = slots(&state, &legs);
        assert_eq!(found, [Some(0), Some(2), Some(1), None]);
        let twice = [vec![uris[1].clone()], vec![uris[1].clone()]];
        assert_eq!(slots(&state, &twice), [None, None]);
    }

    #[test]
    fn cut_labels_name_a_leg_if_no_other_is_meant() {
        let (a, b) = (long("0"), long("1"));
        let alike = mirror(&[Label::cut(&a), Label::cut(&b)]);
        let legs = [vec![a.clone()], vec![b.clone()]];
        assert_eq!(slots(&alike, &legs), [None, None]);
        let unlike = mirror(&[Label::cut(&a), Label::of_uri("file:/b")]);
        assert_eq!(slots(&unlike, &legs), [None, None], "either may be leg 0");
        let legs = [vec![a.clone()], vec!["file:/b".into()]];
        assert_eq!(slots(&unlike, &legs), [Some(0), Some(1)]);
        // A new label and an old one that begin alike.
        let mixed = mirror(&[Label::cut(&a), Label::of_uri(&b)]);
        let legs = [vec![a], vec![b]];
        assert_eq!(slots(&mixed, &legs), [None, Some(1)]);
    }
}
