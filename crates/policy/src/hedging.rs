//! Whether reads are hedged: the user's setting, and whether the policy supports it.
//!
//! A second copy is sent when a read takes longer than predicted, so hedging needs a policy that
//! predicts. *Automatic* hedges under those.
use crate::parse::KnobError;
use crate::types::Policy;
use core::fmt;

/// Whether late reads get a second copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hedging {
    /// Never.
    Off,
    /// Yes; refused under a policy that does not predict.
    On,
    /// Under a policy that predicts; else not.
    #[default]
    Auto,
}

/// The words of the setting.
const WORDS: [(&str, Hedging); 3] = [
    ("off", Hedging::Off),
    ("on", Hedging::On),
    ("auto", Hedging::Auto),
];

impl Hedging {
    /// Reads `off`, `on` or `auto`.
    ///
    /// # Errors
    /// [`KnobError::HedgeWord`].
    pub fn parse(text: &str) -> Result<Self, KnobError> {
        let found = WORDS.iter().find(|(word, _)| *word == text);
        found.map(|it| it.1).ok_or(KnobError::HedgeWord)
    }

    /// Whether reads are hedged under `policy`.
    pub fn works(self, policy: Policy) -> bool {
        self != Self::Off && policy == Policy::Soonest
    }

    /// Checks whether hedging can be set under `policy`.
    ///
    /// # Errors
    /// [`KnobError::HedgeWithout`].
    pub fn check(self, policy: Policy) -> Result<(), KnobError> {
        match self {
            Self::On if !self.works(policy) => Err(KnobError::HedgeWithout),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Hedging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = WORDS.iter().find(|(_, it)| it == self);
        f.write_str(word.map_or("", |it| it.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn every_word_is_read_as_it_is_shown_and_no_other() {
        for (word, hedging) in WORDS {
            assert_eq!(Hedging::parse(word), Ok(hedging));
            assert_eq!(hedging.to_string(), word);
        }
        for word in ["", "On", "yes", "1", "auto ", "\0"] {
            assert_eq!(Hedging::parse(word), Err(KnobError::HedgeWord));
        }
    }

    #[test]
    fn only_a_policy_that_predicts_hedges_and_only_on_insists() {
        for policy in Policy::EACH {
            let predicts = policy == Policy::Soonest;
            for (_, hedging) in WORDS {
                let wanted = hedging != Hedging::Off;
                assert_eq!(hedging.works(policy), predicts && wanted);
                let refused = hedging == Hedging::On && !predicts;
                assert_eq!(hedging.check(policy).is_err(), refused);
            }
        }
    }
}
