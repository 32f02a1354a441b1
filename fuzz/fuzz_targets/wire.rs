//! See `braid_fuzz::nvme::wire`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::nvme::wire::run(data));
