//! Looks at a table, one after the other, and what changed between them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guira::admin::{NodeCounters, Stat};
use guira::errors::TableError;
use guira::{Error, OpenError, OperationError, OperationErrorKind, Store, Url};

use super::frame::{Frame, Timed};
use crate::commands::stat;
use crate::failure::Failure;

/// Reading a table whole takes at most one part in so many of the time.
const SCAN_SHARE: u32 = 20;

/// A table that is looked at.
pub struct Sampler {
    url: Url,
    store: Store,
    stat: Option<Scan>,
    earlier_stat: Option<Timed<Arc<Stat>>>,
    /// What the node had counted after the latest look: what the looks themselves cost is not taken for work.
    node: Option<Timed<NodeCounters>>,
}

/// A look at all rows, and how long it took.
struct Scan {
    seen: Timed<Arc<Stat>>,
    took: Duration,
}

impl Sampler {
    /// Opens the table: for reading and changing, if that is allowed, because only then it can be told who lives.
    pub fn open(url: &Url) -> Result<Sampler, Failure> {
        let store = stat::open(url)?;
        Ok(Sampler { url: url.clone(), store, stat: None, earlier_stat: None, node: None })
    }

    /// Looks once more.
    pub fn sample(&mut self) -> Result<Frame, Failure> {
        let looked = self.sample_store();
        if looked.is_err()
            && let Ok(store) = stat::open(&self.url)
        {
            // Another table may have the name by now, or another node the address; what was counted is not theirs.
            self.store = store;
            (self.stat, self.earlier_stat, self.node) = (None, None, None);
        }
        looked.map_err(|failure| match failure {
            Failure::Store(error) if is_destroyed(&error) => Failure::Destroyed { url: self.url.clone() },
            failure => failure,
        })
    }

    fn sample_store(&mut self) -> Result<Frame, Failure> {
        if self.store.is_destroyed()? {
            return Err(Failure::Destroyed { url: self.url.clone() });
        }
        let node = self.count()?;
        let after = match self.is_scan_due() {
            true => {
                self.scan()?;
                self.count()?
            }
            false => node.clone(),
        };
        let before = std::mem::replace(&mut self.node, after);
        let stat = &self.stat.as_ref().expect("the first look is due").seen;
        Ok(Frame::new(stat, self.earlier_stat.as_ref(), node.as_ref(), before.as_ref()))
    }

    fn count(&self) -> Result<Option<Timed<NodeCounters>>, Failure> {
        Ok(self.store.node_counters()?.map(|what| Timed { at: Instant::now(), what }))
    }

    fn scan(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let stat = Arc::new(self.store.stat()?);
        let at = Instant::now();
        let look = Scan { seen: Timed { at, what: stat }, took: at - began };
        self.earlier_stat = self.stat.replace(look).map(|look| look.seen);
        Ok(())
    }

    fn is_scan_due(&self) -> bool {
        self.stat.as_ref().is_none_or(|look| look.seen.at.elapsed() >= look.took * SCAN_SHARE)
    }
}

/// Whether a look came while the table was being destroyed.
fn is_destroyed(error: &Error) -> bool {
    matches!(
        error,
        Error::Open(OpenError::Table { source: TableError::Destroyed, .. })
            | Error::Operation(OperationError { kind: OperationErrorKind::Destroyed, .. })
    )
}

#[cfg(test)]
mod tests {
    use guira::CreateOptions;

    use super::*;

    #[test]
    fn the_end_of_a_table_is_told_and_its_successor_is_looked_at() {
        let url = Url::shm(&format!("guira-unit-top-{}", std::process::id())).unwrap();
        let options = CreateOptions::new(100).extent_bytes(1 << 20);
        let create = || Store::create(&url, &options).map(drop);
        create().unwrap();
        let mut sampler = Sampler::open(&url).unwrap();
        sampler.sample().map(drop).unwrap();
        Store::destroy(&url).unwrap();
        for _ in 0..2 {
            let failure = sampler.sample().map(drop).unwrap_err();
            assert!(matches!(failure, Failure::Destroyed { .. }), "{failure}");
            assert_eq!((failure.exit_code(), failure.text().blame.as_str()), (1, "fenced"));
        }
        create().unwrap();
        assert!(matches!(sampler.sample(), Err(Failure::Destroyed { .. })), "it finds the successor");
        sampler.sample().map(drop).unwrap();
        Store::destroy(&url).unwrap();
    }
}
