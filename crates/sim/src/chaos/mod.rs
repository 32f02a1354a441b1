//! The whole engine in one virtual world, under faults drawn from a seed, watched by checkers.
//!
//! * [`plan`]: what a world is made of, and what goes wrong; [`kind`]: all that may, [`aim`]: each
//!   of it in every state of a path, `pair`: two of it together, `lasting`: for long, `spread`: on
//!   which cores applications are, `settings`: what else differs, `enough`: faults that hardly ever
//!   miss, `front`: front ends, `exports`: they come and go; [`run`]: it happens, and is judged
//! * [`history`]: what clients did and saw, and whether a disk could have done it
//! * `fault`: faults begin and end; `strike`: those of network and processes, `harm`: those of
//!   devices and answers, and what users do, `guests`: those of connections of applications,
//!   `return_elsewhere`: these return while a core stands still; `overlap`: several at a time;
//!   `touch`: which of them touched something
//! * `check`: conditions at the end, `pardon`: failures that faults excuse, `count`: counts,
//!   `peaks`: memory, `lives`, `tally`: sums by life and connection; [`judged`]: the checks that
//!   had something to judge; `wire_recorder`: identifiers in use; `good`: usable paths,
//!   `late_write_checker`: writes that wait for others
//! * `rig`: hosts, controllers and applications, `make`: their components, `cores`: messages
//!   between those of one host, `user`: changes of its paths; `client`: its applications, `orphan`:
//!   their writes that were cut off; `disk`: storage of controllers; `stranger`: unrelated clients;
//!   `discovery`: discovery controllers, and hosts that know no other paths
//! * [`mirror`]: worlds whose volume is a mirror, a family of their own
//! * [`shrink`]: what of a plan is enough; [`story`]: what happened, in words
//! * `world`, `node`, `net`: places, connections, time; `late`: changes that start late; `prelude`:
//!   names that most modules here use
//!
//! # Contract
//! Equal plans give equal courses on every machine. The engines, controllers, NBD sessions and
//! queues of hosts are those that run in production, with the contract of their reactor kept to the
//! letter.
//!
//! # Limits
//! One volume, one namespace, whose first blocks only are used. Not modelled: lost segments and how
//! TCP repairs them, local devices as paths (but for legs of a mirror), another block size.
pub mod aim;
mod calm;
mod check;
mod client;
mod cores;
mod count;
mod cut_off;
mod discovery;
mod disk;
mod enough;
mod exercise;
mod exports;
mod fault;
mod front;
mod good;
mod guests;
mod harm;
pub mod history;
mod hole;
pub mod judged;
pub mod kind;
mod lasting;
mod late;
mod late_write_checker;
mod lives;
mod make;
pub mod mirror;
mod net;
mod node;
mod orphan;
mod overlap;
mod pair;
mod pardon;
mod parting;
mod peaks;
pub mod plan;
mod prelude;
pub mod programs;
mod return_elsewhere;
mod rig;
pub mod run;
mod settings;
pub mod shrink;
mod spread;
pub mod story;
mod stranger;
mod strike;
mod tally;
mod touch;
mod user;
mod wire_recorder;
mod world;

/// Clock of every world at its beginning, ns.
pub const START_NS: u64 = 1_000_000_000;
/// A millisecond and a second, ns.
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
