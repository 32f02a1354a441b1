//! To whom worlds of chaos are told, and what becomes of that when standard output fails.
//!
//! # Contract
//! A finding is never lost because standard output can't be written: then it goes to standard
//! error, with the command that repeats it. After the first failure nothing more is written there.
use anyhow::Error;
use std::io::{self, Write};
use terminal::exit::Exit;
use terminal::output::{self, Format, OutputClosed};

/// The exit code where nothing was found, and that could not be written.
pub const UNTOLD: u8 = 3;
/// The exit code of a search that was interrupted before it found anything, as after SIGINT.
pub const INTERRUPTED: u8 = 130;

/// See the module.
pub struct Teller<'a> {
    pub format: Format,
    /// Standard output and standard error.
    pub places: (&'a mut dyn Write, &'a mut dyn Write),
    /// Why standard output could not be written.
    failed: Option<Error>,
}

impl<'a> Teller<'a> {
    pub fn new(format: Format, places: (&'a mut dyn Write, &'a mut dyn Write)) -> Self {
        let failed = None;
        Self {
            format,
            places,
            failed,
        }
    }

    /// Notes that standard output can't be written, before the first attempt.
    pub fn give_up(&mut self, why: Error) {
        self.failed = Some(why);
    }

    /// Whether standard output could be written so far.
    pub fn is_well(&self) -> bool {
        self.failed.is_none()
    }

    /// Writes to standard output; whether that could be done.
    pub fn print(&mut self, text: &str) -> bool {
        if self.failed.is_none() {
            self.failed = output::print_to(self.places.0, text).err();
        }
        self.is_well()
    }

    /// A line on standard error.
    pub fn note(&mut self, line: &str) {
        // If that fails too, there is no place left for the error.
        let _: io::Result<()> = writeln!(self.places.1, "braid: {line}");
    }

    /// A line for people on standard output; for programs, which read one value there, and where
    /// that fails, on standard error.
    pub fn line(&mut self, line: &str) {
        if self.format == Format::Json || !self.print(&format!("{line}\n")) {
            self.note(line);
        }
    }

    /// How it ends after so many worlds and findings; `interrupted`: there was to be more.
    ///
    /// # Errors
    /// There are findings (exit code 1), standard output could not be written ([`UNTOLD`]; quietly
    /// if its reader has gone), or it was [`INTERRUPTED`].
    pub fn end(mut self, worlds: u64, findings: usize, interrupted: bool) -> anyhow::Result<()> {
        if findings > 0 {
            return Err(Exit(1).into()); // also where the reader has gone
        }
        match self.failed.take() {
            // Not 0: who asked for more has not had it.
            None if interrupted => Err(Exit(INTERRUPTED).into()),
            None => Ok(()),
            // Not 0: who takes that for "nothing found" was not told how far it came.
            Some(why) if why.is::<OutputClosed>() => Err(Exit(UNTOLD).into()),
            Some(why) => {
                let what = format!(
                    "nothing was found in {worlds} worlds, but the result could not be printed"
                );
                self.note(&format!("{what}: {why:#}"));
                Err(Exit(UNTOLD).into())
            }
        }
    }
}
