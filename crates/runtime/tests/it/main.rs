//! A reactor with real sockets and files.
#![allow(clippy::unwrap_used, missing_docs)]
mod connections;
mod devices;
mod echo;
mod receiving;
mod recorder;
mod sending;
mod threads;
