//! Fixed bugs of whole stores, one file each, named by what broke: each fails without its fix. Those of the protocol
//! are in conformance/regressions.

mod a_closed_descriptor_ended_a_client;
mod a_destroyed_table_gave_clients;
mod a_dropped_put_leaked_its_extent;
mod a_run_beyond_the_last_chunk_was_believed;
mod a_run_given_back_was_left_again;
mod a_slot_in_other_hands_was_no_slot;
mod full_orphans_were_read_one_by_one;
mod inline_puts_kept_the_space_they_freed;
mod refused_changes_leaked_extents;
