//! Requests to a running engine over its control socket: the server's and the verbs' type.
//!
//! The table is the list of methods; the types below it are their parameters as they stand on the
//! socket. An optional key is left out there where it says nothing.
use super::events::EventsParams;
use super::exports::ExportParams;
use super::health::verb::MaintenanceParams;
use super::ublk::attached::{AttachParams, DetachParams};
use crate::control::call::Nothing;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

service::calls! {
    /// One call.
    pub enum EngineCall {
        /// Volumes, in short.
        "list" => List(Nothing),
        /// Subsystems, in the words of nvme-cli.
        "list-subsys" => ListSubsys(Nothing),
        /// All there is to see.
        "stat" => Stat(Nothing),
        /// See `events`.
        "events" => Events(EventsParams),
        /// How well volumes are.
        "check" => Check(CheckParams),
        /// See `health::verb`, as of all `maintenance.…`.
        "maintenance.on" => MaintenanceOn(MaintenanceParams),
        /// Ends it.
        "maintenance.off" => MaintenanceOff(MaintenanceParams),
        /// All of them.
        "maintenance.list" => MaintenanceList(Nothing),
        /// See `marked`.
        "accept" => Accept(AcceptParams) long,
        /// See `explain`.
        "explain" => Explain(ExplainParams),
        /// Shows or sets.
        "policy" => Policy(PolicyParams),
        /// See `programs`.
        "policy.load" => PolicyLoad(ProgramParams) long,
        /// See `programs`.
        "policy.unload" => PolicyUnload(PolicyParams) long,
        /// See `programs`.
        "policy.list" => PolicyList(Nothing),
        /// Shows or sets.
        "knob" => Knob(KnobParams),
        /// See `connect`.
        "connect" => Connect(ConnectParams) long,
        /// See `connect`.
        "connect-all" => ConnectAll(ConnectAllParams) long,
        /// See `reload`.
        "reload" => Reload(ReloadParams) long,
        /// See `forget`.
        "diff" => Diff(DiffParams),
        /// See `forget`.
        "forget" => Forget(ForgetParams) long,
        /// See `pending`.
        "pending" => Pending(Nothing),
        /// See `pending`.
        "pending.cancel" => PendingCancel(CancelParams) long,
        /// See `exports`.
        "export.add" => ExportAdd(ExportParams) long,
        /// See `exports`.
        "export.remove" => ExportRemove(ExportParams) long,
        /// See `ublk`.
        "attach" => Attach(AttachParams) long,
        /// See `ublk`.
        "detach" => Detach(DetachParams) long,
        /// See `paths`, as of all `path.…`.
        "path.add" => PathAdd(PathParams) long,
        /// By URI or number, as all below.
        "path.remove" => PathRemove(PathParams) long,
        /// As lost, until it is restored.
        "path.fail" => PathFail(PathParams) long,
        /// Ends `path.fail` and `path.drain`.
        "path.restore" => PathRestore(PathParams) long,
        /// Gives it nothing new.
        "path.drain" => PathDrain(PathParams) long,
        /// See `mirrors::orders`.
        "mirror.check" => MirrorCheck(MirrorParams) long,
        /// From `leg`, or from the one that counts.
        "mirror.repair" => MirrorRepair(MirrorParams) long,
        /// Of a check.
        "mirror.pause" => MirrorPause(MirrorParams) long,
        /// Of a check.
        "mirror.resume" => MirrorResume(MirrorParams) long,
        /// Of a check.
        "mirror.end" => MirrorEnd(MirrorParams) long,
        /// A leg is out until it is restored.
        "mirror.fail" => MirrorFail(MirrorParams) long,
        /// A leg returns.
        "mirror.restore" => MirrorRestore(MirrorParams) long,
        /// Uses the last leg as it is.
        "mirror.accept-loss" => MirrorAcceptLoss(MirrorParams) long,
        /// Starts a mirror.
        "mirror.assemble" => MirrorAssemble(MirrorParams) long,
        /// See `mirrors::legs`.
        "mirror.add" => MirrorAdd(MirrorParams) long,
        /// A leg is none any more.
        "mirror.remove" => MirrorRemove(MirrorParams) long,
        /// The leg `by` in the place of `leg`.
        "mirror.replace" => MirrorReplace(MirrorParams) long,
        /// As large as its legs allow.
        "mirror.grow" => MirrorGrow(MirrorParams) long,
        /// Ends while the engine goes on.
        "mirror.stop" => MirrorStop(MirrorParams) long,
        /// Shows or sets; see `mirrors::kept`.
        "mirror.speed" => MirrorSpeed(MirrorParams),
        /// Shows it.
        "mirror.status" => MirrorStatus(MirrorParams),
    }
}

/// Of `check`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckParams {
    /// `None`: the worst of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
}

/// Of `accept`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptParams {
    pub volume: String,
}

/// Of `explain`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainParams {
    pub volume: String,
    /// How many I/Os.
    pub count: u32,
    /// Longest wait for them.
    pub wait_ns: u64,
    /// Reads among them.
    #[serde(default = "yes")]
    pub reads: bool,
    /// Writes among them.
    #[serde(default = "yes")]
    pub writes: bool,
    /// Their least length.
    #[serde(default)]
    pub bytes_min: u32,
}

/// Of `policy`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyParams {
    pub volume: String,
    /// `None`: it is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// Of `policy.load`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramParams {
    pub volume: String,
    /// Absolute.
    pub file: String,
    /// See [`program::Options`].
    #[serde(default, skip_serializing_if = "is_false")]
    pub wasi: bool,
}

/// Of `knob`. Without name or value all are shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnobParams {
    pub volume: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// Of `connect`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectParams {
    pub address: SocketAddr,
    /// Of the subsystem.
    pub nqn: String,
}

/// Of `connect-all`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectAllParams {
    /// Of a discovery controller.
    pub uri: String,
}

/// Of `reload`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReloadParams {
    /// Also what needs force.
    #[serde(default)]
    pub force: bool,
    /// Nothing is changed: what would be is told.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

/// Of `diff`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiffParams {
    /// `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
}

/// Of `forget`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetParams {
    pub volume: String,
    /// `policy`, `paths`, or a knob or key; `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// Also the last usable path leaves.
    #[serde(default, skip_serializing_if = "is_false")]
    pub force: bool,
}

/// Of `pending.cancel`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelParams {
    /// As `pending` shows it.
    pub id: u64,
}

/// Of `path.…`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathParams {
    pub volume: String,
    /// Its URI; of one that is there, also its name or number.
    pub path: String,
    /// Also the last usable path.
    #[serde(default)]
    pub force: bool,
}

/// Of `mirror.…`, each of which looks at some of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorParams {
    pub volume: String,
    /// Its name, its number, or its URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leg: Option<String>,
    /// Starts without legs that are missing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub without: bool,
    /// A leg that is given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discard: Option<String>,
    /// A mirror of another name is meant.
    #[serde(default, skip_serializing_if = "is_false")]
    pub accept: bool,
    /// Writes over what a new leg holds, or disconnects clients.
    #[serde(default, skip_serializing_if = "is_false")]
    pub force: bool,
    /// URI of the new leg.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<u64>,
    /// Bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<u64>,
    /// Of background copies.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pause: bool,
    /// Of background copies.
    #[serde(default, skip_serializing_if = "is_false")]
    pub resume: bool,
}

impl MirrorParams {
    /// Of a mirror.
    pub fn of(volume: &str) -> Self {
        Self {
            volume: volume.to_owned(),
            ..Self::default()
        }
    }

    /// Of a leg.
    pub fn of_leg(volume: &str, leg: &str) -> Self {
        Self {
            leg: Some(leg.to_owned()),
            ..Self::of(volume)
        }
    }
}

impl EngineCall {
    /// The volume that is meant, as the caller calls it.
    pub fn volume_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Check(it) => it.volume.as_mut(),
            Self::Accept(it) => Some(&mut it.volume),
            Self::MaintenanceOn(it) | Self::MaintenanceOff(it) => Some(&mut it.volume),
            Self::Explain(it) => Some(&mut it.volume),
            Self::Policy(it) | Self::PolicyUnload(it) => Some(&mut it.volume),
            Self::PolicyLoad(it) => Some(&mut it.volume),
            Self::Knob(it) => Some(&mut it.volume),
            Self::ExportAdd(it) | Self::ExportRemove(it) => Some(&mut it.volume),
            Self::Attach(it) => Some(&mut it.volume),
            Self::Detach(it) => Some(&mut it.volume),
            Self::PathAdd(it)
            | Self::PathRemove(it)
            | Self::PathFail(it)
            | Self::PathRestore(it)
            | Self::PathDrain(it) => Some(&mut it.volume),
            _ => None, // of all volumes, or of a mirror, which has one name
        }
    }

    /// Whether it changes something, or is to.
    pub fn is_change(&self) -> bool {
        match self {
            Self::List(_)
            | Self::ListSubsys(_)
            | Self::Stat(_)
            | Self::Events(_)
            | Self::Check(_)
            | Self::MaintenanceList(_)
            | Self::Explain(_)
            | Self::PolicyList(_)
            | Self::Diff(_)
            | Self::Pending(_)
            | Self::MirrorStatus(_) => false,
            Self::Policy(it) => it.policy.is_some(),
            Self::Knob(it) => it.value.is_some(),
            Self::Reload(it) => !it.dry_run,
            Self::MirrorSpeed(it) => {
                it.floor.is_some() || it.ceiling.is_some() || it.pause || it.resume
            }
            _ => true,
        }
    }

    /// Parameters of `mirror.…`; `None`: it is another method.
    pub fn of_mirror(&self) -> Option<&MirrorParams> {
        match self {
            Self::MirrorCheck(it)
            | Self::MirrorRepair(it)
            | Self::MirrorPause(it)
            | Self::MirrorResume(it)
            | Self::MirrorEnd(it)
            | Self::MirrorFail(it)
            | Self::MirrorRestore(it)
            | Self::MirrorAcceptLoss(it)
            | Self::MirrorAssemble(it)
            | Self::MirrorAdd(it)
            | Self::MirrorRemove(it)
            | Self::MirrorReplace(it)
            | Self::MirrorGrow(it)
            | Self::MirrorStop(it)
            | Self::MirrorSpeed(it)
            | Self::MirrorStatus(it) => Some(it),
            _ => None,
        }
    }
}

fn yes() -> bool {
    true
}

fn is_false(it: &bool) -> bool {
    !it
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::call::{Call, parse};
    use serde_json::json;

    #[test]
    fn requests_of_older_verbs_are_read() {
        let explain = json!({
            "volume": "v0", "count": 1, "wait_ns": 7, "reads": true, "writes": false,
            "bytes_min": 0,
        });
        let export = json!({
            "volume": "v0", "export": "tcp::0", "read_only": true, "owner": null, "group": "7",
            "mode": null,
        });
        let speed = json!({
            "volume": "m0", "floor": 1, "ceiling": null, "pause": false, "resume": true,
        });
        let assemble = json!({"volume": "m0", "without": true, "discard": "1", "accept": false});
        for (method, params, is_long) in [
            ("list", json!({}), false),
            ("check", json!({"volume": null}), false),
            ("accept", json!({"volume": "v0"}), true),
            ("explain", explain, false),
            ("policy", json!({"volume": "v0"}), false),
            ("policy", json!({"volume": "v0", "policy": "numa"}), false),
            (
                "policy.load",
                json!({"volume": "v0", "file": "/p.wasm"}),
                true,
            ),
            (
                "knob",
                json!({"volume": "v0", "name": "a", "value": "b"}),
                false,
            ),
            (
                "connect",
                json!({"address": "127.0.0.1:1", "nqn": "nqn.x:a"}),
                true,
            ),
            ("connect-all", json!({"uri": "nvme-tcp://10.0.0.1"}), true),
            ("reload", json!({}), true),
            ("export.add", export, true),
            (
                "export.remove",
                json!({"volume": "v0", "export": "tcp::0"}),
                true,
            ),
            ("path.fail", json!({"volume": "v0", "path": "0"}), true),
            ("mirror.assemble", assemble, true),
            ("mirror.speed", speed, false),
            ("mirror.status", json!({"volume": "m0"}), false),
        ] {
            let call = parse::<EngineCall>(method, params.clone());
            let call = call.unwrap_or_else(|error| panic!("{method} {params}: {error}"));
            assert_eq!((call.method(), call.is_long()), (method, is_long));
            assert_eq!(call.of_mirror().is_some(), method.starts_with("mirror."));
        }
    }

    #[test]
    fn what_says_nothing_is_not_sent() {
        let call = EngineCall::MirrorFail(MirrorParams::of_leg("m0", "1"));
        let params = json!({"volume": "m0", "leg": "1"});
        let sent = json!({"method": "mirror.fail", "params": params});
        assert_eq!(serde_json::to_value(&call).unwrap(), sent);
    }
}
