#!/bin/sh
# Builds the modules of the examples: build.sh DIRECTORY. Without a compiler it says what it skips.
# modules/ and its SHA256SUMS are what this makes with Rust 1.95 and Debian 12's clang 14.
set -eu
to=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
target=wasm32-unknown-unknown
flags="--target $target --edition 2021 -C opt-level=3 -C panic=abort -C strip=symbols"
if [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
    scratch=$(mktemp -d)
    trap 'rm -r "$scratch"' EXIT
    sdk="$scratch/libbraid_policy_sdk.rlib"
    # shellcheck disable=SC2086
    rustc $flags --crate-type rlib --crate-name braid_policy_sdk -o "$sdk" rust/src/lib.rs
    for name in round_robin weighted_latency near_small; do
        # shellcheck disable=SC2086
        rustc $flags --crate-type cdylib -C lto=fat -C link-arg=-zstack-size=16384 \
            --extern braid_policy_sdk="$sdk" -o "$to/$name.wasm" "examples/$name.rs"
    done
else
    echo "SKIP modules in Rust: rustup target add $target"
fi
clang=$(command -v clang-14 || command -v clang || true)
if [ -n "$clang" ] && "$clang" --print-targets | grep -q wasm32; then
    "$clang" --target=wasm32 -O2 -nostdlib -Ic -Wall -Wextra -Wl,--no-entry,--stack-first \
        -Wl,-z,stack-size=8192,--strip-all,--export=braid_select,--export=braid_context \
        -o "$to/queue_depth.wasm" examples/queue_depth.c
else
    echo "SKIP modules in C: apt-get install clang-14 lld-14"
fi
