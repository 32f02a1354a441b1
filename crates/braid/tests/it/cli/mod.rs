//! The program as its users run it: a real process, loopback only, short.
mod bad_input;
mod bench;
mod common;
mod demo;
mod files;
mod help;
mod mirror;
mod peers;
mod same;
mod sim;
mod system;
