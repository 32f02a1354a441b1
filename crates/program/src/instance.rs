//! One instance of a module: its memory, its functions, and the context in it.
use crate::abi::{self, Context, Words};
use crate::limits::{
    CALL_FUEL, MEMORY_BYTES_MAX, START_FUEL, TABLE_ELEMENTS_MAX, TABLES_MAX, WARM_UP_FUEL,
    WASI_MEMORY_BYTES_MAX,
};
use crate::load::LoadError;
use crate::wasi;
use policy::{Ana, Completion, Group, PathView, Request};
use wasmi::{
    Engine, Error, Extern, Linker, Memory, Module, Store, StoreLimits, StoreLimitsBuilder,
    TrapCode, TypedFunc,
};

/// Why a call had no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// It wanted more than its fuel.
    OutOfFuel,
    /// Everything else.
    Trap,
}

impl From<Error> for Trap {
    fn from(error: Error) -> Self {
        match error.as_trap_code() {
            Some(TrapCode::OutOfFuel) => Self::OutOfFuel,
            _ => Self::Trap,
        }
    }
}

/// State of the host, per instance.
pub(crate) struct Host {
    limits: StoreLimits,
}

/// A translated module with its engine: one for each core and load, since an engine keeps the code
/// of modules that were dropped, and takes a lock that cores would contend for.
pub(crate) struct Compiled {
    engine: Engine,
    module: Module,
    wasi: bool,
}

/// One instance.
pub(crate) struct Instance {
    store: Store<Host>,
    memory: Memory,
    /// Address of the context; the whole of it lies in the memory, which never shrinks.
    context: usize,
    select: TypedFunc<(i32, i32), i32>,
    complete: Option<TypedFunc<(i32, i64, i32, i32), ()>>,
    tick: Option<TypedFunc<(i64,), ()>>,
    reset: Option<TypedFunc<(i32,), ()>>,
}

impl Compiled {
    pub(crate) fn new(engine: Engine, module: Module, wasi: bool) -> Self {
        Self {
            engine,
            module,
            wasi,
        }
    }
}

impl Instance {
    /// Makes one: limits are set before its memory is. Then it is started, and called once with
    /// fuel enough to allocate what it needs.
    ///
    /// # Errors
    /// It lacks something, or traps.
    pub(crate) fn new(of: &Compiled) -> Result<Self, LoadError> {
        let memory_bytes = match of.wasi {
            true => WASI_MEMORY_BYTES_MAX,
            false => MEMORY_BYTES_MAX,
        };
        let limits = StoreLimitsBuilder::new()
            .memory_size(memory_bytes)
            .memories(1)
            .tables(TABLES_MAX)
            .table_elements(TABLE_ELEMENTS_MAX)
            .instances(1)
            .build();
        let mut store = Store::new(&of.engine, Host { limits });
        store.limiter(|host| &mut host.limits);
        refuel(&mut store, START_FUEL);
        let mut linker = Linker::new(&of.engine);
        wasi::define(&mut linker, of.wasi).map_err(LoadError::start)?;
        let instance = linker
            .instantiate_and_start(&mut store, &of.module)
            .map_err(LoadError::start)?;
        for name in ["_initialize", "__wasm_call_ctors"] {
            if let Some(function) = instance.get_func(&store, name) {
                refuel(&mut store, START_FUEL);
                let typed = function.typed::<(), ()>(&store);
                let typed = typed.map_err(|_| LoadError::Type(name))?;
                typed.call(&mut store, ()).map_err(LoadError::start)?;
                // Rust's `_initialize` calls the other itself.
                break;
            }
        }
        let memory = instance.get_memory(&store, "memory");
        let memory = memory.ok_or(LoadError::Lacks("memory"))?;
        let select = instance.get_func(&store, "braid_select");
        let select = select.ok_or(LoadError::Lacks("braid_select"))?;
        let select = select.typed(&store);
        let address = match instance.get_export(&store, "braid_context") {
            Some(Extern::Global(global)) => global.get(&store).i32(),
            Some(Extern::Func(function)) => {
                refuel(&mut store, START_FUEL);
                let typed = function.typed::<(), i32>(&store);
                let typed = typed.map_err(|_| LoadError::Type("braid_context"))?;
                Some(typed.call(&mut store, ()).map_err(LoadError::start)?)
            }
            _ => return Err(LoadError::Lacks("braid_context")),
        };
        let address = address.ok_or(LoadError::Type("braid_context"))? as u32;
        let end = u64::from(address) + abi::BYTES as u64;
        if !address.is_multiple_of(abi::ALIGN) || end > memory.data_size(&store) as u64 {
            return Err(LoadError::Address(address));
        }
        let mut it = Self {
            complete: optional(&instance, &store, "braid_complete")?,
            tick: optional(&instance, &store, "braid_tick")?,
            reset: optional(&instance, &store, "braid_reset")?,
            select: select.map_err(|_| LoadError::Type("braid_select"))?,
            context: address as usize,
            memory,
            store,
        };
        it.warm_up()?;
        it.restore(&Words::default());
        Ok(it)
    }

    /// Two idle paths and a read; neither the answer nor the words are used.
    fn warm_up(&mut self) -> Result<(), LoadError> {
        let request = Request {
            source: 0,
            group: Group::Read,
            length: 4096,
            address: 0,
            now_ns: 0,
        };
        let view = PathView {
            enabled: true,
            ana: Ana::Optimized,
            distance: 10,
            in_flight_elsewhere: 0,
            throughput: 1,
        };
        let mut context = self.context();
        context.set_request(&request, abi::WARM_UP, 2);
        context.set_path(0, &view, 0);
        context.set_path(1, &view, 0);
        refuel(&mut self.store, WARM_UP_FUEL);
        let addresses = self.addresses();
        let answer = self.select.call(&mut self.store, addresses);
        answer.map(|_| ()).map_err(LoadError::start)
    }

    fn context(&mut self) -> Context<'_> {
        let part = &mut self.memory.data_mut(&mut self.store)[self.context..][..abi::BYTES];
        match part.try_into() {
            Ok(bytes) => Context(bytes),
            Err(_) => unreachable!("a part of {} bytes", abi::BYTES),
        }
    }

    fn addresses(&self) -> (i32, i32) {
        let at = self.context as i32;
        (at, at + abi::PATHS_AT as i32)
    }

    /// Gives the next call its fuel.
    pub(crate) fn refuel(&mut self) {
        refuel(&mut self.store, CALL_FUEL);
    }

    /// Fuel that was used since [`Self::refuel`]; 0: there was no call.
    pub(crate) fn used(&self) -> u64 {
        CALL_FUEL - self.store.get_fuel().unwrap_or(0)
    }

    pub(crate) fn select(
        &mut self,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32],
        words: &mut Words,
    ) -> Result<i32, Trap> {
        let mut context = self.context();
        context.set_request(request, 0, paths.len());
        for (at, (view, in_flight)) in paths.iter().zip(in_flight).enumerate() {
            context.set_path(at, view, *in_flight);
        }
        let addresses = self.addresses();
        let chosen = self.select.call(&mut self.store, addresses)?;
        self.context().keep_words(paths.len(), words);
        Ok(chosen)
    }

    pub(crate) fn complete(
        &mut self,
        done: &Completion,
        length: u32,
        paths: usize,
        words: &mut Words,
    ) -> Result<(), Trap> {
        let Some(complete) = self.complete else {
            return Ok(());
        };
        let request = Request {
            source: 0,
            group: done.group,
            length,
            address: 0,
            now_ns: done.now_ns,
        };
        self.context().set_request(&request, 0, paths);
        let path = i32::from(done.path.0);
        let latency_ns = i64::try_from(done.latency_ns).unwrap_or(i64::MAX);
        let request = self.addresses().0;
        let values = (path, latency_ns, done.ended as i32, request);
        complete.call(&mut self.store, values)?;
        self.context().keep_words(paths, words);
        Ok(())
    }

    pub(crate) fn tick(&mut self, now_ns: u64) -> Result<(), Trap> {
        if let Some(tick) = self.tick {
            tick.call(&mut self.store, (now_ns as i64,))?;
        }
        Ok(())
    }

    pub(crate) fn reset(&mut self, path: usize) -> Result<(), Trap> {
        self.context().reset_words(path);
        if let Some(reset) = self.reset {
            reset.call(&mut self.store, (path as i32,))?;
        }
        Ok(())
    }

    /// Takes over the words of the instance before.
    pub(crate) fn restore(&mut self, words: &Words) {
        self.context().restore_words(words);
    }
}

fn refuel(store: &mut Store<Host>, fuel: u64) {
    let set = store.set_fuel(fuel);
    assert!(set.is_ok(), "engines are made with fuel");
}

fn optional<P: wasmi::WasmParams, R: wasmi::WasmResults>(
    instance: &wasmi::Instance,
    store: &Store<Host>,
    name: &'static str,
) -> Result<Option<TypedFunc<P, R>>, LoadError> {
    let function = instance.get_func(store, name);
    let typed = function.map(|it| it.typed(store)).transpose();
    typed.map_err(|_| LoadError::Type(name))
}
