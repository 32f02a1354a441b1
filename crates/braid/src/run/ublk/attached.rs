//! Nodes by verb.
//!
//! `attach {"volume": "v0", "read_only": false}` · `detach {"volume": "v0", "force": false}`
//!
//! # Contract
//! A node that was attached is as one of the file, but that its record says so: an engine after a
//! kill takes it over where the file gives its volume none. It ends when it is detached, and with
//! an engine that stops, unless it is used; and with this boot of the machine. One that waits for
//! data that no volume has is detached by its path.
use super::driver::{is_there, opened};
use super::{Inner, Leaving, REMOVE_WAIT, SOON, ShownNode};
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use crate::run::config::NodeKeys;
use crate::run::service::Service;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};
use sys::ublk::node_path;

impl ShownNode {
    /// A line about its requests that wait, where cores other than the volume's home may have no
    /// I/O queue; `None`: its queues are all there.
    pub fn waits_elsewhere(&self, home: u16) -> Option<String> {
        let others = self.queues.iter().map(|(core, _)| *core);
        let others: BTreeSet<u16> = others.filter(|core| *core != home).collect();
        let list: Vec<String> = others.iter().map(u16::to_string).collect();
        (!list.is_empty()).then(|| {
            format!(
                "requests of {} wait on core {}, which has no I/O queue while a controller grants \
                 so few; restart the engine, or detach and attach the node: its queues are on core \
                 {home} then",
                self.uri,
                list.join(", ")
            )
        })
    }
}

/// How long a node that is attached may take to come.
const ATTACH_WAIT: Duration = Duration::from_secs(20);

/// Parameters of `attach`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachParams {
    pub volume: String,
    #[serde(default)]
    pub read_only: bool,
}

/// Parameters of `detach`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetachParams {
    /// Or the path of the node.
    pub volume: String,
    #[serde(default)]
    pub force: bool,
}

/// The number of `/dev/ublkbN`.
fn number_of(path: &str) -> Option<u32> {
    let number = path.strip_prefix("/dev/ublkb")?.parse().ok()?;
    (node_path(number) == path).then_some(number)
}

impl Service {
    /// `attach`.
    pub fn attach(&self, params: &AttachParams, by: &Caller<'_>) -> Result<Value, ControlError> {
        let name = &params.volume;
        let (_alone, volume) = self.alone_with(name, by)?;
        self.state().may_export(volume)?;
        if let Some(it) = self.nodes.of_volume(volume).first() {
            return Ok(json!({"volume": name, "node": it.uri}));
        }
        let of_file = self.state().configured.volume(name).cloned();
        if of_file.is_some_and(|it| it.node().is_some()) {
            let why = self.nodes.trouble(name);
            let why = why.unwrap_or_else(|| "it is not ready".into());
            return Err(ControlError::refused(format!(
                "its ublk export in the file has no node yet: {why}"
            )));
        }
        if let Err(why) = opened(&mut None) {
            let instead = self.instead(volume);
            return Err(ControlError::refused(format!("{why}; {instead}")));
        }
        let keys = NodeKeys {
            number: None,
            read_only: params.read_only,
        };
        // Of an attempt before.
        self.nodes.tell(name, None);
        self.nodes.attached().insert(name.clone(), keys);
        self.nodes.look();
        let begun = Instant::now();
        let why = loop {
            if let Some(it) = self.nodes.of_volume(volume).first() {
                return Ok(json!({"volume": name, "node": it.uri}));
            }
            match self.nodes.trouble(name) {
                Some(why) => break why,
                None if begun.elapsed() > ATTACH_WAIT => break "it is not ready".into(),
                None if by.is_gone() => break "its caller has gone".into(),
                None => sleep(SOON / 10),
            }
        };
        // It may have come just now.
        let _inner = self.nodes.inner();
        if let Some(it) = self.nodes.of_volume(volume).first() {
            return Ok(json!({"volume": name, "node": it.uri}));
        }
        self.nodes.attached().remove(name);
        self.nodes.tell(name, None);
        Err(ControlError::refused(why))
    }

    /// `detach`.
    pub fn detach(&self, params: &DetachParams, by: &Caller<'_>) -> Result<Value, ControlError> {
        let mut name = params.volume.clone();
        if let Some(number) = number_of(&name) {
            match self.volume_of_node(number, params.force)? {
                Some(volume) => name = volume,
                None => return Ok(json!({"volume": null, "node": name})),
            }
        }
        let name = &name;
        let (_alone, volume) = self.alone_with(name, by)?;
        let uri = self
            .nodes
            .of_volume(volume)
            .first()
            .map(|it| it.uri.clone());
        let is_attached = self.nodes.attached().contains_key(name);
        let uri = match uri {
            Some(uri) if is_attached => uri,
            Some(uri) => {
                return Err(ControlError::refused(format!(
                    "{uri} is in the file: remove its ublk export there, and say braid reload"
                )));
            }
            None => return Err(ControlError::refused("it has no node")),
        };
        let held = self.remove_node(volume, params.force);
        let held = held.map_err(|why| ControlError::refused(format!("{why:#}")))?;
        self.nodes.attached().remove(name);
        drop(held);
        Ok(json!({"volume": name, "node": uri}))
    }

    /// The volume that serves a node; `None`: it waited for data that no volume has, and is removed
    /// now.
    fn volume_of_node(&self, number: u32, force: bool) -> Result<Option<String>, ControlError> {
        let mut inner = self.nodes.inner();
        if let Some(it) = inner.live.iter().find(|it| it.id == number) {
            return Ok(Some(it.name.clone()));
        }
        inner.records.refresh();
        let own = inner.records.all().iter();
        let own = own.filter(|it| it.number == number && it.engine == self.nodes.engine);
        let own: Vec<_> = own.cloned().collect();
        let mut there = own.into_iter();
        let there = there.find(|it| is_there(&mut inner, it.number, it.mark));
        let it = there.ok_or_else(|| ControlError::refused("it is no node of this engine"))?;
        if self.has_volume(&it) {
            return Ok(Some(it.volume)); // it comes back
        }
        let it = Leaving {
            id: it.number,
            mark: it.mark,
            name: it.volume,
        };
        let removed = self.take_down(&mut inner, &it, force, REMOVE_WAIT);
        removed.map_err(|why| ControlError::refused(format!("{why:#}")))?;
        Ok(None)
    }

    /// Other ways to a block device, where there is no driver.
    fn instead(&self, volume: u16) -> String {
        let state = self.state();
        let exports = state.exports.iter().flatten();
        let mut sockets = exports.filter(|it| it.volume == volume).filter_map(|it| {
            let address = it.export.nbd.to_string();
            Some(address.strip_prefix("unix:")?.to_owned())
        });
        let bytes = state.volumes[volume].info.map(|it| 1 << it.block_shift);
        match sockets.next() {
            None => "without it: the kernel's NBD client, over an nbd export".into(),
            Some(socket) => format!(
                "without it: nbd-client -unix {socket} -N {} -C 4 -b {} /dev/nbd0, or nbdfuse and \
                 a loop device, which has one I/O at a time, so that no policy can choose",
                state.volumes[volume].of.name,
                bytes.unwrap_or(4096)
            ),
        }
    }

    /// Volumes get the nodes again that were attached before the engine died, and lose them to the
    /// file.
    pub(super) fn take_up_attached(&self, inner: &mut Inner) {
        {
            let state = self.state();
            self.nodes.attached().retain(|name, _| {
                let of = state.configured.volume(name);
                of.is_some_and(|it| it.node().is_none())
            });
        }
        let is_live = |number: u32| inner.live.iter().any(|it| it.id == number);
        let records = inner.records.all().iter();
        let own = records.filter(|it| it.engine == self.nodes.engine && it.attached.is_some());
        let waiting = own.filter(|it| !is_live(it.number));
        let mut waiting: Vec<_> = waiting.cloned().collect();
        waiting.retain(|it| is_there(inner, it.number, it.mark));
        if waiting.is_empty() {
            return;
        }
        let attached = self.nodes.attached().clone();
        let others = self.ready_volumes(|of| {
            let is_other = of.node().is_none() && !attached.contains_key(&of.name);
            is_other.then_some(NodeKeys {
                number: None,
                read_only: false,
            })
        });
        for it in others {
            let Some(data) = self.data_of(&it) else {
                continue;
            };
            let of = waiting.iter().find(|record| record.data.is(&data));
            if let Some(keys) = of.and_then(|record| record.attached.clone()) {
                self.nodes.attached().insert(it.name, keys);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_cores_where_its_requests_wait() {
        let node = |cores: &[u16]| ShownNode {
            volume: 0,
            uri: node_path(0),
            read_only: false,
            queues: cores.iter().map(|core| (*core, 1)).collect(),
            id: 0,
        };
        assert_eq!(node(&[1, 1]).waits_elsewhere(1), None);
        let line = node(&[0, 1, 2, 0]).waits_elsewhere(1).unwrap();
        assert!(line.contains("/dev/ublkb0 wait on core 0, 2,"), "{line}");
    }
}
