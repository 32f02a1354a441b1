//! See `braid_fuzz::subsystem`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::subsystem::run(data));
