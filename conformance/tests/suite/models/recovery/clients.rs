//! Steps of a client outside recoveries: taking a slot, waiting, and committing.

use super::*;

impl Recovery {
    pub(super) fn step(&self, state: &mut State, index: usize) {
        use At::*;
        let at = state.clients[index].at;
        let next = match at {
            Away | Look | Take | Lock(_) | Met(_) | Asked(_) | GiveBack | Finish => self.arrive(state, index),
            at if at.is_recovery() => self.recover(state, index),
            _ => self.commit(state, index),
        };
        let client = &mut state.clients[index];
        client.at = next;
        // State that is not needed any more is reset, so that it does not distinguish states.
        if matches!(next, Lock(_) | Done | Take) {
            (client.images, client.record) = ([[0; WORDS]; ROWS], None);
            (client.target, client.generation) = (if next == Take { client.target } else { client.slot }, 0);
        }
    }

    /// Does one step of client `index` outside its own commit and recoveries.
    fn arrive(&self, state: &mut State, index: usize) -> At {
        let (at, target) = (state.clients[index].at, state.clients[index].target as usize);
        match at {
            At::Away => {
                let slot = state.slots.iter().position(|slot| slot.liveness.is_none()).unwrap_or(target);
                state.slots[slot].liveness = Some(index as u8);
                state.clients[index].target = slot as u8;
                At::Look
            }
            At::Look => {
                state.clients[index].generation = state.slots[target].head.generation;
                if state.slots[target].head.state == SlotState::Free { At::Take } else { At::Claim }
            }
            At::Take => {
                let head = &mut state.slots[target].head;
                if head.state != SlotState::Free {
                    return At::Look;
                }
                (head.state, head.generation) = (SlotState::Live, head.generation + 1);
                state.clients[index].slot = target as u8;
                At::Lock(0)
            }
            At::Lock(lock) => {
                state.locks[lock as usize] = id(state.clients[index].slot);
                state.holders[lock as usize] = Some(index as u8);
                if lock as usize + 1 < ROWS { At::Lock(lock + 1) } else { At::Sample }
            }
            At::Met(lock) => {
                state.clients[index].generation = state.slots[target].head.generation;
                At::Asked(lock)
            }
            At::Asked(_) => {
                if !self.is_without(Without::Proof) {
                    state.slots[target].liveness = Some(index as u8);
                }
                let holds = state.holders.contains(&Some(index as u8));
                if holds && !self.is_without(Without::OwnLocksFirst) { At::GiveBack } else { At::Claim }
            }
            At::GiveBack => {
                let own = id(state.clients[index].slot);
                for row in (0..ROWS).filter(|row| state.holders[*row] == Some(index as u8)).collect::<Vec<_>>() {
                    state.release(index, row, own);
                }
                At::Claim
            }
            // The proof is dropped, and locks that are not held are taken again.
            At::Finish => {
                state.drop_proof(index);
                let held = state.holders.iter().take_while(|holder| **holder == Some(index as u8));
                At::Lock(held.count() as u8)
            }
            other => other,
        }
    }

    /// Does one step of the client's own commit.
    fn commit(&self, state: &mut State, index: usize) -> At {
        let (at, entry, slot) = (state.clients[index].at, ENTRY[index], state.clients[index].slot);
        let frees = index == 0;
        match at {
            At::Sample => {
                if !state.rows.iter().all(verifies) {
                    state.wrong = Some(Wrong::Torn);
                }
                let rows = state.rows;
                let images = &mut state.clients[index].images;
                *images = rows;
                for image in images {
                    image[entry] += 1;
                    image[VERSION] += 1;
                    image[CHECKSUM] = checksum(image);
                }
                At::Record
            }
            At::Record => {
                let images = state.clients[index].images;
                state.slots[slot as usize].record = Some(Record {
                    entry: entry as u8,
                    values: images.map(|row| row[entry]),
                    versions: images.map(|row| row[VERSION]),
                    checksums: images.map(|row| row[CHECKSUM]),
                    frees,
                });
                if self.is_without(Without::SealBeforeRows) { At::Write(0) } else { At::Seal }
            }
            At::Seal => {
                state.head(slot).sealed = true;
                state.sealed[entry] += 1;
                match self.without {
                    Without::SealBeforeRows | Without::RowsBeforeRetirement => At::Retire,
                    _ => At::Write(0),
                }
            }
            At::Write(step) => {
                state.write(index, step);
                match (step + 1 < ROW_STEPS, self.without) {
                    (true, _) => At::Write(step + 1),
                    (false, Without::SealBeforeRows) => At::Seal,
                    (false, Without::RetirementBeforeMark) if frees => At::Mark,
                    (false, Without::RetirementBeforeRelease) => At::Unlock(0),
                    (false, Without::RowsBeforeRetirement) => {
                        if frees {
                            At::Mark
                        } else {
                            At::Unlock(0)
                        }
                    }
                    (false, _) => At::Retire,
                }
            }
            _ => self.end_commit(state, index, frees),
        }
    }

    /// Does the retirement, mark and release, in the configured order.
    fn end_commit(&self, state: &mut State, index: usize, frees: bool) -> At {
        let slot = state.clients[index].slot;
        match state.clients[index].at {
            At::Retire => {
                state.head(slot).sealed = false;
                match self.without {
                    Without::RetirementBeforeRelease => At::Done,
                    Without::RowsBeforeRetirement => At::Write(0),
                    Without::RetirementBeforeMark => At::Unlock(0),
                    _ if frees => At::Mark,
                    _ => At::Unlock(0),
                }
            }
            At::Mark => {
                state.mark();
                if self.is_without(Without::RetirementBeforeMark) { At::Retire } else { At::Unlock(0) }
            }
            At::Unlock(lock) => {
                state.release(index, lock as usize, id(slot));
                match (lock as usize + 1 < ROWS, self.without) {
                    (true, _) => return At::Unlock(lock + 1),
                    (false, Without::RetirementBeforeRelease) => return At::Retire,
                    (false, _) => {}
                }
                state.acknowledged += u8::from(ENTRY[index] == 0);
                At::Done
            }
            other => other,
        }
    }
}
