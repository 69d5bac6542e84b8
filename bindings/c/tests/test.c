/*
 * Tests of guira.h in C: operations, misuse, forks, threads, another process, and random operations against a model.
 * GUIRA_PROGRAM is the program guira, with which a table is shared; GUIRA_SEED repeats a run of random operations.
 *
 * Proves, of the library that bindings/c builds, installed below the target directory:
 *
 * - guira.h is that of the sources, and compiles in C99 and C++17 without a warning, with gcc and, where there is one,
 *   with clang;
 * - the shared library exports the functions of guira.h, with the versions of libguira.map, and nothing else;
 * - random operations, also in batches, with values in rows and in extents, with tokens and with buffers that are too
 *   short, do what they do to an array;
 * - structures keep the layout of version 0.1, and options of a program of that version are accepted by later ones;
 * - the error of a batch of puts has the effect of all of them;
 * - guira.hpp compiles and works without exceptions, too, and a refused close keeps the handle;
 * - null pointers, no bytes, lengths that no memory has, misaligned places and options of another version, by hand and
 *   in random combinations for every function on keys, return the documented code and the effect "none"; panics become
 *   a code;
 * - a handle refuses a call that finds it in use; clients move between threads, and no addition of threads is lost;
 * - after a fork and after the table was destroyed, calls return codes, and handles can be closed;
 * - a get and a put of a value in a row allocate no memory;
 * - another process and the program `guira` read what a C program wrote, and the other way round; the examples and the
 *   C program of the READMEs run, by pkg-config, by CMake, and with the archive.
 *
 * In the release check, the same under ASan and UBSan, which see the memory of the programs in C and C++ and not each
 * access of Rust.
 *
 * Each run prints the seed of its random operations, which the environment variable `GUIRA_SEED` repeats. Without
 * clang, cmake, g++ or pkg-config, it says what it did not run. After the rest is built, the step takes 9 s,
 * `c-sanitizers` 7 s.
 */
#define _POSIX_C_SOURCE 200809L
#include <guira.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/** Checks that a call returned this, and shows its error otherwise. */
#define EXPECT(expected, call)                                                                                         \
    do {                                                                                                               \
        int returned = (call);                                                                                         \
        if (returned != (expected)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s returned %d (%s)\n", __FILE__, __LINE__, #call, returned, error.message);       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/** The error of the last call of this thread. */
static __thread guira_error error;
static char url[64];

static void destroy_table(void)
{
    guira_destroy(url, NULL);
}

/** Whether the last error has this effect, and a message with this word. */
static int says(const char *word, int effect)
{
    if (strstr(error.message, word) && error.effect == effect)
        return 1;
    fprintf(stderr, "no \"%s\" in: %s (effect %d)\n", word, error.message, error.effect);
    return 0;
}

static guira_client *client_of(const char *table)
{
    guira_store *store;
    guira_client *client;
    EXPECT(0, guira_open(table, NULL, &store, &error));
    EXPECT(0, guira_client_open(store, &client, &error));
    /* Handles may be closed in any order. */
    guira_store_close(store);
    return client;
}

static void test_operations(void)
{
    guira_store *store;
    guira_client *client = client_of(url);
    guira_reader *reader;
    guira_scan *scan;
    guira_token token;
    guira_length_estimate estimate;
    char value[100];
    size_t length = 77, entries = 0;
    uint64_t sum = 0;
    const void *key, *found;
    size_t key_length, found_length;
    static char large[100000], copy[100000];

    EXPECT(0, guira_open(url, NULL, &store, &error));
    EXPECT(0, guira_store_was_created(store));
    EXPECT(0, guira_reader_open(store, &reader, &error));

    EXPECT(0, guira_get(client, "cuckoo", 6, value, sizeof value, &length, &error));
    CHECK(length == 0);
    EXPECT(1, guira_put(client, "cuckoo", 6, "Guira guira", 11, &error));
    EXPECT(0, guira_put(client, "cuckoo", 6, "Guira Guira", 11, &error));
    EXPECT(1, guira_get(client, "cuckoo", 6, value, sizeof value, &length, &error));
    CHECK(length == 11 && memcmp(value, "Guira Guira", 11) == 0);
    EXPECT(1, guira_get(client, "cuckoo", 6, value, 11, NULL, NULL));
    EXPECT(1, guira_reader_get(reader, "cuckoo", 6, value, sizeof value, &length, &error));
    CHECK(length == 11);

    /* A buffer that is too small is not touched, and the length is returned. */
    memset(value, 'x', sizeof value);
    EXPECT(GUIRA_TOO_SMALL, guira_get(client, "cuckoo", 6, value, 10, &length, &error));
    CHECK(length == 11 && value[0] == 'x' && says("11 bytes", GUIRA_EFFECT_NONE) && error.code == GUIRA_TOO_SMALL);
    EXPECT(GUIRA_TOO_SMALL, guira_reader_get(reader, "cuckoo", 6, NULL, 0, &length, &error));

    EXPECT(1, guira_contains(client, "cuckoo", 6, &error));
    EXPECT(0, guira_reader_contains(reader, "condor", 6, &error));
    EXPECT(0, guira_try_insert(client, "cuckoo", 6, "", 0, &error));
    EXPECT(1, guira_try_insert(client, "heron", 5, "Ardea", 5, &error));
    EXPECT(1, guira_update(client, "heron", 5, "Ardea cinerea", 13, &error));
    EXPECT(0, guira_update(client, "condor", 6, "Vultur", 6, &error));
    EXPECT(1, guira_remove(client, "heron", 5, &error));
    EXPECT(0, guira_remove(client, "heron", 5, &error));

    EXPECT(GUIRA_SWAP_DIFFERENT, guira_compare_and_swap(client, "cuckoo", 6, "another", 7, "third", 5, &error));
    EXPECT(GUIRA_SWAP_MISSING, guira_compare_and_swap(client, "condor", 6, "another", 7, "third", 5, &error));
    EXPECT(GUIRA_SWAP_DONE, guira_compare_and_swap(client, "cuckoo", 6, "Guira Guira", 11, "third", 5, &error));
    EXPECT(1, guira_get_versioned(client, "cuckoo", 6, value, sizeof value, &length, &token, &error));
    CHECK(length == 5);
    EXPECT(GUIRA_SWAP_DONE, guira_compare_and_swap_token(client, "cuckoo", 6, &token, "fourth", 6, &error));
    EXPECT(GUIRA_SWAP_DIFFERENT, guira_compare_and_swap_token(client, "cuckoo", 6, &token, "fifth", 5, &error));
    EXPECT(GUIRA_SWAP_DIFFERENT, guira_compare_and_remove_token(client, "cuckoo", 6, &token, &error));
    EXPECT(GUIRA_SWAP_DIFFERENT, guira_compare_and_remove(client, "cuckoo", 6, "another", 7, &error));
    EXPECT(GUIRA_SWAP_MISSING, guira_compare_and_remove(client, "condor", 6, "another", 7, &error));
    EXPECT(1, guira_put(client, "heron", 5, "Ardea", 5, &error));
    EXPECT(GUIRA_SWAP_DONE, guira_compare_and_remove(client, "heron", 5, "Ardea", 5, &error));
    EXPECT(1, guira_put(client, "heron", 5, "Ardea", 5, &error));
    EXPECT(1, guira_get_versioned(client, "heron", 5, value, sizeof value, &length, &token, &error));
    EXPECT(GUIRA_SWAP_DONE, guira_compare_and_remove_token(client, "heron", 5, &token, &error));
    EXPECT(GUIRA_SWAP_MISSING, guira_compare_and_remove_token(client, "heron", 5, &token, &error));
    token.words[0] ^= 1;
    EXPECT(GUIRA_MISUSE, guira_compare_and_remove_token(client, "cuckoo", 6, &token, &error));
    EXPECT(GUIRA_MISUSE, guira_compare_and_swap_token(client, "cuckoo", 6, &token, "fifth", 5, &error));
    token.words[1] = 7;
    EXPECT(GUIRA_MISUSE, guira_compare_and_swap_token(client, "cuckoo", 6, &token, "fifth", 5, &error));

    EXPECT(0, guira_increment(client, "visits", 6, 40, &sum, &error));
    EXPECT(0, guira_increment(client, "visits", 6, 2, &sum, &error));
    CHECK(sum == 42);
    EXPECT(0, guira_increment(client, "visits", 6, (uint64_t)-43, &sum, &error));
    CHECK(sum == UINT64_MAX);
    EXPECT(GUIRA_MISUSE, guira_increment(client, "cuckoo", 6, 1, &sum, &error));
    CHECK(says("8 bytes", GUIRA_EFFECT_NONE));

    memset(large, 'y', sizeof large);
    EXPECT(1, guira_put(client, "large", 5, large, sizeof large, &error));
    EXPECT(GUIRA_TOO_SMALL, guira_get(client, "large", 5, value, sizeof value, &length, &error));
    CHECK(length == sizeof large);
    EXPECT(1, guira_get(client, "large", 5, copy, sizeof copy, &length, &error));
    CHECK(length == sizeof large && memcmp(large, copy, sizeof large) == 0);
    EXPECT(1, guira_remove(client, "large", 5, &error));

    EXPECT(0, guira_len_estimate(store, &estimate, &error));
    CHECK(estimate.entries == 2 && estimate.error == 0 && estimate.capacity >= 1000);
    EXPECT(0, guira_scan_open(store, &scan, &error));
    while (guira_scan_next(scan, &key, &key_length, &found, &found_length, &error) == 1) {
        CHECK(key_length == 6);
        CHECK(memcmp(key, "cuckoo", 6) != 0 || (found_length == 6 && memcmp(found, "fourth", 6) == 0));
        entries++;
    }
    CHECK(entries == 2);
    EXPECT(0, guira_scan_next(scan, NULL, NULL, NULL, NULL, &error));
    EXPECT(0, guira_scan_close(scan, &error));
    EXPECT(1, guira_remove(client, "cuckoo", 6, &error));
    EXPECT(1, guira_remove(client, "visits", 6, &error));

    EXPECT(0, guira_reader_close(reader, &error));
    guira_store_close(store);
    EXPECT(0, guira_client_close(client, &error));
}

static void test_batches(void)
{
    guira_client *client = client_of(url);
    guira_reader *reader;
    guira_store *store;
    guira_client *fixed;
    guira_create_options create = GUIRA_CREATE_OPTIONS_INIT;
    char other[sizeof url + 8];
    guira_put_item puts[100], some[2];
    guira_get_item gets[101];
    char keys[100][8], values[101][8];
    int i;

    snprintf(other, sizeof other, "%s-fixed", url);
    create.capacity = 1000;
    create.format = "fixed:3:8";
    for (i = 0; i < 100; i++) {
        snprintf(keys[i], sizeof keys[i], "key%03d", i);
        puts[i] = (guira_put_item){keys[i], 6, keys[i] + 3, 3, -1, -1};
        gets[i] = (guira_get_item){keys[i], 6, values[i], sizeof values[i], 0, -1};
    }
    gets[100] = (guira_get_item){"condor", 6, values[100], sizeof values[100], 9, -1};
    EXPECT(0, guira_put_many(client, puts, 100, &error));
    EXPECT(0, guira_get_many(client, gets, 101, &error));
    for (i = 0; i < 100; i++) {
        CHECK(puts[i].result == 1 && puts[i].effect == GUIRA_EFFECT_DONE);
        CHECK(gets[i].result == 1 && gets[i].length == 3);
        CHECK(memcmp(values[i], keys[i] + 3, 3) == 0);
    }
    CHECK(gets[100].result == 0 && gets[100].length == 0);

    /* One failure is reported, and the others have their results. */
    gets[7].capacity = 2;
    EXPECT(0, guira_open(url, NULL, &store, &error));
    EXPECT(0, guira_reader_open(store, &reader, &error));
    EXPECT(GUIRA_TOO_SMALL, guira_reader_get_many(reader, gets, 101, &error));
    CHECK(gets[7].result == GUIRA_TOO_SMALL && gets[7].length == 3 && gets[8].result == 1);
    EXPECT(0, guira_reader_close(reader, &error));
    guira_store_close(store);

    /* The error of a batch has the effect of all its puts, and names the first that failed. */
    EXPECT(0, guira_create(other, &create, &store, &error));
    EXPECT(0, guira_client_open(store, &fixed, &error));
    guira_store_close(store);
    some[0] = (guira_put_item){"long", 4, "8 bytes!", 8, -1, -1};
    some[1] = (guira_put_item){"abc", 3, "8 bytes!", 8, -1, -1};
    EXPECT(GUIRA_MISUSE, guira_put_many(fixed, some, 1, &error));
    CHECK(says("item 0 was the first to fail", GUIRA_EFFECT_NONE) && says("0 of 1 items", GUIRA_EFFECT_NONE));
    EXPECT(GUIRA_MISUSE, guira_put_many(fixed, some, 2, &error));
    CHECK(says("item 0 was the first to fail", GUIRA_EFFECT_DONE) && says("1 of 2 items", GUIRA_EFFECT_DONE));
    CHECK(!strstr(error.message, "nothing was changed"));
    CHECK(some[0].result == GUIRA_MISUSE && some[0].effect == GUIRA_EFFECT_NONE);
    CHECK(some[1].result == 1 && some[1].effect == GUIRA_EFFECT_DONE);
    EXPECT(1, guira_contains(fixed, "abc", 3, &error));
    EXPECT(0, guira_client_close(fixed, &error));
    EXPECT(0, guira_destroy(other, &error));

    /* An impossible argument fails the whole batch. */
    puts[99].key = NULL;
    puts[0].result = -99;
    EXPECT(GUIRA_MISUSE, guira_put_many(client, puts, 100, &error));
    CHECK(puts[0].result == -99);
    gets[100].value = NULL;
    EXPECT(GUIRA_MISUSE, guira_get_many(client, gets, 101, &error));
    EXPECT(0, guira_get_many(client, NULL, 0, &error));
    EXPECT(0, guira_put_many(client, NULL, 0, &error));
    EXPECT(GUIRA_MISUSE, guira_get_many(client, NULL, 1, &error));
    EXPECT(GUIRA_MISUSE, guira_put_many(client, (guira_put_item *)((char *)puts + 1), 1, &error));
    EXPECT(GUIRA_MISUSE, guira_get_many(client, (guira_get_item *)((char *)gets + 1), 1, &error));
    EXPECT(GUIRA_MISUSE, guira_get_many(client, gets, SIZE_MAX, &error));
    EXPECT(GUIRA_MISUSE, guira_put_many(client, puts, SIZE_MAX / sizeof *puts, &error));
    for (i = 0; i < 100; i++)
        EXPECT(1, guira_remove(client, keys[i], 6, &error));
    EXPECT(0, guira_client_close(client, &error));
}

static void test_misuse(void)
{
    guira_client *client = client_of(url), *none = client;
    guira_store *store = (guira_store *)url;
    char memory[32];
    /* Misaligned places and data. */
    size_t *length = (size_t *)(void *)(memory + 1);
    guira_error *misaligned = (guira_error *)((char *)malloc(sizeof error + 1) + 1);
    guira_open_options open = GUIRA_OPEN_OPTIONS_INIT;
    guira_create_options create = GUIRA_CREATE_OPTIONS_INIT;
    char later[sizeof create + 16];
    size_t later_size = sizeof later - 1;

    /* Null pointers, everywhere that the header does not allow them. */
    EXPECT(GUIRA_MISUSE, guira_get(NULL, "k", 1, NULL, 0, NULL, &error));
    CHECK(says("client", GUIRA_EFFECT_NONE));
    EXPECT(GUIRA_MISUSE, guira_get(NULL, "k", 1, NULL, 0, NULL, NULL));
    EXPECT(GUIRA_MISUSE, guira_get(client, NULL, 1, NULL, 0, NULL, &error));
    CHECK(says("key", GUIRA_EFFECT_NONE));
    EXPECT(GUIRA_MISUSE, guira_compare_and_swap(client, "k", 1, NULL, 1, "v", 1, &error));
    CHECK(says("expected is a null pointer", GUIRA_EFFECT_NONE));
    EXPECT(GUIRA_MISUSE, guira_get(client, "k", 1, NULL, 1, NULL, &error));
    EXPECT(GUIRA_MISUSE, guira_put(client, "k", 1, NULL, 1, &error));
    EXPECT(GUIRA_MISUSE, guira_put(NULL, "k", 1, "v", 1, &error));
    EXPECT(GUIRA_MISUSE, guira_try_insert(client, NULL, 1, "v", 1, &error));
    EXPECT(GUIRA_MISUSE, guira_update(client, "k", 1, NULL, 1, &error));
    EXPECT(GUIRA_MISUSE, guira_remove(client, NULL, 1, &error));
    EXPECT(GUIRA_MISUSE, guira_contains(NULL, "k", 1, &error));
    EXPECT(GUIRA_MISUSE, guira_increment(client, NULL, 1, 1, NULL, &error));
    EXPECT(GUIRA_MISUSE, guira_compare_and_swap(client, "k", 1, NULL, 1, "v", 1, &error));
    EXPECT(GUIRA_MISUSE, guira_compare_and_swap_token(client, "k", 1, NULL, "v", 1, &error));
    EXPECT(GUIRA_MISUSE, guira_compare_and_remove(client, "k", 1, NULL, 1, &error));
    EXPECT(GUIRA_MISUSE, guira_compare_and_remove_token(client, "k", 1, NULL, &error));
    EXPECT(GUIRA_MISUSE, guira_get_versioned(NULL, "k", 1, NULL, 0, NULL, NULL, &error));
    EXPECT(GUIRA_MISUSE, guira_reader_get(NULL, "k", 1, NULL, 0, NULL, &error));
    EXPECT(GUIRA_MISUSE, guira_reader_contains(NULL, "k", 1, &error));
    EXPECT(GUIRA_MISUSE, guira_reader_get_many(NULL, NULL, 0, &error));
    EXPECT(GUIRA_MISUSE, guira_scan_next(NULL, NULL, NULL, NULL, NULL, &error));
    EXPECT(GUIRA_MISUSE, guira_client_open(NULL, &none, &error));
    CHECK(none == NULL);
    EXPECT(GUIRA_MISUSE, guira_reader_open(NULL, NULL, &error));
    EXPECT(GUIRA_MISUSE, guira_scan_open(NULL, NULL, &error));
    EXPECT(GUIRA_MISUSE, guira_len_estimate(NULL, NULL, &error));
    EXPECT(GUIRA_MISUSE, guira_store_was_created(NULL));
    EXPECT(GUIRA_MISUSE, guira_open(NULL, NULL, &store, &error));
    CHECK(store == NULL);
    EXPECT(GUIRA_MISUSE, guira_open(url, NULL, NULL, &error));
    EXPECT(GUIRA_MISUSE, guira_create(NULL, NULL, &store, &error));
    EXPECT(GUIRA_MISUSE, guira_open_or_create(NULL, NULL, &store, &error));
    EXPECT(GUIRA_MISUSE, guira_destroy(NULL, &error));
    EXPECT(0, guira_client_close(NULL, &error));
    EXPECT(0, guira_reader_close(NULL, NULL));
    EXPECT(0, guira_scan_close(NULL, NULL));
    guira_store_close(NULL);

    /* No bytes, with and without a pointer. */
    EXPECT(1, guira_put(client, NULL, 0, NULL, 0, &error));
    EXPECT(1, guira_get(client, "", 0, NULL, 0, NULL, &error));
    EXPECT(1, guira_remove(client, NULL, 0, &error));

    /* Lengths that no memory has. */
    EXPECT(GUIRA_MISUSE, guira_get(client, "k", SIZE_MAX, NULL, 0, NULL, &error));
    EXPECT(GUIRA_MISUSE, guira_get(client, "k", 65537, NULL, 0, NULL, &error));
    EXPECT(GUIRA_MISUSE, guira_put(client, "k", 1, "v", SIZE_MAX, &error));
    EXPECT(GUIRA_MISUSE, guira_put(client, "k", 1, "v", SIZE_MAX / 2 + 1, &error));
    EXPECT(GUIRA_MISUSE, guira_compare_and_swap(client, "k", 1, "v", SIZE_MAX, "v", 1, &error));
    CHECK(says("bytes", GUIRA_EFFECT_NONE));
    EXPECT(1, guira_put(client, "k", 1, "v", 1, &error));
    EXPECT(1, guira_get(client, "k", 1, memory, SIZE_MAX, NULL, &error));

    /* Misaligned places, data and options. */
    EXPECT(1, guira_get(client, &"xk"[1], 1, memory + 17, 3, length, misaligned));
    CHECK(memory[17] == 'v' && memory[1] == 1);
    EXPECT(GUIRA_MISUSE, guira_get(NULL, "k", 1, NULL, 0, NULL, misaligned));
    memcpy(&error, misaligned, sizeof error);
    CHECK(says("client", GUIRA_EFFECT_NONE));
    free((char *)misaligned - 1);
    EXPECT(GUIRA_MISUSE, guira_get((guira_client *)((char *)client + 1), "k", 1, NULL, 0, NULL, &error));
    EXPECT(1, guira_remove(client, "k", 1, &error));
    EXPECT(0, guira_client_close(client, &error));

    /* Options: no size, one of a later version without and with its options, unknown flags, nonsense. */
    open.struct_size = 0;
    EXPECT(GUIRA_MISUSE, guira_open(url, &open, &store, &error));
    CHECK(says("struct_size", GUIRA_EFFECT_NONE) && store == NULL);
    open.struct_size = SIZE_MAX;
    EXPECT(GUIRA_MISUSE, guira_open(url, &open, &store, &error));
    memset(later, 0, sizeof later);
    memcpy(later + 1, &later_size, sizeof later_size);
    EXPECT(0, guira_open_or_create(url, (guira_create_options *)(void *)(later + 1), &store, &error));
    guira_store_close(store);
    later[sizeof later - 1] = 1;
    EXPECT(GUIRA_MISUSE, guira_open_or_create(url, (guira_create_options *)(void *)(later + 1), &store, &error));
    CHECK(says("version", GUIRA_EFFECT_NONE));
    create.flags = 8;
    EXPECT(GUIRA_MISUSE, guira_open_or_create(url, &create, &store, &error));
    CHECK(says("flags", GUIRA_EFFECT_NONE));
    create = (guira_create_options)GUIRA_CREATE_OPTIONS_INIT;
    create.max_clients = 65536;
    EXPECT(GUIRA_MISUSE, guira_open_or_create(url, &create, &store, &error));
    create.max_clients = 0;
    create.format = "bytes:9999";
    EXPECT(GUIRA_MISUSE, guira_open_or_create(url, &create, &store, &error));
    create.format = "\xff";
    EXPECT(GUIRA_MISUSE, guira_open_or_create(url, &create, &store, &error));
    create.format = NULL;
    create.preset = "nonsense";
    EXPECT(GUIRA_MISUSE, guira_open_or_create(url, &create, &store, &error));
    EXPECT(GUIRA_MISUSE, guira_open("redis://birds", NULL, &store, &error));
    EXPECT(GUIRA_MISUSE, guira_open("", NULL, &store, &error));
    EXPECT(GUIRA_NOT_FOUND, guira_open("shm://guira-no-such-table", NULL, &store, &error));
    CHECK(says("guira-no-such-table", GUIRA_EFFECT_NONE));
    EXPECT(GUIRA_ALREADY_EXISTS, guira_create(url, NULL, &store, &error));

    CHECK(strcmp(guira_code_name(GUIRA_BUSY), "busy") == 0 && strcmp(guira_code_name(3), "ok") == 0);
    CHECK(strcmp(guira_code_name(-1000), "unknown") == 0 && strchr(guira_version(), '.') != NULL);
}

/** All options that can be given, and a table that is only read. */
static void test_options(void)
{
    char other[sizeof url + 8];
    uint64_t seed = 0;
    uint32_t owner = (uint32_t)geteuid(), stranger = owner + 1;
    guira_create_options create = GUIRA_CREATE_OPTIONS_INIT;
    guira_open_options open = GUIRA_OPEN_OPTIONS_INIT;
    guira_store *store;
    guira_client *client;
    guira_reader *reader;
    char value[8];

    snprintf(other, sizeof other, "%s-other", url);
    create.capacity = 2000;
    create.max_capacity = 4000;
    create.format = "fixed:4:8";
    create.preset = "hardened";
    create.seed = &seed;
    create.owner = &owner;
    create.max_clients = 1;
    create.mode = 0640;
    EXPECT(0, guira_create(other, &create, &store, &error));
    EXPECT(1, guira_store_was_created(store));
    EXPECT(0, guira_client_open(store, &client, &error));
    EXPECT(1, guira_put(client, "four", 4, "8 bytes!", 8, &error));
    EXPECT(GUIRA_MISUSE, guira_put(client, "fives", 5, "8 bytes!", 8, &error));
    EXPECT(GUIRA_MISUSE, guira_put(client, "four", 4, "7 bytes", 7, &error));
    guira_store_close(store);

    open.flags = GUIRA_READ_ONLY;
    open.owner = &owner;
    open.deadline_ms = GUIRA_NO_WAIT;
    open.connect_timeout_ms = 1000;
    open.reconnect_timeout_ms = GUIRA_NO_WAIT;
    EXPECT(0, guira_open(other, &open, &store, &error));
    EXPECT(0, guira_reader_open(store, &reader, &error));
    EXPECT(1, guira_reader_get(reader, "four", 4, value, sizeof value, NULL, &error));
    CHECK(memcmp(value, "8 bytes!", 8) == 0);
    EXPECT(0, guira_reader_close(reader, &error));
    EXPECT(0, guira_client_close(client, &error));
    EXPECT(GUIRA_MISUSE, guira_client_open(store, &client, &error));
    guira_store_close(store);
    open.owner = &stranger;
    EXPECT(GUIRA_MISUSE, guira_open(other, &open, &store, &error));

    /* Another format does not match, unless that is accepted. */
    create.format = "fixed:4:4";
    EXPECT(GUIRA_MISUSE, guira_open_or_create(other, &create, &store, &error));
    create.flags = GUIRA_ACCEPT_MISMATCH;
    EXPECT(0, guira_open_or_create(other, &create, &store, &error));
    guira_store_close(store);
    EXPECT(0, guira_destroy(other, &error));
    EXPECT(GUIRA_NOT_FOUND, guira_destroy(other, &error));
}

static void test_destroyed(void)
{
    char other[sizeof url + 8];
    guira_store *store;
    guira_client *client;
    guira_reader *reader;
    guira_scan *scan;

    snprintf(other, sizeof other, "%s-gone", url);
    EXPECT(0, guira_create(other, NULL, &store, &error));
    EXPECT(0, guira_client_open(store, &client, &error));
    EXPECT(0, guira_reader_open(store, &reader, &error));
    EXPECT(0, guira_scan_open(store, &scan, &error));
    EXPECT(1, guira_put(client, "k", 1, "v", 1, &error));
    EXPECT(0, guira_destroy(other, &error));
    EXPECT(GUIRA_GONE, guira_put(client, "k", 1, "v", 1, &error));
    CHECK(error.effect == GUIRA_EFFECT_NONE);
    EXPECT(GUIRA_GONE, guira_reader_get(reader, "k", 1, NULL, 0, NULL, &error));
    EXPECT(GUIRA_GONE, guira_scan_next(scan, NULL, NULL, NULL, NULL, &error));
    EXPECT(0, guira_scan_close(scan, &error));
    EXPECT(0, guira_reader_close(reader, &error));
    guira_client_close(client, NULL);
    guira_store_close(store);
}

/** A forked child cannot use inherited handles, and may close them. */
static void test_fork(void)
{
    guira_store *store;
    guira_client *client = client_of(url);
    guira_reader *reader;
    guira_length_estimate estimate;
    int status;
    pid_t child;

    EXPECT(0, guira_open(url, NULL, &store, &error));
    EXPECT(0, guira_reader_open(store, &reader, &error));
    EXPECT(1, guira_put(client, "k", 1, "v", 1, &error));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        EXPECT(GUIRA_MISUSE, guira_get(client, "k", 1, NULL, 0, NULL, &error));
        CHECK(says("fork", GUIRA_EFFECT_NONE));
        EXPECT(GUIRA_MISUSE, guira_put(client, "k", 1, "w", 1, &error));
        EXPECT(GUIRA_MISUSE, guira_reader_get(reader, "k", 1, NULL, 0, NULL, &error));
        EXPECT(GUIRA_MISUSE, guira_len_estimate(store, &estimate, &error));
        EXPECT(0, guira_client_close(client, &error));
        EXPECT(0, guira_reader_close(reader, &error));
        guira_store_close(store);
        /* Opened again, the table works. */
        client = client_of(url);
        EXPECT(0, guira_put(client, "k", 1, "child", 5, &error));
        EXPECT(0, guira_client_close(client, &error));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(GUIRA_TOO_SMALL, guira_get(client, "k", 1, NULL, 0, NULL, &error));
    CHECK(says("5 bytes", GUIRA_EFFECT_NONE));
    EXPECT(1, guira_remove(client, "k", 1, &error));
    EXPECT(0, guira_client_close(client, &error));
    EXPECT(0, guira_reader_close(reader, &error));
    guira_store_close(store);
}

#define ROUNDS 20000

/** Adds with a client of its own, and then with one that the main thread has opened for it. */
static void *add(void *given)
{
    guira_client *client = client_of(url);
    size_t i;

    for (i = 0; i < ROUNDS; i++)
        CHECK(guira_increment(client, "shared", 6, 1, NULL, NULL) == 0);
    CHECK(guira_client_close(client, NULL) == 0);
    for (i = 0; i < ROUNDS; i++)
        CHECK(guira_increment(given, "shared", 6, 1, NULL, NULL) == 0);
    return NULL;
}

static void test_threads(void)
{
    guira_client *clients[3];
    pthread_t threads[3];
    uint64_t sum;
    size_t i;

    for (i = 0; i < 3; i++) {
        clients[i] = client_of(url);
        CHECK(pthread_create(&threads[i], NULL, add, clients[i]) == 0);
    }
    for (i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    EXPECT(0, guira_increment(clients[0], "shared", 6, 0, &sum, &error));
    CHECK(sum == 6 * ROUNDS);
    EXPECT(1, guira_remove(clients[0], "shared", 6, &error));
    for (i = 0; i < 3; i++)
        EXPECT(0, guira_client_close(clients[i], &error));
}

/** Another program, and another process of this one, use the table. */
static void test_processes(const char *self)
{
    guira_client *client = client_of(url);
    const char *program = getenv("GUIRA_PROGRAM");
    char command[4096], line[64] = "";
    FILE *output;
    uint64_t sum;

    EXPECT(1, guira_put(client, "from-c", 6, "Guira guira", 11, &error));
    snprintf(command, sizeof command, "'%s' add '%s'", self, url);
    CHECK(system(command) == 0);
    EXPECT(0, guira_increment(client, "added", 5, 1, &sum, &error));
    CHECK(sum == 8);
    if (program) {
        snprintf(command, sizeof command, "'%s' get '%s' from-c", program, url);
        CHECK((output = popen(command, "r")) != NULL);
        CHECK(fgets(line, sizeof line, output) && strncmp(line, "Guira guira", 11) == 0);
        CHECK(pclose(output) == 0);
        snprintf(command, sizeof command, "'%s' put '%s' from-rust Crotophaga", program, url);
        CHECK(system(command) == 0);
        EXPECT(1, guira_get(client, "from-rust", 9, line, sizeof line, NULL, &error));
        CHECK(memcmp(line, "Crotophaga", 10) == 0);
        EXPECT(1, guira_remove(client, "from-rust", 9, &error));
    } else
        printf("GUIRA_PROGRAM is not set: not tested with the program guira\n");
    EXPECT(1, guira_remove(client, "from-c", 6, &error));
    EXPECT(1, guira_remove(client, "added", 5, &error));
    EXPECT(0, guira_client_close(client, &error));
}

static uint64_t random_state;

static unsigned draw(unsigned below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (unsigned)((random_state * UINT64_C(0x2545f4914f6cdd1d) >> 33) % below);
}

#define KEYS 40
#define LONGEST 300

/** Random operations on few keys, with values in rows and in extents, against an array of values. */
static void test_model(void)
{
    static struct {
        int is_there;
        size_t length;
        char value[LONGEST];
    } model[KEYS];
    static char copies[KEYS][LONGEST], names[KEYS][8];
    guira_client *client = client_of(url);
    guira_token tokens[KEYS];
    int has_token[KEYS] = {0};
    guira_get_item gets[KEYS];
    size_t length, key_length, step, entries = 0, expected = 0;
    const void *key, *found;
    guira_store *store;
    guira_scan *scan;
    unsigned i, k;

    for (i = 0; i < KEYS; i++)
        snprintf(names[i], sizeof names[i], "m%02u", i);
    for (step = 0; step < 30000; step++) {
        char value[LONGEST];
        size_t value_length = draw(8) ? draw(48) : draw(LONGEST);
        int changed = 0, result, there;
        i = draw(KEYS);
        there = model[i].is_there;
        memset(value, 'a' + (int)draw(26), value_length);
        switch (draw(9)) {
        case 0:
            EXPECT(!there, guira_put(client, names[i], 3, value, value_length, &error));
            changed = 1;
            break;
        case 1:
            EXPECT(!there, guira_try_insert(client, names[i], 3, value, value_length, &error));
            changed = !there;
            break;
        case 2:
            EXPECT(there, guira_update(client, names[i], 3, value, value_length, &error));
            changed = there;
            break;
        case 3:
            EXPECT(there, guira_remove(client, names[i], 3, &error));
            model[i].is_there = has_token[i] = 0;
            break;
        case 4: /* With the value of the model, or with another one. */
            k = draw(2) ? i : draw(KEYS);
            changed = there && model[i].length == model[k].length &&
                      memcmp(model[i].value, model[k].value, model[k].length) == 0;
            EXPECT(!there    ? GUIRA_SWAP_MISSING
                   : changed ? GUIRA_SWAP_DONE
                             : GUIRA_SWAP_DIFFERENT,
                   guira_compare_and_swap(client, names[i], 3, model[k].value, model[k].length, value, value_length,
                                          &error));
            break;
        case 5: /* A token of an older state never succeeds. */
            if (!has_token[i])
                break;
            result = guira_compare_and_swap_token(client, names[i], 3, &tokens[i], value, value_length, &error);
            CHECK(result == GUIRA_SWAP_DIFFERENT || (result == GUIRA_SWAP_DONE && has_token[i] == 1));
            changed = result == GUIRA_SWAP_DONE;
            break;
        case 6:
            EXPECT(there,
                   guira_get_versioned(client, names[i], 3, copies[i], LONGEST, &length, &tokens[i], &error));
            CHECK(!there || (length == model[i].length && memcmp(copies[i], model[i].value, length) == 0));
            has_token[i] = there;
            break;
        case 7:
            EXPECT(there, guira_contains(client, names[i], 3, &error));
            for (k = 0; k < KEYS; k++)
                gets[k] = (guira_get_item){names[k], 3, copies[k], LONGEST, 0, -1};
            EXPECT(0, guira_get_many(client, gets, KEYS, &error));
            for (k = 0; k < KEYS; k++) {
                CHECK(gets[k].result == model[k].is_there);
                CHECK(!gets[k].result || (gets[k].length == model[k].length &&
                                          memcmp(copies[k], model[k].value, gets[k].length) == 0));
            }
            break;
        default: {
            size_t capacity = draw(LONGEST);
            int is_small = there && capacity < model[i].length;
            memset(copies[i], 0, LONGEST);
            EXPECT(is_small ? GUIRA_TOO_SMALL : there,
                   guira_get(client, names[i], 3, copies[i], capacity, &length, &error));
            CHECK(length == (there ? model[i].length : 0));
            CHECK(is_small ? copies[i][0] == 0 : memcmp(copies[i], model[i].value, length) == 0);
        }
        }
        if (changed) {
            model[i].is_there = 1;
            model[i].length = value_length;
            memcpy(model[i].value, value, value_length);
            has_token[i] = has_token[i] ? 2 : 0;
        }
    }
    for (i = 0; i < KEYS; i++)
        expected += (size_t)model[i].is_there;
    EXPECT(0, guira_open(url, NULL, &store, &error));
    EXPECT(0, guira_scan_open(store, &scan, &error));
    while (guira_scan_next(scan, &key, &key_length, &found, &length, &error) == 1) {
        CHECK(key_length == 3);
        i = (unsigned)(((const char *)key)[1] - '0') * 10 + (unsigned)(((const char *)key)[2] - '0');
        CHECK(i < KEYS && model[i].is_there && model[i].length == length);
        CHECK(memcmp(model[i].value, found, length) == 0);
        entries++;
    }
    CHECK(entries == expected);
    EXPECT(0, guira_scan_close(scan, &error));
    guira_store_close(store);
    for (i = 0; i < KEYS; i++)
        EXPECT(model[i].is_there, guira_remove(client, names[i], 3, &error));
    EXPECT(0, guira_client_close(client, &error));
}

/** A pointer to some bytes and a length: null or not, aligned or not, none to more than any memory has. */
static const void *draw_bytes(size_t *length, int *is_bad)
{
    static const char bytes[70000];
    static const size_t lengths[] = {0, 1, 7, 8, 64, 5000, 65536, 65537, 67108865, SIZE_MAX / 2 + 1, SIZE_MAX};
    const char *start = draw(4) ? bytes + draw(8) : NULL;

    *length = lengths[draw(draw(2) ? 5 : sizeof lengths / sizeof *lengths)];
    *is_bad |= *length > 67108864 || (*length > 0 && !start);
    return start;
}

/** A place for a result, or null. */
static void *draw_place(void)
{
    static char places[64];
    return draw(4) ? places + draw(16) : NULL;
}

/** Random arguments for every function that works on keys: what is impossible is refused, and what is not works. */
static void test_arguments(void)
{
    guira_client *real = client_of(url), *client;
    guira_reader *real_reader, *reader;
    guira_store *store;
    size_t refused = 0, step;

    EXPECT(0, guira_open(url, NULL, &store, &error));
    EXPECT(0, guira_reader_open(store, &real_reader, &error));
    for (step = 0; step < 30000; step++) {
        static char buffer[70000];
        size_t key_length, value_length, old_length, capacity = draw(2) ? draw(100) : sizeof buffer;
        int is_bad = 0, is_bad_value = 0, is_bad_old = 0, is_bad_handle = !draw(8), result;
        const void *key = draw_bytes(&key_length, &is_bad), *value = draw_bytes(&value_length, &is_bad_value);
        const void *old = draw_bytes(&old_length, &is_bad_old);
        void *into = draw(8) ? buffer : NULL;
        int is_bad_buffer = !into && capacity > 0;
        guira_error *to = draw(4) ? &error : NULL;
        guira_get_item item = {key, key_length, into, capacity, 0, 0};
        guira_put_item put = {key, key_length, value, value_length, 0, 0};

        is_bad |= key_length > 65536 || is_bad_handle;
        client = !is_bad_handle ? real : draw(2) ? NULL : (guira_client *)((char *)real + 1);
        reader = !is_bad_handle ? real_reader : draw(2) ? NULL : (guira_reader *)((char *)real_reader + 1);
        error.code = 0;
        switch (draw(15)) {
        case 0:
            result = guira_get(client, key, key_length, into, capacity, draw_place(), to);
            is_bad |= is_bad_buffer;
            break;
        case 1:
            result = guira_reader_get(reader, key, key_length, into, capacity, draw_place(), to);
            is_bad |= is_bad_buffer;
            break;
        case 2:
            result = guira_get_versioned(client, key, key_length, into, capacity, draw_place(), draw_place(), to);
            is_bad |= is_bad_buffer;
            break;
        case 3:
            result = guira_contains(client, key, key_length, to);
            break;
        case 4:
            result = guira_reader_contains(reader, key, key_length, to);
            break;
        case 5:
            result = guira_put(client, key, key_length, value, value_length, to);
            is_bad |= is_bad_value;
            break;
        case 6:
            result = guira_try_insert(client, key, key_length, value, value_length, to);
            is_bad |= is_bad_value;
            break;
        case 7:
            result = guira_update(client, key, key_length, value, value_length, to);
            is_bad |= is_bad_value;
            break;
        case 8:
            result = guira_remove(client, key, key_length, to);
            break;
        case 9:
            result = guira_compare_and_swap(client, key, key_length, old, old_length, value, value_length, to);
            is_bad |= is_bad_value || is_bad_old;
            break;
        case 10:
            result = guira_compare_and_swap_token(client, key, key_length, draw_place(), value, value_length, to);
            is_bad |= is_bad_value;
            break;
        case 11:
            result = guira_increment(client, key, key_length, draw(9), draw_place(), to);
            break;
        case 12:
            result = guira_get_many(client, &item, 1, to);
            is_bad |= is_bad_buffer;
            break;
        case 13:
            result = guira_reader_get_many(reader, &item, 1, to);
            is_bad |= is_bad_buffer;
            break;
        default:
            result = guira_put_many(client, &put, 1, to);
            is_bad |= is_bad_value;
        }
        /* Tokens and values that are no numbers can be refused, too. */
        CHECK(!is_bad || result == GUIRA_MISUSE);
        CHECK(result >= 0 || result == GUIRA_MISUSE || result == GUIRA_TOO_SMALL);
        CHECK(result >= 0 || !to || (error.code == result && error.effect == GUIRA_EFFECT_NONE && error.message[0]));
        CHECK(result < 0 || error.code == 0);
        refused += result == GUIRA_MISUSE;
    }
    CHECK(refused > 0 && refused < step);
    EXPECT(0, guira_reader_close(real_reader, &error));
    guira_store_close(store);
    EXPECT(0, guira_client_close(real, &error));
}

int main(int count, char **arguments)
{
    const char *seed = getenv("GUIRA_SEED");
    guira_store *store;

    if (count == 3 && strcmp(arguments[1], "add") == 0) {
        guira_client *client = client_of(arguments[2]);
        EXPECT(0, guira_increment(client, "added", 5, 7, NULL, &error));
        EXPECT(0, guira_client_close(client, &error));
        return 0;
    }
    random_state = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
    random_state |= 1;
    printf("GUIRA_SEED=%llu\n", (unsigned long long)random_state);
    fflush(stdout);
    snprintf(url, sizeof url, "shm://guira-c-%ld-%llx", (long)getpid(), (unsigned long long)random_state & 0xffffff);
    atexit(destroy_table);
    EXPECT(0, guira_create(url, NULL, &store, &error));
    EXPECT(1, guira_store_was_created(store));
    guira_store_close(store);

    test_operations();
    test_batches();
    test_misuse();
    test_options();
    test_destroyed();
    test_fork();
    test_threads();
    test_processes(arguments[0]);
    test_model();
    test_arguments();
    printf("all tests of guira.h passed\n");
    return 0;
}
