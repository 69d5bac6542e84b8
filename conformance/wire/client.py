#!/usr/bin/env python3
"""A client of Guira's memory node in Python, written from docs/wire.md alone: a second implementation.

As a library it is `Client`, with a method for each frame that a client sends, and functions that encode verbs. As a
program it checks a running node against the document, prints a line for each check, and exits with 0 only if all
succeed; the checks are in honest.py and hostile.py:

    python3 client.py HOST PORT [--token-file FILE] [--read-only-token-file FILE] [--sessions N] [--until-shutdown]

The node must serve memory that is not in use: the end of its Main space is overwritten. The checks take 6 s, or the
node's session timeout if it is longer. Python 3.9 and its standard library are enough.
"""
import argparse
import os
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Tuple

MAGIC = 0x7063_7461_7269_7567
VERSION = 1
HELLO, BATCH, HOLD, RELEASE, FENCE, COUNT, ATTACH, RESERVE = range(1, 9)
WELCOME, DONE, HELD, FENCED, COUNTED, REFUSED, CLOSE = 0x81, 0x82, 0x83, 0x85, 0x86, 0x87, 0x88
RESERVED = 0x8A
OUTSIDE, MISALIGNED, READ_ONLY, OTHER = 1, 2, 5, 6
PROTOCOL_ERROR, WRONG_VERSION, UNAUTHORIZED, FULL, DROPPED, TOO_SLOW, SHUTDOWN, TLS_REQUIRED = range(1, 9)
OTHER_FABRIC = 11
MAX_FRAME_BYTES, MAX_VERBS, MAX_VERB_WORDS = 1_060_880, 256, 131_072
MAX_SAMPLE_WORDS, MAX_TEXT_BYTES = 512, 512
DEVICE = 1 << 63
ALL = (1 << 64) - 1
# The longest wait for a frame, which only ends hangs: as in the other tests, for slow machines the variable is a factor.
TIMEOUT_S = 60 * float(os.environ.get("GUIRA_PATIENCE", "1"))
# The bytes at the end of the Main space that the checks overwrite.
SCRATCH_BYTES = 1024


class Close(Exception):
    """The node has closed the session: the reason and the number of its Close."""


class Refused(Exception):
    """The node has refused a request: the words of the refusal, or its text if it has one."""

    def __init__(self, reason, *words):
        if reason == OTHER:
            length, *packed = words
            expect(len(packed), (length + 7) // 8, "words of a text")
            words = (pack(packed)[:length].decode(errors="replace"),)
        super().__init__(reason, *words)


class Ended(Exception):
    """The connection ended without a Close."""


class Frame(NamedTuple):
    kind: int
    id: int
    body: Tuple[int, ...]


class Welcome(NamedTuple):
    grant: int
    prior_session: int
    session: Tuple[int, int]
    region: Tuple[int, int]
    main_bytes: int
    device_bytes: int
    atomic_write_bytes: int
    timeout_ms: int
    slots_of_session: int
    slots_of_node: int
    sample: Tuple[int, ...]


def pack(words):
    return struct.pack(f"<{len(words)}Q", *words)


def frame(kind, body=(), id=1, count=0):
    return pack([16 + 8 * len(body) | kind << 32 | count << 40, id]) + pack(body)


def hello(write=True, token=None, prior_session=None, sample=0, version=VERSION, rdma=False):
    flags = write << 32 | (token is not None) << 33 | (prior_session is not None) << 34 | rdma << 35 | sample << 40
    return [MAGIC, version | flags, *(token or (0, 0)), *(prior_session or (0, 0)), 0]


def welcome(body):
    """Decodes the body of a Welcome; only this function and the type above depend on its layout."""
    expect(body[0] & 0xFFFF_FFFF, VERSION, "version of the Welcome")
    expect(len(body), 11 + body[10], "words of the Welcome")
    slots = body[9] & 0xFFFF_FFFF, body[9] >> 32
    return Welcome(body[0] >> 32 & 0xFF, body[0] >> 40, body[1:3], body[3:5], *body[5:9], *slots, body[11:])


def token_of(path):
    """Returns the two words of a token file: 32 hexadecimal digits."""
    with open(path, encoding="ascii") as file:
        digits = file.read().strip()
    return int(digits[:16], 16), int(digits[16:32], 16)


class Verb(NamedTuple):
    words: Tuple[int, ...]
    found: int


def verb(kind, address, words, operands=(), found=1):
    return Verb((address, kind | words << 32, *operands), found)


def read(address, words=1):
    return verb(0, address, words, (), words)


def write(address, *words):
    return verb(1, address, len(words), words, 0)


def cas(address, compare, swap):
    return verb(2, address, 1, (compare, swap))


def masked_cas(address, compare, swap, compare_mask, swap_mask):
    return verb(3, address, 1, (compare, swap, compare_mask, swap_mask))


def fetch_add(address, addend):
    return verb(4, address, 1, (addend,))


class Client:
    """A connection to a memory node, and its session after the Hello."""

    def __init__(self, address, receive_buffer_bytes=None):
        self.socket = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        self.socket.settimeout(TIMEOUT_S)
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.connect(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.welcome = None
        self.last_id = 0
        self.early = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def receive_words(self, count):
        data = b""
        while len(data) < 8 * count:
            try:
                piece = self.socket.recv(8 * count - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise Ended("the connection ended" + (" inside a frame" if data else ""))
            data += piece
        return struct.unpack(f"<{count}Q", data)

    def receive(self):
        """Receives the next frame, of any kind."""
        header, id = self.receive_words(2)
        length, kind = header & 0xFFFF_FFFF, header >> 32 & 0xFF
        expect(header >> 40, 0, "count and reserved bits of a reply")
        expect(length % 8 == 0 and 16 <= length <= MAX_FRAME_BYTES, True, f"{length} bytes are a frame's length")
        body = self.receive_words(length // 8 - 2)
        if kind == CLOSE:
            expect((len(body), id), (2, 0), "words and id of a Close")
            raise Close(*body)
        return Frame(kind, id, body)

    def request(self, kind, body=(), count=0):
        """Sends a request, and returns its id."""
        self.last_id += 1
        self.send(frame(kind, body, self.last_id, count))
        return self.last_id

    def reply(self, id, kind):
        """Returns the body of the reply to request `id`; others that come first are kept for later."""
        while id not in self.early:
            found = self.receive()
            self.early[found.id] = found
        found = self.early.pop(id)
        if found.kind == REFUSED:
            raise Refused(*found.body)
        expect(found.kind, kind, "kind of the reply")
        return found.body

    def hello(self, **wanted):
        self.welcome = welcome(self.reply(self.request(HELLO, hello(**wanted)), WELCOME))
        return self.welcome

    def send_batch(self, *verbs):
        return self.request(BATCH, [word for verb in verbs for word in verb.words], len(verbs))

    def done(self, id, *verbs):
        """Returns the results of each verb of a batch."""
        body = self.reply(id, DONE)
        expect(len(body), sum(verb.found for verb in verbs), "words of a Done")
        rest = iter(body)
        return [tuple(next(rest) for _ in range(verb.found)) for verb in verbs]

    def batch(self, *verbs):
        return self.done(self.send_batch(*verbs), *verbs)

    def hold(self, slot):
        return self.yes_or_no(self.request(HOLD, [slot]), HELD)

    def reserve(self, start, end):
        expect(self.reply(self.request(RESERVE, [start, end]), RESERVED), (), "body of a Reserved")

    def release(self, slot):
        self.request(RELEASE, [slot])

    def fence(self, slot):
        return self.yes_or_no(self.request(FENCE, [slot]), FENCED)

    def yes_or_no(self, id, kind):
        body = self.reply(id, kind)
        expect(body in ((0,), (1,)), True, f"{body} is 0 or 1")
        return body == (1,)

    def count(self):
        """Returns the counters, and the buckets of the times that frames took."""
        body = self.reply(self.request(COUNT), COUNTED)
        counters, buckets = body[0] & 0xFFFF_FFFF, body[0] >> 32
        expect(len(body), 1 + counters + buckets, "words of a Counted")
        return body[1 : 1 + counters], body[1 + counters :]


def expect(found, wanted, what):
    if found != wanted:
        raise AssertionError(f"{what}: {found}, not {wanted}")


class Node(NamedTuple):
    """The node that is checked, and the options of the caller."""

    address: Tuple[str, int]
    token: dict
    read_only_token: dict
    sessions: int
    scratch: int = 0

    def connect(self, **options):
        return Client(self.address, **options)

    def session(self, **wanted):
        client = self.connect()
        client.hello(**{**self.token, **wanted})
        return client


def main():
    # They import this file as a module, which has classes of its own, distinct from those of this program.
    import honest
    import hostile
    from client import Node
    from honest import run

    parser = argparse.ArgumentParser(description="Checks a memory node against docs/wire.md; overwrites its memory.")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--token-file", help="the node's token, if it has one")
    parser.add_argument("--read-only-token-file", help="the token for read-only access, if there is one")
    parser.add_argument("--sessions", type=int, help="how many sessions the node allows; opens that many")
    parser.add_argument("--until-shutdown", action="store_true", help="wait for the node to be stopped at the end")
    parser.add_argument("--tls-only", action="store_true", help="the node speaks TLS only: check its Close to others")
    given = parser.parse_args()
    files = given.token_file, given.read_only_token_file
    tokens = [{"token": token_of(path)} if path else {} for path in files]
    node = Node((given.host, given.port), *tokens, given.sessions)
    if given.tls_only:
        return run([hostile.a_client_without_tls_gets_a_close], node)
    with node.session() as client:
        node = node._replace(scratch=client.welcome.main_bytes - SCRATCH_BYTES)
    with ThreadPoolExecutor() as pool:
        slow = [pool.submit(run, [check], node) for check in hostile.SLOW]
        failed = run(honest.CHECKS, node) + run(hostile.CHECKS, node)
        failed += sum(check.result() for check in slow)
    if given.sessions:
        failed += run([hostile.one_session_too_many_gets_the_bound], node)
    if given.until_shutdown:
        failed += run([hostile.clients_connected_at_the_end_get_a_close], node)
    return failed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
