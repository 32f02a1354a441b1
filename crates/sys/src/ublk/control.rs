//! The control device: commands of 128-byte entries, each of which is waited for.
use super::layout::{Info, Params};
use crate::{Errno, Error};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::fs::{Mode, OFlags};
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};

const CONTROL: &str = "/dev/ublk-control";

/// Commands of the control device: direction and number of `_IOC('u', …)`.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Command {
    GetInfo = 2 << 30 | 0x02,
    Add = 3 << 30 | 0x04,
    Delete = 3 << 30 | 0x05,
    Start = 3 << 30 | 0x06,
    Stop = 3 << 30 | 0x07,
    SetParams = 3 << 30 | 0x08,
    GetParams = 2 << 30 | 0x09,
    StartRecovery = 3 << 30 | 0x10,
    EndRecovery = 3 << 30 | 0x11,
    GetFeatures = 2 << 30 | 0x13,
    DeleteAsync = 2 << 30 | 0x14,
}

impl Command {
    /// Its number, of an argument of 32 bytes.
    fn code(self) -> u32 {
        self as u32 | 32 << 16 | (b'u' as u32) << 8
    }
}

/// Memory that a command reads or fills.
type Buffer = [u8; Params::BYTES];

/// The control device. Each call waits for the driver.
pub struct Control {
    uring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: OwnedFd,
    buffer: Box<Buffer>,
    /// Names the command under way.
    serial: u64,
}

impl Control {
    /// Opens it.
    ///
    /// # Errors
    /// `/dev/ublk-control`: ENOENT (no driver), EACCES (not permitted). `io_uring_setup`: as the
    /// kernel says.
    pub fn open() -> Result<Self, Error> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(CONTROL, flags, Mode::empty());
        let file = file.map_err(|source| Error::new(CONTROL, source))?;
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        let uring = builder.setup_clamp().build(2);
        let uring = uring.map_err(|source| Error::io("io_uring_setup", &source))?;
        Ok(Self {
            uring,
            file,
            buffer: Box::new([0; Params::BYTES]),
            serial: 0,
        })
    }

    /// Features of the driver.
    ///
    /// # Errors
    /// EOPNOTSUPP: a driver before Linux 6.5.
    pub fn features(&mut self) -> Result<u64, Errno> {
        self.command(Command::GetFeatures, 0, 8, 0)?;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.buffer[..8]);
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Makes a device, and returns it as it is: the driver cuts what it does not have without an
    /// error.
    ///
    /// # Errors
    /// EEXIST: there is one of this number. EINVAL: depth, or flags. EPERM: not permitted.
    pub fn add(&mut self, info: &Info) -> Result<Info, Errno> {
        self.buffer[..Info::BYTES].copy_from_slice(&info.to_bytes());
        self.command(Command::Add, info.id, Info::BYTES, 0)?;
        Ok(Info::from_bytes(&*self.buffer))
    }

    /// A device.
    ///
    /// # Errors
    /// ENODEV: there is none of this number.
    pub fn info(&mut self, id: u32) -> Result<Info, Errno> {
        self.command(Command::GetInfo, id, Info::BYTES, 0)?;
        Ok(Info::from_bytes(&*self.buffer))
    }

    /// Sets limits and attributes of a device that was not started.
    ///
    /// # Errors
    /// EACCES: it was started. EINVAL: limits that can't be.
    pub fn set_params(&mut self, id: u32, params: &Params) -> Result<(), Errno> {
        *self.buffer = params.to_bytes();
        self.command(Command::SetParams, id, Params::BYTES, 0)
    }

    /// Limits and attributes of a device.
    ///
    /// # Errors
    /// ENODEV: there is none of this number.
    pub fn params(&mut self, id: u32) -> Result<Params, Errno> {
        self.buffer.fill(0);
        self.buffer[..4].copy_from_slice(&(Params::BYTES as u32).to_ne_bytes());
        self.command(Command::GetParams, id, Params::BYTES, 0)?;
        Ok(Params::from_bytes(&*self.buffer))
    }

    /// Starts a device, once all its queues have fetched.
    ///
    /// # Errors
    /// EEXIST: it is started.
    pub fn start(&mut self, id: u32) -> Result<(), Errno> {
        self.command(Command::Start, id, 0, own_pid())
    }

    /// Stops a device. Data that users of its node have not written yet is lost, without an error.
    ///
    /// # Errors
    /// ENODEV: there is none of this number.
    pub fn stop(&mut self, id: u32) -> Result<(), Errno> {
        self.command(Command::Stop, id, 0, 0)
    }

    /// Removes a device that was stopped, as soon as nothing has it open.
    ///
    /// # Errors
    /// ENODEV: there is none of this number.
    pub fn delete(&mut self, id: u32) -> Result<(), Errno> {
        match self.command(Command::DeleteAsync, id, 0, 0) {
            // Before Linux 6.9 the driver waits until nothing has it open.
            Err(Errno::OPNOTSUPP | Errno::INVAL) => self.command(Command::Delete, id, 0, 0),
            ended => ended,
        }
    }

    /// Begins to take over a device whose server has died. It can be begun once.
    ///
    /// # Errors
    /// EBUSY: the driver has not noticed yet. EINVAL: it was begun before, or has no recovery.
    pub fn start_recovery(&mut self, id: u32) -> Result<(), Errno> {
        self.command(Command::StartRecovery, id, 0, 0)
    }

    /// Ends that, once all queues have fetched: requests come again.
    ///
    /// # Errors
    /// EBUSY: it is not quiesced.
    pub fn end_recovery(&mut self, id: u32) -> Result<(), Errno> {
        self.command(Command::EndRecovery, id, 0, own_pid())
    }

    fn command(&mut self, command: Command, id: u32, len: usize, data: u64) -> Result<(), Errno> {
        self.serial += 1;
        let mut bytes = [0; 80];
        bytes[0..4].copy_from_slice(&id.to_ne_bytes());
        bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(len as u16).to_ne_bytes());
        let at = if len > 0 {
            self.buffer.as_mut_ptr() as u64
        } else {
            0
        };
        bytes[8..16].copy_from_slice(&at.to_ne_bytes());
        bytes[16..24].copy_from_slice(&data.to_ne_bytes());
        let file = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(file, command.code())
            .cmd(bytes)
            .build()
            .user_data(self.serial);
        // SAFETY: the entry names `buffer`, of which `len` is a part; it stays until the command's
        // completion was taken, or is leaked below.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        assert!(pushed.is_ok(), "one command at a time");
        loop {
            let entered = self.uring.submit_and_wait(1);
            while let Some(entry) = self.uring.completion().next() {
                if entry.user_data() == self.serial {
                    return match entry.result() {
                        0.. => Ok(()),
                        error => Err(Errno::from_raw_os_error(-error)),
                    };
                }
            }
            let failed = entered.map_err(|it| Errno::from_io_error(&it).unwrap_or(Errno::IO));
            match failed {
                Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                Err(error) => {
                    // The driver may write to it later.
                    let fresh = Box::new([0; Params::BYTES]);
                    mem::forget(mem::replace(&mut self.buffer, fresh));
                    return Err(error);
                }
            }
        }
    }
}

fn own_pid() -> u64 {
    u64::from(std::process::id())
}

/// Where the server of a device opens it.
pub fn device_path(id: u32) -> String {
    format!("/dev/ublkc{id}")
}

/// Where its users open it.
pub fn node_path(id: u32) -> String {
    format!("/dev/ublkb{id}")
}

/// Opens a device to serve it.
///
/// # Errors
/// EBUSY: another process serves it. ENOENT: there is none, or its node is not made yet.
pub fn open_device(id: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(device_path(id), flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_drivers_header() {
        assert_eq!(Command::GetInfo.code(), 0x8020_7502);
        assert_eq!(Command::Add.code(), 0xc020_7504);
        assert_eq!(Command::EndRecovery.code(), 0xc020_7511);
        assert_eq!(Command::GetFeatures.code(), 0x8020_7513);
    }
}
