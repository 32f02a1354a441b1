//! Why a volume has no path yet: what each discovery controller says.
use super::Discovery;
use crate::run::service::Service;
use crate::uri::discovery::in_words;
use serde_json::Value;

impl Service {
    /// Adds to each of `volumes` that has no path yet what it `awaits`.
    pub fn tell_awaited(&self, of: &mut Value) {
        let Some(volumes) = of["volumes"].as_array_mut() else {
            return;
        };
        for volume in volumes {
            let none = volume["paths"].as_array().is_none_or(Vec::is_empty);
            let nqn = volume["name"].as_str().and_then(|name| {
                let state = self.state();
                let number = state.volumes.number(name).ok()?;
                state.volumes[number].of.subsystem.clone()
            });
            if let Some(nqn) = nqn.filter(|_| none) {
                volume["awaits"] = self.discovery.awaited(&nqn).into();
            }
        }
    }
}

impl Discovery {
    /// State of a subsystem at each controller.
    fn awaited(&self, nqn: &str) -> Vec<String> {
        let book = self.book();
        let known = book.controllers.iter().map(|(endpoint, it)| {
            let ways = it.tells.iter().filter(|offer| offer.nqn == nqn).count();
            let what = match (&it.why, ways) {
                (Some(why), _) => why.clone(),
                (None, 0) => format!("tells of no path to it ({} entries)", it.entries),
                (None, ways) => {
                    format!("tells of {ways}, and none could be used yet; see the log for why")
                }
            };
            format!("discovery of {}: {what}", in_words(endpoint))
        });
        let sources = book.sources.values();
        let new = sources.filter(|(_, endpoint)| !book.controllers.contains_key(endpoint));
        let new = new.map(|(uri, _)| format!("discovery of {uri}: no answer yet"));
        let unresolved = book.unresolved.iter();
        let unresolved = unresolved.map(|(uri, why, _)| format!("discovery of {uri}: {why}"));
        known.chain(new).chain(unresolved).collect()
    }
}
