//! Regressions: fixed bugs of whole stores, one file each, named for what broke. Each test fails without the fix. Bugs
//! of the protocol are in conformance/regressions.

mod a_closed_descriptor_ended_a_client;
mod a_dropped_put_leaked_its_extent;
mod a_released_run_was_orphaned_again;
mod a_run_past_the_last_chunk_was_trusted;
mod a_slot_in_transition_counted_as_taken;
mod a_token_was_used_on_the_next_table;
mod clients_of_destroyed_tables_were_opened;
mod full_orphans_were_read_one_by_one;
mod inline_puts_kept_the_space_they_freed;
mod refused_changes_leaked_extents;
mod threads_took_the_programs_signals;
