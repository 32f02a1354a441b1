//! Names that most modules here use.
pub(crate) use crate::program::{Target, facts, number, printed};
pub(crate) use crate::rounds::{interleaved, product, ratio, with};
pub(crate) use crate::server::{self, Server};
pub(crate) use crate::table::{self, Column};
pub(crate) use crate::{Setup, Sides, Timing, needs};
pub(crate) use anyhow::{Context, Result, anyhow, bail, ensure};
pub(crate) use serde_json::{Value, json};
pub(crate) use std::fs;
pub(crate) use std::path::{Path, PathBuf};
pub(crate) use std::process::Command;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::thread::{self, sleep};
pub(crate) use std::time::{Duration, Instant};
