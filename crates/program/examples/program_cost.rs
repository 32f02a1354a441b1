//! The cost of a program, as `policy_cost` has that of a policy: `program_cost MODULE PATHS
//! ITERATIONS`. MODULE is one of `sdk/modules`, or `none` for the loop without a selector.
use policy::{Policy, Selector};
use program::{Options, Program};
use std::path::Path;
use std::process::ExitCode;

#[path = "../../policy/examples/policy_cost.rs"]
#[allow(dead_code, reason = "it has a main of its own")]
mod policy_cost;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments) {
        Ok((selector, paths, iterations)) => {
            let sum = policy_cost::run(selector, paths, iterations);
            println!("{iterations} iterations, checksum {sum}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}\nusage: program_cost MODULE|none PATHS ITERATIONS");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[String]) -> Result<(Option<Selector>, usize, u64), String> {
    let [module, paths, iterations] = arguments else {
        return Err(format!("3 arguments wanted, {} given", arguments.len()));
    };
    let (paths, iterations) = policy_cost::parse_numbers(paths, iterations)?;
    if module == "none" {
        return Ok((None, paths, iterations));
    }
    let modules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/modules");
    let file = Path::new(modules).join(format!("{module}.wasm"));
    let bytes = program::read(&file);
    let program = bytes.and_then(|it| Program::new(module, &it, Options::default()));
    let program = program.map_err(|why| format!("{module}: {why}"))?;
    let runner = program.runner(None).map_err(|why| why.to_string())?;
    let mut selector = Selector::new(paths, Policy::QueueDepth);
    selector.set_program(program.id(), Box::new(runner));
    Ok((Some(selector), paths, iterations))
}
