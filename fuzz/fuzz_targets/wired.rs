//! See `braid_fuzz::nvme::wired`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::nvme::wired::run(data));
