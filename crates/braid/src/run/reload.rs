//! Another configuration for a running engine: all of the difference, or nothing.
//!
//! # Contract
//! What can fail is done first: new exports listen before anything else changes, and listen no more
//! if one of them can't.
use super::config::Config;
use super::service::Service;
use anyhow::bail;
use std::path::Path;

/// Applies the file; what was changed, in words.
///
/// # Errors
/// Why nothing was.
pub fn reload(service: &Service, path: &Path) -> anyhow::Result<String> {
    let new = Config::read(path)?;
    let mut state = service.state();
    refuse_fixed(&state.config, &new)?;
    let mut added = Vec::new();
    for (volume, of) in (0..).zip(&new.volumes) {
        for export in &of.exports {
            let mut exports = state.exports.iter().flatten();
            if exports.any(|there| there.volume == volume && there.export == *export) {
                continue;
            }
            match service.add_export(&mut state, volume, export.clone()) {
                Ok(uri) => added.push(uri),
                Err(error) => {
                    let is_new = |uri: &str| added.iter().any(|new| new == uri);
                    for number in 0..state.exports.len() {
                        let there = state.exports[number].as_ref();
                        if there.is_some_and(|there| is_new(&there.uri)) {
                            service.remove_export(&mut state, number);
                        }
                    }
                    return Err(error.context(format!("volume {}", of.name)));
                }
            }
        }
    }
    let mut changes: Vec<String> = added.iter().map(|uri| format!("added {uri}")).collect();
    for number in 0..state.exports.len() {
        let there = state.exports[number].as_ref();
        let gone = there.filter(|there| {
            let exports = &new.volumes[usize::from(there.volume)].exports;
            !exports.contains(&there.export)
        });
        if let Some(uri) = gone.map(|there| there.uri.clone()) {
            service.remove_export(&mut state, number);
            changes.push(format!("removed {uri}"));
        }
    }
    for (volume, of) in (0..).zip(&new.volumes) {
        let old = &state.config.volumes[usize::from(volume)];
        if (old.policy, old.knobs()) != (of.policy, of.knobs()) {
            service.set_policy(&mut state, volume, of.policy, of.knobs());
            changes.push(format!("{}: policy {}", of.name, of.policy));
        }
    }
    state.config = new;
    Ok(match changes.is_empty() {
        true => "no difference".into(),
        false => changes.join(", "),
    })
}

/// What needs a restart.
fn refuse_fixed(old: &Config, new: &Config) -> anyhow::Result<()> {
    let names = |config: &Config| -> Vec<String> {
        config.volumes.iter().map(|v| v.name.clone()).collect()
    };
    if names(old) != names(new) {
        bail!("volumes can't be added, removed or put in another order yet: restart the engine");
    }
    for (old, new) in old.volumes.iter().zip(&new.volumes) {
        if old.paths != new.paths {
            bail!(
                "volume {}: its paths can't be changed yet: restart the engine",
                old.name
            );
        }
        if old.recovery() != new.recovery() {
            bail!(
                "volume {}: what it does about failing paths can't be changed yet: restart the \
                 engine",
                old.name
            );
        }
    }
    let mut same = new.clone();
    same.volumes.clone_from(&old.volumes);
    same.drain_timeout = old.drain_timeout;
    if same != *old {
        bail!(
            "of what stands before the volumes only drain_timeout can change: restart the engine"
        );
    }
    Ok(())
}
