//! See `braid_fuzz::broker::room`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::broker::room::run(data));
