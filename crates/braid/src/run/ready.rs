//! Volumes that are not up yet: what the service manager and their clients are told.
//!
//! # Contract
//! READY is sent when all volumes are up, or after `ready_wait`, which is logged. A client of a
//! volume that was never up waits in the greeting, or with `before_up = "refuse"` is greeted and
//! told so at once; hosts over NVMe/TCP: see [`nvme_exports`](super::nvme_exports). A reason that
//! keeps a volume from being opened until a user does something is told in either case.
use super::config::BeforeUp;
use super::service::{Service, State};
use super::volumes::Running;
use crate::log;
use crate::service_manager;
use crate::units::format_ns;
use anyhow::Context;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Tells the service manager, if there is one, when volumes are up.
///
/// # Errors
/// No thread is left.
pub fn announce(service: &Arc<Service>) -> anyhow::Result<()> {
    if !service_manager::is_there() {
        return Ok(());
    }
    let service = Arc::clone(service);
    let builder = std::thread::Builder::new().name("ready".into());
    let thread = builder.spawn(move || service.wait_up());
    thread.context("cannot start a thread")?;
    Ok(())
}

/// Volumes that users see and that are not up.
fn missing(state: &State) -> Vec<String> {
    let all = state.volumes.iter().map(|(_, it)| it);
    let all = all.filter(|it| it.of.leg_of.is_none() && it.info.is_none());
    all.map(|it| it.of.name.clone()).collect()
}

impl Service {
    fn wait_up(&self) {
        let state = self.state();
        let limit_ns = state.configured.ready_wait.0;
        let limit = Duration::from_nanos(limit_ns);
        let waits = |state: &mut State| !state.is_closed() && !missing(state).is_empty();
        let state = self.news.wait_timeout_while(state, limit, waits);
        let (state, _) = state.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed() {
            return;
        }
        let missing = missing(&state);
        drop(state);
        if !missing.is_empty() {
            log::say(format!(
                "the service manager is told READY after ready_wait ({}), though not up yet: {}; \
                 braid check says why",
                format_ns(limit_ns as f64),
                missing.join(", ")
            ));
        }
        service_manager::ready();
    }

    /// Clients of volumes that are not up are refused, where their configuration says so. Of others
    /// nothing is said: a core may refuse them by now, for a reason of its own.
    pub fn refuse_early_clients(&self) {
        let early: Vec<(u16, String)> = {
            let state = self.state();
            let all = state.volumes.iter();
            all.filter_map(|(number, it)| Some((number, early(it)?)))
                .collect()
        };
        for (number, why) in early {
            self.senders.refuse_clients(number, Some(why));
        }
    }

    /// The engine refuses clients of a volume for this reason; `None`: it does not.
    pub fn refuse_clients(&self, volume: u16, why: Option<String>) {
        let early = self.state().volumes.meant(volume).and_then(|it| early(it));
        // Once it is up, the engine serves its clients whatever is said here.
        self.senders.refuse_clients(volume, why.or(early));
    }
}

/// Why clients of a volume are refused, if it is not up and they are.
pub fn early(it: &Running) -> Option<String> {
    let name = &it.of.name;
    (it.info.is_none() && it.of.before_up == Some(BeforeUp::Refuse)).then(|| {
        format!("{name}: not up yet, and before_up = \"refuse\"; braid check {name} says why")
    })
}
