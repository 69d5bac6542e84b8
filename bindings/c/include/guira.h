/*
 * Guira: a key/value store in shared or remote memory, without a server. Processes on one host share a table by its
 * name.
 *
 *     guira_store *store;
 *     guira_client *client;
 *     guira_error error;
 *     if (guira_open_or_create("shm://birds", NULL, &store, &error) < 0 ||
 *         guira_client_open(store, &client, &error) < 0 ||
 *         guira_put(client, "cuckoo", 6, "Guira guira", 11, &error) < 0)
 *         fprintf(stderr, "%s\n", error.message);
 *
 * Results. Functions that return int return a negative code if they fail, such as GUIRA_BUSY, and otherwise 0 or a
 * positive number that each describes. A miss is not a failure. The last argument, error, gets the message and the
 * effect of a failure; it may be null. Decide by code and effect, and show the message.
 *
 * Threads. A guira_store may be used by any number of threads. A client, reader or scan must not be used by two threads
 * at once: open one for each. Between calls it may move to another thread. The library notices most calls that find a
 * handle in use, and returns GUIRA_MISUSE, but not those that begin at the same moment. The library starts threads of
 * its own; all signals are blocked in them.
 *
 * Lifetimes. A handle lives until it is closed, and must not be used later. Stores, clients, readers and scans may be
 * closed in any order. A forked process opens the table again: calls with inherited handles return GUIRA_MISUSE, except
 * that opening a client, reader or scan of an inherited store may succeed, and the calls that use it fail. A handle
 * that another thread used at the moment of the fork cannot be closed in the child. Under AddressSanitizer, end the
 * child by _exit.
 *
 * Memory. A pointer to data has any alignment; arrays of structures are aligned. Memory that a function reads must not
 * change while it runs, and memory that it writes must not overlap other arguments. Keys and values are copied: no
 * argument has to live longer than the call. A key has 0 to 64 KiB and a value 0 to 64 MiB, or what the table's format
 * says; other lengths are GUIRA_MISUSE. If the process has no memory for an allocation, it is aborted.
 *
 * Files. A process that has a table open gets SIGBUS if another program truncates the table's file.
 *
 * No C++ exception and no panic of Rust passes through a function; longjmp out of a signal handler over one is not
 * allowed, nor is cancelling a thread (pthread_cancel) that is in one.
 *
 * This file is made of bindings/c/src by cbindgen: change it there.
 */

#ifndef GUIRA_H
#define GUIRA_H

#include <stddef.h>
#include <stdint.h>
/** The options of guira_open by default: guira_open_options options = GUIRA_OPEN_OPTIONS_INIT; */
#define GUIRA_OPEN_OPTIONS_INIT { sizeof(guira_open_options), 0, NULL, NULL, 0, 0, 0 }
/** The options of guira_create by default: guira_create_options options = GUIRA_CREATE_OPTIONS_INIT; */
#define GUIRA_CREATE_OPTIONS_INIT { sizeof(guira_create_options), 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 0, 0 }

/**
 * A flag of guira_open_options: lookups and scans only; needs neither write permission nor a client slot.
 */
#define GUIRA_READ_ONLY 1

/**
 * A flag of guira_create_options, for guira_open_or_create: open an existing table also if it does not match the
 * options.
 */
#define GUIRA_ACCEPT_MISMATCH 1

/**
 * A time of guira_open_options: do not wait at all.
 */
#define GUIRA_NO_WAIT UINT64_MAX

/**
 * The memory node, or the connection to it, failed. The next operation connects again.
 */
#define GUIRA_FABRIC -1

/**
 * The memory is damaged, or is not a table.
 */
#define GUIRA_CORRUPT -2

/**
 * The table was made by another version of this library.
 */
#define GUIRA_VERSION -3

/**
 * The table has no room. Other keys can still be read, updated and removed.
 */
#define GUIRA_FULL -4

/**
 * Other clients held what was needed, such as a lock, until the deadline. Repeating can help.
 */
#define GUIRA_BUSY -5

/**
 * This client was fenced by another one. The next operation begins a new session.
 */
#define GUIRA_FENCED -6

/**
 * An argument, a permission, or the use of a handle was wrong.
 */
#define GUIRA_MISUSE -7

/**
 * This library has a bug. After a panic, the handle of the call refuses further calls, also that to close it; if the
 * call was to close it, the handle is gone.
 */
#define GUIRA_BUG -8

/**
 * There is no table of this name.
 */
#define GUIRA_NOT_FOUND -9

/**
 * There is a table of this name already.
 */
#define GUIRA_ALREADY_EXISTS -10

/**
 * The table that was opened is gone: it was destroyed or its memory node lost it, with all that was stored in it, or
 * its file was renamed.
 */
#define GUIRA_GONE -11

/**
 * The caller's buffer is shorter than the value. The length of the value was stored.
 */
#define GUIRA_TOO_SMALL -12

/**
 * A failed call changed nothing.
 */
#define GUIRA_EFFECT_NONE 0

/**
 * A failed call made its change; a batch made at least one of its changes.
 */
#define GUIRA_EFFECT_DONE 1

/**
 * A failed call made its change, or did not; of a batch, that is so for at least one change.
 */
#define GUIRA_EFFECT_UNKNOWN 2

/**
 * Bytes of a message, with the terminating zero.
 */
#define GUIRA_MESSAGE_BYTES 1016

/**
 * compare_and_swap, compare_and_remove: the key was not as expected; nothing was changed.
 */
#define GUIRA_SWAP_DIFFERENT 0

/**
 * compare_and_swap: the value was replaced; compare_and_remove: the key was removed.
 */
#define GUIRA_SWAP_DONE 1

/**
 * compare_and_swap, compare_and_remove: there is no such key; nothing was changed.
 */
#define GUIRA_SWAP_MISSING 2

/**
 * A client of a table. One thread at a time may use it.
 */
typedef struct guira_client guira_client;

/**
 * A reader of a table. One thread at a time may use it.
 */
typedef struct guira_reader guira_reader;

/**
 * A scan of a table, from guira_scan_open. One thread at a time may use it.
 */
typedef struct guira_scan guira_scan;

/**
 * A table that this process has opened. Any number of threads may use it.
 */
typedef struct guira_store guira_store;

/**
 * Options for guira_open. Set struct_size and everything else to 0 by GUIRA_OPEN_OPTIONS_INIT: 0 stands for the
 * default.
 */
typedef struct guira_open_options {
    /**
     * sizeof(guira_open_options): later versions of this library have more fields at the end.
     */
    size_t struct_size;
    /**
     * GUIRA_READ_ONLY, or 0.
     */
    uint64_t flags;
    /**
     * The id of the user to whom the table must belong. By default this user or root; of a table that is only read,
     * anyone.
     */
    const uint32_t *owner;
    /**
     * The path of the file with the access token of a memory node. By default none.
     */
    const char *token_file;
    /**
     * Milliseconds that an operation waits for other clients before it returns GUIRA_BUSY. By default 10,000;
     * GUIRA_NO_WAIT for none.
     */
    uint64_t deadline_ms;
    /**
     * Milliseconds for one attempt to connect to a memory node. By default 5,000.
     */
    uint64_t connect_timeout_ms;
    /**
     * Milliseconds for all attempts to connect again after a connection was lost. By default 10,000; GUIRA_NO_WAIT for
     * a single attempt.
     */
    uint64_t reconnect_timeout_ms;
} guira_open_options;

/**
 * The error of a call, in memory of the caller. It is written if the call fails, and left alone otherwise.
 */
typedef struct guira_error {
    /**
     * The code that the call returned.
     */
    int code;
    /**
     * The effect of the call on the table: GUIRA_EFFECT_NONE, GUIRA_EFFECT_DONE or GUIRA_EFFECT_UNKNOWN.
     */
    int effect;
    /**
     * The message: what was attempted, on what, and why it failed. One sentence in UTF-8, ended by a zero, and cut off if
     * it is too long.
     */
    char message[GUIRA_MESSAGE_BYTES];
} guira_error;

/**
 * Options for guira_create and guira_open_or_create. Set struct_size and everything else to 0 by
 * GUIRA_CREATE_OPTIONS_INIT: 0 stands for the default.
 */
typedef struct guira_create_options {
    /**
     * sizeof(guira_create_options): later versions of this library have more fields at the end.
     */
    size_t struct_size;
    /**
     * GUIRA_ACCEPT_MISMATCH, or 0.
     */
    uint64_t flags;
    /**
     * The keys that the table has room for. By default it has room for 1,000 at first and grows while it is used,
     * until the memory of the machine is in use.
     */
    uint64_t capacity;
    /**
     * The keys that it may grow to hold. By default a table with a capacity does not grow.
     */
    uint64_t max_capacity;
    /**
     * The bytes of a typical key and value together: if they do not fit in a row, the table gets space for capacity
     * such records. By default it has hardly any such space.
     */
    uint64_t record_bytes;
    /**
     * The bytes of that space itself.
     */
    uint64_t extent_bytes;
    /**
     * "bytes:N" for keys of 0 to 64 KiB and values of 0 to 64 MiB, kept in the row if they have at most N bytes
     * together; "fixed:K:V" for keys of K bytes and values of V bytes. By default "bytes:64".
     */
    const char *format;
    /**
     * "hardened", or "paper" and "tiny" for measurements and tests. By default "hardened".
     */
    const char *preset;
    /**
     * The seed of the key hash. By default it is drawn at random.
     */
    const uint64_t *seed;
    /**
     * The id of the user to whom an existing table must belong, for guira_open_or_create. By default this user or
     * root.
     */
    const uint32_t *owner;
    /**
     * Clients at once, 1 to 32,767. By default 1,024. Readers do not count.
     */
    uint32_t max_clients;
    /**
     * Permission bits of the table's file, whatever the umask. By default 0600.
     */
    uint32_t mode;
} guira_create_options;

/**
 * The estimated number of a table's entries.
 */
typedef struct guira_length_estimate {
    /**
     * Entries: exact if every row was counted and no client changed the table meanwhile.
     */
    uint64_t entries;
    /**
     * Half the width of the 95 % confidence interval, in entries; 0 if every row was counted.
     */
    uint64_t error;
    /**
     * Entries that the table has room for: now, if it grows.
     */
    uint64_t capacity;
} guira_length_estimate;

/**
 * The state that a key was in when it was read. It belongs to one table, and may be copied and kept as long as that
 * exists.
 */
typedef struct guira_token {
    /**
     * Without a meaning for callers.
     */
    uint64_t words[4];
} guira_token;

/**
 * One lookup of guira_get_many.
 */
typedef struct guira_get_item {
    /**
     * The key; null only if it has no bytes.
     */
    const void *key;
    /**
     * The length of the key.
     */
    size_t key_length;
    /**
     * A buffer for the value; null only if capacity is 0. It must not overlap any key of the batch.
     */
    void *value;
    /**
     * The length of the buffer.
     */
    size_t capacity;
    /**
     * Gets the length of the value, 0 for a miss.
     */
    size_t length;
    /**
     * Gets the result: what guira_get would return.
     */
    int result;
} guira_get_item;

/**
 * One put of guira_put_many.
 */
typedef struct guira_put_item {
    /**
     * The key; null only if it has no bytes.
     */
    const void *key;
    /**
     * The length of the key.
     */
    size_t key_length;
    /**
     * The value; null only if it has no bytes.
     */
    const void *value;
    /**
     * The length of the value.
     */
    size_t value_length;
    /**
     * Gets the result: what guira_put would return.
     */
    int result;
    /**
     * Gets the effect of this put: GUIRA_EFFECT_DONE if it did not fail, otherwise what guira_put would say.
     */
    int effect;
} guira_put_item;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns a short lower-case text for a code, such as "busy" for GUIRA_BUSY: "ok" for results that are not negative,
 * "unknown" for codes that this version of the library does not have. The text lives for ever. Any thread may call it.
 */
const char *guira_code_name(int code);

/**
 * Returns the version of this library, such as "0.1.0". The text lives for ever. Any thread may call it.
 */
const char *guira_version(void);

/**
 * Opens an existing table.
 *
 * url: such as "shm://birds", "file:///PATH", "tcp://HOST:PORT" or "rdma://HOST:PORT".
 * options: null for the defaults.
 * store: gets the handle, for guira_store_close; null if the call fails.
 *
 * Returns 0, or a negative code: GUIRA_NOT_FOUND, GUIRA_MISUSE (a bad URL, no permission, another owner),
 * GUIRA_CORRUPT, GUIRA_VERSION, GUIRA_GONE, GUIRA_FABRIC, GUIRA_BUSY. Nothing was changed then. Any thread may call
 * it. 1 round trip; behind a memory node also those of the connection.
 */
int guira_open(const char *url,
               const struct guira_open_options *options,
               struct guira_store **store,
               struct guira_error *error);

/**
 * Creates a table and opens it.
 *
 * url: "shm://NAME" or "file:///PATH".
 * options: null for the defaults: a table that grows while it is used.
 * store: gets the handle, for guira_store_close; null if the call fails.
 *
 * Returns 0, or a negative code: GUIRA_ALREADY_EXISTS, GUIRA_MISUSE (impossible options, no permission), GUIRA_FULL
 * (no memory), GUIRA_FABRIC. Nothing is left behind then. Any thread may call it.
 */
int guira_create(const char *url,
                 const struct guira_create_options *options,
                 struct guira_store **store,
                 struct guira_error *error);

/**
 * Opens a table, or creates it if it does not exist: of several processes that start at the same time, one creates it
 * and all get the same table. guira_store_was_created says which.
 *
 * Arguments: as for guira_create.
 *
 * Returns 0, or a negative code: GUIRA_MISUSE if the table exists and does not match the options, and those of
 * guira_open and guira_create. Nothing was changed then. Any thread may call it.
 */
int guira_open_or_create(const char *url,
                         const struct guira_create_options *options,
                         struct guira_store **store,
                         struct guira_error *error);

/**
 * Destroys a table: its name is removed, and its memory is freed when the last process closes it. In processes that
 * have it open, every operation returns GUIRA_GONE from then on.
 *
 * Returns 0, or a negative code: GUIRA_NOT_FOUND, GUIRA_MISUSE (not a table, no permission, the table of a memory
 * node), GUIRA_FABRIC. Any thread may call it.
 */
int guira_destroy(const char *url, struct guira_error *error);

/**
 * Returns 1 if this handle created the table, 0 if it existed before, or GUIRA_MISUSE for a null pointer. Any thread
 * may call it. No round trip.
 */
int guira_store_was_created(const struct guira_store *store);

/**
 * Closes the handle of a table; a null pointer is ignored. Its clients, readers and scans remain usable, and the table
 * stays until guira_destroy, or until the machine is restarted. No other call may use the handle meanwhile or later.
 */
void guira_store_close(struct guira_store *store);

/**
 * Estimates the number of entries: exactly up to 4,096 rows (some 25,000 entries), beyond that from a sample.
 *
 * estimate: gets the result.
 *
 * Returns 0, or a negative code: GUIRA_GONE, GUIRA_FENCED, GUIRA_FABRIC, GUIRA_MISUSE. Nothing was changed then. Any
 * thread may call it. Round trips: 1 for 64 rows, at most 64.
 */
int guira_len_estimate(const struct guira_store *store,
                       struct guira_length_estimate *estimate,
                       struct guira_error *error);

/**
 * Opens a client, which reads and changes the table: one for each thread that does. It takes one of the table's client
 * slots until guira_client_close.
 *
 * client: gets the handle; null if the call fails.
 *
 * Returns 0, or a negative code: GUIRA_MISUSE (the table was opened for reading), GUIRA_BUSY (all slots are taken),
 * GUIRA_GONE, GUIRA_FABRIC. Nothing was changed then. Any thread may call it. A few round trips.
 */
int guira_client_open(const struct guira_store *store, struct guira_client **client, struct guira_error *error);

/**
 * Opens a reader, which looks keys up: one for each thread that does. It needs no client slot and no write permission.
 *
 * reader: gets the handle, for guira_reader_close; null if the call fails.
 *
 * Returns 0, or GUIRA_MISUSE. Any thread may call it. No round trip.
 */
int guira_reader_open(const struct guira_store *store, struct guira_reader **reader, struct guira_error *error);

/**
 * Begins to read all keys and values, in the table's order, while other clients change it.
 *
 * A key that no insert moves meanwhile is returned at least once; one that is moved may be missed or returned twice,
 * and in a table that grows one whose part of the table is split may be returned twice.
 *
 * scan: gets the handle, for guira_scan_next and guira_scan_close; null if the call fails.
 *
 * Returns 0, or a negative code: GUIRA_GONE, GUIRA_FABRIC, GUIRA_MISUSE. Any thread may call it.
 */
int guira_scan_open(const struct guira_store *store, struct guira_scan **scan, struct guira_error *error);

/**
 * Looks up a key, and copies its value to the caller's buffer.
 *
 * key: key_length bytes; null only if there are none.
 * value: capacity bytes for the value; null only if capacity is 0.
 * length: gets the length of the value, 0 for a miss; may be null. It is written if the call returns a result, and
 * with GUIRA_TOO_SMALL.
 *
 * Returns 1 if the key exists, 0 if not, or a negative code: GUIRA_TOO_SMALL if the value is longer than the buffer,
 * which was not written then (so capacity 0 asks for the length, which reads the whole value, also over a network);
 * GUIRA_MISUSE for a key that is too long for the table; GUIRA_CORRUPT; GUIRA_BUSY if a stopped client leaves the row
 * half written until the deadline; GUIRA_GONE; GUIRA_FENCED; GUIRA_FABRIC. Nothing is changed.
 *
 * It takes no lock. It allocates no memory after the client's first call, except that the client's own buffer grows to
 * the longest value in an extent that was read with it. Round trips: 1 for a value in a row, 2 for one in an extent, 1
 * or 2 for a miss.
 */
int guira_get(struct guira_client *client,
              const void *key,
              size_t key_length,
              void *value,
              size_t capacity,
              size_t *length,
              struct guira_error *error);

/**
 * Looks up a key as guira_get does, and also returns the state that it is in, for guira_compare_and_swap_token.
 *
 * token: gets the state if the key exists.
 *
 * Returns what guira_get returns, and GUIRA_MISUSE for a table with preset "paper".
 */
int guira_get_versioned(struct guira_client *client,
                        const void *key,
                        size_t key_length,
                        void *value,
                        size_t capacity,
                        size_t *length,
                        struct guira_token *token,
                        struct guira_error *error);

/**
 * Returns 1 if the key exists, 0 if not, or a negative code as guira_get does. It reads the value, too,
 * into a buffer of the client. Round trips: as guira_get.
 */
int guira_contains(struct guira_client *client, const void *key, size_t key_length, struct guira_error *error);

/**
 * Inserts a key, or replaces its value.
 *
 * key, value: key_length and value_length bytes; null only if there are none.
 *
 * Returns 1 if the key was inserted, 0 if its value was replaced, or a negative code: GUIRA_MISUSE for lengths that
 * the table cannot store; GUIRA_FULL if the table, or its space for large values, has no room; GUIRA_BUSY if other
 * clients hold a lock until the deadline; GUIRA_CORRUPT; GUIRA_GONE; GUIRA_FENCED; GUIRA_FABRIC. Nothing was changed
 * then, unless the error's effect says otherwise, which only that of GUIRA_FABRIC, GUIRA_FENCED and GUIRA_BUG can.
 *
 * For a value in a row it allocates no memory of the process after the client's first call, unless it has to wait or
 * to move entries. Round trips: 2 for a key and value in a row that has room, 3 in an extent, more for an insert that
 * has to move entries.
 */
int guira_put(struct guira_client *client,
              const void *key,
              size_t key_length,
              const void *value,
              size_t value_length,
              struct guira_error *error);

/**
 * Inserts a key if it does not exist.
 *
 * Returns 1 if it was inserted, 0 if it exists and nothing was changed, or a negative code as guira_put does. Round
 * trips: as guira_put.
 */
int guira_try_insert(struct guira_client *client,
                     const void *key,
                     size_t key_length,
                     const void *value,
                     size_t value_length,
                     struct guira_error *error);

/**
 * Replaces the value of a key.
 *
 * Returns 1 if it was replaced, 0 if there is no such key and nothing was changed, or a negative code as guira_put
 * does. Round trips: 2, 3 for a key in an extent.
 */
int guira_update(struct guira_client *client,
                 const void *key,
                 size_t key_length,
                 const void *value,
                 size_t value_length,
                 struct guira_error *error);

/**
 * Removes a key.
 *
 * Returns 1 if it was removed, 0 if there is no such key, or a negative code as guira_put does, but not GUIRA_FULL.
 * Round trips: 2, 3 for a key in an extent.
 */
int guira_remove(struct guira_client *client, const void *key, size_t key_length, struct guira_error *error);

/**
 * Replaces the value of a key if it has the expected value. It does not notice a value that changed and changed back.
 *
 * expected: expected_length bytes, at most 64 MiB, of any length that the table can store or not; null only if there
 * are none.
 *
 * Returns GUIRA_SWAP_DONE, GUIRA_SWAP_DIFFERENT, GUIRA_SWAP_MISSING, or a negative code as guira_put does. Round
 * trips: 2, up to 4 for a key in an extent.
 */
int guira_compare_and_swap(struct guira_client *client,
                           const void *key,
                           size_t key_length,
                           const void *expected,
                           size_t expected_length,
                           const void *value,
                           size_t value_length,
                           struct guira_error *error);

/**
 * Replaces the value of a key if no client has changed it since it was read with guira_get_versioned, not even to
 * another value and back. It may also find a difference although nobody changed the key: then read and try again.
 *
 * expected: a token of this table.
 *
 * Returns what guira_compare_and_swap returns, and GUIRA_MISUSE for a token of another table.
 */
int guira_compare_and_swap_token(struct guira_client *client,
                                 const void *key,
                                 size_t key_length,
                                 const struct guira_token *expected,
                                 const void *value,
                                 size_t value_length,
                                 struct guira_error *error);

/**
 * Removes a key if it has the expected value. It does not notice a value that changed and changed back.
 *
 * expected: as for guira_compare_and_swap.
 *
 * Returns GUIRA_SWAP_DONE, GUIRA_SWAP_DIFFERENT, GUIRA_SWAP_MISSING, or a negative code as guira_remove does. Round
 * trips: 2, up to 4 for a key in an extent.
 */
int guira_compare_and_remove(struct guira_client *client,
                             const void *key,
                             size_t key_length,
                             const void *expected,
                             size_t expected_length,
                             struct guira_error *error);

/**
 * Removes a key if no client has changed it since it was read with guira_get_versioned, not even to another value and
 * back. It may also find a difference although nobody changed the key: then read and try again.
 *
 * expected: a token of this table.
 *
 * Returns what guira_compare_and_remove returns, and GUIRA_MISUSE for a token of another table.
 */
int guira_compare_and_remove_token(struct guira_client *client,
                                   const void *key,
                                   size_t key_length,
                                   const struct guira_token *expected,
                                   struct guira_error *error);

/**
 * Adds to the number that is the value of a key: 8 bytes, little-endian, unsigned, modulo 2^64. A missing key counts
 * as 0. Additions of many processes add up exactly. To subtract, add the negative number converted to uint64_t.
 *
 * sum: gets the sum; may be null.
 *
 * Returns 0, or a negative code as guira_put does, and GUIRA_MISUSE if the value does not have 8 bytes. Round trips:
 * 2; 6 or more for a key with which 8 bytes need an extent.
 */
int guira_increment(struct guira_client *client,
                    const void *key,
                    size_t key_length,
                    uint64_t by,
                    uint64_t *sum,
                    struct guira_error *error);

/**
 * Closes a client: gives back its slot. A null pointer is ignored.
 *
 * Returns 0, or a negative code: GUIRA_MISUSE if a call uses the client, which remains open then; otherwise
 * GUIRA_GONE, GUIRA_FENCED or GUIRA_FABRIC, and the client is closed, too: the next one that needs its slot recovers
 * it, and nothing that was stored is lost. In a forked process, it frees the inherited handle and touches nothing else;
 * a client that another thread used when the process forked remains in use there, and cannot be closed. A few round
 * trips.
 */
int guira_client_close(struct guira_client *client, struct guira_error *error);

/**
 * Same as guira_get, by a reader.
 */
int guira_reader_get(struct guira_reader *reader,
                     const void *key,
                     size_t key_length,
                     void *value,
                     size_t capacity,
                     size_t *length,
                     struct guira_error *error);

/**
 * Same as guira_contains, by a reader.
 */
int guira_reader_contains(struct guira_reader *reader, const void *key, size_t key_length, struct guira_error *error);

/**
 * Closes a reader. A null pointer is ignored.
 *
 * Returns 0, or GUIRA_MISUSE if a call uses the reader, which remains open then. No round trip.
 */
int guira_reader_close(struct guira_reader *reader, struct guira_error *error);

/**
 * Looks up many keys at once, so that their memory accesses overlap, and over a network 32 keys share a round trip.
 * This is no snapshot: each lookup is one of its own.
 *
 * items: count lookups with keys and buffers, which get their lengths and results; null only if count is 0.
 *
 * Returns 0 if no lookup failed. Otherwise the code of the first one that did, which error describes; all others have
 * their results nevertheless. GUIRA_MISUSE, before anything was looked up, if the array or one of its arguments is
 * impossible. It allocates no memory for each key. Nothing is changed.
 */
int guira_get_many(struct guira_client *client, struct guira_get_item *items, size_t count, struct guira_error *error);

/**
 * Same as guira_get_many, by a reader.
 */
int guira_reader_get_many(struct guira_reader *reader,
                          struct guira_get_item *items,
                          size_t count,
                          struct guira_error *error);

/**
 * Puts many keys, one after the other. In shared memory the rows of the next keys are prefetched.
 *
 * items: count puts with keys and values, which get their results; null only if count is 0.
 *
 * Returns 0 if no put failed. Otherwise the code of the first one that did, whose index (the first item has 0) and
 * reason are in the message; all others have their results nevertheless. The error's effect is that of the batch:
 * GUIRA_EFFECT_UNKNOWN if that of an item is, otherwise GUIRA_EFFECT_DONE if an item was put, otherwise
 * GUIRA_EFFECT_NONE. GUIRA_MISUSE, before anything was put or written, if the array or one of its arguments is
 * impossible. It allocates memory for the batch. Round trips: those of single puts.
 */
int guira_put_many(struct guira_client *client, struct guira_put_item *items, size_t count, struct guira_error *error);

/**
 * Reads the next key and its value.
 *
 * key, key_length, value, value_length: get the key and the value, which belong to the scan and are valid until its
 * next call; each may be null. They are written if the call returns 1.
 *
 * Returns 1, 0 at the end of the table, or a negative code: GUIRA_CORRUPT, GUIRA_BUSY, GUIRA_GONE, GUIRA_FENCED,
 * GUIRA_FABRIC, GUIRA_MISUSE. Nothing was changed. After an error the scan is at its end. It allocates memory for each
 * key. Round trips: 1 for each row, 1 more for each value in an extent.
 */
int guira_scan_next(struct guira_scan *scan,
                    const void **key,
                    size_t *key_length,
                    const void **value,
                    size_t *value_length,
                    struct guira_error *error);

/**
 * Ends a scan. A null pointer is ignored.
 *
 * Returns 0, or GUIRA_MISUSE if a call uses the scan, which remains open then. No round trip.
 */
int guira_scan_close(struct guira_scan *scan, struct guira_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GUIRA_H */
