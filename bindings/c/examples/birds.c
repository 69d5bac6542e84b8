/*
 * Puts a key into a shared table, looks it up, and lists all keys:
 *
 *     cc birds.c $(pkg-config --cflags --libs guira) -o birds && ./birds shm://birds
 *
 * If the library is not where the loader looks, add -Wl,-rpath,PREFIX/lib.
 */
#include <guira.h>
#include <stdio.h>
#include <stdlib.h>

/** Ends the program with the message of an error. */
static int check(int result, const guira_error *error)
{
    if (result < 0) {
        fprintf(stderr, "birds: %s (%s)\n", error->message, guira_code_name(error->code));
        exit(1);
    }
    return result;
}

int main(int count, char **arguments)
{
    const char *url = count > 1 ? arguments[1] : "shm://birds";
    guira_error error;
    guira_store *store;
    guira_client *client;
    guira_scan *scan;
    char value[64];
    size_t length, key_length;
    const void *key, *found;

    check(guira_open_or_create(url, NULL, &store, &error), &error);
    check(guira_client_open(store, &client, &error), &error); /* one for each thread */

    check(guira_put(client, "cuckoo", 6, "Guira guira", 11, &error), &error);
    if (check(guira_get(client, "cuckoo", 6, value, sizeof value, &length, &error), &error))
        printf("cuckoo: %.*s\n", (int)length, value);
    check(guira_increment(client, "visits", 6, 1, NULL, &error), &error);

    check(guira_scan_open(store, &scan, &error), &error);
    while (check(guira_scan_next(scan, &key, &key_length, &found, &length, &error), &error))
        printf("%.*s has %zu bytes\n", (int)key_length, (const char *)key, length);
    guira_scan_close(scan, NULL);

    check(guira_client_close(client, &error), &error);
    guira_store_close(store);
    return 0;
}
