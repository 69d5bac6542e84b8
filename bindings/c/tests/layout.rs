//! The layout of the structures of guira.h in version 0.1, on machines with pointers of 64 bits. Programs that were
//! compiled with it depend on it: fields are added behind the ones here, and only where `struct_size` says so.
#![cfg(target_pointer_width = "64")]

use std::mem::offset_of;

use guira_c::{CreateOptions, Error, GetItem, LengthEstimate, OpenOptions, PutItem, Token};

macro_rules! layout {
    ($type:ty, $($field:ident),*) => { ([$(offset_of!($type, $field)),*], size_of::<$type>()) };
}

#[test]
fn structures_are_laid_out_as_in_version_0_1() {
    assert_eq!(layout!(Error, code, effect, message), ([0, 4, 8], 1024));
    assert_eq!(layout!(LengthEstimate, entries, error, capacity), ([0, 8, 16], 24));
    assert_eq!(layout!(Token, words), ([0], 32));
    assert_eq!(layout!(GetItem, key, key_length, value, capacity, length, result), ([0, 8, 16, 24, 32, 40], 48));
    assert_eq!(layout!(PutItem, key, key_length, value, value_length, result, effect), ([0, 8, 16, 24, 32, 36], 40));
}

#[test]
fn the_fields_of_options_stay_where_they_are_in_version_0_1() {
    let (offsets, bytes) = layout!(
        OpenOptions,
        struct_size,
        flags,
        owner,
        token_file,
        deadline_ms,
        connect_timeout_ms,
        reconnect_timeout_ms
    );
    assert_eq!((offsets, bytes), ([0, 8, 16, 24, 32, 40, 48], 56));
    let (offsets, bytes) = layout!(
        CreateOptions,
        struct_size,
        flags,
        capacity,
        max_capacity,
        record_bytes,
        extent_bytes,
        format,
        preset,
        seed,
        owner,
        max_clients,
        mode
    );
    assert_eq!((offsets, bytes), ([0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 84], 88));
}
