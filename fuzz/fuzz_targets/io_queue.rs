//! See `braid_fuzz::nvme::io_queue`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::nvme::io_queue::run(data));
