//! Numbers of block devices.

/// A block device of one core, by number.
///
/// A device issues requests only to devices of lower number, so no request ever comes back to the
/// device that issued it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

impl DeviceId {
    /// Checks that this device may issue requests to `lower`.
    ///
    /// # Panics
    /// If `lower` is not the lower number: the layer would have a cycle.
    #[track_caller]
    pub fn assert_above(self, lower: Self) {
        assert!(lower < self, "{self:?} stands over {lower:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_stands_over_lower_numbers() {
        DeviceId(3).assert_above(DeviceId(2));
    }

    #[test]
    #[should_panic(expected = "DeviceId(3) stands over DeviceId(3)")]
    fn a_device_over_itself_panics() {
        DeviceId(3).assert_above(DeviceId(3));
    }
}
