//! See `braid_fuzz::admin`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::admin::run(data));
