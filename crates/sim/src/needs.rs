//! Mean needs of one I/O in a world: for limits that hold for any choice of paths.
use crate::plan::{DevicePlan, Plan};
use crate::rule::{Wanted, service_ns};

/// Bytes on the wire beside the data: a command, and an answer.
pub(crate) const COMMAND_BYTES: u32 = 72;
pub(crate) const ANSWER_BYTES: u32 = 24;

/// One I/O on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Bytes on the link, to the device and back.
    pub link_bytes: [u64; 2],
    /// Of one server of the device.
    pub service_ns: u64,
    /// From issue to end where nothing else is under way.
    pub alone_ns: u64,
    /// The least of it that chance can make.
    pub least_ns: u64,
}

/// Returns the needs of an I/O of so many bytes on a path.
pub fn needs(plan: &Plan, path: usize, bytes: u32, write: bool) -> Needs {
    let it = &plan.paths[path];
    let wanted = Wanted {
        bytes,
        write,
        address: 0,
        job: 0,
        now_ns: 0,
    };
    let data = [(COMMAND_BYTES, write), (ANSWER_BYTES, !write)];
    let link_bytes = data.map(|(own, full)| u64::from(own) + u64::from(bytes) * u64::from(full));
    let over_link = |bytes: u64| (bytes * 1_000_000_000).checked_div(it.bytes_per_s);
    let transfer: u64 = link_bytes.map(|it| over_link(it).unwrap_or(0)).iter().sum();
    let extra = match it.large_from {
        0 => 0,
        from if bytes >= from => it.large_ns,
        _ => it.small_ns,
    };
    let service_ns = service_ns(&plan.devices[it.device], wanted);
    let least_service_ns = match plan.devices[it.device] {
        DevicePlan::Flash(flash) => flash.noise.least_ns(service_ns),
        _ => service_ns,
    };
    let fixed = 2 * it.delay_ns + transfer + extra;
    Needs {
        link_bytes,
        service_ns,
        alone_ns: fixed + it.jitter_ns + service_ns + tail_ns(plan, path),
        least_ns: fixed + least_service_ns,
    }
}

/// Returns the share of a path's late I/Os in the mean; one that is later than the whole run counts
/// as that long.
fn tail_ns(plan: &Plan, path: usize) -> u64 {
    let it = &plan.paths[path];
    let (least, whole) = (it.tail_ns, plan.warm_ns + plan.run_ns);
    if it.tail_per_million == 0 || least == 0 || whole <= least {
        return 0;
    }
    // Of a Pareto time with exponent 3/2, cut off at `whole`: 3 m − 2 m √(m / whole).
    let root = ((u128::from(least) << 32) / u128::from(whole)).isqrt() as u64;
    let mean = 3 * least - ((2 * u128::from(least) * u128::from(root)) >> 16) as u64;
    mean * u64::from(it.tail_per_million) / 1_000_000
}
