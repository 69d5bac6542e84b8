//! Fixed bugs, one file each under `regressions/`, named by what broke: each fails without its fix.

#[path = "../../regressions/a_forgotten_begin_missed_its_key.rs"]
mod a_forgotten_begin_missed_its_key;
#[path = "../../regressions/a_key_that_came_meanwhile_was_refused_as_full.rs"]
mod a_key_that_came_meanwhile_was_refused_as_full;
#[path = "../../regressions/a_lookup_drained_a_dropped_change.rs"]
mod a_lookup_drained_a_dropped_change;
#[path = "../../regressions/a_mark_preceded_the_retirement.rs"]
mod a_mark_preceded_the_retirement;
#[path = "../../regressions/a_question_that_failed_failed_a_change.rs"]
mod a_question_that_failed_failed_a_change;
#[path = "../../regressions/a_released_poison_named_a_client.rs"]
mod a_released_poison_named_a_client;
#[path = "../../regressions/a_rest_of_another_change_was_believed.rs"]
mod a_rest_of_another_change_was_believed;
#[path = "../../regressions/a_scan_called_a_slow_writer_damage.rs"]
mod a_scan_called_a_slow_writer_damage;
#[path = "../../regressions/a_snapshot_believed_narrow_versions.rs"]
mod a_snapshot_believed_narrow_versions;
#[path = "../../regressions/a_snapshot_held_a_moving_key_twice.rs"]
mod a_snapshot_held_a_moving_key_twice;
#[path = "../../regressions/a_superblock_of_a_later_kind_was_opened.rs"]
mod a_superblock_of_a_later_kind_was_opened;
#[path = "../../regressions/a_torn_row_attracted_every_path.rs"]
mod a_torn_row_attracted_every_path;
#[path = "../../regressions/a_torn_row_hid_the_other.rs"]
mod a_torn_row_hid_the_other;
#[path = "../../regressions/an_error_lost_its_effect.rs"]
mod an_error_lost_its_effect;
#[path = "../../regressions/an_estimate_of_few_entries_claimed_to_be_exact.rs"]
mod an_estimate_of_few_entries_claimed_to_be_exact;
#[path = "../../regressions/chosen_bytes_tore_a_row.rs"]
mod chosen_bytes_tore_a_row;
#[path = "../../regressions/distances_overflowed_in_large_tables.rs"]
mod distances_overflowed_in_large_tables;
#[path = "../../regressions/every_lock_had_a_deadline_of_its_own.rs"]
mod every_lock_had_a_deadline_of_its_own;
#[path = "../../regressions/many_lookups_hid_that_a_client_is_lost.rs"]
mod many_lookups_hid_that_a_client_is_lost;
