//! State of `top`, and its screen as lines of text: a function of answers and keys.
//!
//! # Contract
//! [`Screen::lines`] returns exactly as many lines as the terminal has rows, none wider than it,
//! however small it is. The selected row is known by its name, so that it stays selected when rows
//! move. While it is paused answers are kept back; an engine that does not answer is shown with
//! what it answered last.
use super::rows::{self, Column, OF_CLIENTS, OF_PATHS, OF_VOLUMES, Row};
use crate::run::stat::{Mood, lasting, rates};
use crate::units::format_ns;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use serde_json::Value;
use terminal::answer::{number, word};

/// Lines of the detail of what is selected, where there is room for it.
const DETAIL: usize = 3;
/// Rows from which there is.
const DETAIL_FROM: usize = 14;
/// Columns of a state: `reconnecting` and a space.
const STATE: usize = 13;
/// Least columns of a name.
const NAME_MIN: usize = 8;

/// A part of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panel {
    Volumes,
    Paths,
    Clients,
}

impl Panel {
    const ALL: [Self; 3] = [Self::Volumes, Self::Paths, Self::Clients];

    fn columns(self) -> &'static [Column] {
        match self {
            Self::Volumes => &OF_VOLUMES,
            Self::Paths => &OF_PATHS,
            Self::Clients => &OF_CLIENTS,
        }
    }

    fn has_state(self) -> bool {
        self != Self::Clients
    }
}

/// Meaning of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Quit,
    Up,
    Down,
    First,
    Last,
    NextPanel,
    PreviousPanel,
    NextSort,
    PreviousSort,
    Reverse,
    Pause,
    Help,
}

/// How a panel is sorted, and its selected row.
#[derive(Clone, Debug, Default)]
struct View {
    /// 0: by name; else by column.
    sort: usize,
    reversed: bool,
    /// Key of the row; `None`: the first one.
    selected: Option<String>,
    /// First row that is shown.
    from: usize,
}

/// See the module.
pub struct Screen {
    /// Escape sequences for colour are wanted.
    colour: bool,
    interval_ns: u64,
    /// As the engine answered last.
    answer: Value,
    /// Its difference to the answer before.
    shown: Value,
    /// Why the last answer did not come, and for how long none has, ns.
    trouble: Option<(String, u64)>,
    is_paused: bool,
    is_help: bool,
    focus: Panel,
    views: [View; 3],
}

const HELP: [&str; 13] = [
    "Up, Down, k, j   select a row; its details are at the bottom",
    "Home, End        select the first, the last one",
    "Tab, Shift-Tab   go to volumes, paths or legs, clients",
    "s, S             sort by the next, the previous column",
    "r                reverse the order",
    "p, space         stop the figures, or go on",
    "h, ?             this help, or back",
    "q, Esc, Ctrl-C   quit",
    "",
    "Paths, legs and clients are those of the volume that is selected. Figures are",
    "those of the last interval; mean and p99 are of reads and writes, from when",
    "an I/O got its path. inflt: in flight now. held: writes that wait until a lost",
    "controller can't execute them any more. errs: I/Os failed on the path.",
];

impl Screen {
    /// With the first answer.
    pub fn new(answer: Value, interval_ns: u64, colour: bool) -> Self {
        Self {
            colour,
            interval_ns,
            shown: answer.clone(),
            answer,
            trouble: None,
            is_paused: false,
            is_help: false,
            focus: Panel::Volumes,
            views: Default::default(),
        }
    }

    /// The engine has answered.
    pub fn handle_answer(&mut self, answer: Value) {
        self.trouble = None;
        if !self.is_paused {
            let mut shown = answer.clone();
            rates::subtract(&mut shown, &self.answer);
            self.shown = shown;
        }
        self.answer = answer;
    }

    /// It has not, for so long.
    pub fn handle_trouble(&mut self, why: String, for_ns: u64) {
        self.trouble = Some((why, for_ns));
    }

    /// Returns false: to quit.
    pub fn handle(&mut self, command: Command) -> bool {
        let place = self.focus as usize;
        let columns = self.focus.columns().len() + 1;
        match command {
            Command::Quit => return false,
            Command::Help => self.is_help = !self.is_help,
            Command::Pause => self.is_paused = !self.is_paused,
            Command::NextPanel => self.focus = Panel::ALL[(place + 1) % 3],
            Command::PreviousPanel => self.focus = Panel::ALL[(place + 2) % 3],
            Command::Reverse => self.views[place].reversed = !self.views[place].reversed,
            Command::NextSort => self.views[place].sort = (self.views[place].sort + 1) % columns,
            Command::PreviousSort => {
                self.views[place].sort = (self.views[place].sort + columns - 1) % columns;
            }
            Command::Up => self.select(|at, _| at.saturating_sub(1)),
            Command::Down => self.select(|at, last| (at + 1).min(last)),
            Command::First => self.select(|_, _| 0),
            Command::Last => self.select(|_, last| last),
        }
        true
    }

    fn select(&mut self, to: impl Fn(usize, usize) -> usize) {
        let rows = self.rows(self.focus);
        let Some(last) = rows.len().checked_sub(1) else {
            return;
        };
        let at = to(self.selected(self.focus, &rows), last);
        self.views[self.focus as usize].selected = Some(rows[at].key.clone());
    }

    /// Place of the selected row; 0 if it is gone.
    fn selected(&self, panel: Panel, rows: &[Row]) -> usize {
        let key = self.views[panel as usize].selected.as_deref();
        let found = rows.iter().position(|row| Some(row.key.as_str()) == key);
        found.unwrap_or(0)
    }

    /// Rows of a panel in their order.
    fn rows(&self, panel: Panel) -> Vec<Row> {
        let mut rows = match panel {
            Panel::Volumes => rows::volumes(&self.shown),
            Panel::Paths => rows::paths(&self.shown, &self.volume()),
            Panel::Clients => rows::clients(&self.shown, &self.volume()),
        };
        let view = &self.views[panel as usize];
        if let Some(column) = view.sort.checked_sub(1) {
            let figure = |row: &Row| row.figures[column].unwrap_or(-1.0);
            rows.sort_by(|a, b| figure(b).total_cmp(&figure(a)));
        } else if panel != Panel::Paths {
            rows.sort_by(|a, b| a.name.cmp(&b.name)); // paths have numbers, and are in their order
        }
        if view.reversed {
            rows.reverse();
        }
        rows
    }

    /// The volume whose paths and clients are shown.
    fn volume(&self) -> String {
        let rows = self.rows(Panel::Volumes);
        let at = self.selected(Panel::Volumes, &rows);
        rows.get(at).map_or(String::new(), |row| row.key.clone())
    }

    fn style(&self, colour: Color, modifier: Modifier) -> Style {
        let style = Style::new().add_modifier(modifier);
        if self.colour { style.fg(colour) } else { style }
    }

    fn mood(&self, state: &str) -> Style {
        match Mood::of(state) {
            Mood::Well => self.style(Color::Green, Modifier::empty()),
            Mood::Warning => self.style(Color::Yellow, Modifier::BOLD),
            Mood::Bad => self.style(Color::Red, Modifier::BOLD),
            Mood::Idle => self.style(Color::DarkGray, Modifier::empty()),
        }
    }

    /// The screen.
    pub fn lines(&mut self, width: u16, height: u16) -> Vec<Line<'static>> {
        let (width, height) = (usize::from(width), usize::from(height));
        let mut lines = vec![self.head()];
        if self.is_help {
            lines.extend(HELP.map(Line::from));
            lines.resize(height.saturating_sub(1), Line::default());
        } else {
            let detail = if height >= DETAIL_FROM { DETAIL } else { 0 };
            let room = height.saturating_sub(2 + detail);
            self.panels(&mut lines, width, room);
            lines.resize(height.saturating_sub(1 + detail), Line::default());
            let rows = self.rows(self.focus);
            let of = rows.get(self.selected(self.focus, &rows));
            let of = of.map_or("", |row| row.detail.as_str());
            let of = crate::text::paragraph("", of, width.max(1));
            let dim = self.style(Color::Gray, Modifier::empty());
            let of = of
                .lines()
                .take(detail)
                .map(|it| Line::styled(it.to_owned(), dim));
            lines.extend(of);
            lines.resize(height.saturating_sub(1), Line::default());
        }
        let keys = " q quit  Tab panel  s sort  r reverse  p pause  h help";
        lines.push(Line::styled(
            keys,
            self.style(Color::Cyan, Modifier::empty()),
        ));
        // Where there is one line only, that of the state is worth more.
        lines.truncate(height);
        lines.into_iter().map(|line| cut(line, width)).collect()
    }

    fn head(&self) -> Line<'static> {
        let bold = self.style(Color::Reset, Modifier::BOLD);
        if let Some((why, for_ns)) = &self.trouble {
            let text = format!("no answer for {}, asking again: {why}", lasting(*for_ns));
            return Line::styled(text, self.style(Color::Red, Modifier::BOLD));
        }
        let mut spans = vec![Span::styled("braid top", bold)];
        if self.is_paused {
            let warning = self.style(Color::Yellow, Modifier::BOLD);
            spans.push(Span::styled("  paused", warning));
        }
        let volumes = rows::volumes(&self.shown);
        spans.push(Span::raw(format!("  volumes: {}", volumes.len())));
        for state in ["ok", "degraded", "down"] {
            let count = volumes.iter().filter(|it| it.state == state).count();
            if count > 0 {
                let text = format!("  {count} {state}");
                spans.push(Span::styled(text, self.mood(state)));
            }
        }
        let up = lasting(number(&self.answer["uptime_ns"]));
        let every = format_ns(self.interval_ns as f64);
        spans.push(Span::raw(format!("  up {up}  every {every}")));
        Line::from(spans)
    }

    /// All panels in so many lines; where that is too little, the one in focus at least.
    fn panels(&mut self, lines: &mut Vec<Line<'static>>, width: usize, room: usize) {
        let rows = Panel::ALL.map(|panel| self.rows(panel));
        let heights = shares(rows.each_ref().map(|it| it.len().max(1) + 1), room);
        let fits = heights.iter().all(|it| *it >= 2);
        let is_airy = heights.iter().sum::<usize>() + 2 <= room;
        for panel in Panel::ALL {
            if is_airy && panel != Panel::Volumes {
                lines.push(Line::default());
            }
            let height = match fits {
                true => heights[panel as usize],
                false if panel == self.focus => room,
                false => continue,
            };
            self.panel(lines, (panel, &rows[panel as usize]), width, height);
        }
    }

    fn panel(
        &mut self,
        lines: &mut Vec<Line<'static>>,
        (panel, rows): (Panel, &[Row]),
        width: usize,
        height: usize,
    ) {
        let Some(room) = height.checked_sub(1) else {
            return;
        };
        let shown = shown_columns(panel, width);
        lines.push(self.heading(panel, &shown));
        let selected = self.selected(panel, rows);
        let view = &mut self.views[panel as usize];
        let last = rows.len().saturating_sub(room);
        view.from = view
            .from
            .clamp((selected + 1).saturating_sub(room.max(1)), selected)
            .min(last);
        let from = view.from;
        if rows.is_empty() && room > 0 {
            lines.push(Line::styled("  none", self.mood("")));
        }
        for (at, row) in rows.iter().enumerate().skip(from).take(room) {
            lines.push(self.row(panel, row, &shown, at == selected));
        }
    }

    fn heading(&self, panel: Panel, shown: &Shown) -> Line<'static> {
        let view = &self.views[panel as usize];
        let name = match panel {
            Panel::Volumes => "VOLUME".to_owned(),
            Panel::Paths => match is_of_legs(&self.shown, &self.volume()) {
                true => format!("LEG of {}", self.volume()),
                false => format!("PATH of {}", self.volume()),
            },
            Panel::Clients => format!("CLIENT of {}", self.volume()),
        };
        let (bold, sorted) = (
            self.style(Color::Cyan, Modifier::BOLD),
            self.style(Color::Cyan, Modifier::BOLD | Modifier::UNDERLINED),
        );
        let style = |is_sort| if is_sort { sorted } else { bold };
        let arrow = if view.reversed { "^" } else { "" };
        let is_by = |column: usize| view.sort == column;
        let name = if is_by(0) {
            format!("{name}{arrow}")
        } else {
            name
        };
        let marker = if panel == self.focus { "* " } else { "  " };
        let mut spans = vec![
            Span::styled(marker, bold),
            Span::styled(fit(&name, shown.name), bold),
        ];
        if shown.state {
            spans.push(Span::styled(fit("state", STATE), bold));
        }
        for (at, column) in panel.columns()[..shown.columns].iter().enumerate() {
            let is_sort = is_by(at + 1);
            let text = match is_sort {
                true => format!(
                    "{}{}",
                    column.heading,
                    if view.reversed { "^" } else { "v" }
                ),
                false => column.heading.to_owned(),
            };
            let gap = usize::from(column.width).saturating_sub(text.chars().count());
            spans.push(Span::styled(" ".repeat(gap), bold));
            spans.push(Span::styled(text, style(is_sort)));
        }
        Line::from(spans)
    }

    fn row(&self, panel: Panel, row: &Row, shown: &Shown, is_selected: bool) -> Line<'static> {
        let marker = if is_selected { "> " } else { "  " };
        let mut spans = vec![Span::raw(marker), Span::raw(fit(&row.name, shown.name))];
        if shown.state {
            spans.push(Span::styled(fit(&row.state, STATE), self.mood(&row.state)));
        }
        let columns = panel.columns()[..shown.columns].iter();
        for (column, figure) in columns.zip(&row.figures) {
            let text = column.unit.show(*figure);
            spans.push(Span::raw(format!("{text:>0$}", usize::from(column.width))));
        }
        let mut line = Line::from(spans);
        if is_selected && panel == self.focus {
            line = line.style(Style::new().add_modifier(Modifier::REVERSED));
        }
        line
    }
}

/// Columns of a panel that fit a terminal.
struct Shown {
    /// Columns of the name.
    name: usize,
    state: bool,
    /// So many of its figures.
    columns: usize,
}

/// As many of a panel's columns as there is room for beside a name.
fn shown_columns(panel: Panel, width: usize) -> Shown {
    let mut left = width.saturating_sub(2 + NAME_MIN);
    let state = panel.has_state() && left >= STATE;
    left -= if state { STATE } else { 0 };
    let mut columns = 0;
    for column in panel.columns() {
        let width = usize::from(column.width);
        if width > left {
            break;
        }
        left -= width;
        columns += 1;
    }
    Shown {
        name: NAME_MIN + left,
        state,
        columns,
    }
}

/// Lines of each panel, which would have `wanted`, where there is room for so many in all: those
/// that want less than an even share leave the rest to the others.
fn shares(wanted: [usize; 3], room: usize) -> [usize; 3] {
    let mut given = [0; 3];
    let mut left = room;
    while let Some(at) = (0..3)
        .filter(|at| given[*at] < wanted[*at])
        .min_by_key(|at| given[*at])
        .filter(|_| left > 0)
    {
        given[at] += 1;
        left -= 1;
    }
    given
}

fn is_of_legs(shown: &Value, volume: &str) -> bool {
    let mut all = terminal::answer::items(&shown["volumes"]);
    all.any(|it| word(&it["name"]) == volume && it["kind"] == "mirror")
}

/// Exactly so many columns; the last one is a space. Of what is too long the middle is left out:
/// addresses and files differ at their ends.
fn fit(text: &str, width: usize) -> String {
    let room = width.saturating_sub(1);
    let count = text.chars().count();
    let text: String = if count > room {
        let head = room.saturating_sub(1) / 2;
        let tail = count - room.saturating_sub(1 + head);
        let (head, tail) = (text.chars().take(head), text.chars().skip(tail));
        head.chain(['~']).chain(tail).collect()
    } else {
        text.to_owned()
    };
    format!("{text:<width$}").chars().take(width).collect()
}

/// A line of so many columns at most.
fn cut(mut line: Line<'static>, width: usize) -> Line<'static> {
    let mut left = width;
    for span in &mut line.spans {
        let text: String = span.content.chars().take(left).collect();
        left -= text.chars().count();
        span.content = text.into();
    }
    line
}

#[cfg(test)]
mod tests;
