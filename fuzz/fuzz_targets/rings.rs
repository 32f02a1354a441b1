//! See `braid_fuzz::rings`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::rings::run(data));
