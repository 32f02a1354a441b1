//! The text that offers volumes as hardware queues where they are: in their engine.
use super::serve::{ServeArgs, Source};
use std::fmt::Write;
use std::path::Path;

/// Reason why a line with exports is refused, with the `[[queue]]` to write instead. Its volumes
/// have these exports; other namespaces are left out.
pub fn text(args: &ServeArgs, socket: &Path) -> String {
    let mut text = "queues of a volume are served by its engine, not over its export: write this \
                    into the configuration of braid run, with the names of the volumes, and \
                    braid reload\n\n[[queue]]\n"
        .to_owned();
    let mut key = |key: &str, value: String| {
        let _ = writeln!(text, "{key} = {value}");
    };
    key("socket", quoted(&socket.display().to_string()));
    for (name, value, usual) in [
        ("user_poll", u64::from(args.user_poll), 8),
        ("user_irq", u64::from(args.user_irq), 8),
        ("spin_us", args.spin_us, 0),
    ] {
        if value != usual {
            key(name, value.to_string());
        }
    }
    if args.memory_max != 256 << 20 {
        key("memory_max", quoted(&args.memory_max.to_string()));
    }
    if args.trusted {
        key("trusted", "true".into());
    }
    if !args.allow.is_empty() {
        let all: Vec<_> = args.allow.iter().map(|it| quoted(it.text())).collect();
        key("allow", format!("[{}]", all.join(", ")));
    }
    if let Some(subsystem) = &args.subsystem {
        key("subsystem", quoted(subsystem));
        key("controller", args.controller.to_string());
    }
    let all = (1..).zip(&args.namespaces);
    for (nsid, source) in all.filter(|(_, it)| matches!(it, Source::Export(_))) {
        let _ = write!(
            text,
            "[[queue.namespace]]\nvolume = \"v0\" # the one exported at {source}\nnsid = {nsid}\n"
        );
        if args.read_only.contains(&nsid) {
            text.push_str("read_only = true\n");
        }
    }
    text
}

/// As TOML.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ServeArgs,
    }

    #[test]
    fn text_of_a_line_with_exports_is_a_configuration() {
        let words = "serve nbd:unix:/run/v0.sock mem:1MiB nbd:tcp::10809 --read-only 3 \
                     --user-poll 2 --memory-max 1MiB --trusted --allow uid=0,nsid=1 --controller \
                     7 --subsystem nqn.2026-01.org.example:v0";
        let line = Line::parse_from(words.split(' ').filter(|it| !it.is_empty()));
        let text = text(&line.args, Path::new("/run/q.sock"));
        let config = text.split_once("\n\n").unwrap().1;
        let wanted = "[[queue]]\nsocket = \"/run/q.sock\"\nuser_poll = 2\nspin_us = 50\n\
                      memory_max = \"1048576\"\ntrusted = true\nallow = [\"uid=0,nsid=1\"]\n\
                      subsystem = \"nqn.2026-01.org.example:v0\"\ncontroller = 7\n\
                      [[queue.namespace]]\nvolume = \"v0\" # the one exported at \
                      nbd:unix:/run/v0.sock\nnsid = 1\n\
                      [[queue.namespace]]\nvolume = \"v0\" # the one exported at \
                      nbd:tcp:127.0.0.1:10809\nnsid = 3\nread_only = true\n";
        assert_eq!(config, wanted);
        let table: toml::Table = config.parse().unwrap();
        let namespaces = table["queue"][0]["namespace"].as_array().unwrap();
        assert_eq!(namespaces.len(), 2);
    }
}
