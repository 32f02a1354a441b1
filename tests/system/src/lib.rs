//! Tests of whole installations: programs as users run them, over network namespaces, files and
//! guests with a real kernel. `cargo xtask faults` and `cargo xtask vm` start them; benches use the
//! same child processes.
#![forbid(unsafe_code)]

pub mod faults;
pub mod figures;
pub mod process;
pub mod program;
pub mod stop;
pub mod vm;
