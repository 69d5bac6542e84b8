//! rcuckoo
