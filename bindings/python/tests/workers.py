"""The work of processes that tests start and kill; a module, because a spawned process imports it."""

from __future__ import annotations

import guira

KEYS = [b"key %d" % number for number in range(8)]
WORDS = 200


def value(number: int) -> bytes:
    """A value that does not fit in a row, all of whose words are the same."""
    return number.to_bytes(8, "little") * WORDS


def put_until_killed(url: str, name: bytes) -> None:
    """Puts values under keys that all workers share, and counts its rounds under a key of its own."""
    with guira.open(url) as table:
        while True:
            count = table.increment(name)
            table.put_many((key, value(count)) for key in KEYS)
            for key in KEYS:
                table.increment(b"count of " + key)
