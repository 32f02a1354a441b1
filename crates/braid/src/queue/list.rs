//! `braid queue list`: the queues of a server, and who has them.
use super::{SERVICE, client_error};
use crate::control::socket::client_path;
use crate::output::{self, Format, Style};
use crate::table::Table;
use crate::units::{format_bytes, format_count};
use anyhow::{Context, ensure};
use serde_json::Value;
use std::fmt::Write;
use std::path::PathBuf;

/// Show the queues of a running queue server
#[derive(Clone, Debug, clap::Args)]
pub struct ListArgs {
    /// Socket of the server [default: /run/braid/q.sock for root, else
    /// $XDG_RUNTIME_DIR/braid/q.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Show it for people or for programs
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

const NO_SERVER: &str = "what answers is no queue server";

/// Asks and shows.
///
/// # Errors
/// Nobody answers.
pub fn run(args: &ListArgs) -> anyhow::Result<()> {
    let path = client_path(args.socket.as_deref(), SERVICE)?;
    let text = ::queue::list(&path).map_err(|error| client_error(error, &path))?;
    let facts: Value = serde_json::from_str(&text).context(NO_SERVER)?;
    let is_one = ["namespaces", "threads", "queues"].map(|key| facts[key].is_array());
    ensure!(is_one == [true; 3] && facts["trust"].is_string(), NO_SERVER);
    match args.output {
        Format::Json => output::print_json(&facts),
        Format::Text => output::print(&show(&facts)),
    }
}

fn show(facts: &Value) -> String {
    let number = |value: &Value, key: &str| value[key].as_u64().unwrap_or(0);
    let rows = |key: &str| facts[key].as_array().cloned().unwrap_or_default();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} user_poll and {} user_irq queues, {}, asleep after {} µs",
        number(facts, "user_poll"),
        number(facts, "user_irq"),
        facts["trust"].as_str().unwrap_or("?"),
        number(facts, "spin_us"),
    );
    let mut threads = Table::new(0, &["thread", "io_uring_enter calls", "sleeps"]);
    for row in rows("threads") {
        let keys = ["thread", "enters", "sleeps"];
        threads.row(keys.map(|key| format_count(number(&row, key))).to_vec());
    }
    let headings = [
        "kind",
        "queue",
        "uid",
        "entries",
        "thread",
        "commands",
        "errors",
        "in flight",
        "interrupts",
        "",
    ];
    let mut queues = Table::new(1, &headings);
    for row in rows("queues") {
        let mut cells = vec![row["kind"].as_str().unwrap_or("?").to_owned()];
        let keys = ["number", "uid", "entries", "thread"];
        cells.extend(keys.map(|key| number(&row, key).to_string()));
        let keys = ["commands", "errors", "in_flight", "interrupts"];
        cells.extend(keys.map(|key| format_count(number(&row, key))));
        cells.push(leaving(&row));
        queues.row(cells);
    }
    let style = Style::of_stdout();
    let has_threads = facts["threads"]
        .as_array()
        .is_some_and(|all| !all.is_empty());
    let threads = has_threads.then_some(threads);
    for table in [Some(namespaces(facts)), threads, Some(queues)]
        .into_iter()
        .flatten()
    {
        text.push('\n');
        text.push_str(&table.render(style, |_| String::new()));
    }
    if number(facts, "others") > 0 {
        let others = number(facts, "others");
        let _ = writeln!(
            text,
            "\n{others} more: other users' (root and the server's user see them)"
        );
    }
    text
}

fn namespaces(facts: &Value) -> Table {
    let number = |value: &Value, key: &str| value[key].as_u64().unwrap_or(0);
    let mut table = Table::new(0, &["nsid", "size", "blocks of", "yours", ""]);
    for row in facts["namespaces"].as_array().into_iter().flatten() {
        let block = number(row, "block_bytes");
        table.row(vec![
            number(row, "nsid").to_string(),
            format_bytes(number(row, "blocks").saturating_mul(block)),
            format_bytes(block),
            range(row),
            if row["read_only"] == true {
                "read-only"
            } else {
                ""
            }
            .to_owned(),
        ]);
    }
    table
}

/// Which blocks of a namespace this user may use.
fn range(row: &Value) -> String {
    let blocks = row["blocks"].as_u64().unwrap_or(0);
    if row["yours"] == false {
        return "none".to_owned();
    }
    match (row["first"].as_u64(), row["end"].as_u64()) {
        (Some(first), Some(end)) if (first, end) != (0, blocks) && end > first => {
            format!("blocks {first} to {}", end - 1)
        }
        _ => "all".to_owned(),
    }
}

/// Of a queue whose client is gone: for how long it waits for what.
fn leaving(row: &Value) -> String {
    if row["leaving"] != true {
        return String::new();
    }
    let nsids = row["awaits"].as_array().into_iter().flatten();
    let nsids: Vec<_> = nsids.map(Value::to_string).collect();
    match nsids.is_empty() {
        true => "leaving".to_owned(),
        false => format!(
            "leaving for {} s, waits for namespace {}",
            row["leaving_s"],
            nsids.join(", ")
        ),
    }
}
