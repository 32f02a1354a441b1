//! Reads of up to 16 KiB go to the nearest path unless its queue is long, everything else to the
//! widest one. None of braid's policies does that.
#![no_std]
use braid_policy_sdk::{Path, Policy, Request, READ};

const SMALL_BYTES: u32 = 16 << 10;
/// A queue of this length on the near path sends small reads to the wide one.
const LONG: u64 = 32;

pub struct NearSmall;

impl Policy for NearSmall {
    const NEW: Self = Self;

    fn select(&mut self, request: &mut Request, paths: &mut [Path]) -> Option<usize> {
        let (mut near, mut wide) = (None, None);
        let (mut nearest, mut widest) = (u32::MAX, 0);
        for (at, path) in paths.iter().enumerate() {
            if !path.is_usable() {
                continue;
            }
            if near.is_none() || path.distance < nearest {
                near = Some(at);
                nearest = path.distance;
            }
            // Of equally wide ones the last: it is seldom also the nearest.
            if path.throughput >= widest {
                wide = Some(at);
                widest = path.throughput;
            }
        }
        let is_small = request.group == READ && request.length <= SMALL_BYTES;
        if is_small && paths.get(near?)?.depth() < LONG {
            near
        } else {
            wide
        }
    }
}

braid_policy_sdk::export!(NearSmall);
