//! Choices by hand, beside the configuration's values, and since when.
use super::{Choice, Choices, Setting};
use crate::run::live;
use crate::units::format_ns;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// A choice that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// `policy`, the name of a key, or `path` and a URI.
    pub what: String,
    /// The configuration's value; of a path: whether it has it.
    pub file: String,
    /// The value that holds.
    pub now: String,
    /// s after 1970; `None`: an older version kept it.
    pub since_s: Option<u64>,
}

/// Names of what is chosen together with the policy.
const OF_POLICY: [&str; 4] = ["policy", "ewma_shift", "weight_timeout", "hedge"];

impl Setting {
    fn values(&self) -> [String; 4] {
        let timeout = format_ns(self.weight_timeout_ns as f64);
        [
            self.policy.clone(),
            self.ewma_shift.to_string(),
            timeout,
            self.hedge.clone(),
        ]
    }
}

impl Choice {
    fn differences(&self) -> Vec<Difference> {
        let difference = |what: String, file: &str, now: &str| Difference {
            since_s: self.since.get(&what).copied(),
            what,
            file: file.to_owned(),
            now: now.to_owned(),
        };
        let mut all = Vec::new();
        if let (Some(file), Some(now)) = (&self.configured, &self.chosen) {
            let values = file.values().into_iter().zip(now.values());
            for (name, (file, now)) in OF_POLICY.iter().zip(values) {
                all.push(difference((*name).to_owned(), &file, &now));
            }
        }
        for (name, it) in &self.keys {
            let shown = |text: &String| {
                let shown = live::find(name).ok().and_then(|key| key.shown(text));
                shown.unwrap_or_else(|| text.clone())
            };
            let (file, now) = (shown(&it.configured), shown(&it.chosen));
            all.push(difference(name.clone(), &file, &now));
        }
        if let Some(it) = &self.paths {
            let path = |uri: &String| format!("path {uri}");
            let added = it.chosen.iter().filter(|uri| !it.configured.contains(uri));
            all.extend(added.map(|uri| difference(path(uri), "no path", "added")));
            let gone = it.configured.iter().filter(|uri| !it.chosen.contains(uri));
            all.extend(gone.map(|uri| difference(path(uri), "a path", "removed")));
            let aside = it.aside.iter();
            all.extend(aside.map(|(uri, admin)| difference(path(uri), "used", admin.done())));
        }
        all.retain(|it| it.file != it.now);
        all
    }

    /// Notes when what it has other than the choice before was chosen.
    pub(super) fn note_since(&mut self, before: Option<&Self>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_s = now.map_or(0, |it| it.as_secs());
        let before = before.map(Self::differences).unwrap_or_default();
        let since = self.differences().into_iter().map(|it| {
            let is_it = |other: &&Difference| other.what == it.what && other.now == it.now;
            let held = before.iter().find(is_it);
            (it.what, held.map_or(Some(now_s), |it| it.since_s))
        });
        let since = since.filter_map(|(what, since_s)| Some((what, since_s?)));
        self.since = since.collect::<BTreeMap<_, _>>();
    }
}

impl Choices {
    /// Choices for a volume that differ from its configuration.
    pub fn differences(&self, volume: &str) -> Vec<Difference> {
        let of = self.map.get(volume);
        of.map(Choice::differences).unwrap_or_default()
    }
}
