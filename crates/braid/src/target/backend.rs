//! What a namespace's blocks lie in: opened, checked against the configuration, and later resized.
use super::config::Namespace;
use crate::units::format_bytes;
use crate::uri::UriKind;
use anyhow::{Context, bail};
use runtime::{Device, FileDevice, MemoryDevice};
use std::path::PathBuf;
use std::sync::Arc;

/// A backend in use.
#[derive(Debug)]
pub struct Backend {
    /// For the reactor.
    pub device: Device,
    /// Size of the namespace on it, bytes.
    pub bytes: u64,
    room: Room,
}

/// How far a namespace can grow.
#[derive(Debug)]
enum Room {
    /// To so many bytes.
    Fixed(u64),
    /// A file is made longer.
    File(PathBuf),
    /// Nothing is kept anyway.
    Endless,
}

impl Backend {
    /// Opens what the configuration names.
    ///
    /// # Errors
    /// It isn't there, may not be written, or its size doesn't fit.
    pub fn open(namespace: &Namespace) -> anyhow::Result<Self> {
        let shift = namespace.block_shift()?;
        let wanted = namespace.size.map(|size| size.0);
        let (device, available, room) = match namespace.backend.kind() {
            UriKind::Memory(bytes) => {
                let device = Device::Memory(Arc::new(MemoryDevice::new(*bytes)?));
                (device, *bytes, Room::Fixed(*bytes))
            }
            UriKind::Null(bytes) => (Device::Null, *bytes, Room::Endless),
            UriKind::File(path) => open_file(path, namespace, shift)?,
            UriKind::NvmeTcp(_) => bail!("{} is no backend", namespace.backend),
        };
        let bytes = wanted.unwrap_or(available);
        if bytes > available {
            bail!(
                "size {} is more than the {} of {}: make it smaller, or the backend larger",
                format_bytes(bytes),
                format_bytes(available),
                namespace.backend
            );
        }
        if bytes >> shift == 0 || wanted.is_some() && !bytes.is_multiple_of(1 << shift) {
            bail!(
                "size {bytes} is not a multiple of the block size {} above 0",
                namespace.block_size
            );
        }
        Ok(Backend {
            device,
            bytes: bytes >> shift << shift,
            room,
        })
    }

    /// Makes room for a namespace of that size. Nothing is ever cut off from a file.
    ///
    /// # Errors
    /// There is no such room.
    pub fn make_room(&self, bytes: u64) -> anyhow::Result<()> {
        match &self.room {
            Room::Endless => Ok(()),
            Room::Fixed(limit) if bytes <= *limit => Ok(()),
            Room::Fixed(limit) => bail!(
                "{} is more than the {} of its backend",
                format_bytes(bytes),
                format_bytes(*limit)
            ),
            Room::File(path) => {
                let file = std::fs::OpenOptions::new().write(true).open(path);
                let grow = |file: std::fs::File| match file.metadata()?.len() {
                    have if have < bytes => file.set_len(bytes),
                    _ => Ok(()),
                };
                file.and_then(grow).with_context(|| {
                    format!(
                        "cannot make {} {} long",
                        path.display(),
                        format_bytes(bytes)
                    )
                })
            }
        }
    }
}

fn open_file(
    path: &PathBuf,
    namespace: &Namespace,
    shift: u8,
) -> anyhow::Result<(Device, u64, Room)> {
    let create = namespace.size.map(|size| size.0);
    let file = FileDevice::open(path.clone(), namespace.read_only, create)?;
    if file.block_shift() > shift {
        bail!(
            "block_size {} is smaller than the {} that {} needs: set block_size = {}",
            namespace.block_size,
            1u32 << file.block_shift(),
            path.display(),
            1u32 << file.block_shift()
        );
    }
    let bytes = file.bytes();
    // A block device has the size that it has.
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let room = match is_file && !namespace.read_only {
        true => Room::File(path.clone()),
        false => Room::Fixed(bytes),
    };
    Ok((Device::File(Arc::new(file)), bytes, room))
}
