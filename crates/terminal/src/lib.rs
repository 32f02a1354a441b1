//! The face of braid's programs: exit codes, output, signals, tables, quantities, files of text.
//!
//! * [`exit`]: how a program ends, and how a usage error reads
//! * [`output`], [`table`]: standard output and standard error; [`advice`]: words of this program
//! * [`page`]: pages with plots
//! * [`answer`]: JSON answers of a running program, as text
//! * [`signals`]: interruption by the user
//! * [`log`]: lines on standard error that never make their writer wait
//! * [`units`], [`text`], [`cpus`]: quantities, files and lists of CPUs that users wrote
#![forbid(unsafe_code)]

pub mod advice;
pub mod answer;
pub mod cpus;
pub mod exit;
pub mod limits;
pub mod log;
pub mod output;
pub mod page;
pub mod signals;
pub mod table;
pub mod text;
pub mod units;
