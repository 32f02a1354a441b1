//! Clients that are connected to the front ends of a core.
use super::{Core, listener_of};
use crate::client::ClientReport;
use alloc::vec::Vec;

impl Core {
    /// Clients of NBD exports and hosts over NVMe/TCP that are connected.
    pub fn client_reports(&self) -> Vec<ClientReport> {
        let servers = (0..).zip(&self.nvme);
        let servers = servers.filter_map(|(place, it)| Some((place, it.as_ref()?)));
        let hosts = servers.flat_map(|(place, server)| {
            server.client_reports(move |port| listener_of(place, port))
        });
        self.nbd.client_reports().chain(hosts).collect()
    }
}
