//! The table of fuel, fixed by the version of the interface.
//!
//! One unit for each operator of WebAssembly, as the interpreter has it, but for those whose time
//! has nothing to do with that: growing memory moves and zeroes it, calls set locals to 0, and
//! divisions are slow. A test holds a checksum of the whole table, so that another version of the
//! interpreter cannot change what a program may do.
use wasmi::{CustomFuelCosts, OperatorCost};

/// Costs of operators.
pub(crate) fn operators() -> OperatorCost {
    OperatorCost {
        memory_grow: 255,
        table_grow: 255,
        call_indirect: 10,
        call: 8,
        return_call_indirect: 10,
        return_call: 8,
        i32_div_s: 4,
        i32_div_u: 4,
        i32_rem_s: 4,
        i32_rem_u: 4,
        i64_div_s: 8,
        i64_div_u: 8,
        i64_rem_s: 8,
        i64_rem_u: 8,
        f32_div: 4,
        f64_div: 4,
        f32_sqrt: 4,
        f64_sqrt: 4,
        ..OperatorCost::default()
    }
}

/// Bytes that are copied or filled for one unit.
pub(crate) const BYTES_PER_FUEL: u32 = 16;

/// Costs of what grows with a length. Translation costs none: it is not done while I/O waits.
pub(crate) fn bulk() -> CustomFuelCosts {
    CustomFuelCosts {
        bytes_copied_per_fuel: BYTES_PER_FUEL,
        fuel_per_bytes_translated: 0,
        fuel_per_bytes_validated: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn table_is_that_of_version_1() {
        let table = format!("{:?}{:?}", operators(), bulk());
        let sum = Sha256::digest(table.as_bytes());
        assert_eq!(format!("{sum:x}")[..16], *"d3e151ab477b8768", "{table}");
        assert_eq!(crate::abi::VERSION, 1);
    }
}
