"""Prints what one lookup costs: in a dictionary, in a table, and in a dictionary of multiprocessing.Manager, in turns."""

from __future__ import annotations

import multiprocessing
import os
import random
import timeit
from collections.abc import Callable

import guira

KEYS = [number.to_bytes(8, "little") for number in range(100_000)]
VALUE = b"8 bytes!"
ROUNDS = 5


def ns_per_get(get: Callable[[bytes], object], keys: list[bytes]) -> float:
    def all() -> None:
        for key in keys:
            get(key)

    return timeit.timeit(all, number=1) / len(keys) * 1e9


def main() -> None:
    url = f"shm://guira-bench-{os.getpid()}"
    drawn = random.Random(1).sample(KEYS, len(KEYS))
    with multiprocessing.Manager() as manager, guira.create(url, capacity=len(KEYS)) as table:
        local, shared = dict.fromkeys(KEYS, VALUE), manager.dict(dict.fromkeys(KEYS, VALUE))
        for key in KEYS:
            table[key] = VALUE
        found = [(ns_per_get(local.get, drawn), ns_per_get(table.get, drawn), ns_per_get(shared.get, drawn[:5_000]))
                 for _ in range(ROUNDS)]
        guira.destroy(url)
    in_dict, in_table, in_manager = (min(times) for times in zip(*found))
    print(f"ns for one get, the best of {ROUNDS} rounds: dict {in_dict:.0f}, guira {in_table:.0f}, Manager {in_manager:.0f}")
    print(f"guira takes {in_table / in_dict:.1f} times as long as dict; Manager {in_manager / in_table:.0f} times as long as guira")


if __name__ == "__main__":
    main()
