//! The driver, as the thread of nodes asks it: what cannot wait for I/O.
use super::Inner;
use super::order::{self, Device};
use std::fs;
use sys::Errno;
use sys::ublk::{Control, Phase, node_path};

/// The control device of a driver that has what is needed.
pub fn opened(control: &mut Option<Control>) -> Result<&mut Control, String> {
    if control.is_none() {
        let mut new = Control::open().map_err(|error| match error.operation {
            "io_uring_setup" => error.to_string(),
            _ => order::no_driver(error.source),
        })?;
        let features = new.features();
        let features = features.map_err(|error| match error {
            Errno::PERM | Errno::ACCESS => order::no_driver(error),
            error => format!("the ublk driver does not say what it can do: {error}"),
        })?;
        order::check_flags(features)?;
        *control = Some(new);
    }
    match control {
        Some(control) => Ok(control),
        None => unreachable!("it was opened"),
    }
}

/// Whether the device of a record is there.
pub fn is_there(inner: &mut Inner, id: u32, mark: u64) -> bool {
    let control = opened(&mut inner.control).ok();
    let info = control.and_then(|control| control.info(id).ok());
    info.is_some_and(|it| it.server_flags == mark)
}

/// All devices of the driver.
///
/// # Errors
/// It does not say what one of them is.
pub fn devices(inner: &mut Inner) -> Result<Vec<Device>, String> {
    let all = fs::read_dir("/sys/class/ublk-char").into_iter().flatten();
    let ids = all.flatten().filter_map(|it| {
        let name = it.file_name();
        name.to_str()?.strip_prefix("ublkc")?.parse().ok()
    });
    let mut ids: Vec<u32> = ids.collect();
    ids.sort_unstable();
    let control = opened(&mut inner.control)?;
    let mut devices = Vec::new();
    for id in ids {
        let wrong = |error: Errno| format!("{}: {error}", node_path(id));
        let info = match control.info(id) {
            Err(Errno::NODEV) => continue, // it has left just now
            info => info.map_err(wrong)?,
        };
        let params = match info.phase() {
            Phase::Quiesced => Some(control.params(id).map_err(wrong)?),
            _ => None,
        };
        devices.push(Device {
            info,
            params,
            is_alive: is_alive(info.pid),
            is_served: inner.live.iter().any(|it| it.id == id),
        });
    }
    Ok(devices)
}

/// Whether a process runs, and is not this one.
fn is_alive(pid: i32) -> bool {
    pid > 0
        && pid as u32 != std::process::id()
        && fs::exists(format!("/proc/{pid}")).unwrap_or(true)
}

/// Removes a device that was never started, or was stopped, and its record.
pub fn delete(inner: &mut Inner, id: u32, mark: u64) -> Result<(), String> {
    let deleted = opened(&mut inner.control)?.delete(id);
    deleted.map_err(|error| format!("{}: cannot be removed: {error}", node_path(id)))?;
    let removed = inner.records.remove(id, mark);
    removed.map_err(|error| format!("{}: {error:#}", node_path(id)))
}
