//! A get and a put of a value in a row allocate no memory through the library, apart from the first of each client; a
//! get of one in an extent only while the handle's buffer grows.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int};
use std::ptr::{null, null_mut};

use allocation_counter::measure;
use guira_c::{
    Client, Error, GUIRA_MESSAGE_BYTES, Store, guira_client_close, guira_client_open, guira_create, guira_destroy,
    guira_get, guira_put, guira_store_close,
};

struct Table {
    url: CString,
    store: *mut Store,
    client: *mut Client,
}

impl Table {
    fn new() -> Table {
        let url = CString::new(format!("shm://{}", guira_testing::unique_name())).expect("no zero");
        let (mut store, mut client) = (null_mut(), null_mut());
        let mut error = Error { code: 0, effect: 0, message: [0; GUIRA_MESSAGE_BYTES] };
        // SAFETY: all pointers are those of living objects.
        unsafe {
            assert_eq!(guira_create(url.as_ptr(), null(), &mut store, &mut error), 0);
            assert_eq!(guira_client_open(store, &mut client, &mut error), 0);
        }
        Table { url, store, client }
    }

    fn put(&self, key: &[u8], value: &[u8]) -> c_int {
        let (key, value) = ((key.as_ptr().cast(), key.len()), (value.as_ptr().cast(), value.len()));
        // SAFETY: the pointers are those of slices, and the handle is open.
        unsafe { guira_put(self.client, key.0, key.1, value.0, value.1, null_mut()) }
    }

    fn get(&self, key: &[u8], into: &mut [u8]) -> usize {
        let (mut length, capacity) = (0, into.len());
        let (key, into) = ((key.as_ptr().cast(), key.len()), into.as_mut_ptr().cast());
        // SAFETY: the pointers are those of slices, and the handle is open.
        let result = unsafe { guira_get(self.client, key.0, key.1, into, capacity, &mut length, null_mut()) };
        assert_eq!(result, 1);
        length
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: the handles are open, and not used any more.
        unsafe {
            guira_client_close(self.client, null_mut());
            guira_store_close(self.store);
            guira_destroy(self.url.as_ptr(), null_mut());
        }
    }
}

#[test]
fn a_get_and_a_put_allocate_nothing() {
    let table = Table::new();
    let mut into = [0; 5000];
    // The first calls of a client allocate its buffers.
    table.put(b"cuckoo", b"Guira guira");
    table.get(b"cuckoo", &mut into);
    // The longest value that is in a row with this key, and one in an extent.
    for (value, is_in_row) in [(vec![7; 58], true), (vec![7; 5000], false)] {
        table.put(b"cuckoo", &value);
        let first = measure(|| assert_eq!(table.get(b"cuckoo", &mut into), value.len()));
        assert_eq!(first.count_total == 0, is_in_row, "{first:?}");
        let later = measure(|| assert_eq!(table.get(b"cuckoo", &mut into), value.len()));
        assert_eq!(later.count_total, 0, "{later:?}");
        assert!(into[..value.len()] == value);
        let put = measure(|| assert_eq!(table.put(b"cuckoo", &value), 0));
        assert_eq!(put.count_total == 0, is_in_row, "{put:?}");
    }
}
