//! See `braid_fuzz::mirror`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::mirror::run(data));
