//! Paths as users write them, and their ends: shared by all verbs that drive or offer volumes.
//!
//! * [`uri`]: path URIs; [`identity`]: the host's NQN and identifier
//! * [`ends`]: addresses, files and devices; [`holder`]: owners of legs among these files
//! * [`board`]: counts of I/Os in flight, shared by the cores of one program
//! * [`hedges`]: counts of second copies of reads, as text and JSON
#![forbid(unsafe_code)]

pub mod board;
pub mod ends;
pub mod hedges;
pub mod holder;
pub mod identity;
pub mod limits;
pub mod uri;

use terminal::{text, units};
