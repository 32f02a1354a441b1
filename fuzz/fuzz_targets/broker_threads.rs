//! See `braid_fuzz::broker::threads`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::broker::threads::run(data));
