//! An engine's core over local devices, for a queue server that has no volumes.
//!
//! # Contract
//! The engine has the files and block devices among the namespaces. Memory and null namespaces need
//! no request: the lane does their commands itself.
use crate::config::{EngineNamespace, Namespace, Shape, Store};
use crate::limits::NAMESPACES_MAX;
use engine::export::ExportConfig;
use engine::host::{HostConfig, Multipath};
use engine::mirror::Devices;
use engine::{Core, LOCALS_FROM, LocalConfig, LocalDevice, QueueMemory, Span};
use nvme::host::{Digests, HostIdentity};
use runtime::Device;
use std::sync::Arc;

/// Bytes of a core for payload of devices of the engine.
const MEMORY_BYTES: u64 = 64 << 20;
const _: () = assert!(NAMESPACES_MAX <= engine::limits::LOCALS_MAX);

/// A namespace over a local device.
#[derive(Clone, Debug)]
pub struct LocalNamespace {
    /// It.
    pub device: Device,
    /// log2 of the block size, 9 to 12.
    pub block_shift: u8,
    /// Blocks.
    pub blocks: u64,
    /// No client may change it.
    pub read_only: bool,
}

/// Local namespaces, and what of them is the engine's.
#[derive(Clone, Debug, Default)]
pub struct Local {
    /// For the server's configuration: NSIDs are places, from 1.
    pub namespaces: Vec<Namespace>,
    /// Devices of the engine, for the reactors.
    pub devices: Vec<Device>,
    configs: Vec<LocalConfig>,
}

impl Local {
    /// # Errors
    /// A device that can't be a namespace, or no blocks.
    pub fn new(all: &[LocalNamespace]) -> Result<Self, String> {
        let mut local = Self::default();
        for (nsid, it) in (1..).zip(all) {
            local
                .add(nsid, it)
                .map_err(|why| format!("namespace {nsid}: {why}"))?;
        }
        Ok(local)
    }

    fn add(&mut self, nsid: usize, it: &LocalNamespace) -> Result<(), String> {
        if !(9..=12).contains(&it.block_shift) || it.blocks == 0 {
            return Err("no blocks, or of no size that is".into());
        }
        let store = match &it.device {
            Device::Null => Store::Null,
            Device::Memory(memory) => Store::Memory(Arc::clone(memory)),
            Device::File(file) => {
                let name = format!("file:{}", file.path().display());
                self.serve(format!("namespace {nsid} ({name})"), it);
                let number = self.devices.len() as u32 - 1;
                let namespace = EngineNamespace::new(number, name);
                namespace.set_shape(Some(Shape {
                    block_shift: it.block_shift,
                    blocks: it.blocks,
                    read_only: it.read_only,
                }));
                Store::Engine(Arc::new(namespace))
            }
            Device::Passthrough(_) | Device::Queue(_) => {
                return Err("a queue of another server, or of the kernel, can't be one".into());
            }
        };
        self.namespaces.push(Namespace {
            store,
            block_shift: it.block_shift,
            blocks: it.blocks,
            read_only: it.read_only,
        });
        Ok(())
    }

    /// The engine has another device.
    fn serve(&mut self, name: String, it: &LocalNamespace) {
        self.configs.push(LocalConfig {
            name,
            device: LocalDevice(self.devices.len() as u16),
            bytes: it.blocks << it.block_shift,
            block_shift: it.block_shift,
            read_only: it.read_only,
        });
        self.devices.push(it.device.clone());
    }

    /// A namespace in lines for people, by its number among the volumes of an engine.
    pub fn name(&self, volume: u16) -> &str {
        &self.configs[usize::from(volume - LOCALS_FROM)].name
    }

    /// A core of an engine over these devices, one of so many, and the bytes of its arena.
    pub fn core(&self, number: u16, cores: u16) -> (Core, u64) {
        let host = HostConfig {
            core: number,
            cores,
            // It connects to nothing.
            identity: HostIdentity {
                nqn: "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000000".into(),
                id: [0; 16],
            },
            digests: Digests::default(),
            kato_ms: 0,
            connect_timeout_ns: 1,
            io_timeout_ns: 1,
            io_max: 1,
            scratch: Span::default(),
            volumes: Vec::new(),
        };
        let devices = Devices::from(Multipath::new(host)).with_locals(self.configs.clone());
        let mut core = Core::new(devices, 0, ExportConfig::NONE);
        let arena_bytes = MEMORY_BYTES + u64::from(engine::limits::ZEROES_BYTES);
        core.reserve_queues(QueueMemory {
            arena_at: 0,
            arena_bytes,
        });
        for number in 0..self.configs.len() as u16 {
            core.queues()
                .add_namespace(number.into(), LOCALS_FROM + number);
        }
        (core, arena_bytes)
    }
}
