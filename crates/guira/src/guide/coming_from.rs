//! The same things in Redis, LMDB, `HashMap` and Chronicle Map.
//!
//! # Redis and memcached
//!
//! There is no server to start on one host; between hosts a memory node takes its place. Values are bytes, without
//! Redis's data types.
//!
//! | Redis | here |
//! |---|---|
//! | `SET k v` | [`put`](Client::put) |
//! | `SET k v NX`, `SETNX` | [`try_insert`](Client::try_insert) |
//! | `SET k v XX` | [`update`](Client::update) |
//! | `GET`, `EXISTS`, `DEL` | [`get`](Client::get), [`contains`](Client::contains), [`remove`](Client::remove) |
//! | `MGET` | [`get_many`](Client::get_many) |
//! | `MSET` | [`put_many`](Client::put_many), key by key: not one change |
//! | `INCRBY` | [`increment`](Client::increment), on 8 binary bytes instead of decimal digits |
//! | `WATCH`, `MULTI`, `EXEC` on one key | [`get_versioned`], [`compare_and_swap`] |
//! | memcached's `gets` and `cas` | the same |
//! | `SCAN` | [`Store::scan`](crate::Store::scan) |
//! | `DBSIZE` | [`Store::len_estimate`](crate::Store::len_estimate) |
//! | `INFO`, `MONITOR` | `guira stat`, `guira top`, metrics for Prometheus (`guira serve --metrics`) |
//! | `EXPIRE`, `maxmemory` with eviction | not available |
//! | lists, sets, streams, scripts, publish/subscribe | not available |
//! | persistence, replication | not available |
//!
//! # LMDB
//!
//! Both are libraries that map a file into every process. LMDB has one writer at a time, ordered keys, transactions and
//! durability; Guira has many writers at a time and single-key operations in a hash table in memory.
//!
//! | LMDB | here |
//! |---|---|
//! | `mdb_env_open` | [`Store::open_or_create`](crate::Store::open_or_create) |
//! | `mdb_env_set_mapsize` | [`CreateOptions::new`]: the number of keys; [`record_bytes`] |
//! | read transaction and `mdb_get` | [`get`](Client::get); there is no snapshot over several lookups |
//! | write transaction and `mdb_put` | [`put`](Client::put); each is complete by itself |
//! | `MDB_NOOVERWRITE` | [`try_insert`](Client::try_insert) |
//! | a reference into the map | a copy: [`get_with`](Client::get_with) passes it to a closure, without an allocation |
//! | cursor over all keys | [`Store::scan`], without order; [`Store::snapshot`] for one moment |
//! | reader slots, `mdb_reader_check` | readers take no slot; dead writers are recovered by those who meet them |
//! | `mdb_env_sync` | not available: nothing is durable |
//!
//! # `HashMap` and concurrent maps
//!
//! A table is a concurrent map outside of the process: keys and values are copied in and out, and each operation can
//! fail.
//!
//! | `HashMap`, dashmap, moka | here |
//! |---|---|
//! | `map.insert(k, v)` (overwrites) | [`put`](Client::put) |
//! | `entry(k).or_insert_with(f)`, moka's `get_with` | [`get_or_insert_with`](Client::get_or_insert_with) |
//! | `map.get(&k)` returns a reference | [`get`](Client::get) returns a copy |
//! | `entry(k).and_modify(f)`, `alter` | [`update_with`](Client::update_with) |
//! | `map.len()` | [`Store::len_estimate`](crate::Store::len_estimate) |
//! | `map.iter()` | [`Store::scan`](crate::Store::scan) |
//! | `HashMap<K, V>` | [`Store::typed`](crate::Store::typed), [`Store::plain`](crate::Store::plain) |
//! | grows by itself | grows by itself with [`CreateOptions::default`](crate::CreateOptions::default) |
//! | `Arc<DashMap>` in all threads | a clone of the [`Store`](crate::Store) in all threads, a [`Client`] in each |
//!
//! # Chronicle Map
//!
//! The nearest relative: an off-heap map that several processes share. Chronicle Map locks segments and needs a
//! recovery when a process dies with a lock; here the next client that meets the lock recovers, while others work.
//!
//! | Chronicle Map | here |
//! |---|---|
//! | `createPersistedTo(file)` | [`Store::open_or_create`](crate::Store::open_or_create) with `file:///PATH` |
//! | `entries(n)` | [`CreateOptions::new`](crate::CreateOptions::new) |
//! | `averageKey`, `averageValueSize` | [`record_bytes`](crate::CreateOptions::record_bytes) |
//! | `constantKeySizeBySample` and constant values | format `fixed:K:V` |
//! | `getUsing(key, value)` | [`get_into`](Client::get_into) |
//! | `acquireUsing`, `computeIfAbsent` | [`get_or_insert_with`](Client::get_or_insert_with) |
//! | `replace(key, old, new)` | [`compare_and_swap`](Client::compare_and_swap) |
//! | `queryContext(key)` with a lock held | [`update_with`](Client::update_with): no lock outlives an operation |
//! | `recoverPersistedTo` | not needed; `guira check --repair` on request |
//! | replication | not available |
//!
//! [`CreateOptions::new`]: crate::CreateOptions::new
//! [`Store::scan`]: crate::Store::scan
//! [`Store::snapshot`]: crate::Store::snapshot
//! [`compare_and_swap`]: Client::compare_and_swap
//! [`get_versioned`]: Client::get_versioned
//! [`record_bytes`]: crate::CreateOptions::record_bytes
#[cfg(doc)]
use crate::Client;
