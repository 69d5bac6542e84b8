//! Takes samples of a table.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guira::admin::Stat;
use guira::errors::TableError;
use guira::{Error, OpenError, OperationError, OperationErrorKind, Store, Url};

use super::frame::{Counted, Frame, Timed};
use crate::commands::stat;
use crate::failure::Failure;

/// A full scan takes at most one part in this many of the time.
const SCAN_SHARE: u32 = 20;

/// An open table, with its latest samples.
pub struct Sampler {
    url: Url,
    store: Store,
    stat: Option<Scan>,
    earlier_stat: Option<Timed<Arc<Stat>>>,
    /// The counters after the latest sample, so that the traffic of sampling itself is not counted.
    counted: Option<Timed<Counted>>,
}

/// A scan of all rows, and its duration.
struct Scan {
    stat: Timed<Arc<Stat>>,
    took: Duration,
}

impl Sampler {
    /// Opens the table, for changing if permitted, because only then can it be found out which clients are alive.
    pub fn open(url: &Url) -> Result<Sampler, Failure> {
        let store = stat::open(url)?;
        Ok(Sampler { url: url.clone(), store, stat: None, earlier_stat: None, counted: None })
    }

    /// Takes the next sample.
    pub fn sample(&mut self) -> Result<Frame, Failure> {
        let sampled = self.sample_store();
        if sampled.is_err()
            && let Ok(store) = stat::open(&self.url)
        {
            // The name may belong to another table now, or the address to another node, so earlier counts are dropped.
            self.store = store;
            (self.stat, self.earlier_stat, self.counted) = (None, None, None);
        }
        sampled.map_err(|failure| match failure {
            Failure::Store(error) if is_destroyed(&error) => Failure::Destroyed { url: self.url.clone() },
            failure => failure,
        })
    }

    fn sample_store(&mut self) -> Result<Frame, Failure> {
        if self.store.is_destroyed()? {
            return Err(Failure::Destroyed { url: self.url.clone() });
        }
        let counted = self.count()?;
        let after = match self.is_scan_due() {
            true => {
                self.scan()?;
                self.count()?
            }
            false => counted.clone(),
        };
        let before = self.counted.replace(after);
        let stat = &self.stat.as_ref().expect("the first sample scans").stat;
        Ok(Frame::new(stat, self.earlier_stat.as_ref(), &counted, before.as_ref()))
    }

    fn count(&self) -> Result<Timed<Counted>, Failure> {
        let changes = self.store.change_counts()?;
        Ok(Timed { at: Instant::now(), value: Counted { node: self.store.node_counters()?, changes } })
    }

    fn scan(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let stat = Arc::new(self.store.stat()?);
        let at = Instant::now();
        let scan = Scan { stat: Timed { at, value: stat }, took: at - began };
        self.earlier_stat = self.stat.replace(scan).map(|scan| scan.stat);
        Ok(())
    }

    fn is_scan_due(&self) -> bool {
        self.stat.as_ref().is_none_or(|scan| scan.stat.at.elapsed() >= scan.took * SCAN_SHARE)
    }
}

/// Whether the error says that the table is destroyed or being destroyed, or that its file has lost its name.
fn is_destroyed(error: &Error) -> bool {
    matches!(
        error,
        Error::Open(OpenError::Table { source: TableError::Destroyed, .. } | OpenError::Gone { .. })
            | Error::Operation(OperationError { kind: OperationErrorKind::Destroyed, .. })
    )
}

#[cfg(test)]
mod tests {
    use guira::CreateOptions;

    use super::*;

    #[test]
    fn a_destroyed_table_is_reported_and_its_successor_is_sampled() {
        let url = Url::shm(&guira_testing::unique_name()).unwrap();
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
