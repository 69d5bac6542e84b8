//! Client slots: claiming, releasing and listing them. [R-SLOT-1]

use guira_fabric::{FabricError, Lane, Verb, post};
use guira_layout::{OwnerId, Seal, SlotState, SlotWord};

use crate::Table;

/// The process of a client, or of a client that recovers another one: for display, and for killing it on request. The
/// protocol does not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotClient {
    /// Process id, in the process's own namespace.
    pub process: u64,
    /// Time at which the client opened the slot, in nanoseconds since 1970; for a recoverer, when it opened its own
    /// slot, or began to recover.
    pub since_unix_ns: u64,
    /// Distinguishes the process from others with the same id, in the fabric's terms: its start time, its namespaces,
    /// and the boot time of its machine; 0 where unknown.
    pub identity: [u64; 3],
}

/// Words of a slot that describe its client.
pub(crate) const CLIENT_WORDS: usize = 5;
/// Maximum number of slots that [`slots`] reads with one batch. A larger batch would only need more memory: slots of
/// the largest records, with entries of 1,032 bytes, already take 300 KB.
const MAX_BATCH_SLOTS: u16 = 256;

impl SlotClient {
    /// Returns the words stored in a slot, from [`SlotWord::PROCESS_WORD`] on.
    pub(crate) fn words(&self) -> [u64; CLIENT_WORDS] {
        let [start, namespace, boot] = self.identity;
        [self.process, self.since_unix_ns, start, namespace, boot]
    }
}

/// The content of a slot as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// The slot's number.
    pub slot: u16,
    /// The slot's state word; `None` if it is damaged.
    pub word: Option<SlotWord>,
    /// The seal of its record.
    pub seal: Seal,
    /// The slot's client, for the generation in the state word; meaningless if the slot is free. While the client is
    /// being recovered, its recoverer, as soon as that has written its process, and until then the previous recoverer,
    /// or the client. [R-RECOVER-4]
    pub client: SlotClient,
}

/// Same as [`claim_generation`], for a caller that needs no generation.
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn claim_slot(
    lane: &mut dyn Lane,
    table: &Table,
    slot: u16,
    client: &SlotClient,
) -> Result<Option<OwnerId>, FabricError> {
    Ok(claim_generation(lane, table, slot, client).await?.map(|(owner, _)| owner))
}

/// Claims `slot` for `client` if it is free, and returns its owner and the slot's new generation. The caller holds the
/// slot's liveness ([`guira_fabric::Region::hold`]) and keeps it as long as it uses the slot. 2 round trips. Returns
/// `None` if the slot is not free: its last client died in it. [R-SLOT-1]
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn claim_generation(
    lane: &mut dyn Lane,
    table: &Table,
    slot: u16,
    client: &SlotClient,
) -> Result<Option<(OwnerId, u64)>, FabricError> {
    let info = read_slot(lane, table, slot).await?;
    let Some(SlotWord { state: SlotState::Free, generation }) = info.word else { return Ok(None) };
    let addr = table.geometry().slot(slot);
    let compare = SlotWord { state: SlotState::Free, generation }.encode();
    let swap = SlotWord { state: SlotState::Live, generation: generation + 1 }.encode();
    let (about, mut found) = (client.words(), 0);
    // Written first, so that the words beside a live generation always describe the client of that generation.
    let words = Verb::Write { addr: addr.add_words(SlotWord::PROCESS_WORD as u64), words: &about };
    let cas = Verb::Cas { addr, compare, swap, found: &mut found };
    post(lane, [words, cas]).await?;
    Ok((found == compare).then(|| (OwnerId::of_slot(slot), generation + 1)))
}

/// Releases a slot. The client holds no lock and has no commit in progress. 2 round trips.
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn release_slot(lane: &mut dyn Lane, table: &Table, owner: OwnerId) -> Result<(), FabricError> {
    let Some(slot) = owner.slot() else { return Ok(()) };
    let info = read_slot(lane, table, slot).await?;
    let Some(live @ SlotWord { state: SlotState::Live, generation }) = info.word else { return Ok(()) };
    let swap = SlotWord { state: SlotState::Free, generation }.encode();
    let mut found = 0;
    let addr = table.geometry().slot(slot);
    post(lane, [Verb::Cas { addr, compare: live.encode(), swap, found: &mut found }]).await
}

/// Reads a slot. 1 round trip.
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn read_slot(lane: &mut dyn Lane, table: &Table, slot: u16) -> Result<SlotInfo, FabricError> {
    let mut words = vec![0; info_words(table)];
    post(lane, [Verb::Read { addr: table.geometry().slot(slot), into: &mut words }]).await?;
    Ok(SlotInfo::of(slot, &words))
}

/// Returns every slot that is not free. 1 round trip for as many slots as the fabric takes READs in one batch, at most
/// 256: 4 for the 1,024 slots of a table on a memory node. Each slot is sampled separately, so two of them may be from
/// different moments.
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn slots(lane: &mut dyn Lane, table: &Table) -> Result<Vec<SlotInfo>, FabricError> {
    let (words_each, count) = (info_words(table), table.config().max_clients);
    let batch_slots = u16::try_from(lane.caps().max_batch).unwrap_or(u16::MAX).clamp(1, MAX_BATCH_SLOTS);
    let (mut used, mut words) = (Vec::new(), Vec::new());
    for first in (0..count).step_by(usize::from(batch_slots)) {
        let slots = first..count.min(first.saturating_add(batch_slots));
        words.clear();
        words.resize(slots.len() * words_each, 0);
        let samples = slots.clone().zip(words.chunks_exact_mut(words_each));
        let read = |(slot, into)| Verb::Read { addr: table.geometry().slot(slot), into };
        let mut batch: Vec<Verb<'_>> = samples.map(read).collect();
        post(&mut *lane, &mut batch[..]).await?;
        let infos = slots.zip(words.chunks_exact(words_each)).map(|(slot, words)| SlotInfo::of(slot, words));
        used.extend(infos.filter(|info| !matches!(info.word, Some(SlotWord { state: SlotState::Free, .. }))));
    }
    Ok(used)
}

/// Returns the words of a slot up to its seal, which is in its second cache line or a little further.
fn info_words(table: &Table) -> usize {
    Seal::word(table.rows()) + 1
}

impl SlotInfo {
    /// Decodes `words` of slot `slot`, up to its seal.
    fn of(slot: u16, words: &[u64]) -> SlotInfo {
        SlotInfo {
            slot,
            word: SlotWord::decode(words[SlotWord::WORD]),
            seal: Seal(words[words.len() - 1]),
            client: SlotClient {
                process: words[SlotWord::PROCESS_WORD],
                since_unix_ns: words[SlotWord::SINCE_WORD],
                identity: std::array::from_fn(|i| words[SlotWord::IDENTITY_WORD + i]),
            },
        }
    }
}
