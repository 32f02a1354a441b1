//! Does what a plan says, and undoes it.
use super::plan::{Fault, Kind};
use super::stage::{Stage, WHOLE};
use super::stop;
use anyhow::Result;
use std::time::Duration;

/// Before what comes suddenly.
const UNDER_WAY: Duration = Duration::from_millis(30);

impl Stage {
    /// Begins a fault.
    ///
    /// # Errors
    /// It can't be done.
    pub fn begin(&mut self, fault: &Fault) -> Result<()> {
        for (way, kind) in &fault.hits {
            self.hit(*way, *kind)?;
        }
        Ok(())
    }

    /// Ends a fault.
    ///
    /// # Errors
    /// It can't be undone.
    pub fn end(&mut self, fault: &Fault) -> Result<()> {
        for (way, kind) in &fault.hits {
            self.heal(*way, *kind)?;
        }
        Ok(())
    }

    /// Begins a fault, ends it after its time, and waits until all paths are there again.
    ///
    /// # Errors
    /// It can't be done or undone, or the paths don't come back.
    pub fn undergo(&mut self, fault: &Fault) -> Result<()> {
        self.begin(fault)?;
        stop::pause(Duration::from_millis(fault.for_ms))?;
        self.end(fault)?;
        self.engine()?.wait_whole(WHOLE)
    }

    /// Begins one thing on one way.
    ///
    /// # Errors
    /// It can't be done.
    pub fn hit(&mut self, way: usize, kind: Kind) -> Result<()> {
        let target = &mut self.targets[way];
        if kind.is_sudden() {
            // So that there is I/O under way that is never answered.
            target.set(&["stall=1h"])?;
            stop::pause(UNDER_WAY)?;
        }
        match kind {
            Kind::Kill => target.kill(),
            Kind::Freeze => target.freeze()?,
            Kind::Reset => self.net.reset(way)?,
            Kind::ResetIo => self.net.reset_busiest(way)?,
            Kind::Drop => target.drop_connections()?,
            Kind::Cut => self.net.cut(way)?,
            Kind::Ana(state) => target.set(&[&format!("ana={state}")])?,
            Kind::Narrow => self.net.narrow(way, "1mbit")?,
            Kind::Faulty(_, setting) => target.set(&[setting])?,
            Kind::Refuse => {
                target.set(&["refuse=1h"])?;
                target.drop_connections()?;
            }
        }
        if kind.is_sudden() && kind != Kind::Kill {
            self.targets[way].set(&["stall=0"])?;
        }
        Ok(())
    }

    /// Ends it.
    ///
    /// # Errors
    /// It can't be undone.
    pub fn heal(&mut self, way: usize, kind: Kind) -> Result<()> {
        let target = &mut self.targets[way];
        match kind {
            Kind::Kill => target.restart(&self.net)?,
            Kind::Freeze => target.thaw()?,
            Kind::Reset | Kind::ResetIo | Kind::Drop => {}
            Kind::Cut => self.net.join(way)?,
            Kind::Ana(_) => target.set(&["ana=optimized"])?,
            Kind::Narrow => self.net.widen(way)?,
            Kind::Refuse => target.set(&["refuse=0"])?,
            Kind::Faulty(_, setting) => {
                let (key, _) = setting.split_once('=').unwrap_or((setting, ""));
                target.set(&[&format!("{key}=0")])?;
            }
        }
        Ok(())
    }
}
