//! Requests to files that were cut short.
use super::{Backend, CUT_SHORT, Devices, FileRequest, Step, device_number};
use crate::FileDevice;
use crate::truncation_guard::Looked;
use engine::machine::{DeviceError, DeviceRequest, LocalDevice};

/// How often the size of a file is looked at of which nothing is asked, ns.
const IDLE_LOOK_NS: u64 = 1_000_000_000;

/// Loss in a file that other processes may make longer is an error like any other.
const EIO: DeviceError = DeviceError::Os(5);

/// The first step of a request, unless it lies behind a noticed end of an exclusively locked file.
pub(super) fn look(
    file: &FileDevice,
    request: &DeviceRequest,
    step: Step,
    looked: &mut Looked,
    now_ns: u64,
) -> Result<Step, DeviceError> {
    let to = match step {
        Step::Sync => 0,
        _ => request.offset + request.length, // it was looked at before
    };
    match file.look(to, step.changes(), looked, now_ns) {
        true => Ok(step),
        false => {
            tell(file);
            Err(CUT_SHORT)
        }
    }
}

/// Whether the size of a file is looked at while nothing is asked of it: we have it alone, and its
/// file system does not block the reactor for that (T52).
pub(super) fn is_looked_at(file: &FileDevice) -> bool {
    file.whole().is_some() && !file.blocks()
}

/// Where a file ended that we have alone, once for each time that it was shorter.
pub(super) fn news(file: &FileDevice, looked: &mut Looked) -> Option<u64> {
    file.whole()?.news(looked)
}

impl Devices {
    /// Looks at files that we have alone, also if nothing is asked of them.
    pub(crate) fn look_at_sizes(&mut self, now_ns: u64) {
        self.sizes_at_ns = u64::MAX;
        for (number, backend) in (0..).zip(&mut self.backends) {
            let Backend::File { device, looked, .. } = backend else {
                continue;
            };
            if !is_looked_at(device) {
                continue;
            }
            self.sizes_at_ns = now_ns.saturating_add(IDLE_LOOK_NS);
            device.look(0, false, looked, now_ns);
            if let Some(end) = news(device, looked) {
                tell(device);
                self.cuts.push((LocalDevice(number), end));
            }
        }
    }

    /// Ends a request to a file; returns its result as the requester is to see it.
    pub(super) fn seen_at_end(
        &mut self,
        request: &FileRequest,
        result: Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let device = &mut self.backends[device_number(request.request.device)];
        let Backend::File {
            device,
            told,
            looked,
            ..
        } = device
        else {
            unreachable!("the device of {:?} is no file", request.request);
        };
        if let Some(whole) = device.whole().filter(|_| request.step.changes()) {
            whole.written.end();
        }
        if result != Err(CUT_SHORT) {
            return result;
        }
        let mut end = request.request.offset + request.done;
        if let Some(whole) = device.whole() {
            // It may be shorter than where a read began.
            end = device.bytes_now().map_or(end, |bytes| end.min(bytes));
            whole.ended_at(end);
            tell(device);
            let news = news(device, looked).map(|end| (request.request.device, end));
            self.cuts.extend(news);
            return Err(CUT_SHORT);
        }
        if !std::mem::replace(told, true) {
            let path = device.path().display();
            tracing::error!(
                "{path} was cut short behind our back: from about byte {end} on it can't be \
                 read; restore it from a copy"
            );
        }
        Err(EIO)
    }
}

/// Once for each time: the user can't know otherwise.
#[cold]
fn tell(file: &FileDevice) {
    let Some(whole) = file.whole().filter(|it| it.tell()) else {
        return;
    };
    let path = file.path().display();
    let (bytes, end) = whole.lengths();
    match end {
        0 => tracing::error!(
            "{path} was cut short behind our back, and written since: where its end was is not \
             known (it had {bytes} bytes), so nothing of it is used any more"
        ),
        _ => tracing::error!(
            "{path} was cut short behind our back: it had {bytes} bytes, and nothing behind byte \
             {end} is read or written any more"
        ),
    }
}
