//! A reactor with real sockets and files.
mod connections;
mod devices;
mod echo;
mod receiving;
mod recorder;
mod sending;
mod threads;
