//! Changes of a server that runs: its namespaces and ports come and go, and it ends.
use super::losses::Losses;
use super::{Life, Namespace, NvmeConfig, NvmeServer, Presence, awaited};
use crate::export::ExportEvent;
use crate::host::VolumeInfo;
use crate::machine::{LocalDevice, Machine};
use crate::mirror::Devices;
use crate::target::TargetControl;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use canary::Bug;
use nvme::controller::{DiscoveryChange, NamespaceConfig, PortConfig};

/// Changes of NVMe/TCP servers. An impossible change does nothing; one of a namespace is
/// reported.
#[derive(Clone, Debug)]
pub enum NvmeControl {
    /// A server begins in this place, which is free.
    Serve(Box<NvmeConfig>),
    /// Host NQNs that may connect; none: any. Other hosts are disconnected.
    Hosts(Vec<String>),
    /// The port of this index is there, in place of one that was withdrawn or behind the last one.
    SetPort(u16, PortConfig),
    /// The port of this index is no more: its connections are closed.
    WithdrawPort(u16),
    /// A volume or mirror becomes a namespace.
    AddNamespace(Box<NamespaceConfig>, u16),
    /// A namespace is write protected, or no longer.
    Protect(u32, bool),
    /// A namespace is removed.
    RemoveNamespace(u32),
    /// All namespaces are removed. When what devices have of them has ended, or after so many ns,
    /// the connections are closed, and [`ExportEvent::Ended`] follows.
    End(u64),
}

impl NvmeServer {
    /// Makes a change; `infos`: what devices are that are ready.
    pub fn control(
        &mut self,
        devices: &Devices,
        infos: impl Fn(u16) -> Option<VolumeInfo>,
        change: NvmeControl,
        now_ns: u64,
    ) {
        let target = &mut self.target;
        let changed = match change {
            NvmeControl::Serve(_) => unreachable!("its place is free, and this is not"),
            NvmeControl::Hosts(hosts) => {
                let hosts = TargetControl::Discovery(DiscoveryChange::Hosts(hosts));
                target.handle_control(hosts, now_ns);
                target.handle_control(TargetControl::DisconnectHosts, now_ns);
                Ok(())
            }
            NvmeControl::SetPort(index, port) => target.set_port(index, port, now_ns),
            NvmeControl::WithdrawPort(index) => target.withdraw_port(index, now_ns),
            NvmeControl::AddNamespace(config, volume) => {
                self.add_namespace(devices, *config, (volume, infos(volume)), now_ns);
                Ok(())
            }
            NvmeControl::Protect(nsid, read_only) => {
                let mut all = self.namespaces.iter();
                // One that had the NSID before may be leaving yet.
                let is_there = |it: &&Namespace| {
                    matches!(it.presence, Presence::Awaited | Presence::Active { .. })
                };
                let limits = all.find(|it| it.nsid == nsid && is_there(it));
                let limits = limits.and_then(|it| devices.limits(it.volume));
                let always = limits.is_some_and(|it| it.read_only);
                target.protect(nsid, read_only || always, now_ns);
                Ok(())
            }
            NvmeControl::RemoveNamespace(nsid) => {
                if !canary::has(Bug::ServesRemoved) {
                    self.remove_namespace(nsid, now_ns);
                }
                Ok(())
            }
            NvmeControl::End(drain_ns) => {
                let all: Vec<u32> = self.namespaces.iter().map(|it| it.nsid).collect();
                all.iter().for_each(|it| self.remove_namespace(*it, now_ns));
                if self.life == Life::Serving {
                    let until_ns = now_ns.saturating_add(drain_ns);
                    self.life = Life::Leaving { until_ns };
                }
                Ok(())
            }
        };
        assert!(changed.is_ok(), "{changed:?}: the program checks it before");
    }

    /// A device becomes a namespace, which is active once that is ready.
    fn add_namespace(
        &mut self,
        devices: &Devices,
        config: NamespaceConfig,
        (volume, info): (u16, Option<VolumeInfo>),
        now_ns: u64,
    ) {
        let nsid = config.nsid;
        let added = self
            .target
            .add_namespace(awaited(config), LocalDevice(volume));
        if let Err(why) = added {
            let unfit = ExportEvent::Unfit { volume, nsid, why };
            return self.events.push_back(unfit);
        }
        let new = Namespace {
            nsid,
            volume,
            presence: Presence::Awaited,
            losses: Losses::default(),
        };
        // A place whose requests have not all ended is only for the same device: they name it.
        let free = |it: &Namespace| it.presence == Presence::Gone && !self.is_used(it.volume);
        let all = &self.namespaces;
        let at = all.iter().position(|it| it.volume == volume);
        match at.or_else(|| all.iter().position(free)) {
            Some(at) => self.namespaces[at] = new,
            None => self.namespaces.push(new),
        }
        if let Some(info) = info.filter(|_| !devices.is_stopped(volume)) {
            self.sized(devices, volume, info, now_ns);
        }
    }

    fn remove_namespace(&mut self, nsid: u32, now_ns: u64) {
        let incarnation = self.target.incarnation(nsid);
        self.target.remove_namespace(nsid, now_ns);
        for it in self.namespaces.iter_mut().filter(|it| it.nsid == nsid) {
            it.presence = match (it.presence, incarnation) {
                (Presence::Active { .. }, Some(incarnation)) => Presence::Leaving { incarnation },
                (leaving @ Presence::Leaving { .. }, _) => leaving,
                _ => Presence::Gone,
            };
        }
    }

    /// Goes on with its end, and that of its namespaces. The target's output is a request by
    /// then: a command goes on with its next step in the same turn.
    pub(super) fn leave(&mut self, now_ns: u64) {
        for at in 0..self.namespaces.len() {
            let it = &self.namespaces[at];
            if matches!(it.presence, Presence::Leaving { .. }) && !self.is_used(it.volume) {
                self.namespaces[at].presence = Presence::Gone;
            }
        }
        if let Life::Leaving { until_ns } = self.life
            && (until_ns <= now_ns || self.requests.iter().all(Option::is_none))
        {
            self.stop(now_ns);
        }
    }
}
