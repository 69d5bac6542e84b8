//! Steps of a client that recovers a dead one.

use super::*;

impl Recovery {
    /// Does one step of a recovery.
    pub(super) fn recover(&self, state: &mut State, index: usize) -> At {
        let (at, target) = (state.clients[index].at, state.clients[index].target);
        let generation = state.clients[index].generation;
        match at {
            At::Claim => {
                let head = state.head(target);
                if head.state == SlotState::Free || head.generation != generation {
                    return At::Finish;
                }
                state.was_repeated |= head.state == SlotState::Recovering;
                state.head(target).state = SlotState::Recovering;
                if self.is_without(Without::ProofToTheEnd) && index != NEWCOMER {
                    state.drop_proof(index);
                }
                At::Load
            }
            At::Load => {
                let slot = &state.slots[target as usize];
                let record = slot.record.filter(|_| slot.head.sealed && !self.is_without(Without::WritersChecksum));
                state.clients[index].record = record;
                match (self.without, record) {
                    (Without::DeadNameOnLocks, _) => At::Rename(0),
                    (Without::WritersChecksum, _) => At::Fetch,
                    (Without::ReplayBeforeLocks, _) | (_, None) => self.after_replay(),
                    (_, Some(_)) => At::Fetch,
                }
            }
            At::Rename(row) => {
                if state.locks[row as usize] == id(target) {
                    state.locks[row as usize] = id(state.clients[index].slot);
                    state.holders[row as usize] = Some(index as u8);
                }
                match (row as usize + 1 < ROWS, state.clients[index].record) {
                    (true, _) => At::Rename(row + 1),
                    (false, Some(_)) => At::Fetch,
                    (false, None) => At::Scan(0),
                }
            }
            At::Fetch | At::Rewrite(_) | At::RetireIt | At::MarkIt => self.replay(state, index),
            At::Vacate => {
                *state.head(target) = Head { state: SlotState::Free, generation, sealed: state.head(target).sealed };
                match (self.without, index) {
                    (Without::LocksBeforeSlot, _) => At::Scan(0),
                    (_, NEWCOMER) => At::Take,
                    _ => At::Finish,
                }
            }
            _ => self.release_locks(state, index),
        }
    }

    /// Replays the rows of the record, its retirement, and its mark.
    fn replay(&self, state: &mut State, index: usize) -> At {
        let (at, target) = (state.clients[index].at, state.clients[index].target);
        let frees = state.clients[index].record.is_some_and(|record| record.frees);
        let done = if self.is_without(Without::ReplayBeforeLocks) { At::Vacate } else { self.after_replay() };
        match at {
            At::Fetch => {
                let (rows, locks) = (state.rows, state.locks);
                let client = &mut state.clients[index];
                client.images = rows;
                for (row, image) in client.images.iter_mut().enumerate() {
                    match client.record {
                        Some(record) => record.apply(row, image),
                        // The checksum is computed anew, if the dead client holds the row's lock.
                        None if locks[row] == id(target) => image[CHECKSUM] = checksum(image),
                        None => {}
                    }
                }
                At::Rewrite(0)
            }
            At::Rewrite(step) => {
                // Rows to be given new checksums are those whose locks the dead client holds.
                if state.clients[index].record.is_some() || state.may_change(index, step as usize / WORDS) {
                    state.write(index, step);
                }
                match (step + 1 < ROW_STEPS, self.without) {
                    (true, _) => At::Rewrite(step + 1),
                    (false, Without::RetirementByRecoverer | Without::WritersChecksum) => done,
                    (false, Without::RetirementBeforeMark) if frees => At::MarkIt,
                    (false, _) => At::RetireIt,
                }
            }
            At::RetireIt => {
                state.head(target).sealed = false;
                if frees && !self.is_without(Without::RetirementBeforeMark) { At::MarkIt } else { done }
            }
            _ => {
                state.mark();
                if self.is_without(Without::RetirementBeforeMark) { At::RetireIt } else { done }
            }
        }
    }

    fn after_replay(&self) -> At {
        match self.without {
            Without::LocksBeforeSlot => At::Vacate,
            _ => At::Scan(0),
        }
    }

    /// Scans the locks, and releases those that were found under the dead client's id.
    fn release_locks(&self, state: &mut State, index: usize) -> At {
        let client = &state.clients[index];
        let name = if self.is_without(Without::DeadNameOnLocks) { client.slot } else { client.target };
        let name = id(name);
        let next = match client.at {
            At::Scan(row) => {
                state.clients[index].found[row as usize] = state.locks[row as usize] == name;
                if (row as usize) + 1 < ROWS {
                    return At::Scan(row + 1);
                }
                0
            }
            At::Free(row) => {
                state.release(index, row as usize, name);
                row as usize + 1
            }
            _ => 0,
        };
        let client = &mut state.clients[index];
        if let Some(row) = (next..ROWS).find(|row| client.found[*row]) {
            return At::Free(row as u8);
        }
        client.found = [false; ROWS];
        match (self.without, client.record) {
            (Without::ReplayBeforeLocks, Some(_)) => At::Fetch,
            (Without::LocksBeforeSlot, _) if index == NEWCOMER => At::Take,
            (Without::LocksBeforeSlot, _) => At::Finish,
            _ => At::Vacate,
        }
    }
}
