//! What `policy set` and `knob set` chose: kept so that it survives a restart.
//!
//! # Contract
//! The file is replaced whole or not at all. A choice wins over the configuration that was there
//! when it was made; a configuration that says something else later, wins.
use super::state;
use anyhow::Context;
use policy::{Knobs, Policy};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// All choices, and their file.
pub struct Choices {
    path: PathBuf,
    map: BTreeMap<String, Choice>,
}

/// Of one volume, in the words that a user would say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    /// What the configuration said then.
    configured: Setting,
    chosen: Setting,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    policy: String,
    ewma_shift: u8,
    weight_timeout_ns: u64,
}

impl Setting {
    fn new(policy: Policy, knobs: Knobs) -> Self {
        Self {
            policy: policy.to_string(),
            ewma_shift: knobs.ewma_shift,
            weight_timeout_ns: knobs.weight_timeout_ns,
        }
    }
}

impl Choices {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// It can't be read, or isn't ours.
    pub fn read(path: PathBuf) -> anyhow::Result<Self> {
        let map = state::read(&path)
            .with_context(|| format!("{} (remove it to forget choices)", path.display()))?;
        Ok(Self { path, map })
    }

    /// What holds for a volume that is configured so.
    pub fn of(&self, volume: &str, policy: Policy, knobs: Knobs) -> (Policy, Knobs) {
        let chosen = self.map.get(volume).and_then(|choice| {
            let same = choice.configured == Setting::new(policy, knobs);
            let knobs = Knobs {
                ewma_shift: choice.chosen.ewma_shift,
                weight_timeout_ns: choice.chosen.weight_timeout_ns,
            };
            let policy = Policy::parse(&choice.chosen.policy).ok()?;
            (same && knobs.check().is_ok()).then_some((policy, knobs))
        });
        chosen.unwrap_or((policy, knobs))
    }

    /// Keeps a choice.
    ///
    /// # Errors
    /// The file can't be written; nothing has changed then.
    pub fn keep(
        &mut self,
        volume: &str,
        configured: (Policy, Knobs),
        chosen: (Policy, Knobs),
    ) -> anyhow::Result<()> {
        let choice = Choice {
            configured: Setting::new(configured.0, configured.1),
            chosen: Setting::new(chosen.0, chosen.1),
        };
        let mut map = self.map.clone();
        map.insert(volume.to_owned(), choice);
        state::write(&self.path, &map)?;
        self.map = map;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_choice_survives_until_the_configuration_says_something_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/choices.json");
        let knobs = Knobs::default();
        let (configured, chosen) = ((Policy::Numa, knobs), (Policy::QueueDepth, knobs));
        let mut choices = Choices::read(path.clone()).unwrap();
        assert_eq!(choices.of("v0", Policy::Numa, knobs), configured);
        choices.keep("v0", configured, chosen).unwrap();
        let again = Choices::read(path.clone()).unwrap();
        assert_eq!(again.of("v0", Policy::Numa, knobs), chosen);
        assert_eq!(again.of("v1", Policy::Numa, knobs), configured);
        let other = again.of("v0", Policy::WeightedLatency, knobs);
        assert_eq!(other.0, Policy::WeightedLatency);
        fs::write(&path, "{\"v0\": 1}").unwrap();
        assert!(Choices::read(path).is_err());
    }
}
