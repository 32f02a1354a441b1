//! The verb `top`: what volumes, paths, legs and clients do, again and again, on a whole terminal.
//!
//! * `rows`: what there is to show; `screen`: its state, and how it looks
//!
//! The engine is asked on a thread of its own, so that keys are heard while it does not answer.
mod rows;
mod screen;

use super::call::EngineCall;
use super::client::{Common, interval};
use super::stat::keep_only;
use crate::cli::Usage;
use crate::control::call::Nothing;
use crate::output::{Format, Style};
use crate::signals::Interrupt;
use anyhow::Context;
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use screen::{Command, Screen};
use serde_json::Value;
use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long a key is waited for before answers and signals are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Options of `top`.
#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// Volumes, each with the legs of a mirror [default: all]
    #[arg(value_name = "VOLUME")]
    volumes: Vec<String>,
    /// How often to ask, as 1s or 500ms
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: u64,
    #[command(flatten)]
    common: Common,
}

/// Shows until the user quits.
///
/// # Errors
/// There is no terminal, or no engine at the start.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if !is_terminal || args.common.output == Format::Json {
        return Err(Usage::error(
            "top needs a terminal; braid stat --interval 1s prints to files and pipes, or JSON",
        ));
    }
    let asked = args.clone();
    let ask = move || -> anyhow::Result<Value> {
        let mut stat = asked.common.call(&EngineCall::Stat(Nothing))?;
        if !asked.volumes.is_empty() {
            keep_only(&mut stat, &asked.volumes).map_err(Usage::error)?;
        }
        Ok(stat)
    };
    let screen = Screen::new(ask()?, args.interval, Style::of_stdout().colour);
    let (answers, told) = mpsc::channel();
    let (_ends, ended) = mpsc::channel::<()>();
    let interval = Duration::from_nanos(args.interval);
    let asks = move || {
        while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            if answers.send(ask()).is_err() {
                return;
            }
        }
    };
    let builder = std::thread::Builder::new().name("asks".into());
    builder.spawn(asks).context("cannot start a thread")?;
    let interrupt = Interrupt::install()?;
    let terminal = ratatui::try_init().context("cannot use the terminal")?;
    let result = drive(terminal, screen, &told, &interrupt);
    ratatui::try_restore().context("cannot restore the terminal (type reset)")?;
    result
}

fn drive(
    mut terminal: ratatui::DefaultTerminal,
    mut screen: Screen,
    told: &mpsc::Receiver<anyhow::Result<Value>>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut answered = Instant::now();
    let mut is_due = true;
    while !interrupt.is_set() {
        while let Ok(answer) = told.try_recv() {
            is_due = true;
            match answer {
                Ok(answer) => {
                    answered = Instant::now();
                    screen.handle_answer(answer);
                }
                Err(why) => {
                    let for_ns = answered.elapsed().as_nanos() as u64;
                    screen.handle_trouble(format!("{why:#}"), for_ns);
                }
            }
        }
        if std::mem::take(&mut is_due) {
            let draw = |frame: &mut ratatui::Frame<'_>| draw(frame, &mut screen);
            terminal
                .draw(draw)
                .context("cannot write to the terminal")?;
        }
        if !event::poll(LOOK).context("cannot read from the terminal")? {
            continue;
        }
        is_due = true;
        if let Event::Key(key) = event::read().context("cannot read from the terminal")?
            && let Some(command) = command(key)
            && !screen.handle(command)
        {
            break;
        }
    }
    Ok(())
}

/// The screen, line by line.
fn draw(frame: &mut ratatui::Frame<'_>, screen: &mut Screen) {
    let area = frame.area();
    let lines = screen.lines(area.width, area.height);
    let buffer = frame.buffer_mut();
    for (y, line) in (area.y..).zip(&lines) {
        buffer.set_line(area.x, y, line, area.width);
        if line.style != ratatui::style::Style::new() {
            let row = ratatui::layout::Rect::new(area.x, y, area.width, 1);
            buffer.set_style(row, line.style);
        }
    }
}

/// The command of a key.
fn command(key: KeyEvent) -> Option<Command> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c') if control => Command::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Command::Quit,
        KeyCode::Up | KeyCode::Char('k') => Command::Up,
        KeyCode::Down | KeyCode::Char('j') => Command::Down,
        KeyCode::Home | KeyCode::Char('g') => Command::First,
        KeyCode::End | KeyCode::Char('G') => Command::Last,
        KeyCode::Tab => Command::NextPanel,
        KeyCode::BackTab => Command::PreviousPanel,
        KeyCode::Char('s') => Command::NextSort,
        KeyCode::Char('S') => Command::PreviousSort,
        KeyCode::Char('r') => Command::Reverse,
        KeyCode::Char('p' | ' ') => Command::Pause,
        KeyCode::Char('h' | '?') => Command::Help,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_the_help_says() {
        let plain = |code| command(KeyEvent::new(code, KeyModifiers::NONE));
        for (code, wanted) in [
            (KeyCode::Char('q'), Some(Command::Quit)),
            (KeyCode::Char('j'), Some(Command::Down)),
            (KeyCode::Tab, Some(Command::NextPanel)),
            (KeyCode::Char(' '), Some(Command::Pause)),
            (KeyCode::Char('x'), None),
            (KeyCode::Char('c'), None),
        ] {
            assert_eq!(plain(code), wanted, "{code:?}");
        }
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(command(interrupt), Some(Command::Quit));
    }
}
