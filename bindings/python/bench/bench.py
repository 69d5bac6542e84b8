"""Compares Guira with other ways to share a mapping between processes in Python: get, get_many of 32 keys, and put.

`cargo xtask python --bench` builds the wheel with optimisations, makes an environment with the other systems, and runs
this there. It prints Markdown; `--publish FOLDER` writes python.md, python.json and python.svg.

All systems hold the same records. Each operation of each system is timed once a round, round after round, for a number of
operations that a trial chose, in one process and in two at once; a cell is the median round. Every worker compares a
sample of the values, byte by byte, before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import diskcache
import lmdb
import numpy
import redis

import guira

MANY = 32
ARRAY_KEYS = 100_000
SAMPLE = 200
GUIRA, ARRAYS = "Guira", "Guira, arrays"
OPERATIONS = {"get": "get", "get_many": f"get_many({MANY}), a key", "put": "put"}
TITLES = {
    GUIRA: "one object a key and value",
    ARRAYS: f"get_many_into and put_many_from, {ARRAY_KEYS:,} keys at once",
    "dict": "a dictionary of the process, not shared",
    "Manager().dict()": "multiprocessing; a round trip for each key",
    "lmdb": "in /dev/shm, never flushed; a transaction for each call",
    "redis-py": "with hiredis, on a Unix socket; GET, MGET, SET",
    "diskcache": "in /dev/shm; a call for each key",
}


def key_of(number: int) -> bytes:
    return number.to_bytes(8, "little")


def value_of(number: int, value_bytes: int) -> bytes:
    return (number * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "little") * (value_bytes // 8)


class System:
    """A store that a process has open. Its single operations are the functions that a program would call."""

    get: Callable[[bytes], Any]
    put: Callable[[bytes, bytes], Any]

    def get_many(self, keys: list[bytes]) -> Any:
        return [self.get(key) for key in keys]

    def fill(self, records: list[tuple[bytes, bytes]]) -> None:
        for key, value in records:
            self.put(key, value)


class Guira(System):
    def __init__(self, url: str) -> None:
        self.table = guira.open(url)
        self.get, self.put, self.get_many = self.table.get, self.table.put, self.table.get_many

    def fill(self, records: list[tuple[bytes, bytes]]) -> None:
        self.table.put_many(records)


class Dict(System):
    def __init__(self, records: dict[bytes, bytes]) -> None:
        self.get, self.put = records.get, records.__setitem__


class Lmdb(System):
    def __init__(self, folder: str) -> None:
        self.store = lmdb.open(folder, map_size=8 << 30, sync=False)

    def get(self, key: bytes) -> Any:
        with self.store.begin() as transaction:
            return transaction.get(key)

    def get_many(self, keys: list[bytes]) -> Any:
        with self.store.begin() as transaction:
            return [value for _, value in transaction.cursor().getmulti(keys)]

    def put(self, key: bytes, value: bytes) -> None:
        with self.store.begin(write=True) as transaction:
            transaction.put(key, value)

    def fill(self, records: list[tuple[bytes, bytes]]) -> None:
        with self.store.begin(write=True) as transaction:
            for key, value in records:
                transaction.put(key, value)


class Redis(System):
    def __init__(self, socket: str) -> None:
        client = redis.Redis(unix_socket_path=socket)
        self.get, self.put, self.get_many, self.mset = client.get, client.set, client.mget, client.mset

    def fill(self, records: list[tuple[bytes, bytes]]) -> None:
        for start in range(0, len(records), 1_000):
            self.mset(dict(records[start : start + 1_000]))


class DiskCache(System):
    def __init__(self, folder: str) -> None:
        cache = diskcache.Cache(folder, eviction_policy="none")
        self.get, self.put, self.cache = cache.get, cache.set, cache

    def fill(self, records: list[tuple[bytes, bytes]]) -> None:
        with self.cache.transact():
            super().fill(records)


class Places:
    """Where the systems of one size of value are: for each, what a process needs to open it."""

    def __init__(self, ends: contextlib.ExitStack, records: int, value_bytes: int) -> None:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="guira-bench-", dir="/dev/shm")))
        url = f"shm://{folder.name}-table"
        options: dict[str, Any] = {"format": "fixed:8:8"} if value_bytes == 8 else {"record_bytes": 8 + value_bytes}
        # Extents of replaced values are in use until the clients that own them give them back.
        extents = {} if value_bytes == 8 else {"extent_bytes": 4 * records * (value_bytes + 64)}
        guira.create(url, capacity=records, **options, **extents).close()
        ends.callback(guira.destroy, url)
        self.of: dict[str, Any] = {GUIRA: url, "dict": None, "lmdb": str(folder / "lmdb")}
        if value_bytes == 8:
            self.of[ARRAYS] = url
        self.of["Manager().dict()"] = ends.enter_context(multiprocessing.Manager()).dict()
        if server := shutil.which("redis-server"):
            self.of["redis-py"] = socket = str(folder / "redis.sock")
            command = [server, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder)
            ends.callback(process.wait)
            ends.callback(process.kill)
            while not Path(socket).exists():
                assert process.poll() is None, "redis-server did not start"
                time.sleep(0.01)
        self.of["diskcache"] = str(folder / "diskcache")

    def open(self, name: str, records: dict[bytes, bytes]) -> System:
        place = self.of[name]
        if name == "Manager().dict()":
            shared = System()
            shared.get, shared.put, shared.fill = place.get, place.__setitem__, place.update
            return shared
        if name == "dict":
            return Dict(dict(records))
        kinds = {GUIRA: Guira, ARRAYS: Guira, "lmdb": Lmdb, "redis-py": Redis, "diskcache": DiskCache}
        return kinds[name](place)


class Worker:
    """A process that times operations."""

    def __init__(self, places: dict[str, Any], records: int, value_bytes: int, seed: int) -> None:
        self.places = Places.__new__(Places)
        self.places.of = places
        self.value_bytes = value_bytes
        self.numbers = list(range(records))
        self.random = random.Random(seed)
        self.random.shuffle(self.numbers)
        self.keys = [key_of(number) for number in self.numbers]
        self.values = [value_of(number, value_bytes) for number in self.numbers]
        self.systems: dict[str, System] = {}
        self.next = 0

    def system(self, name: str) -> System:
        if name not in self.systems:
            local = dict(zip(self.keys, self.values)) if name == "dict" else {}
            self.systems[name] = self.places.open(name, local)
        return self.systems[name]

    def check(self, name: str) -> None:
        """Compares a sample of the values."""
        system = self.system(name)
        sample = [self.random.randrange(len(self.keys)) for _ in range(SAMPLE)]
        expected = [self.values[i] for i in sample]
        assert [system.get(self.keys[i]) for i in sample] == expected, f"{name} returned a wrong value"
        assert list(system.get_many([self.keys[i] for i in sample])) == expected, f"{name} returned a wrong value"
        if name == ARRAYS:
            keys = numpy.frombuffer(b"".join(self.keys[i] for i in sample), numpy.uint64)
            out = numpy.zeros(SAMPLE, numpy.uint64)
            assert system.table.get_many_into(keys, out) == SAMPLE, f"{name} missed keys"
            assert out.tobytes() == b"".join(expected), f"{name} returned a wrong value"

    def prepared(self, name: str, operation: str, count: int) -> Callable[[], object]:
        """Returns a call that makes `count` operations."""
        system = self.system(name)
        drawn = [(self.next + i) % len(self.keys) for i in range(count)]
        self.next += count
        keys = [self.keys[i] for i in drawn]
        if name == ARRAYS:
            table = system.table
            array = numpy.frombuffer(b"".join(keys), numpy.uint64)
            if operation == "put":
                values = numpy.frombuffer(b"".join(self.values[i] for i in drawn), numpy.uint64)
                return lambda: in_parts(lambda part: table.put_many_from(array[part], values[part]), count)
            out = numpy.zeros(count, numpy.uint64)

            def look_up() -> None:
                in_parts(lambda part: table.get_many_into(array[part], out[part]), count)

            return look_up
        if operation == "get":
            get = system.get

            def gets() -> None:
                for key in keys:
                    get(key)

            return gets
        if operation == "get_many":
            groups = [keys[start : start + MANY] for start in range(0, count, MANY)]

            def get_groups() -> None:
                for group in groups:
                    system.get_many(group)

            return get_groups
        put, pairs = system.put, [(self.keys[i], self.values[i]) for i in drawn]

        def puts() -> None:
            for key, value in pairs:
                put(key, value)

        return puts


def in_parts(call: Callable[[slice], object], count: int) -> None:
    for start in range(0, count, ARRAY_KEYS):
        call(slice(start, start + ARRAY_KEYS))


def work(pipe: Connection, places: dict[str, Any], records: int, value_bytes: int, seed: int, barrier: Any) -> None:
    """Runs what the pipe asks for: ("check", name), or (name, operation, count, whether others begin at once)."""
    worker = Worker(places, records, value_bytes, seed)
    pipe.send(None)
    for request in iter(pipe.recv, None):
        if request[0] == "check":
            worker.check(request[1])
            pipe.send(None)
            continue
        name, operation, count, is_together = request
        call = worker.prepared(name, operation, count)
        if is_together:
            barrier.wait()
        start = time.monotonic_ns()
        call()
        pipe.send((start, time.monotonic_ns()))


class Crew:
    """The worker processes of one size of value."""

    def __init__(self, ends: contextlib.ExitStack, places: Places, records: int, value_bytes: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        barrier = spawn.Barrier(2)
        self.pipes: list[Connection] = []
        for seed in range(2):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=work, args=(theirs, places.of, records, value_bytes, seed, barrier), daemon=True
            )
            process.start()
            theirs.close()
            ends.callback(process.join)
            ends.callback(ours.send, None)
            self.pipes.append(ours)
        for pipe in self.pipes:
            pipe.recv()

    def check(self, name: str) -> None:
        for pipe in self.pipes:
            pipe.send(("check", name))
            pipe.recv()

    def ns_per_operation(self, name: str, operation: str, count: int, processes: int) -> float:
        """Returns the time for one operation: elapsed time, divided by the operations of all processes."""
        for pipe in self.pipes[:processes]:
            pipe.send((name, operation, count, processes > 1))
        times = [pipe.recv() for pipe in self.pipes[:processes]]
        return float(max(end for _, end in times) - min(start for start, _ in times)) / (count * processes)

    def count(self, name: str, operation: str, seconds: float) -> int:
        """Returns the number of operations that take about so long."""
        count = MANY
        while (ns := self.ns_per_operation(name, operation, count, 1)) * count < 5e6:
            count *= 4
        return max(MANY, min(round(seconds * 1e9 / ns), 4_000_000) // MANY * MANY)


Cell = tuple[int, int, str, str]


def measured(value_bytes: int, records: int, rounds: int, seconds: float) -> Iterator[tuple[Cell, float]]:
    """Yields the time of each operation of each system in each round, in ns."""
    with contextlib.ExitStack() as ends:
        places = Places(ends, records, value_bytes)
        pairs = [(key_of(number), value_of(number, value_bytes)) for number in range(records)]
        for name in places.of:
            if name not in ("dict", ARRAYS):
                places.open(name, {}).fill(pairs)
        crew = Crew(ends, places, records, value_bytes)
        cells = []
        for name in places.of:
            crew.check(name)
            for operation in OPERATIONS:
                if name == ARRAYS and operation == "get":
                    continue
                count = crew.count(name, operation, seconds)
                # Two dictionaries are not shared.
                for processes in (1, 2)[: 1 if name == "dict" else 2]:
                    cells.append(((value_bytes, processes, operation, name), count))
        for round in range(rounds):
            print(f"values of {value_bytes} bytes: round {round + 1} of {rounds}", file=sys.stderr)
            for cell, count in cells:
                _, processes, operation, name = cell
                yield cell, crew.ns_per_operation(name, operation, count, processes)
        for name in places.of:
            crew.check(name)


class Results:
    def __init__(self, rounds: dict[Cell, list[float]]) -> None:
        self.rounds = rounds

    def median(self, *cell: Any) -> float | None:
        rounds = self.rounds.get(cell)
        return statistics.median(rounds) if rounds else None

    def ratio(self, value_bytes: int, processes: int, operation: str, name: str) -> float | None:
        """Returns how many times as long as Guira it takes: the median of the rounds' ratios."""
        ours = self.rounds[value_bytes, processes, operation, GUIRA]
        theirs = self.rounds.get((value_bytes, processes, operation, name))
        return statistics.median(their / our for our, their in zip(ours, theirs)) if theirs else None

    def names(self) -> list[str]:
        measured = {cell[3] for cell in self.rounds}
        return [name for name in TITLES if name in measured]

    def panels(self) -> list[tuple[int, int]]:
        return sorted({cell[:2] for cell in self.rounds})


def title(value_bytes: int, processes: int) -> str:
    return f"Values of {value_bytes:,} bytes, {processes} process{'es' if processes > 1 else ''}"


def markdown(results: Results, about: str) -> str:
    lines = ["# Guira in Python, compared", "", f"Written by `cargo xtask python --bench`. {about}", ""]
    lines += ["Nanoseconds for one operation; in parentheses, how many times as long as Guira. With two processes, the time",
              "per operation of both together.", "", "| system | access |", "|---|---|"]
    lines += [f"| {name} | {TITLES[name]} |" for name in results.names()]
    if "redis-py" not in results.names():
        lines += ["", "redis-server is missing (`apt-get install redis-server`), so Redis was left out."]
    for panel in results.panels():
        lines += ["", f"## {title(*panel)}", "", f"| | {' | '.join(OPERATIONS.values())} |", "|---" + "|---:" * 3 + "|"]
        for name in results.names():
            cells = [(results.median(*panel, operation, name), results.ratio(*panel, operation, name))
                     for operation in OPERATIONS]
            if any(ns for ns, _ in cells):
                texts = ["" if ns is None else f"{ns:,.0f} ({multiple(ratio)})" for ns, ratio in cells]
                lines.append(f"| {name} | {' | '.join(texts)} |")
    lines += ["", "## Targets", "", "| target | measured | result |", "|---|---|---|"]
    aims = [("Manager().dict()", 100, ("get", "put")), ("redis-py", 20, ("get", "put")), ("lmdb", 1.5, ("get",))]
    for name, least, operations in aims:
        ratios = [results.ratio(*panel, operation, name) for panel in results.panels() for operation in operations]
        known = [ratio for ratio in ratios if ratio is not None]
        if known:
            met = "met" if min(known) >= least else "missed"
            shown = ", ".join(map(multiple, known))
            lines.append(f"| {' and '.join(operations)}: {least} × {name} | {shown} | {met} |")
    if array := results.median(8, 1, "get_many", ARRAYS):
        met = "met" if array <= 100 else "missed"
        lines.append(f"| lookups from an array: 10 million keys a second of a core | {1e3 / array:.1f} million | {met} |")
    return "\n".join(lines) + "\n"


def multiple(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def draw(results: Results, file: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "guira", "font.size": 8})
    from matplotlib import pyplot

    panels, names = results.panels(), results.names()
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), sharex=True, squeeze=False)
    for axis, panel in zip(axes.flat, panels):
        for row, (operation, label) in enumerate(OPERATIONS.items()):
            for bar, name in enumerate(names):
                ns = results.median(*panel, operation, name)
                if ns is None:
                    continue
                at, ratio = row + bar / (len(names) + 1), results.ratio(*panel, operation, name)
                axis.barh(at, ns, 0.9 / (len(names) + 1), color=f"C{bar}", label=name if row == 2 else None)
                axis.text(ns * 1.1, at, f"{multiple(ratio)} ×", va="center", fontsize=6)
        axis.set_yticks([row + 0.4 for row in range(3)], list(OPERATIONS.values()))
        axis.set(xscale="log", title=title(*panel), xlabel="ns for one operation (× Guira)")
        axis.margins(x=0.15)
        axis.invert_yaxis()
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="lower center", ncols=len(names))
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000, help="records that every system holds (200000)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, whose median counts (7)")
    parser.add_argument("--seconds", type=float, default=0.2, help="time for one cell of a round (0.2)")
    parser.add_argument("--quick", action="store_true", help="a trial of a minute, whose figures mean little")
    parser.add_argument("--publish", type=Path, metavar="FOLDER", help="write python.md, python.json and python.svg")
    options = parser.parse_args()
    if options.quick:
        options.records, options.rounds, options.seconds = 5_000, 2, 0.02
    rounds: dict[Cell, list[float]] = {}
    for value_bytes in (8, 1_024):
        for cell, ns in measured(value_bytes, options.records, options.rounds, options.seconds):
            rounds.setdefault(cell, []).append(ns)
    results = Results(rounds)
    about = (f"{options.records:,} records with keys of 8 bytes, the median of {options.rounds} rounds, Python "
             f"{platform.python_version()}, {os.cpu_count()} processors.")
    text = markdown(results, about)
    print(text)
    if options.publish:
        options.publish.mkdir(parents=True, exist_ok=True)
        (options.publish / "python.md").write_text(text)
        cells = [{"value_bytes": size, "processes": processes, "operation": operation, "system": name, "ns": times}
                 for (size, processes, operation, name), times in rounds.items()]
        (options.publish / "python.json").write_text(json.dumps({"about": about, "cells": cells}, indent=1) + "\n")
        draw(results, options.publish / "python.svg")


if __name__ == "__main__":
    main()
