//! The program: as it is typed ([`cli`]), while it serves ([`serve`]), in whole installations with
//! others' programs ([`e2e`]), and how often it copies ([`copies`]). One program, since each one
//! more is compiled, linked and run by itself.
#![allow(clippy::unwrap_used, reason = "tests")]
mod cli;
mod copies;
mod e2e;
mod serve;
mod tmpfs;
