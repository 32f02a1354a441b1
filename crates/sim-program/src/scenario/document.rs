//! Figures that a source document gives for a scenario.
use super::File;
use anyhow::{Context, anyhow, ensure};
use policy::Policy;
use std::collections::BTreeMap;
use terminal::units::parse_size;

/// Figures by policy, each under its name in the document.
pub type Figures = Vec<(String, Policy, f64)>;

/// Measurements of a source document.
#[derive(Clone, Debug)]
pub struct Document {
    /// Of all hosts together.
    pub figures: Figures,
    /// Of each host, where the document tells them apart.
    pub of_host: Vec<Figures>,
    /// Figures are seconds for so many bytes; else MiB/s.
    pub seconds_for: Option<u64>,
    /// Reads of each path, by policy.
    pub reads: Vec<(Policy, Vec<u64>)>,
    /// Why policies compare differently in the simulator.
    pub differs: Option<String>,
}

impl Document {
    /// Policies that have a figure.
    pub fn policies(&self) -> impl Iterator<Item = Policy> + '_ {
        self.figures.iter().map(|&(_, policy, _)| policy)
    }
}

/// The document of a scenario, if it names figures.
///
/// # Errors
/// A name that is no policy, hosts that are not there, or keys about figures without any.
pub fn document(file: &File) -> anyhow::Result<Option<Document>> {
    let of_host: Vec<Figures> = file
        .figures_of_host
        .iter()
        .map(figures)
        .collect::<anyhow::Result<_>>()?;
    ensure!(
        of_host.is_empty() || (of_host.len() == file.host.hosts && file.figures.is_empty()),
        "figures_of_host: one table for each of {} hosts, and no [figures], which are their sums",
        file.host.hosts
    );
    let figures = match of_host.split_first() {
        Some((first, others)) => first
            .iter()
            .map(|(name, policy, value)| {
                let here = |of: &Figures| of.iter().find(|it| it.1 == *policy).map(|it| it.2);
                let others = others.iter().map(here).sum::<Option<f64>>();
                let others = others.with_context(|| format!("figures_of_host: {name} of one"))?;
                Ok((name.clone(), *policy, value + others))
            })
            .collect::<anyhow::Result<_>>()?,
        None => figures(&file.figures)?,
    };
    if figures.is_empty() {
        let about = file.differs.is_some() || file.long.is_some() || !file.reads.is_empty();
        ensure!(
            !about && file.seconds_for.is_none(),
            "differs, long, reads and seconds_for need [figures]"
        );
        return Ok(None);
    }
    let reads = file.reads.iter();
    let reads = reads.map(|(name, reads)| Ok((policy(name)?, reads.clone())));
    let size = |text: &String| parse_size(text).map_err(|why| anyhow!("seconds_for: {why}"));
    Ok(Some(Document {
        figures,
        of_host,
        seconds_for: file.seconds_for.as_ref().map(size).transpose()?,
        reads: reads.collect::<anyhow::Result<_>>()?,
        differs: file.differs.clone(),
    }))
}

fn figures(given: &BTreeMap<String, f64>) -> anyhow::Result<Figures> {
    let figure = |(name, &value): (&String, &f64)| {
        ensure!(value > 0.0, "figures: {name} = {value}; above 0");
        Ok((name.clone(), policy(name)?, value))
    };
    given.iter().map(figure).collect()
}

/// A policy, or a mode of weighted-latency.
fn policy(name: &str) -> anyhow::Result<Policy> {
    let mode = || Policy::parse(&format!("weighted-latency:{name}"));
    let policy = Policy::parse(name).or_else(|_| mode());
    policy.map_err(|_| anyhow!("figures: \"{name}\" is no policy, and no mode of weighted-latency"))
}
