//! The shared library's name for the loader: programs keep to the number that they were linked to.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbraid_queue.so.0");
}
