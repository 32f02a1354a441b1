//! Programs of the SDK, as policies of one world. Tests and planted bugs of worlds use this file
//! too.
use policy::ProgramId;
use program::{Options, Program};
use sim::chaos::programs::Programs;
use std::sync::OnceLock;

const MODULES: [(&str, &[u8]); 4] = [
    (
        "near_small",
        include_bytes!("../../../../sdk/modules/near_small.wasm"),
    ),
    (
        "queue_depth",
        include_bytes!("../../../../sdk/modules/queue_depth.wasm"),
    ),
    (
        "round_robin",
        include_bytes!("../../../../sdk/modules/round_robin.wasm"),
    ),
    (
        "weighted_latency",
        include_bytes!("../../../../sdk/modules/weighted_latency.wasm"),
    ),
];

/// One world's.
pub struct Modules(Vec<Program>);

impl Modules {
    /// They have chosen nothing yet.
    pub fn new() -> Self {
        static CHECKED: OnceLock<Vec<Program>> = OnceLock::new();
        let checked = CHECKED.get_or_init(|| {
            let program = |(name, bytes)| Program::new(name, bytes, Options::default());
            let all: Result<_, _> = MODULES.into_iter().map(program).collect();
            all.unwrap_or_else(|why| panic!("a module of the SDK: {why}"))
        });
        Self(checked.iter().map(Program::anew).collect())
    }

    /// Choices of all of them.
    #[allow(dead_code, reason = "for the test that they are asked")]
    pub fn choices(&self) -> u64 {
        let choices = self.0.iter().map(|it| it.state().counts.choices);
        choices.sum()
    }
}

impl Programs for Modules {
    fn make(&self, number: u64) -> (ProgramId, Box<dyn policy::Program>) {
        let program = &self.0[number as usize % self.0.len()];
        match program.runner(None) {
            Ok(runner) => (program.id(), Box::new(runner)),
            Err(why) => panic!("{}: {why}", program.id()),
        }
    }

    fn faults(&self) -> Option<String> {
        self.0.iter().find_map(|it| {
            let faults = it.state().counts.faults_in_words();
            (!faults.is_empty()).then(|| format!("{}: {faults}", it.id().name()))
        })
    }
}
