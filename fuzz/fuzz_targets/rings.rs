//! See `braid_fuzz::nvme::rings`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::nvme::rings::run(data));
