//! The core of a front end that has its volumes on one core: a server of hardware queues, a
//! subsystem over NVMe/TCP.
use super::config::Config;
use super::mirrors;
use super::service::{Service, State};
use engine::mirror::MIRRORS_FROM;

/// Two volumes are on different cores.
pub struct Apart {
    pub volume: String,
    pub core: u16,
    /// Another volume, or the front end that is there already, and its core.
    pub with: String,
    pub with_core: u16,
}

impl Service {
    /// The core of these volumes of `new`. A mirror is on one; so is another volume whose queues
    /// are on its home only. `serving`: the core that the front end is on, and its name. `stays`:
    /// the core on which it serves a volume of this number and name by now.
    ///
    /// # Errors
    /// They are on different ones.
    pub fn core_of_volumes<'a>(
        &self,
        state: &State,
        new: &Config,
        volumes: impl Iterator<Item = &'a str> + Clone,
        serving: Option<(u16, String)>,
        stays: impl Fn(u16, &str) -> Option<u16>,
    ) -> Result<u16, Apart> {
        let mut core = serving;
        let mut usual = None;
        let numbers = state.volumes.numbered(new);
        for volume in volumes.clone() {
            let number = numbers.iter().find(|(_, of)| of.name == volume);
            let Some((number, _)) = number else {
                continue;
            };
            let own = self.senders.core_of(*number) as u16;
            // Another multipath volume is on every core; one that is served there stays.
            let stays = stays(*number, volume);
            let keeps_home = stays.is_none() && self.senders.seats(*number).keeps_home();
            if *number < MIRRORS_FROM && !keeps_home {
                usual = stays.or(usual).or(Some(own));
                continue;
            }
            match &core {
                Some((core, with)) if *core != own => {
                    return Err(Apart {
                        volume: volume.to_owned(),
                        core: own,
                        with: with.clone(),
                        with_core: *core,
                    });
                }
                Some(_) => {}
                None => core = Some((own, volume.to_owned())),
            }
        }
        // As at a start, where none of its volumes is there yet.
        let at_start = || {
            let first = volumes.clone().next()?;
            let at = new.volumes.iter().position(|it| it.name == first)?;
            Some(new.core_of(mirrors::numbers(new.volumes.iter())[at]))
        };
        let core = core.map(|it| it.0).or(usual).or_else(at_start);
        Ok(core.unwrap_or_default())
    }
}
