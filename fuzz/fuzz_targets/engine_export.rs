//! See `braid_fuzz::engine::export`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::engine::export::run(data));
