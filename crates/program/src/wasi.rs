//! The few imports that a program may have.
//!
//! `env.abort`, which AssemblyScript calls where its checks fail, ends the call. Behind
//! [`Options::wasi`](crate::Options::wasi) the calls of WASI that the runtime of Go makes: they
//! offer no file, argument or variable; the clock stands at 1 (Go ends at a clock of 0) and random
//! bytes are always the same, so that choices repeat.
use crate::fuel::BYTES_PER_FUEL;
use crate::instance::Host;
use wasmi::{Caller, Error, Extern, Linker, TrapCode};

/// The calls of WASI, by name.
pub(crate) const WASI: &str = "wasi_snapshot_preview1";

/// `errno` of WASI.
const SUCCESS: i32 = 0;
const BAD_FILE: i32 = 8;
const FAULT: i32 = 21;
const NOT_SUPPORTED: i32 = 58;

/// Defines what a module may import.
///
/// # Errors
/// None for a new linker.
pub(crate) fn define(linker: &mut Linker<Host>, wasi: bool) -> Result<(), Error> {
    linker.func_wrap("env", "abort", |_: i32, _: i32, _: i32, _: i32| abort())?;
    if !wasi {
        return Ok(());
    }
    linker.func_wrap(WASI, "sched_yield", || SUCCESS)?;
    linker.func_wrap(WASI, "proc_exit", |_: i32| abort())?;
    linker.func_wrap(WASI, "args_get", |_: i32, _: i32| SUCCESS)?;
    linker.func_wrap(WASI, "environ_get", |_: i32, _: i32| SUCCESS)?;
    linker.func_wrap(WASI, "args_sizes_get", none)?;
    linker.func_wrap(WASI, "environ_sizes_get", none)?;
    linker.func_wrap(WASI, "clock_time_get", clock)?;
    linker.func_wrap(WASI, "random_get", random)?;
    linker.func_wrap(WASI, "fd_write", |_: i32, _: i32, _: i32, _: i32| BAD_FILE)?;
    linker.func_wrap(WASI, "poll_oneoff", |_: i32, _: i32, _: i32, _: i32| {
        NOT_SUPPORTED
    })?;
    Ok(())
}

fn abort() -> Result<(), Error> {
    Err(Error::new("the program gave up"))
}

/// No argument and no variable.
fn none(mut caller: Caller<'_, Host>, count: i32, bytes: i32) -> i32 {
    let written = write(&mut caller, count, &[0; 4]) && write(&mut caller, bytes, &[0; 4]);
    if written { SUCCESS } else { FAULT }
}

fn clock(mut caller: Caller<'_, Host>, _id: i32, _precision: i64, to: i32) -> i32 {
    let written = write(&mut caller, to, &1_u64.to_le_bytes());
    if written { SUCCESS } else { FAULT }
}

/// The call pays for its bytes as the operator that fills memory does.
fn random(mut caller: Caller<'_, Host>, to: i32, length: i32) -> Result<i32, Error> {
    // The length is the module's: no more than its memory has.
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        return Ok(FAULT);
    };
    let range = (to as u32 as usize, length as u32 as usize);
    let left = caller.get_fuel()?;
    let left = left.checked_sub(u64::from(length as u32 / BYTES_PER_FUEL));
    caller.set_fuel(left.ok_or(TrapCode::OutOfFuel)?)?;
    let data = memory.data_mut(&mut caller);
    let Some(part) = data.get_mut(range.0..).and_then(|it| it.get_mut(..range.1)) else {
        return Ok(FAULT);
    };
    part.fill(0x5A);
    Ok(SUCCESS)
}

fn write(caller: &mut Caller<'_, Host>, to: i32, bytes: &[u8]) -> bool {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        return false;
    };
    memory.write(caller, to as u32 as usize, bytes).is_ok()
}
