//! The context: a program's view of an I/O and of the paths, as it lies in the module's memory.
//!
//! All values are little-endian. The layout belongs to [`VERSION`]; so does the
//! [table of fuel](crate::limits). Later versions may give reserved bytes, which are 0, a meaning.

use canary::Bug;

/// Version of the layout and of the fuel table, in each request.
pub const VERSION: u32 = 1;

/// Bytes of the context.
pub const BYTES: usize = PATHS_AT + policy::limits::PATHS_MAX * PATH_BYTES;
/// Alignment of its address.
pub const ALIGN: u32 = 8;

/// Bit of the request's flags: the first call of an instance. Its answer is not used.
pub const WARM_UP: u32 = 1;
/// Bit of a path's flags: it may be chosen.
pub const USABLE: u32 = 1;
/// Bit of a path's flags: usable, and preferred over all that are not optimized.
pub const OPTIMIZED: u32 = 2;

/// `u32` [`VERSION`].
pub const VERSION_AT: usize = 0;
/// `u32` flags: [`WARM_UP`].
pub const FLAGS_AT: usize = 4;
/// `u64` time, ns; only differences mean something.
pub const NOW_AT: usize = 8;
/// `u64` number of the reader: of the client's connection.
pub const SOURCE_AT: usize = 16;
/// `u64` first byte on the volume.
pub const ADDRESS_AT: usize = 24;
/// `u32` bytes.
pub const LENGTH_AT: usize = 32;
/// `u32` group: 0 reads, 1 writes, 2 others.
pub const GROUP_AT: usize = 36;
/// `u32` number of paths, at most 64.
pub const COUNT_AT: usize = 40;

/// Eight `u64` of the program's own, for the volume on this core.
pub const VOLUME_WORDS_AT: usize = 64;
/// How many.
pub const VOLUME_WORDS: usize = 8;

/// The first path; each has [`PATH_BYTES`].
pub const PATHS_AT: usize = 128;
/// Bytes of one path.
pub const PATH_BYTES: usize = 64;

/// In a path: `u32` flags, [`USABLE`] and [`OPTIMIZED`].
pub const PATH_FLAGS_AT: usize = 0;
/// `u32` ANA state: 0 optimized, 1 non-optimized, 2 inaccessible, 3 persistent loss, 4 change.
pub const ANA_AT: usize = 4;
/// `u32` NUMA distance.
pub const DISTANCE_AT: usize = 8;
/// `u32` this core's I/Os in flight on it.
pub const IN_FLIGHT_AT: usize = 12;
/// `u32` other cores' I/Os in flight on it, as last published.
pub const ELSEWHERE_AT: usize = 16;
/// `u32` relative throughput, 0 to 100.
pub const THROUGHPUT_AT: usize = 20;
/// Bytes of a path that [`facts`](Context::set_path) fill.
const FACTS: usize = 24;
/// Four `u64` of the program's own, for this path on this core; 0 after a reset of the path.
pub const PATH_WORDS_AT: usize = 32;
/// How many.
pub const PATH_WORDS: usize = 4;

/// The context in a module's memory, from the host's side.
pub(crate) struct Context<'a>(pub(crate) &'a mut [u8; BYTES]);

/// A program's words, kept by the host.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    volume: [u8; VOLUME_WORDS * 8],
    paths: [[u8; PATH_WORDS * 8]; policy::limits::PATHS_MAX],
}

impl Default for Words {
    fn default() -> Self {
        Self {
            volume: [0; VOLUME_WORDS * 8],
            paths: [[0; PATH_WORDS * 8]; policy::limits::PATHS_MAX],
        }
    }
}

impl Words {
    pub(crate) fn reset(&mut self, path: usize) {
        self.paths[path] = [0; PATH_WORDS * 8];
    }
}

impl Context<'_> {
    fn put_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn set_request(&mut self, it: &policy::Request, flags: u32, paths: usize) {
        self.put_u32(VERSION_AT, VERSION);
        self.put_u32(FLAGS_AT, flags);
        self.put_u64(NOW_AT, it.now_ns);
        self.put_u64(SOURCE_AT, it.source);
        self.put_u64(ADDRESS_AT, it.address);
        self.put_u32(LENGTH_AT, it.length);
        self.put_u32(GROUP_AT, it.group as u32);
        self.put_u32(COUNT_AT, paths as u32);
    }

    pub(crate) fn set_path(&mut self, at: usize, it: &policy::PathView, in_flight: u32) {
        let is_usable = it.usable() || canary::has(Bug::LostPathShown);
        let usable = if is_usable { USABLE } else { 0 };
        let optimized = if it.optimized() { OPTIMIZED } else { 0 };
        let facts = [
            usable | optimized,
            it.ana as u32,
            it.distance,
            in_flight,
            it.in_flight_elsewhere,
            it.throughput.into(),
        ];
        let to = &mut self.0[PATHS_AT + at * PATH_BYTES..][..FACTS];
        for (to, fact) in to.chunks_exact_mut(4).zip(facts) {
            to.copy_from_slice(&fact.to_le_bytes());
        }
    }

    /// Copies the words of the volume and of the first `paths` paths to the host.
    pub(crate) fn keep_words(&self, paths: usize, words: &mut Words) {
        words
            .volume
            .copy_from_slice(&self.0[VOLUME_WORDS_AT..][..VOLUME_WORDS * 8]);
        for (at, to) in words.paths.iter_mut().take(paths).enumerate() {
            let from = PATHS_AT + at * PATH_BYTES + PATH_WORDS_AT;
            to.copy_from_slice(&self.0[from..from + PATH_WORDS * 8]);
        }
    }

    /// Copies all words into the context of a new instance.
    pub(crate) fn restore_words(&mut self, words: &Words) {
        self.0[VOLUME_WORDS_AT..][..VOLUME_WORDS * 8].copy_from_slice(&words.volume);
        for (at, from) in words.paths.iter().enumerate() {
            let to = PATHS_AT + at * PATH_BYTES + PATH_WORDS_AT;
            self.0[to..to + PATH_WORDS * 8].copy_from_slice(from);
        }
    }

    pub(crate) fn reset_words(&mut self, path: usize) {
        let at = PATHS_AT + path * PATH_BYTES + PATH_WORDS_AT;
        self.0[at..at + PATH_WORDS * 8].fill(0);
    }
}

/// The two halves that a choice reads and writes fit one another.
const _: () = assert!(COUNT_AT + 4 <= VOLUME_WORDS_AT);
const _: () = assert!(VOLUME_WORDS_AT + VOLUME_WORDS * 8 == PATHS_AT);
const _: () = assert!(PATH_WORDS_AT + PATH_WORDS * 8 == PATH_BYTES && FACTS <= PATH_WORDS_AT);
