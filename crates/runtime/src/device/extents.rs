//! Which parts of a device are holes.
//!
//! # Contract
//! Files are asked by their workers, since a file system may have to read for it, or wait for its
//! locks. Of one file there are few questions at a time; of what is asked beyond that nothing is
//! known, nor of memory and of devices behind a protocol.
use super::{Backend, Devices, cut, device_number};
use crate::workers::{Bytes, Call, Complete, Job, Permit, extent_of};
use engine::machine::{DeviceExtent, ExtentRequest};
use std::sync::Arc;
use sys::Errno;

/// In the tag of a job: it is a question, whose identifier the lower bits are.
const QUESTION: u64 = 1 << 32;

impl Devices {
    /// Asks a device. The answer waits in `extents`.
    pub(crate) fn ask_extent(&mut self, request: &ExtentRequest, now_ns: u64) {
        let &ExtentRequest {
            id, offset, length, ..
        } = request;
        let found = match self.backends.get_mut(device_number(request.device)) {
            Some(Backend::File { device, looked, .. }) if device.tells_holes() => {
                // A hole where data was cut off is no zeroes.
                let to = offset.saturating_add(length.into());
                let is_there = device.look(to, false, looked, now_ns);
                let news = cut::news(device, looked).map(|end| (request.device, end));
                self.cuts.extend(news);
                let asks = is_there
                    && device.workers().ask(Job {
                        file: Arc::clone(device.handle()),
                        call: Call::Extent { length },
                        offset,
                        bytes: Bytes::Nothing,
                        permit: Permit::Always,
                        tag: QUESTION | u64::from(id),
                        to: Arc::clone(&self.inbox) as Arc<dyn Complete>,
                    });
                if asks {
                    return;
                }
                DeviceExtent::UNKNOWN
            }
            Some(Backend::Null) => DeviceExtent {
                length: u32::MAX,
                is_zero: true,
            },
            _ => DeviceExtent::UNKNOWN,
        };
        self.extents.push((id, found));
    }

    /// Takes the end of a job, if it was a question.
    pub(crate) fn is_answer(&mut self, tag: u64, result: Result<u32, Errno>) -> bool {
        let is_question = tag & QUESTION != 0;
        if is_question {
            self.extents.push((tag as u32, extent_of(result)));
        }
        is_question
    }
}
