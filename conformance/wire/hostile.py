"""Checks of the rules of docs/wire.md with clients that are refused, or that break the rules.

After each check an honest client is served.
"""
import functools
import random
import socket
import struct
import time

from client import (ALL, ATTACH, BATCH, CLOSE, COUNT, DEVICE, DONE, FENCE, FULL, HELD, HELLO, HOLD, MAX_FRAME_BYTES,
                    MAX_SAMPLE_WORDS, MAX_VERB_WORDS, OTHER_FABRIC, PROTOCOL_ERROR, RELEASE, RESERVE, SCRATCH_BYTES,
                    SHUTDOWN, TLS_REQUIRED, TOO_SLOW, UNAUTHORIZED, VERSION, WELCOME, WRONG_VERSION, Close, Ended,
                    cas, expect, fetch_add, frame, hello, pack, read, welcome, write)
from honest import POLL_S, SLOTS, expect_raise, wait_for

# A node waits this long for a Hello, and receives this long after a Close.
GREETING_S, LINGER_S = 5, 1
# How much later a node may do so: it checks its deadlines once a second, and machines that run tests are busy.
LATE_S = 3.0


def errors_before_the_hello(node):
    """Yields bytes that are not a Hello."""
    noise = random.Random(1)
    good = hello(**node.token)
    yield "noise", noise.randbytes(4096)
    yield "a ClientHello of TLS", bytes.fromhex("16030100c8010000c40303") + noise.randbytes(194)
    yield "zeros", bytes(72)
    yield "another magic", frame(HELLO, [good[0] + 1, *good[1:]])
    for bit in [*range(36, 40), *range(56, 64)]:
        yield f"bit {bit} of word 1 of a Hello", frame(HELLO, [good[0], good[1] | 1 << bit, *good[2:]])
    yield "a last word of a Hello that is not 0", frame(HELLO, [*good[:6], 1])
    yield "a sample too long", frame(HELLO, hello(sample=MAX_SAMPLE_WORDS + 1, **node.token))
    yield "a Hello too short", frame(HELLO, good[:6])
    yield "a Hello too long", frame(HELLO, [*good, 0])
    yield "a Hello with a count", frame(HELLO, good, count=1)
    yield "a Hello with a reserved bit", pack([72 | HELLO << 32 | 1 << 56, 1]) + pack(good)
    for kind in [0, BATCH, HOLD, RELEASE, FENCE, COUNT, ATTACH, RESERVE, 9, WELCOME, 0xFF]:
        yield f"kind {kind} before Hello", frame(kind, good)
    for length in [0, 8, 15, 17, 71, 80, MAX_FRAME_BYTES, (1 << 32) - 8]:
        yield f"a first frame of {length} bytes", pack([length | HELLO << 32, 1]) + pack(good)


def errors_of_a_session(node):
    """Yields frames that a session may not send."""
    at = node.scratch
    yield "a second Hello", frame(HELLO, hello(**node.token))
    for length in [0, 8, 15, 20, MAX_FRAME_BYTES + 8, 1 << 31, (1 << 32) - 8]:
        yield f"a frame of {length} bytes", pack([length | COUNT << 32, 1])
    yield "a queue pair over TCP", frame(ATTACH, [0, 0x0100_000A_FFFF_0000, 17, 1024])
    for part in [], [0], [0, 0], [8, 0], [0, (1 << 20) + 1], [0, 8, 0], [DEVICE - 8, DEVICE]:
        yield f"a Reserve of {part}", frame(RESERVE, part)
    for kind in [0, ATTACH, 9, 0x7F, WELCOME, DONE, CLOSE, 0xFF]:
        yield f"kind {kind}", frame(kind)
    for bit in (56, 63):
        yield f"bit {bit} of a header", pack([16 | COUNT << 32 | 1 << bit, 1])
    for kind in (HOLD, RELEASE, FENCE):
        yield f"kind {kind} without a slot", frame(kind)
        yield f"kind {kind} with two slots", frame(kind, [SLOTS[9], SLOTS[9]])
        yield f"kind {kind} with a count", frame(kind, [SLOTS[9]], count=1)
        yield f"kind {kind} of slot 65,536", frame(kind, [65_536])
        yield f"kind {kind} of slot 2^64 - 1", frame(kind, [ALL])
    yield "a Count with a body", frame(COUNT, [0])
    yield "a batch of no verb", frame(BATCH, [], count=0)
    yield "a batch of 257 verbs", frame(BATCH, read(at).words * 257, count=257)
    yield "a batch that ends before its last verb", frame(BATCH, write(at, 1).words, count=2)
    yield "a batch that goes on after its last verb", frame(BATCH, write(at, 1).words + read(at).words, count=1)
    for words in (1, 2, 3):
        yield f"a CAS that ends after word {words}", frame(BATCH, cas(at, 0, 1).words[:words], count=1)
    yield "a WRITE that ends before its words", frame(BATCH, write(at, 1, 2, 3).words[:-1], count=1)
    yield "a WRITE of 2^32 - 1 words", frame(BATCH, [at, 1 | ((1 << 32) - 1) << 32, 7], count=1)
    for kind in (5, 6, 1 << 31):
        yield f"verb {kind}", frame(BATCH, [at, kind | 1 << 32], count=1)
    for kind, operands in ((0, 0), (1, 0), (2, 2), (3, 4), (4, 1)):
        yield f"verb {kind} of 0 words", frame(BATCH, [at, kind] + [0] * operands, count=1)
    yield "a READ of too many words", frame(BATCH, read(0, MAX_VERB_WORDS + 1).words, count=1)
    most = MAX_FRAME_BYTES // 8 - 2 - MAX_VERB_WORDS
    both = read(0, MAX_VERB_WORDS).words + read(0, most + 1).words
    yield "a batch whose reply is one word longer than a frame", frame(BATCH, both, count=2)
    for kind, operands in ((2, 2), (3, 4), (4, 1)):
        yield f"verb {kind} of 2 words", frame(BATCH, [at, kind | 2 << 32] + [0] * operands, count=1)


def then_serves_others(check):
    """Wraps a check to verify that an honest client is served after it."""

    @functools.wraps(check)
    def checked(node):
        check(node)
        with node.session() as client:
            expect(len(client.batch(read(0))[0]), 1, "the READ of an honest client")

    return checked


def expect_protocol_error(client, what):
    expect_raise(Close, (PROTOCOL_ERROR, 0), client.receive, what)
    expect_raise(Ended, ("the connection ended",), client.receive, f"the end after {what}")


@then_serves_others
def anything_but_a_hello_first_is_a_protocol_error(node):
    for what, data in errors_before_the_hello(node):
        with node.connect() as client:
            client.send(data)
            expect_protocol_error(client, what)


@then_serves_others
def an_http_request_is_answered_in_http(node):
    with node.connect() as client:
        client.send(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
        answer = b""
        while piece := client.socket.recv(4096):
            answer += piece
        expect(answer.startswith(b"HTTP/1.1 400 "), True, f"an answer in HTTP, not {answer[:40]}")


@then_serves_others
def an_invalid_frame_ends_the_session_after_earlier_requests(node):
    add, slot = fetch_add(node.scratch, 1), SLOTS[8]
    with node.session() as honest:
        honest.batch(write(node.scratch, 0))
        for number, (what, data) in enumerate(errors_of_a_session(node)):
            with node.session() as client:
                batch = frame(BATCH, add.words, 3, 1)
                client.send(frame(HOLD, [slot], 2) + batch + data + batch)
                expect((client.reply(2, HELD), client.done(3, add)), ((1,), [(number,)]), f"before {what}")
                expect_protocol_error(client, what)
            expect(honest.batch(read(node.scratch)), [(number + 1,)], f"batches done, with one after {what}")
            expect(honest.hold(slot), True, f"Hold after the end of {what}")
            honest.release(slot)
            honest.batch(read(0))


@then_serves_others
def a_node_receives_for_a_second_at_most_after_a_close(node):
    with node.connect() as client:
        client.send(bytes(16))
        expect_protocol_error(client, "zeros")
        begin = time.monotonic()
        try:
            while time.monotonic() < begin + LINGER_S + LATE_S:
                client.send(bytes(16))
                time.sleep(POLL_S)
        except OSError:
            return
        raise AssertionError("the connection is still open")


@then_serves_others
def an_incomplete_frame_delays_no_other_session(node):
    slot = SLOTS[9]
    batch = frame(BATCH, write(node.scratch, *range(50)).words, 9, 1)
    with node.session() as client, node.session() as other:
        other.batch(write(node.scratch, 77))
        expect(client.hold(slot), True, "Hold")
        client.send(batch[:-1])
        time.sleep(0.1)
        expect(other.batch(read(node.scratch)), [(77,)], "a word that half a frame would write")
        expect(other.hold(slot), False, "Hold of a slot whose session is in the middle of a frame")
        client.send(batch[-1:])
        client.done(9, write(0))
        client.send(batch[:-1])
        other.batch(write(node.scratch, 78))
        # Without a FIN: the connection is reset.
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.close()
        wait_for(lambda: other.hold(slot), "a slot of a session that was reset in the middle of a frame")
        expect(other.batch(read(node.scratch)), [(78,)], "a word that half a frame would write")


@then_serves_others
def a_client_without_a_hello_gets_a_close_in_time(node):
    """Connects silently, with half a Hello, and a byte at a time."""
    greeting = frame(HELLO, hello(**node.token))
    with node.connect() as silent, node.connect() as half, node.connect() as slow:
        begin = time.monotonic()
        half.send(greeting[:40])
        for byte in greeting[:GREETING_S * 10 - 5]:
            slow.send(bytes([byte]))
            time.sleep(0.1)
        for client in (silent, half, slow):
            expect_raise(Close, (TOO_SLOW, GREETING_S), client.receive, "no Hello")
        took = time.monotonic() - begin
        expect(GREETING_S - 0.1 <= took <= GREETING_S + LATE_S, True, f"closed after {took:.1f} s")


@then_serves_others
def a_client_that_reads_no_replies_is_dropped_after_the_timeout(node):
    slot, counter, requests = SLOTS[7], node.scratch + SCRATCH_BYTES // 2, 64
    with node.connect(receive_buffer_bytes=4096) as client, node.session() as honest:
        timeout_s = client.hello(**node.token).timeout_ms / 1000
        honest.batch(write(counter, 0))
        expect(client.hold(slot), True, "Hold")
        begin = time.monotonic()
        for _ in range(requests):
            client.send_batch(fetch_add(counter, 1), read(0, min(MAX_VERB_WORDS, node.scratch // 8)))
        wait_for(lambda: honest.hold(slot), "the end of a session that reads no replies", timeout_s + LATE_S)
        took = time.monotonic() - begin
        expect(took >= timeout_s, True, f"dropped after {took:.1f} s, with a timeout of {timeout_s} s")
        executed, answered = honest.batch(read(counter))[0][0], 0
        expect(executed < requests, True, f"{executed} requests were executed, whose replies were not read")
        try:
            while client.receive():
                answered += 1
        except Close as close:
            expect((close.args, answered), ((TOO_SLOW, int(timeout_s)), executed), "Close, and replies before it")
        except Ended:
            # The kernel gave the connection up before the Close could be sent.
            expect(answered <= executed, True, f"{answered} replies to {executed} requests")


def a_token_of_the_node_is_required(node):
    if node.token:
        for token in (None, (0, 0), (node.token["token"][0], node.token["token"][1] ^ 1)):
            with node.connect() as client:
                expect_raise(Close, (UNAUTHORIZED, 0), lambda: client.hello(token=token), f"token {token}")
    else:
        with node.connect() as client:
            expect(client.hello(token=(1, 2)).grant, 1, "a node without tokens ignores a token")


def a_client_of_another_version_gets_the_nodes_version(node):
    for version in (0, VERSION + 1, (1 << 32) - 1):
        with node.connect() as client:
            call = functools.partial(client.hello, version=version, **node.token)
            expect_raise(Close, (WRONG_VERSION, VERSION), call, "version")


def a_client_of_another_fabric_gets_the_nodes_fabric(node):
    with node.connect() as client:
        expect_raise(Close, (OTHER_FABRIC, 0), lambda: client.hello(rdma=True, **node.token), "RDMA at a node over TCP")


def nothing_sent_after_a_hello_is_executed_without_a_welcome(node):
    with node.session() as client:
        client.batch(write(node.scratch, 5))
        with node.connect() as other:
            add = fetch_add(node.scratch, 1)
            other.send(frame(HELLO, hello(version=9)) + frame(BATCH, add.words, 2, 1))
            expect_raise(Close, (WRONG_VERSION, VERSION), lambda: other.reply(2, DONE), "a batch after a refused Hello")
        with node.connect() as other:
            other.send(frame(HELLO, hello(**node.token)) + frame(BATCH, add.words, 2, 1))
            expect(welcome(other.reply(1, WELCOME)).grant, 1, "grant")
            expect(other.done(2, add), [(5,)], "a batch after an accepted Hello")


def one_session_too_many_gets_the_bound(node):
    with node.session() as client:
        wait_for(lambda: sessions_open(client) == 1, "the sessions of other checks are over")
        sessions = [node.session() for _ in range(node.sessions - 1)]
        try:
            with node.connect() as other:
                expect_raise(Close, (FULL, node.sessions), lambda: other.hello(**node.token), "one session too many")
        finally:
            for session in sessions:
                session.socket.close()
        wait_for(lambda: sessions_open(client) == 1, "the sessions that were too many are over")


def sessions_open(client):
    counters, _ = client.count()
    return counters[8] - counters[9]


def clients_connected_at_the_end_get_a_close(node):
    with node.session() as client:
        accepted = client.count()[0][0]
        with node.connect() as other:
            wait_for(lambda: client.count()[0][0] > accepted, "the node has accepted a connection")
            # One of its threads accepted it, and another one may have to add it to its poll.
            time.sleep(0.2)
            print("waiting for the node to be stopped", flush=True)
            expect_raise(Close, (SHUTDOWN, 0), client.receive, "a session at the end")
            expect_raise(Close, (SHUTDOWN, 0), other.receive, "a connection without a session at the end")


def a_client_without_tls_gets_a_close(node):
    with node.connect() as client:
        expect_raise(Close, (TLS_REQUIRED, 0), lambda: client.hello(**node.token), "Hello without TLS")
        expect_raise(Ended, ("the connection ended",), client.receive, "the end")


SLOW = (a_client_without_a_hello_gets_a_close_in_time, a_client_that_reads_no_replies_is_dropped_after_the_timeout)
CHECKS = (
    a_token_of_the_node_is_required,
    a_client_of_another_version_gets_the_nodes_version,
    a_client_of_another_fabric_gets_the_nodes_fabric,
    nothing_sent_after_a_hello_is_executed_without_a_welcome,
    anything_but_a_hello_first_is_a_protocol_error,
    an_http_request_is_answered_in_http,
    an_invalid_frame_ends_the_session_after_earlier_requests,
    a_node_receives_for_a_second_at_most_after_a_close,
    an_incomplete_frame_delays_no_other_session,
)
