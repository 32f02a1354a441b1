(module
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "clock_time_get"
    (func $clock (param i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $sizes (param i32 i32) (result i32)))
  (memory (export "memory") 3)
  (global (export "braid_context") i32 (i32.const 1024))
  (func (export "braid_select") (param $r i32) (param $p i32) (result i32)
    (local $at i32)
    (drop (call $random (i32.const 65536) (i32.const 65536)))
    (drop (call $clock (i32.const 0) (i64.const 0) (i32.const 8)))
    (drop (call $sizes (i32.const 16) (i32.const 20)))
    (block $found
      (loop $next
        (br_if $found (i32.and (i32.const 1) (i32.load
          (i32.add (local.get $p) (i32.shl (local.get $at) (i32.const 6))))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br_if $next (i32.lt_u (local.get $at) (i32.load offset=40 (local.get $r))))))
    (local.get $at)))
