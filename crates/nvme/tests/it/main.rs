//! The host alone against scripted and modelled controllers, and host and target together.
mod corpus;
mod host_admin;
mod host_allocation;
mod host_behavior;
mod host_data;
mod host_hostile;
mod host_life;
mod host_namespaces;
mod host_peer;
mod host_ready;
mod hostile;
mod model;
mod pair;
