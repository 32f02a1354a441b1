//! How figures are printed, and beside what they were measured.

/// How to print.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A table for people.
    Text,
    /// The same facts for programs.
    Json,
}

/// How busy the machine was: what figures are to be read with.
pub fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace()
        .take(2)
        .collect::<Vec<_>>()
        .join(" ")
}
