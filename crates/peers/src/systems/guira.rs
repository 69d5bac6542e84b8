//! A client of Guira, through its public API.

use std::ops::ControlFlow;
use std::path::Path;

use guira::Client as StoreClient;
use guira::{CreateOptions, CreateProgress, EntryFormat, Store, Url};

use crate::draws::Draws;
use crate::error::PeersError;
use crate::load::Loader;
use crate::measure::{Client, Job, MANY, Runner, run_client, verify_client};
use crate::record::{KEY_BYTES, Key, Records, ValueEnds, WORD_BYTES};

/// Extent bytes beyond those of the values: chunks that clients hold.
const SPARE_EXTENT_BYTES: u64 = 8 << 20;
/// Maximum number of bytes that an extent takes beyond its value: header and padding.
const EXTENT_OVERHEAD_BYTES: u64 = 64;

/// A client of a table.
pub struct Guira {
    client: StoreClient,
    value: Vec<u8>,
    value_bytes: usize,
}

/// Creates the table in `file`, sized so that the records fill it to about 90 %, and loads it.
///
/// # Errors
/// Errors of the store; an interruption.
pub fn create(file: &Path, records: &Records, loader: &mut Loader<'_>) -> Result<Store, PeersError> {
    let url = Url::file(file).map_err(::guira::Error::from)?;
    let capacity = loader.records();
    let value_bytes = records.value_bytes();
    let options = CreateOptions::new(capacity).max_clients(16).seed(1);
    let options = if value_bytes == WORD_BYTES {
        options.format(EntryFormat::Fixed { key_bytes: KEY_BYTES as u16, value_bytes: WORD_BYTES as u16 })
    } else {
        // Twice the values: extents are larger than their values.
        let each = 2 * (value_bytes as u64 + EXTENT_OVERHEAD_BYTES);
        options.extent_bytes(capacity.saturating_mul(each).saturating_add(SPARE_EXTENT_BYTES))
    };
    let store = make(&url, &options, loader)?;
    let mut client = store.client()?;
    loader.each(records, |key, value| {
        client.put(key, value)?;
        Ok(())
    })?;
    drop(client);
    Ok(store)
}

fn make(url: &Url, options: &CreateOptions, loader: &mut Loader<'_>) -> Result<Store, PeersError> {
    let mut ended = None;
    let store = Store::create_with_progress(url, options, &mut |progress| {
        let result = match progress {
            CreateProgress::Reserving { done_bytes, total_bytes } => loader.report_creation(done_bytes, total_bytes),
            // The other phases are short.
            _ => Ok(()),
        };
        ended = result.err();
        if ended.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    ended.map_or_else(|| Ok(store?), Err)
}

impl Guira {
    /// A client of the table in `file`.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn open(file: &Path, value_bytes: usize) -> Result<Guira, PeersError> {
        let store = Store::open(&Url::file(file).map_err(::guira::Error::from)?)?;
        Ok(Guira { client: store.client()?, value: Vec::with_capacity(value_bytes), value_bytes })
    }
}

impl Client for Guira {
    #[inline(always)]
    fn get(&mut self, key: &Key) -> Result<ValueEnds, PeersError> {
        if !self.client.get_into(key, &mut self.value)? {
            return Err(PeersError::missing(key));
        }
        Ok(ValueEnds::of(&self.value, self.value_bytes))
    }

    #[inline(always)]
    fn get_many(&mut self, keys: &[Key; MANY], seen: &mut [ValueEnds; MANY]) -> Result<(), PeersError> {
        let mut failed = None;
        let value_bytes = self.value_bytes;
        self.client.get_many_with(keys, |index, found| match found {
            Ok(Some(value)) => seen[index] = ValueEnds::of(value, value_bytes),
            Ok(None) => failed = Some(PeersError::missing(&keys[index])),
            Err(error) => failed = Some(error.into()),
        });
        failed.map_or(Ok(()), Err)
    }

    #[inline(always)]
    fn update(&mut self, key: &Key, value: &[u8]) -> Result<(), PeersError> {
        if !self.client.update(key, value)? {
            return Err(PeersError::missing(key));
        }
        Ok(())
    }

    fn fetch(&mut self, key: &Key, into: &mut Vec<u8>) -> Result<(), PeersError> {
        if self.client.get_into(key, into)? { Ok(()) } else { Err(PeersError::missing(key)) }
    }
}

impl Runner for Guira {
    fn run(&mut self, job: &Job, draws: &Draws) -> Result<u64, PeersError> {
        run_client(self, job, draws)
    }

    fn verify(&mut self, keys: &[Key], records: &Records) -> Result<(), PeersError> {
        verify_client(self, keys, records)
    }
}
