//! Client slots: taking one, giving it back, listing them. // [R-SLOT-1]

use guira_fabric::{FabricError, Lane, Verb, post};
use guira_layout::{OwnerId, Seal, SlotState, SlotWord};

use crate::Table;

/// A slot as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// The slot's number.
    pub slot: u16,
    /// Its state word; `None` if it is damaged.
    pub word: Option<SlotWord>,
    /// The seal of its record.
    pub seal: Seal,
    /// Process id of its client.
    pub process: u64,
    /// When its client opened it, in nanoseconds since 1970.
    pub since_unix_ns: u64,
}

/// Words of a slot before its record that say who has it.
const HEAD_WORDS: usize = 8;

/// Takes `slot` if it is free. The caller holds the slot's liveness ([`guira_fabric::Region::hold`]) and keeps it as
/// long as it uses the slot. 2 round trips. `None` if the slot is not free: its last client died in it. // [R-SLOT-1]
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn claim_slot(
    lane: &mut dyn Lane,
    table: &Table,
    slot: u16,
    process: u64,
    since_unix_ns: u64,
) -> Result<Option<OwnerId>, FabricError> {
    let info = read_slot(lane, table, slot).await?;
    let Some(SlotWord { state: SlotState::Free, generation }) = info.word else { return Ok(None) };
    let addr = table.geometry().slot(slot);
    let compare = SlotWord { state: SlotState::Free, generation }.encode();
    let swap = SlotWord { state: SlotState::Live, generation: generation + 1 }.encode();
    let about = [process, since_unix_ns];
    let mut found = 0;
    let cas = Verb::Cas { addr, compare, swap, found: &mut found };
    let words = Verb::Write { addr: addr.add_words(SlotWord::PROCESS_WORD as u64), words: &about };
    post(lane, [cas, words]).await?;
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
    let mut words = [0; HEAD_WORDS];
    post(lane, [Verb::Read { addr: table.geometry().slot(slot), into: &mut words }]).await?;
    Ok(SlotInfo {
        slot,
        word: SlotWord::decode(words[SlotWord::WORD]),
        seal: Seal(words[Seal::WORD]),
        process: words[SlotWord::PROCESS_WORD],
        since_unix_ns: words[SlotWord::SINCE_WORD],
    })
}

/// Every slot that is not free. 1 round trip a slot.
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn slots(lane: &mut dyn Lane, table: &Table) -> Result<Vec<SlotInfo>, FabricError> {
    let mut used = Vec::new();
    for slot in 0..table.config().max_clients {
        let info = read_slot(lane, table, slot).await?;
        if !matches!(info.word, Some(SlotWord { state: SlotState::Free, .. })) {
            used.push(info);
        }
    }
    Ok(used)
}
