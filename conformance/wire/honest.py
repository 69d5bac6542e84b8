"""Checks of the rules of docs/wire.md with a client that obeys them; the name of each function is the rule."""
import socket
import time

from client import (ALL, BATCH, COUNT, DEVICE, DONE, DROPPED, FENCE, FENCED, HELD, HELLO, HOLD, MAX_FRAME_BYTES,
                    MAX_SAMPLE_WORDS, MAX_TEXT_BYTES, MAX_VERBS, MAX_VERB_WORDS, MISALIGNED, OTHER, OUTSIDE,
                    READ_ONLY, WELCOME, Close, Ended, Refused, cas, expect, fetch_add, frame, hello, masked_cas, read,
                    write)

# Slots that no client of the table has: a node knows no tables, and tables give low slots to their clients.
SLOTS = range(65_000, 65_536)
FIRST_OF_MANY_SLOTS = 40_000
# The longest time for an immediate action of the node, on a busy machine, and the interval of polling for it.
IMMEDIATE_S, POLL_S = 5.0, 0.005


def expect_raise(kind, wanted, call, what):
    """Expects a refusal, a Close or an end, word by word."""
    try:
        found = call()
    except kind as error:
        expect(error.args, wanted, what)
    else:
        raise AssertionError(f"{what}: {found}, not {kind.__name__} {wanted}")


def wait_for(condition, what, seconds=IMMEDIATE_S):
    until = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < until, True, f"{what} within {seconds} s")
        time.sleep(POLL_S)


def run(checks, node):
    """Runs one check after the other, prints a line for each, and returns the number of failures."""
    failed = 0
    for check in checks:
        name = check.__name__.replace("_", " ")
        try:
            check(node)
            print(f"ok    {name}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAIL  {name}: {type(error).__name__}: {error}", flush=True)
    return failed


def the_welcome_has_the_session_the_region_and_the_sample(node):
    with node.connect() as one, node.connect() as other:
        first, second = one.hello(sample=8, **node.token), other.hello(sample=MAX_SAMPLE_WORDS, **node.token)
        expect((first.grant, first.prior_session), (1, 0), "grant, and prior session")
        expect(first.region, second.region, "regions of two sessions")
        expect(first.session != second.session, True, "two sessions have two names")
        expect(second[5:8], first[5:8], "sizes and atomic WRITE")
        expect(first.atomic_write_bytes in (8, ALL), True, "the atomic WRITE is 8 bytes or all")
        expect(first.timeout_ms % 1000 == 0 and 1000 <= first.timeout_ms < 1 << 32, True, "the timeout is seconds")
        expect(len(first.sample), 8, "words of a sample")
        expect(len(second.sample), min(MAX_SAMPLE_WORDS, first.main_bytes // 8), "words of the longest sample")
        expect(second.sample[:8], first.sample, "two samples")
        expect(one.batch(read(0, 8))[0], first.sample, "a READ of what was sampled")


def a_session_is_granted_the_requested_access_or_less(node):
    with node.connect() as client:
        expect(client.hello(write=False, **node.token).grant, 0, "grant of a client that requests read access")
        expect_read_only(client, node)
    if node.read_only_token:
        with node.connect() as client:
            expect(client.hello(**node.read_only_token).grant, 0, "grant of the read-only token")
            expect_read_only(client, node)


def expect_read_only(client, node):
    at, slot = node.scratch, SLOTS[0]
    client.batch(read(at))
    client.count()
    client.release(slot)
    for verb, change in enumerate([write(at, 1), cas(at, 0, 1), masked_cas(at, 0, 1, 1, 1), fetch_add(at, 1)], 1):
        expect_raise(Refused, (READ_ONLY, verb), lambda: client.batch(read(at), change), f"verb {verb} of a reader")
    expect_raise(Refused, (READ_ONLY, 5), lambda: client.hold(slot), "Hold of a reader")
    expect_raise(Refused, (READ_ONLY, 6), lambda: client.fence(slot), "Fence of a reader")


def a_session_learns_the_outcome_of_its_prior_session(node):
    slot = SLOTS[1]
    with node.connect() as client:
        expect(client.hello(prior_session=(3, 4), **node.token).prior_session, 1, "an unknown session")
    with node.connect() as client:
        ended = client.hello(**node.token).session
    with node.session() as other:
        wait_for(lambda: other.hold(slot), "a slot of a session that ended")
        with node.connect() as client:
            expect(client.hello(prior_session=ended, **node.token).prior_session, 2, "a session that ended")
            other.release(slot)
            other.batch(read(0))
            expect(client.hold(slot), True, "Hold")
            dropped = client.welcome.session
            expect(other.fence(slot), True, "Fence")
        with node.connect() as client:
            expect(client.hello(prior_session=dropped, **node.token).prior_session, 3, "a session that was dropped")
    with node.session() as still_open, node.connect() as client:
        expect(still_open.hold(slot), True, "Hold")
        expect(client.hello(prior_session=still_open.welcome.session, **node.token).prior_session, 2, "an open session")
        expect_raise(Close, (DROPPED, 0), still_open.receive, "the session that was superseded")
        expect(client.hold(slot), True, "Hold of a slot of the prior session")


def verbs_take_effect_in_order_and_return_the_word_before(node):
    at = node.scratch
    with node.session() as client:
        found = client.batch(
            write(at, 7, ALL, 0x1234), read(at, 3), cas(at, 7, 8), cas(at, 7, 9), read(at),
            fetch_add(at + 8, 2), fetch_add(at + 8, ALL), read(at + 8),
            masked_cas(at + 16, 0x0004, 0xABCD, 0x000F, 0xFF00), masked_cas(at + 16, 0xAB35, 0, 0x000F, ALL),
            read(at + 16))
        expect(found, [(), (7, ALL, 0x1234), (7,), (8,), (8,), (ALL,), (1,), (0,), (0x1234,), (0xAB34,), (0xAB34,)],
               "the results of the verbs")
        adds = [fetch_add(at + 24, 1)] * MAX_VERBS
        first = client.batch(*adds)[0][0]
        expect(client.batch(*adds), [((first + MAX_VERBS + i) & ALL,) for i in range(MAX_VERBS)], "256 verbs")


def the_longest_read_and_write_are_complete(node):
    with node.session() as client:
        words = min(MAX_VERB_WORDS, node.scratch // 16)
        at = node.scratch - 8 * words
        before = client.batch(read(at, words))[0]
        client.batch(write(at, *range(words)), *[read(0)] * (MAX_VERBS - 1))
        # The reply to both together is as long as a frame may be.
        rest = min(MAX_FRAME_BYTES // 8 - 2 - words, node.scratch // 8)
        expect(client.batch(read(at, words), read(0, rest))[0] == tuple(range(words)), True, "the written words")
        client.batch(write(at, *before))


def a_refused_batch_has_a_reason_and_no_effect(node):
    with node.session() as client:
        at, main, device = node.scratch, client.welcome.main_bytes, client.welcome.device_bytes
        last, far = main - 8, DEVICE - 8
        client.batch(write(at, 1))
        for refused, wanted in [
            (read(main), (OUTSIDE, 0, main, 1, main)), (read(last, 2), (OUTSIDE, 0, last, 2, main)),
            (write(last, 1, 2), (OUTSIDE, 1, last, 2, main)), (read(far, 2), (OUTSIDE, 0, far, 2, main)),
            (cas(main, 0, 1), (OUTSIDE, 2, main, 1, main)),
            (masked_cas(main, 0, 1, 1, 1), (OUTSIDE, 3, main, 1, main)),
            (fetch_add(DEVICE | device, 1), (OUTSIDE, 4, DEVICE | device, 1, device)),
            (read(at + 4), (MISALIGNED, 0, at + 4)), (write(at + 1, 0), (MISALIGNED, 1, at + 1)),
            (cas(main + 1, 0, 1), (MISALIGNED, 2, main + 1)), (fetch_add(ALL, 1), (MISALIGNED, 4, ALL)),
        ]:
            batch = fetch_add(at, 1), refused, read(main + 3)
            expect_raise(Refused, wanted, lambda: client.batch(*batch), f"batch with {refused.words}")
        expect(client.batch(read(at)), [(1,)], "a word that refused batches would have changed")


def memory_is_reserved_where_there_is_some(node):
    with node.session() as client:
        at, main = node.scratch, client.welcome.main_bytes
        client.batch(write(at, 5))
        for start, end in (0, 1), (at, at + 8), (main - 4096, main), (max(0, main - (1 << 20)), main):
            client.reserve(start, end)
        expect(client.batch(read(at)), [(5,)], "a word of reserved memory")
        for start, words in (main, 1), (main - 8, 2), (1 << 62, 1):
            wanted = OUTSIDE, 8, start, words, main
            expect_raise(Refused, wanted, lambda: client.reserve(start, start + 8 * words), f"bytes from {start}")


def frames_may_be_cut_at_every_byte(node):
    add = fetch_add(node.scratch, 1)
    greeting, batch = frame(HELLO, hello(**node.token)), frame(BATCH, add.words + read(0).words, 2, 2)
    for cut in range(1, len(greeting)):
        with node.connect() as client:
            client.send(greeting[:cut])
            time.sleep(0.0005)
            client.send(greeting[cut:] + batch)
            client.reply(1, WELCOME)
            client.done(2, add, read(0))
    with node.session() as client:
        before = client.batch(add)[0][0]
        for cut in range(1, len(batch)):
            client.send(batch[:cut])
            time.sleep(0.0005)
            client.send(batch[cut:])
            expect(client.done(2, add, read(0))[0], ((before + cut) & ALL,), f"a batch cut at byte {cut}")


def replies_come_in_order_with_the_ids_of_their_requests(node):
    ids = [0, ALL, 5, 5, *range(100, 300)]
    add = fetch_add(node.scratch, 1)
    with node.session() as client:
        client.batch(write(node.scratch, 0))
        client.send(b"".join(frame(BATCH, add.words, id, 1) for id in ids) + frame(COUNT, id=7))
        for number, id in enumerate(ids):
            expect(client.receive(), (DONE, id, (number,)), "the next reply")
        expect(client.receive().id, 7, "the reply after the batches")


def a_slot_is_held_by_one_session_until_it_is_released(node):
    slot = SLOTS[2]
    with node.session() as one, node.session() as other:
        expect((one.hold(slot), one.hold(slot), other.hold(slot)), (True, False, False), "Hold, again, by another")
        other.release(slot)
        expect(other.hold(slot), False, "Hold after a Release by a session without the slot")
        one.release(slot)
        one.batch(read(0))
        expect(other.hold(slot), True, "Hold after the Release")
    with node.session() as next_one:
        wait_for(lambda: next_one.hold(slot), "a slot of a session that ended")


def a_fence_drops_the_session_that_has_the_slot(node):
    slot, own, free = SLOTS[3:6]
    with node.session() as one, node.session() as other:
        expect(other.fence(free), False, "Fence of a slot that no session has")
        expect(one.hold(slot), True, "Hold")
        fence = other.request(FENCE, [slot])
        other.batch(read(0))
        expect(other.reply(fence, FENCED), (1,), "Fence of another session")
        expect(other.hold(slot), True, "Hold after the Fence")
        expect_raise(Close, (DROPPED, 0), one.receive, "the session that was dropped")
        expect(other.hold(own), True, "Hold")
        expect_raise(Close, (DROPPED, 0), lambda: other.fence(own), "a session that fences itself")


def counters_count_requests(node):
    with node.session() as client:
        before, buckets = client.count()
        client.batch(read(0), read(0), write(node.scratch, 0), cas(node.scratch, 1, 0), fetch_add(node.scratch, 0))
        after, _ = client.count()
        expect(len(before) >= 31 and len(buckets) > 0, True, "the counters of this version, and buckets")
        more = [now - then for then, now in zip(before[14:19], after[14:19])]
        # Another check may run at the same time.
        expect(all(found >= made for found, made in zip(more, [1, 2, 1, 1, 1])), True, f"verbs by kind: {more}")
        expect(0 < after[8] <= after[0] and after[9] < after[8], True, "sessions opened and ended, connections")


def a_half_closed_connection_is_over_and_gets_the_replies_that_were_sent(node):
    add, slot, requests = fetch_add(node.scratch, 1), SLOTS[6], 300
    with node.session() as client, node.session() as other:
        expect(client.hold(slot), True, "Hold")
        client.batch(write(node.scratch, 0))
        # The node is kept busy, so that it reads the requests and the end together. Replies this short never wait.
        long_read = frame(BATCH, read(0, min(MAX_VERB_WORDS, node.scratch // 8)).words, 1, 1)
        busy = [node.session() for _ in range(8)]
        for session in busy:
            session.send(long_read * 2)
        client.send(b"".join(frame(BATCH, add.words, id, 1) for id in range(requests)))
        client.socket.shutdown(socket.SHUT_WR)
        for id in range(requests):
            expect(client.done(id, add), [(id,)], "a reply after the half-close")
        expect_raise(Ended, ("the connection ended",), client.receive, "the end of a half-closed connection")
        wait_for(lambda: other.hold(slot), "a slot of a session that was half-closed")
        expect(other.batch(read(node.scratch)), [(requests,)], "batches done")
        for session in busy:
            session.socket.close()


def the_slots_of_a_session_are_bounded(node):
    with node.session() as client:
        most = client.welcome.slots_of_session
        expect(1 <= most <= client.welcome.slots_of_node, True, f"{most} slots for a session")
        slots = range(FIRST_OF_MANY_SLOTS, FIRST_OF_MANY_SLOTS + most)
        for first in range(0, most, 256):
            ids = [client.request(HOLD, [slot]) for slot in slots[first : first + 256]]
            for id in ids:
                expect(client.reply(id, HELD), (1,), "Hold")
        try:
            expect(client.hold(SLOTS[10]), None, "one Hold too many")
        except Refused as refused:
            reason, text = refused.args
            expect(reason, OTHER, "reason")
            expect(0 < len(text.encode()) <= MAX_TEXT_BYTES, True, f"the text {text!r} has up to 512 bytes")
        client.release(slots[0])
        expect(client.hold(SLOTS[10]), True, "Hold after a Release")


CHECKS = (
    the_welcome_has_the_session_the_region_and_the_sample,
    a_session_is_granted_the_requested_access_or_less,
    a_session_learns_the_outcome_of_its_prior_session,
    verbs_take_effect_in_order_and_return_the_word_before,
    the_longest_read_and_write_are_complete,
    a_refused_batch_has_a_reason_and_no_effect,
    memory_is_reserved_where_there_is_some,
    frames_may_be_cut_at_every_byte,
    replies_come_in_order_with_the_ids_of_their_requests,
    a_slot_is_held_by_one_session_until_it_is_released,
    a_fence_drops_the_session_that_has_the_slot,
    counters_count_requests,
    a_half_closed_connection_is_over_and_gets_the_replies_that_were_sent,
    the_slots_of_a_session_are_bounded,
)
