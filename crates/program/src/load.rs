//! Loads a program: a file becomes a module that has been checked.
use crate::instance::{Compiled, Instance};
use crate::limits::{CALLS_MAX, FILE_BYTES_MAX, LOCALS_MAX, STACK_CELLS_MAX, VALUES_MAX};
use crate::runner::{Runner, Shared, State};
use crate::workshop::Workshop;
use crate::{fuel, wasi};
use policy::ProgramId;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use wasmi::{CompilationMode, Config, EnforcedLimits, Engine, Module};
use wasmparser::{BinaryReaderError, Parser, Payload};

/// `O_NONBLOCK`: a FIFO without a writer must not hold up its reader.
const NONBLOCK: i32 = 0o4000;

/// Permissions of a program beside choosing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// It may import the calls of WASI that Go's runtime needs; none of them does anything.
    pub wasi: bool,
}

/// Why a program was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file.
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    /// A directory, a FIFO, a device.
    #[error("not a regular file")]
    NotAFile,
    /// Over [`FILE_BYTES_MAX`].
    #[error("larger than {} MiB", FILE_BYTES_MAX >> 20)]
    TooLarge,
    /// No module, or one with features that are not allowed.
    #[error("not a WebAssembly module that braid can run: {0}")]
    Module(String),
    /// A function over [`LOCALS_MAX`].
    #[error(
        "its function {function} has {locals} locals, more than {LOCALS_MAX}; optimized code has \
         fewer"
    )]
    Locals {
        /// Index, imports included.
        function: u32,
        /// As it declares them.
        locals: u32,
    },
    /// A type over [`VALUES_MAX`].
    #[error("a function or block of it has more than {VALUES_MAX} parameters or results")]
    Values,
    /// It wants something that is not offered.
    #[error("imports {0}, which does not exist{1}")]
    Import(String, &'static str),
    /// An export that it has to have.
    #[error("exports no \"{0}\"")]
    Lacks(&'static str),
    /// An export of another type.
    #[error("exports \"{0}\" of another type")]
    Type(&'static str),
    /// Of its context.
    #[error("its braid_context at {0:#x} is not aligned to 8, or reaches beyond its memory")]
    Address(u32),
    /// It trapped, or wanted more fuel or memory than there is.
    #[error("does not start: {0}")]
    Start(String),
}

impl LoadError {
    pub(crate) fn start(error: wasmi::Error) -> Self {
        Self::Start(error.to_string())
    }
}

/// A program that has been checked: one instance of it has started and chosen. A copy has the same
/// counts.
#[derive(Clone)]
pub struct Program {
    id: ProgramId,
    sha256: [u8; 32],
    bytes: Arc<[u8]>,
    options: Options,
    shared: Arc<Shared>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.id, self.bytes.len())
    }
}

/// Reads a file, once and whole: one that is replaced meanwhile is what it was, or what it is.
///
/// # Errors
/// [`LoadError::Read`], [`LoadError::NotAFile`], [`LoadError::TooLarge`].
pub fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let mut options = OpenOptions::new();
    let file: File = options.read(true).custom_flags(NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(LoadError::NotAFile);
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > FILE_BYTES_MAX {
        true => Err(LoadError::TooLarge),
        false => Ok(bytes),
    }
}

/// Identity of a program with such a file.
pub fn id(name: &str, bytes: &[u8]) -> ProgramId {
    id_of(name, &Sha256::digest(bytes).into())
}

fn id_of(name: &str, sha256: &[u8; 32]) -> ProgramId {
    let [a, b, c, d, e, f, g, h, ..] = *sha256;
    ProgramId::new(name, u64::from_be_bytes([a, b, c, d, e, f, g, h]))
}

impl Program {
    /// Checks a module and starts it once. Takes as long as translating it: some 5 MB/s.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn new(name: &str, bytes: &[u8], options: Options) -> Result<Self, LoadError> {
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(LoadError::TooLarge);
        }
        let sha256: [u8; 32] = Sha256::digest(bytes).into();
        let it = Self {
            id: id_of(name, &sha256),
            sha256,
            bytes: bytes.into(),
            options,
            shared: Arc::default(),
        };
        Instance::new(&it.compile()?)?;
        Ok(it)
    }

    /// The same module, as if it were loaded now: without counts, and not taken out.
    pub fn anew(&self) -> Self {
        Self {
            id: self.id,
            sha256: self.sha256,
            bytes: self.bytes.clone(),
            options: self.options,
            shared: Arc::default(),
        }
    }

    /// Its name and the begin of its hash.
    pub fn id(&self) -> ProgramId {
        self.id
    }

    /// SHA-256 of its file, in hexadecimal digits as `sha256sum` has them.
    pub fn sha256(&self) -> String {
        self.sha256.iter().map(|it| format!("{it:02x}")).collect()
    }

    /// Its file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As it was loaded.
    pub fn options(&self) -> Options {
        self.options
    }

    /// How it does, over all its runners.
    pub fn state(&self) -> State {
        self.shared.state()
    }

    /// Runners that there are now.
    pub fn runners(&self) -> usize {
        self.shared.runners()
    }

    /// Makes a runner for one core, with an engine of its own. Without a workshop new instances
    /// are made while the choice waits: for simulators, where that takes no time.
    ///
    /// # Errors
    /// As [`Program::new`], which has been through it.
    pub fn runner(&self, workshop: Option<&Workshop>) -> Result<Runner, LoadError> {
        let compiled = Arc::new(self.compile()?);
        let instance = Instance::new(&compiled)?;
        Ok(Runner::new(
            compiled,
            instance,
            self.shared.core(),
            workshop,
        ))
    }

    fn compile(&self) -> Result<Compiled, LoadError> {
        let limits = match self.options.wasi {
            // Go's runtime has more globals and data segments.
            true => EnforcedLimits::default(),
            false => EnforcedLimits::strict(),
        };
        let stack_bytes = STACK_CELLS_MAX * size_of::<u64>();
        let mut config = Config::default();
        config
            .consume_fuel(true)
            .operator_cost(fuel::operators())
            .fuel_cost(fuel::bulk())
            .compilation_mode(CompilationMode::Eager)
            .ignore_custom_sections(true)
            .enforced_limits(limits)
            .set_max_recursion_depth(CALLS_MAX)
            .set_max_stack_height(stack_bytes)
            .set_min_stack_height(stack_bytes)
            .set_max_cached_stacks(1)
            .wasm_multi_memory(false)
            .wasm_custom_page_sizes(false);
        let engine = Engine::new(&config);
        let module = Module::new(&engine, &self.bytes[..]);
        let module = module.map_err(|error| LoadError::Module(words(&error)))?;
        for import in module.imports() {
            let name = (import.module(), import.name());
            let known = name == ("env", "abort") || (self.options.wasi && name.0 == wasi::WASI);
            if !known {
                let hint = match name.0 == wasi::WASI {
                    true => "; load it with braid policy load --wasi",
                    false => "",
                };
                let name = format!("{}.{}", name.0, name.1);
                return Err(LoadError::Import(name, hint));
            }
        }
        check_unpaid(&self.bytes)?;
        Ok(Compiled::new(engine, module, self.options.wasi))
    }
}

/// Checks the sizes of a valid module whose time its fuel does not pay for.
fn check_unpaid(bytes: &[u8]) -> Result<(), LoadError> {
    let invalid = |error: BinaryReaderError| LoadError::Module(error.to_string());
    let mut function = 0;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(invalid)? {
            Payload::TypeSection(types) => {
                for it in types.into_iter_err_on_gc_types() {
                    let it = it.map_err(invalid)?;
                    if it.params().len().max(it.results().len()) > VALUES_MAX {
                        return Err(LoadError::Values);
                    }
                }
            }
            // Only functions can be imported: see `Program::compile`.
            Payload::ImportSection(imports) => function = imports.count(),
            Payload::CodeSectionEntry(body) => {
                let mut locals = 0_u32;
                for group in body.get_locals_reader().map_err(invalid)? {
                    locals = locals.saturating_add(group.map_err(invalid)?.0);
                }
                if locals > LOCALS_MAX {
                    return Err(LoadError::Locals { function, locals });
                }
                function += 1;
            }
            _ => {}
        }
    }
    Ok(())
}

/// An error of the interpreter, in one line.
fn words(error: &wasmi::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    // The bytes that follow tell a user nothing.
    line.split(" - expected")
        .next()
        .unwrap_or_default()
        .to_owned()
}
