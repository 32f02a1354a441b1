//! Server and client wired to each other, and corpora of their fuzz targets.
#![allow(clippy::unwrap_used, reason = "tests")]
mod corpus;
mod hostile;
mod model;
mod pair;
