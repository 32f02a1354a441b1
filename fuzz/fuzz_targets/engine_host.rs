//! See `braid_fuzz::engine::host`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::engine::host::run(data));
