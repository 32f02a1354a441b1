//! Output to the user: standard output that may be closed early, and capabilities of a terminal.
use std::fmt;
use std::io::{self, IsTerminal, Write};

/// Standard output was closed by its reader: the program ends quietly.
#[derive(Clone, Copy, Debug)]
pub struct OutputClosed;

impl fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output was closed")
    }
}

impl std::error::Error for OutputClosed {}

/// Capabilities of the place that text goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Escape sequences for colour.
    pub colour: bool,
    /// Block elements; else ASCII.
    pub unicode: bool,
}

impl Style {
    /// Nothing but ASCII.
    pub const PLAIN: Self = Self {
        colour: false,
        unicode: false,
    };

    /// Capabilities of standard output: colour and blocks on a terminal only, and as the user
    /// wishes (`NO_COLOR`, `TERM=dumb`, the locale's character set).
    pub fn of_stdout() -> Self {
        Self::of(io::stdout().is_terminal(), |name| std::env::var(name).ok())
    }

    /// The same of an output and variables of the environment.
    fn of(is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let terminal = is_terminal && set("TERM").as_deref() != Some("dumb");
        let locale = set("LC_ALL")
            .or_else(|| set("LC_CTYPE"))
            .or_else(|| set("LANG"));
        let utf8 = locale.is_some_and(|l| {
            let l = l.to_ascii_lowercase();
            l.contains("utf-8") || l.contains("utf8")
        });
        Self {
            colour: terminal && set("NO_COLOR").is_none(),
            unicode: terminal && utf8,
        }
    }

    /// `text` in `ink`, where there is colour.
    pub fn paint(self, ink: Ink, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        let code = match ink {
            Ink::Bold => "1",
            Ink::Dim => "2",
            Ink::Warning => "1;33",
            Ink::Bar => "36",
            Ink::Good => "32",
            Ink::Bad => "1;31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// A bar of `width` cells, filled to `part` (0…1). Thin, so that bars in rows below each other
    /// stay apart.
    pub fn bar(self, part: f64, width: usize) -> String {
        let cells = part.clamp(0.0, 1.0) * width as f64;
        let bar = if self.unicode {
            let halves = (cells * 2.0).round() as usize;
            "━".repeat(halves / 2) + &"╸".repeat(halves % 2)
        } else {
            "#".repeat(cells.round() as usize)
        };
        let rest = if self.colour && self.unicode {
            "─"
        } else {
            " "
        };
        let rest = rest.repeat(width.saturating_sub(bar.chars().count()));
        self.paint(Ink::Bar, &bar) + &self.paint(Ink::Dim, &rest)
    }
}

/// Colours by meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Headings.
    Bold,
    /// Text of less importance.
    Dim,
    /// Text that must not be overlooked.
    Warning,
    /// Bars.
    Bar,
    /// States in which all is well.
    Good,
    /// States in which something does not work.
    Bad,
}

/// Writes all of `text` to standard output.
///
/// # Errors
/// [`OutputClosed`] when the reader has gone; else the operating system's error.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_to(&mut io::stdout().lock(), text)
}

/// As [`print()`], where standard output is.
///
/// # Errors
/// As [`print()`], to `out`.
pub fn print_to(out: &mut dyn Write, text: &str) -> anyhow::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        Err(error) => Err(anyhow::Error::new(error).context("cannot write to standard output")),
    }
}

/// Why all output would be lost: standard output was closed before the program began, and writing
/// there seems to succeed.
pub fn missing() -> Option<anyhow::Error> {
    let bad = || io::Error::from(rustix::io::Errno::BADF);
    let error = sys::startup::stdout_was_closed().then(bad)?;
    Some(anyhow::Error::new(error).context("cannot write to standard output"))
}

/// Writes a value as JSON, one line.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    print(&text)
}

/// Tells programs why there is no result; usage errors are for people only.
///
/// # Errors
/// As [`print()`].
pub fn print_failure(
    format: Format,
    error: &anyhow::Error,
    interrupted: bool,
) -> anyhow::Result<()> {
    if format == Format::Text || error.is::<crate::exit::Usage>() || error.is::<OutputClosed>() {
        return Ok(());
    }
    let error = format!("{error:#}");
    let error = crate::advice::in_our_words(&error);
    print_json(&serde_json::json!({"interrupted": interrupted, "error": error}))
}

/// One line of note or warning on standard error; never fails.
pub fn note(text: &str) {
    let text = crate::advice::in_our_words(text);
    let _ = writeln!(io::stderr(), "braid: {text}");
}

/// Advice about an error that isn't about the request itself, to stand behind it.
pub fn advice(error: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => " (raise the limit of open files (ulimit -n))",
        Some(Errno::NFILE) => " (raise the sysctl fs.file-max, or end what holds files)",
        _ => "",
    }
}

/// Result of output by a command whose exit code is the answer: a reader that has gone is no error.
///
/// # Errors
/// Those of `told`, except [`OutputClosed`].
pub fn unless_closed(told: anyhow::Result<()>) -> anyhow::Result<()> {
    told.or_else(|why| match why.is::<OutputClosed>() {
        true => Ok(()),
        false => Err(why),
    })
}

/// How results are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_in_proportion() {
        assert_eq!(Style::PLAIN.bar(0.5, 10), "#####     ");
        assert_eq!(Style::PLAIN.bar(0.0, 4), "    ");
        assert_eq!(Style::PLAIN.bar(7.0, 4), "####");
        let unicode = Style {
            colour: false,
            unicode: true,
        };
        assert_eq!(unicode.bar(0.5, 5), "━━╸  ");
        let colour = Style {
            colour: true,
            unicode: true,
        };
        assert_eq!(colour.bar(0.5, 4), "\x1b[36m━━\x1b[0m\x1b[2m──\x1b[0m");
    }

    #[test]
    fn colour_and_blocks_are_a_terminals() {
        let of = |is_terminal, variables: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(it, _)| *it == name)?;
                Some(found.1.to_owned())
            };
            let style = Style::of(is_terminal, variable);
            (style.colour, style.unicode)
        };
        let utf8 = ("LANG", "C.UTF-8");
        assert_eq!(of(true, &[utf8]), (true, true));
        assert_eq!(of(false, &[utf8]), (false, false));
        assert_eq!(of(true, &[("LC_ALL", "C"), utf8]), (true, false));
        assert_eq!(of(true, &[("TERM", "dumb"), utf8]), (false, false));
        assert_eq!(of(true, &[("NO_COLOR", "1"), utf8]), (false, true));
        // As no-color.org has it: an empty one says nothing.
        assert_eq!(of(true, &[("NO_COLOR", ""), utf8]), (true, true));
    }

    #[test]
    fn colour_only_where_asked() {
        let colour = Style {
            colour: true,
            unicode: true,
        };
        assert_eq!(colour.paint(Ink::Dim, "ok"), "\x1b[2mok\x1b[0m");
        assert_eq!(Style::PLAIN.paint(Ink::Dim, "ok"), "ok");
    }
}
