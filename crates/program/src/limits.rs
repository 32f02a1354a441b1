//! All limits of this crate.

/// Largest file of a program.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// Most memory of one instance: the default of Rust has 17 pages of 64 KiB. It is resident at once.
pub const MEMORY_BYTES_MAX: usize = 2 << 20;

/// The same where WASI is allowed: the runtime of Go has a heap of 4 MiB.
pub const WASI_MEMORY_BYTES_MAX: usize = 16 << 20;

/// Most tables of one instance: even plain Rust has one.
pub const TABLES_MAX: usize = 4;

/// Most elements of a table.
pub const TABLE_ELEMENTS_MAX: usize = 1 << 16;

/// Deepest recursion.
pub const CALLS_MAX: usize = 256;

/// Most cells of the interpreter's stack, 8 bytes each: parameters, locals and operands of all
/// calls that are under way. All of it is allocated with the instance.
pub const STACK_CELLS_MAX: usize = 4096;

/// Most locals of a function: each call sets them to 0, which its fuel does not pay for.
pub const LOCALS_MAX: u32 = 128;

/// Most parameters, and most results, of a function or block: a branch copies them for one unit.
pub const VALUES_MAX: usize = 32;

/// Fuel of the start function and of `_initialize` or `__wasm_call_ctors`, each.
pub const START_FUEL: u64 = 20_000_000;

/// Fuel of the first call of an instance, which may allocate.
pub const WARM_UP_FUEL: u64 = 2_000_000;

/// Fuel of each other call: some 10 µs.
pub const CALL_FUEL: u64 = 20_000;

/// Least time between two calls of `braid_tick`.
pub const TICK_NS: u64 = 10_000_000;

/// Choices after which faults are counted anew.
pub const WINDOW: u32 = 1024;

/// Most faults among them: with one more the program is taken out.
pub const FAULTS_MAX: u32 = 10;
