//! What is read from the legs of a mirror. See `mirror::run`.
#![no_main]
#[path = "../src/mirror/mod.rs"]
#[allow(dead_code, reason = "for seeds and tests")]
mod mirror;
libfuzzer_sys::fuzz_target!(|data: &[u8]| mirror::run(data));
