//! Client slots: taking one, giving it back, listing them. // [R-SLOT-1]

use guira_fabric::{FabricError, Lane, Verb, post};
use guira_layout::{OwnerId, Seal, SlotState, SlotWord};

use crate::Table;

/// The process of a client, or of whoever recovers one, for people, and for those who want it killed: nothing of the
/// protocol depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotClient {
    /// Its process id, in its own namespace.
    pub process: u64,
    /// When it opened the slot, in nanoseconds since 1970; of a recoverer, when it opened its own, or began to recover.
    pub since_unix_ns: u64,
    /// What tells the process from others of the same id, as the fabric has it: when it was started, its namespace, and
    /// the start of its machine; 0 where nobody says.
    pub identity: [u64; 3],
}

/// Words of a slot that say who has it.
pub(crate) const CLIENT_WORDS: usize = 5;
/// Slots that [`slots`] reads with one batch, at most. More would only be more memory: those of the largest records, of
/// entries of 1,032 bytes, take 300 KB.
const MAX_BATCH_SLOTS: u16 = 256;

impl SlotClient {
    /// As they stand in a slot, from [`SlotWord::PROCESS_WORD`] on.
    pub(crate) fn words(&self) -> [u64; CLIENT_WORDS] {
        let [start, namespace, boot] = self.identity;
        [self.process, self.since_unix_ns, start, namespace, boot]
    }
}

/// A slot as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// The slot's number.
    pub slot: u16,
    /// Its state word; `None` if it is damaged.
    pub word: Option<SlotWord>,
    /// The seal of its record.
    pub seal: Seal,
    /// Its client, for the generation in the state word; nobody's if that is free. While it is being recovered, whoever
    /// does that, as soon as he has said so, and until then who did before him, or the client. // [R-RECOVER-4]
    pub client: SlotClient,
}

/// Takes `slot` for `client` if it is free. The caller holds the slot's liveness ([`guira_fabric::Region::hold`]) and
/// keeps it as long as it uses the slot. 2 round trips. `None` if the slot is not free: its last client died in it. //
/// [R-SLOT-1]
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn claim_slot(
    lane: &mut dyn Lane,
    table: &Table,
    slot: u16,
    client: &SlotClient,
) -> Result<Option<OwnerId>, FabricError> {
    let info = read_slot(lane, table, slot).await?;
    let Some(SlotWord { state: SlotState::Free, generation }) = info.word else { return Ok(None) };
    let addr = table.geometry().slot(slot);
    let compare = SlotWord { state: SlotState::Free, generation }.encode();
    let swap = SlotWord { state: SlotState::Live, generation: generation + 1 }.encode();
    let (about, mut found) = (client.words(), 0);
    // Written first: what stands beside a live generation is about the client of that generation, at any moment.
    let words = Verb::Write { addr: addr.add_words(SlotWord::PROCESS_WORD as u64), words: &about };
    let cas = Verb::Cas { addr, compare, swap, found: &mut found };
    post(lane, [words, cas]).await?;
    Ok((found == compare).then(|| OwnerId::of_slot(slot)))
}

/// Gives a slot back. The client holds no lock and has no record under way. 2 round trips.
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

/// What a slot's words say now. 1 round trip.
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn read_slot(lane: &mut dyn Lane, table: &Table, slot: u16) -> Result<SlotInfo, FabricError> {
    let mut words = vec![0; info_words(table)];
    post(lane, [Verb::Read { addr: table.geometry().slot(slot), into: &mut words }]).await?;
    Ok(SlotInfo::of(slot, &words))
}

/// Every slot that is not free. 1 round trip for as many slots as the fabric takes READs in one batch, 256 at most: 4
/// for the 1,024 slots of a table on a memory node. Each slot is sampled by itself, so two of them may be told as they
/// were at different moments.
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

/// Words of a slot up to its seal, which is in its second line or a little further.
fn info_words(table: &Table) -> usize {
    Seal::word(table.rows()) + 1
}

impl SlotInfo {
    /// What `words` of slot `slot` say, up to its seal.
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
