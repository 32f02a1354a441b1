//! See `braid_fuzz::program`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::program::run(data));
