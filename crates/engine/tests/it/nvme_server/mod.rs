//! Volumes and mirrors as namespaces of an NVMe/TCP subsystem, in virtual time: a host's engine,
//! NBD clients beside it, the engine that offers, and what is below.
mod anew;
mod by_hand;
mod change;
mod data;
mod full;
mod lost;
mod order;
pub mod rig;
mod told;
mod zeroes;

use crate::common;
use crate::export::clients;
