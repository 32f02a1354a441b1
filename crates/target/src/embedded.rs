//! A target inside the program that uses it: one namespace behind ports on loopback.
use super::config::{Config, Port};
use super::launch::{Launched, launch};
use super::settings::Settings;
use engine::target::TargetControl;
use paths::uri::PathUri;
use runtime::{ReactorStats, Sender};
use std::net::SocketAddr;

/// Configuration of the target.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// Storage of its namespace: `mem:1GiB`, `null:1TiB`, `file:/path`.
    pub backend: PathUri,
    /// A port for each, on any free port of loopback.
    pub shapes: Vec<shape::Config>,
    /// Pin it to this CPU.
    pub cpu: Option<usize>,
    /// Never sleep.
    pub spin: bool,
}

/// A target that runs until it is stopped, or the process ends.
pub struct Embedded {
    /// Subsystem NQN.
    pub nqn: String,
    launched: Launched,
}

/// Starts a target on a thread of its own.
///
/// # Errors
/// Memory, sockets or io_uring can't be had.
pub fn embedded(config: &EmbeddedConfig) -> anyhow::Result<Embedded> {
    let nqn = format!("nqn.2026-01.org.braid:embedded-{}", std::process::id());
    let ports = config.shapes.iter().map(|shape| Port {
        shape: *shape,
        ..Port::new("127.0.0.1:0".into(), &Settings::default())
    });
    let mut target = Config::quick(nqn.clone(), config.backend.clone(), ports.collect());
    (target.cpu, target.spin) = (config.cpu, config.spin);
    Ok(Embedded {
        nqn,
        launched: launch(&target, None)?,
    })
}

impl Embedded {
    /// Addresses, by port.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.launched.addresses
    }

    /// For changes while it runs (ports and namespaces as `TargetControl` counts them: ports from
    /// 0).
    pub fn sender(&self) -> Sender<TargetControl> {
        self.launched.sender()
    }

    /// New shape of a port (index); false if the target has ended.
    pub fn shape(&self, port: u16, shape: shape::Config) -> bool {
        self.sender().send(TargetControl::Shape(port, shape))
    }

    /// Ends it in order and waits.
    ///
    /// # Errors
    /// It had ended before, with an error.
    pub fn stop(self) -> anyhow::Result<ReactorStats> {
        self.sender().send(TargetControl::Stop);
        self.launched.join()
    }
}
