//! See `braid_fuzz::nbd::client`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::nbd::client::run(data));
