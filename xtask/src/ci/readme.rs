//! Commands that stand in README.md, each in a fenced block behind `<!-- ci:NAME -->`.
use anyhow::{Context, Result, ensure};

/// The command of the block `name`.
///
/// # Errors
/// No such block, or not exactly one line in it.
pub fn command(readme: &str, name: &str) -> Result<String> {
    let marker = format!("<!-- ci:{name} -->");
    let mut lines = readme
        .lines()
        .skip_while(|line| line.trim() != marker)
        .skip(1);
    let fence = lines
        .next()
        .with_context(|| format!("README.md has no block behind {marker}"))?;
    ensure!(
        fence.starts_with("```"),
        "README.md: {marker} stands before no fenced block"
    );
    let block: Vec<&str> = lines.take_while(|line| !line.starts_with("```")).collect();
    ensure!(
        block.len() == 1,
        "README.md: the block behind {marker} has {} lines, not 1",
        block.len()
    );
    Ok(block[0].trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::command;

    #[test]
    fn the_marked_block_is_found_among_others() {
        let readme = "```\na\n```\n<!-- ci:test -->\n```sh\ncargo test\n```\n```\nb\n```\n";
        assert_eq!(command(readme, "test").unwrap(), "cargo test");
    }

    #[test]
    fn no_block_an_open_one_or_two_lines_are_errors() {
        assert!(command("cargo test\n", "test").is_err());
        assert!(command("<!-- ci:test -->\ncargo test\n", "test").is_err());
        assert!(command("<!-- ci:test -->\n```\na\nb\n```\n", "test").is_err());
        assert!(command("<!-- ci:demo -->\n```\na\n```\n", "test").is_err());
    }
}
