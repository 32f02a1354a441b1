//! See `braid_fuzz::nvme::subsystem`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::nvme::subsystem::run(data));
