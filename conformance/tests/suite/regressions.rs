//! Tests of fixed bugs, one file each under `regressions/`, named for what broke; each fails without its fix.

#[path = "../../regressions/a_concurrently_inserted_key_was_refused_as_full.rs"]
mod a_concurrently_inserted_key_was_refused_as_full;
#[path = "../../regressions/a_continuation_of_another_change_was_trusted.rs"]
mod a_continuation_of_another_change_was_trusted;
#[path = "../../regressions/a_failed_liveness_probe_failed_a_change.rs"]
mod a_failed_liveness_probe_failed_a_change;
#[path = "../../regressions/a_lookup_drained_a_dropped_change.rs"]
mod a_lookup_drained_a_dropped_change;
#[path = "../../regressions/a_mark_preceded_the_retirement.rs"]
mod a_mark_preceded_the_retirement;
#[path = "../../regressions/a_released_poison_named_a_client.rs"]
mod a_released_poison_named_a_client;
#[path = "../../regressions/a_scan_called_a_slow_writer_damage.rs"]
mod a_scan_called_a_slow_writer_damage;
#[path = "../../regressions/a_second_error_hid_the_first.rs"]
mod a_second_error_hid_the_first;
#[path = "../../regressions/a_snapshot_called_a_torn_row_unchanged.rs"]
mod a_snapshot_called_a_torn_row_unchanged;
#[path = "../../regressions/a_snapshot_held_a_moving_key_twice.rs"]
mod a_snapshot_held_a_moving_key_twice;
#[path = "../../regressions/a_snapshot_trusted_narrow_versions.rs"]
mod a_snapshot_trusted_narrow_versions;
#[path = "../../regressions/a_stale_continuation_missed_its_key.rs"]
mod a_stale_continuation_missed_its_key;
#[path = "../../regressions/a_superblock_of_a_later_version_was_opened.rs"]
mod a_superblock_of_a_later_version_was_opened;
#[path = "../../regressions/a_torn_row_attracted_every_path.rs"]
mod a_torn_row_attracted_every_path;
#[path = "../../regressions/a_torn_row_hid_the_other.rs"]
mod a_torn_row_hid_the_other;
#[path = "../../regressions/an_estimate_of_few_entries_claimed_to_be_exact.rs"]
mod an_estimate_of_few_entries_claimed_to_be_exact;
#[path = "../../regressions/chosen_bytes_hid_a_torn_row.rs"]
mod chosen_bytes_hid_a_torn_row;
#[path = "../../regressions/distances_overflowed_in_large_tables.rs"]
mod distances_overflowed_in_large_tables;
#[path = "../../regressions/every_lock_had_a_deadline_of_its_own.rs"]
mod every_lock_had_a_deadline_of_its_own;
#[path = "../../regressions/many_lookups_hid_that_a_client_is_lost.rs"]
mod many_lookups_hid_that_a_client_is_lost;
#[path = "../../regressions/questions_about_chunks_delayed_those_about_locks.rs"]
mod questions_about_chunks_delayed_those_about_locks;
