//! See `braid_fuzz::engine::discovery`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::engine::discovery::run(data));
