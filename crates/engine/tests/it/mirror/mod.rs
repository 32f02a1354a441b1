//! Mirrors over the host's volumes, in virtual time: legs are devices with volatile caches, that
//! fail, vanish and come back.
mod again;
mod cost;
mod deep;
mod degraded;
mod devices;
mod frozen;
mod grow;
mod hang;
mod holes;
mod lease;
mod legs;
mod life;
pub mod made;
mod numbers;
mod overlap;
pub mod rig;
mod silent;
mod sizes;
mod spare;
mod start;

use crate::common;
use crate::export::clients;
