//! Steps of the reader.

use super::*;

impl Recovery {
    /// Whether the reader may take a step: it retries only when something of what it saw has changed, because it would
    /// see the same until then.
    pub(super) fn can_read(state: &State) -> bool {
        let Some(reader) = &state.reader else { return false };
        let owner = (reader.owner as usize).checked_sub(1).and_then(|slot| state.slots.get(slot));
        match reader.at {
            Reading::Done => false,
            Reading::Retry => {
                reader.row != state.rows[0]
                    || reader.owner != state.locks[0]
                    || owner.is_some_and(|slot| slot.head != reader.head)
            }
            _ => true,
        }
    }

    /// Does one step of the reader.
    pub(super) fn read(&self, state: &mut State) {
        let (row, locks, acknowledged) = (state.rows[0], state.locks, state.acknowledged);
        let Some(reader) = &mut state.reader else { return };
        let last = WORDS as u8 - 1;
        reader.at = match reader.at {
            Reading::Word(word) => {
                if word == 0 {
                    reader.floor = reader.floor.max(acknowledged);
                }
                reader.row[word as usize] = row[word as usize];
                if word < last { Reading::Word(word + 1) } else { Reading::Lock }
            }
            Reading::Retry => {
                reader.row[0] = row[0];
                (reader.owner, reader.record) = (0, None);
                Reading::Word(1)
            }
            Reading::Lock if verifies(&reader.row) => {
                let value = reader.row[0];
                return state.found(value);
            }
            Reading::Lock => {
                reader.owner = locks[0];
                if (1..=SLOTS as u8).contains(&locks[0]) { Reading::Record } else { Reading::Retry }
            }
            Reading::Record => {
                let slot = &state.slots[reader.owner as usize - 1];
                reader.head = slot.head;
                reader.record = slot.record.filter(|_| slot.head.sealed && slot.head.state != SlotState::Free);
                match (self.without, reader.record) {
                    (_, None) => Reading::Retry,
                    (Without::SecondSample, Some(_)) => Reading::Head,
                    (_, Some(_)) => Reading::Again(0),
                }
            }
            Reading::Again(word) => {
                reader.row[word as usize] = row[word as usize];
                if word < last { Reading::Again(word + 1) } else { Reading::Head }
            }
            Reading::Head => return self.complete(state),
            Reading::Done => Reading::Done,
        };
    }

    /// Completes the second sample by the record, and checks the head that it reads now.
    fn complete(&self, state: &mut State) {
        let Some(reader) = &mut state.reader else { return };
        let Some(record) = reader.record.take() else { return };
        let head = state.slots[reader.owner as usize - 1].head;
        let mut image = reader.row;
        if !verifies(&image) {
            let is_same = head == reader.head || self.is_without(Without::SecondHead);
            let fits = [record.versions[0], record.versions[0].wrapping_sub(1)].contains(&image[VERSION]);
            record.apply(0, &mut image);
            if !is_same || !fits || !verifies(&image) {
                reader.at = Reading::Retry;
                return;
            }
        }
        state.found(image[0]);
    }
}
