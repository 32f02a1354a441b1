//! Every parser of the wire. See `braid_fuzz::wire`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::wire::run(data));
