//! See `braid_fuzz::nbd::server`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::nbd::server::run(data));
