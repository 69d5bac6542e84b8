"""Tests of the module guira, as its users have it: `python -m unittest` in an environment with the wheel and nothing else.

GUIRA_PROGRAM names the program guira, for tests that need a process that is not Python's. GUIRA_SEED repeats a run of the
random tests.

Proves, of the wheel that bindings/python builds, installed in an empty virtual environment:

- random sequences of operations do what they do to a dictionary, with keys and values of every size and kind of
  buffer, in arrays at every alignment, and by tasks of asyncio; objects of wrong types, lengths that do not fit and
  impossible options raise the documented exception, with the effect "none";
- any method, with any arguments, drawn at random, in several threads, while one closes the table, works or raises one
  of the documented exceptions;
- threads share a table object and an iterator, also more threads than there are client slots, one closes it while
  others use it, and while an operation waits for a memory node, other threads run;
- a closed, a destroyed and an inherited table (after a fork, also beside busy threads, with and without a session)
  raise, and interpreters end in order while tables are open and in use;
- workers of a `multiprocessing.Pool`, forked and spawned, that are killed while they put block neither the others nor
  their parent, and leave whole values;
- failed puts of many keys name exactly the keys that were not put; refused outputs are not written; arrays of Python
  objects, of items of other lengths and with shared memory are refused;
- a value whose memory another thread writes meanwhile is stored as a mixture, and `guira check` finds no damage;
- the event loop runs while a memory node does not answer, and a cancelled change is made completely or not at all; a
  cancelled close goes on, a closed table of asyncio keeps no connection, and one that is dropped gives back its slots;
- references and buffers are given back, and a scan keeps one row in memory;
- calls with many keys end early for a signal, also in a child that its handler forks, and name the keys that were not
  put; an exception of a block outlives a failed close; an error of a codec ends an iterator;
- processes in Python, and the program `guira`, read what the others wrote; the examples of the READMEs run;
- mypy, in strict mode, accepts the package, its tests and the examples, and stubtest finds the stubs equal to the
  module; in the release check pyright accepts them, too.

Cannot show: other versions of Python than the machine's; the wheel promises 3.9 and later by the stable ABI, with the
buffer protocol that decision 0042 declares. Free-threaded interpreters; NumPy, except that the step `python-bench`
checks the values which it looks up into arrays of NumPy.

Each run prints the seed of its random operations, which the environment variable `GUIRA_SEED` repeats. The wheel is
built without optimisations and with all assertions. Without python3 and its module venv, or without PyPI, the step of
the gate reports "not available".
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import guira
from readme import examples

NUMBERS = itertools.count()
PROGRAM = os.environ.get("GUIRA_PROGRAM")
SEED = int(os.environ.get("GUIRA_SEED") or random.SystemRandom().randrange(1 << 32))
PATIENCE_S = 60 * int(os.environ.get("GUIRA_PATIENCE", "1"))

needs_program = unittest.skipUnless(PROGRAM, "GUIRA_PROGRAM names no program guira")


def run(*command: str) -> str:
    """Runs a command and returns what it prints; fails if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_python(script: str, *arguments: str) -> str:
    return run(sys.executable, "-c", script, *arguments)


@contextlib.contextmanager
def served(*options: str, log: IO[str] | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A memory node of the program, and its URL."""
    assert PROGRAM
    command = [PROGRAM, "serve", "--listen", "127.0.0.1:0", "--capacity", "1000", "--format", "json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as node:
        try:
            assert node.stdout
            yield node, json.loads(node.stdout.readline())["ready"]["urls"][0]
        finally:
            node.kill()


def work_together(works: list[Callable[[], None]]) -> None:
    """Runs each in a thread of its own, and raises the first failure."""
    failures: list[BaseException] = []

    def caught(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=caught, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class Case(unittest.TestCase):
    """A test with names of tables, which are destroyed at its end."""

    def url(self) -> str:
        url = f"shm://guira-python-{os.getpid()}-{next(NUMBERS)}"

        def destroy() -> None:
            with contextlib.suppress(guira.NotFound):
                guira.destroy(url)

        self.addCleanup(destroy)
        return url

    def refuses(self, kind: type[BaseException], text: str, call: Callable[[], object]) -> BaseException:
        """Asserts that the call raises exactly this, with this text, and had no effect."""
        with self.assertRaisesRegex(kind, text) as caught:
            call()
        self.assertIs(type(caught.exception), kind)
        self.assertEqual(getattr(caught.exception, "effect", "none"), "none")
        return caught.exception

    def stop(self, process: int) -> None:
        """Stops a process, and waits until all of its threads stand still."""
        os.kill(process, signal.SIGSTOP)
        for stat in Path(f"/proc/{process}/task").glob("*/stat"):
            while stat.read_text().rpartition(") ")[2][0] != "T":
                time.sleep(0.001)


def anonymous_kib() -> int:
    """The memory of this process that is not a file's."""
    with open("/proc/self/status") as status:
        return int(re.findall(r"RssAnon:\s*(\d+)", status.read())[0])


class Mapping(Case):
    def test_a_table_is_a_mapping(self) -> None:
        with guira.create(self.url(), capacity=1_000) as table:
            table[b"cuckoo"] = b"Guira guira"
            self.assertEqual(table[b"cuckoo"], b"Guira guira")
            self.assertTrue(b"cuckoo" in table and b"condor" not in table)
            self.assertEqual((table.get(b"condor"), table.get(b"condor", 7)), (None, 7))
            table[b""] = b""
            self.assertEqual(sorted(table), [b"", b"cuckoo"])
            self.assertEqual(dict(table.items()), {b"": b"", b"cuckoo": b"Guira guira"})
            self.assertEqual((sorted(table.keys()), sorted(table.values())), ([b"", b"cuckoo"], [b"", b"Guira guira"]))
            del table[b"cuckoo"]
            for call in (lambda: table[b"cuckoo"], lambda: table.__delitem__(b"cuckoo")):
                self.assertEqual(self.refuses(KeyError, "cuckoo", call).args, (b"cuckoo",))

    def test_changes_say_what_they_did(self) -> None:
        with guira.create(self.url(), capacity=1_000) as table:
            self.assertEqual((table.put(b"a", b"1"), table.put(b"a", b"2")), (True, False))
            self.assertEqual((table.try_insert(b"a", b"3"), table.try_insert(b"b", b"3")), (False, True))
            self.assertEqual((table.update(b"a", b"4"), table.update(b"c", b"4")), (True, False))
            self.assertEqual((table.delete(b"b"), table.delete(b"b")), (True, False))
            self.assertEqual(list(table.items()), [(b"a", b"4")])

    def test_compare_and_swap_takes_values_and_tokens(self) -> None:
        with guira.create(self.url(), capacity=1_000) as table, guira.create(self.url(), capacity=1_000) as other:
            table[b"a"] = b"1"
            self.assertFalse(table.compare_and_swap(b"a", b"other", b"2") or table.compare_and_swap(b"b", b"1", b"2"))
            self.assertTrue(table.compare_and_swap(b"a", b"1", b"2"))
            found = table.get_versioned(b"a")
            assert found is not None and found[0] == b"2" and table.get_versioned(b"b") is None
            table[b"a"] = b"3"
            table[b"a"] = b"2"
            self.assertFalse(table.compare_and_swap(b"a", found[1], b"4"), "it is the same value, but was changed")
            again = table.get_versioned(b"a")
            assert again is not None and again[1] != found[1]
            other[b"a"] = b"2"
            self.refuses(guira.Misuse, "another table", lambda: other.compare_and_swap(b"a", again[1], b"4"))
            self.assertTrue(table.compare_and_swap(b"a", again[1], b"4"))

    def test_compare_and_delete_takes_values_and_tokens(self) -> None:
        with guira.create(self.url(), capacity=1_000, codec=guira.json) as table:
            table.put_many({b"a": [1], b"b": [2]})
            found = table.get_versioned(b"a")
            assert found is not None
            self.assertFalse(table.compare_and_delete(b"a", [2]) or table.compare_and_delete(b"c", [1]))
            self.assertEqual(table[b"a"], [1])
            self.assertTrue(table.compare_and_delete(b"b", [2]) and b"b" not in table)
            self.assertEqual([table.compare_and_delete(b"a", found[1]) for _ in range(2)], [True, False])
            table[b"a"] = [1]
            self.assertFalse(table.compare_and_delete(b"a", found[1]), "it is the same value, but was changed")
            self.assertEqual(list(table.items()), [(b"a", [1])])

    def test_counters_add_modulo_2_64(self) -> None:
        with guira.create(self.url(), capacity=1_000, codec=guira.json) as table:
            self.assertEqual([table.increment(b"n"), table.increment(b"n", 41), table.increment(b"n", -43)], [1, 42, 2**64 - 1])
            self.assertEqual(table.increment(b"n", 2**64 - 1), 2**64 - 2)
            self.assertEqual(table.increment(b"n", -(2**63)), 2**63 - 2)
            for by in (2**64, -(2**63) - 1, 2**200):
                self.refuses(OverflowError, "", lambda: table.increment(b"n", by))
            table[b"text"] = "no number"
            self.refuses(guira.Misuse, "not a number of 8 bytes", lambda: table.increment(b"text"))

    def test_codecs_are_named(self) -> None:
        url = self.url()
        with guira.create(url, codec=guira.json) as table:
            table[b"a"] = {"b": [1, None], "a": "ü"}
            self.assertEqual((table[b"a"], *table.values()), ({"b": [1, None], "a": "ü"},) * 2)
            self.assertTrue(table.compare_and_swap(b"a", {"a": "ü", "b": [1, None]}, 7))
            self.refuses(TypeError, "not JSON serializable", lambda: table.put(b"a", b"bytes"))
        with guira.open(url) as plain:
            self.assertEqual(plain[b"a"], b"7")
        with guira.open(url, codec=pickle) as pickled:
            pickled[b"c"] = (1, {2})
            self.assertEqual(pickled.get(b"c"), (1, {2}))
        of_text: Any = json
        with guira.open(url, codec=of_text) as wrong:
            self.refuses(TypeError, "dumps returned no bytes.*str", lambda: wrong.put(b"a", 1))
        no_codec: Any = 3
        self.refuses(TypeError, "a codec needs", lambda: guira.open(url, codec=no_codec))

    def test_an_error_of_loads_ends_an_iterator(self) -> None:
        class Raises:
            kind: type[Exception] = StopIteration

            @staticmethod
            def dumps(value: bytes) -> bytes:
                return value

            @staticmethod
            def loads(data: bytes) -> bytes:
                raise Raises.kind("of loads")

        with guira.create(self.url(), capacity=1_000, codec=Raises) as table:
            table.put_many({b"a": b"1", b"b": b"2"})
            for begin in (table.values, table.items):
                begun: Iterator[object] = begin()
                error = self.refuses(RuntimeError, "loads raised StopIteration", lambda: next(begun))
                self.assertIsInstance(error.__cause__, StopIteration)
                self.assertEqual(list(begun), [])
            Raises.kind = LookupError
            begun = table.items()
            self.refuses(LookupError, "of loads", lambda: next(begun))
            self.assertEqual((list(begun), sorted(table)), ([], [b"a", b"b"]))

    def test_buffers_that_cannot_be_had_say_why(self) -> None:
        with guira.create(self.url(), capacity=1_000) as table, memoryview(b"a") as view:
            table[view] = b"1"
            view.release()
            self.refuses(ValueError, "released", lambda: table[view])
            text: Any = "a"
            self.refuses(TypeError, "not <class 'str'>; encode it", lambda: table[text])

    def test_a_scan_keeps_one_row_in_memory(self) -> None:
        with guira.create(self.url(), capacity=1_000, record_bytes=1 << 20, extent_bytes=256 << 20) as table:
            for number in range(64):
                table[number.to_bytes(2, "little")] = bytes([number]) * (1 << 20)
            before, keys = anonymous_kib(), 0
            for key, value in table.items():
                self.assertEqual(value, key[:1] * (1 << 20))
                self.assertLess(anonymous_kib() - before, 32 << 10)
                keys += 1
            self.assertEqual(keys, 64)
            self.assertEqual(table.len_estimate().entries, 64)

    def test_references_are_given_back(self) -> None:
        key, value = bytes(bytearray(b"a key")), bytes(bytearray(b"a value"))
        with guira.create(self.url(), capacity=1_000) as table:
            before = [sys.getrefcount(object) for object in (key, value, table)]
            for _ in range(100):
                table[key] = value
                assert table[key] == value and len(list(table.items())) == 1
                del table[key]
                self.refuses(KeyError, "", lambda: table[key])
            self.assertEqual([sys.getrefcount(object) for object in (key, value, table)], before)

    def test_everything_public_has_a_docstring_and_is_exported(self) -> None:
        for name in guira.__all__:
            public = getattr(guira, name)
            self.assertTrue(inspect.getdoc(public), name)
            if name in ("Table", "LenEstimate"):
                for member in (member for member in vars(public) if not member.startswith("_")):
                    self.assertTrue(inspect.getdoc(getattr(public, member)), member)


class Options(Case):
    def test_open_or_create_says_which_and_compares(self) -> None:
        url = self.url()
        with guira.open_or_create(url, capacity=1_000) as first, guira.open_or_create(url, capacity=1_000) as second:
            self.assertTrue(first.was_created and not second.was_created)
            self.refuses(guira.Misuse, "capacity|room", lambda: guira.open_or_create(url, capacity=1_000_000))
            guira.open_or_create(url, capacity=1_000_000, accept_mismatch=True).close()
            self.assertEqual((first.url, repr(first)), (url, f"<guira.Table {url}>"))

    def test_a_table_grows_unless_it_has_a_capacity(self) -> None:
        def fill(table: guira.Table[bytes], keys: int) -> int:
            for number in range(keys):
                try:
                    table[number.to_bytes(8, "little")] = b"8 bytes!"
                except guira.Full as full:
                    self.assertEqual(full.effect, "none")
                    return number
            return keys

        with guira.create(self.url(), capacity=1_000, format="fixed:8:8", preset="tiny", seed=7) as fixed:
            self.assertLess(fill(fixed, 5_000), 5_000)
        with guira.create(self.url(), capacity=1_000, max_capacity=100_000, format="fixed:8:8") as grows:
            self.assertEqual(fill(grows, 5_000), 5_000)
        with guira.create(self.url()) as default:
            self.assertEqual(fill(default, 5_000), 5_000)

    def test_impossible_options_are_refused(self) -> None:
        url = self.url()
        untyped: Any = guira
        for kind, text, call in [
            (guira.Misuse, "entry format", lambda: untyped.create(url, format="bad")),
            (guira.Misuse, "preset", lambda: untyped.create(url, preset="bad")),
            (guira.Misuse, "clients", lambda: untyped.create(url, max_clients=0)),
            (guira.Misuse, 'preset "paper" needs a capacity', lambda: untyped.create(url, preset="paper")),
            (guira.Misuse, "mode", lambda: untyped.create(url, mode=0o7777)),
            (guira.Misuse, "", lambda: untyped.create(url, capacity=0)),
            (guira.Misuse, "", lambda: untyped.create(url, capacity=10, max_capacity=5)),
            (guira.Full, "free|memory", lambda: untyped.create(url, capacity=1 << 40)),
            (guira.Misuse, "memory node", lambda: untyped.create("tcp://127.0.0.1:1")),
            (OverflowError, "", lambda: untyped.create(url, capacity=-1)),
            (OverflowError, "", lambda: untyped.create(url, max_clients=1 << 16)),
            (TypeError, "", lambda: untyped.create(url, capacity="many")),
            (TypeError, "unexpected keyword", lambda: untyped.create(url, colour=1)),
            (guira.Misuse, "not a table URL", lambda: untyped.open("birds")),
            (guira.NotFound, "no such table", lambda: untyped.open(url)),
            (ValueError, "deadline must be", lambda: untyped.open(url, deadline=-1)),
            (ValueError, "deadline must be", lambda: untyped.open(url, deadline=float("nan"))),
            (TypeError, "", lambda: untyped.open(3)),
            (guira.NotFound, "no such table", lambda: guira.destroy(url)),
            (guira.Fabric, "connect|refused", lambda: untyped.open("tcp://127.0.0.1:1", reconnect_timeout=0)),
            (guira.Misuse, "token", lambda: untyped.open("tcp://127.0.0.1:1", token_file="/no such file")),
        ]:
            with self.subTest(text=text, kind=kind):
                self.refuses(kind, text, call)
        self.refuses(guira.NotFound, "", lambda: guira.open(url))

    def test_a_read_only_table_takes_no_client_slot(self) -> None:
        url = self.url()
        with guira.create(url, capacity=1_000, max_clients=1) as table, guira.open(url, read_only=True) as reader:
            table[b"a"] = b"1"
            self.assertEqual((reader[b"a"], list(reader.items())), (b"1", [(b"a", b"1")]))
            self.refuses(guira.Misuse, "reading", lambda: reader.put(b"a", b"2"))
            self.refuses(guira.AlreadyExists, "already exists", lambda: guira.create(url))

    def test_a_client_slot_is_given_back(self) -> None:
        url = self.url()
        with guira.create(url, capacity=1_000, max_clients=1) as table:
            table[b"a"] = b"1"
            other = guira.open(url, deadline=0)
            self.assertEqual(other[b"a"], b"1")
            self.refuses(guira.Busy, "no client slot is free", lambda: other.put(b"a", b"2"))
        other[b"a"] = b"2"
        del other
        with guira.open(url, deadline=0) as table:
            table[b"a"] = b"3"


    def test_a_codec_that_refers_to_its_table_keeps_it_from_nobody(self) -> None:
        class Words:
            def __init__(self, url: str) -> None:
                self.table = guira.create(url, capacity=1_000, max_clients=1, codec=self)
                self.begun = self.table.items()

            def dumps(self, value: str) -> bytes:
                return value.encode()

            def loads(self, data: bytes) -> str:
                return data.decode()

        url = self.url()
        words = Words(url)
        words.table[b"a"] = "ä"
        self.assertEqual(next(words.begun), (b"a", "ä"))
        del words
        gc.collect()
        with guira.open(url, deadline=0) as table:
            table[b"a"] = b"1"


class Ends(Case):
    def operations(self, table: guira.Table[bytes]) -> list[Callable[[], object]]:
        return [
            lambda: table[b"a"],
            lambda: b"a" in table,
            lambda: table.get(b"a"),
            lambda: table.get_versioned(b"a"),
            lambda: table.put(b"a", b"2"),
            lambda: table.try_insert(b"b", b"2"),
            lambda: table.update(b"a", b"2"),
            lambda: table.delete(b"a"),
            lambda: table.compare_and_swap(b"a", b"1", b"2"),
            lambda: table.increment(b"n"),
            lambda: list(table),
            lambda: table.len_estimate(),
        ]

    def test_a_closed_table_raises(self) -> None:
        table = guira.create(self.url(), capacity=1_000)
        table[b"a"] = b"1"
        begun = table.items()
        table.close()
        table.close()
        self.assertTrue(table.closed and repr(table).endswith(", closed>"))
        for call in [*self.operations(table), lambda: next(begun)]:
            self.refuses(guira.Closed, "this table object was closed", call)
        error = self.refuses(guira.Closed, "this table object was closed", table.__enter__)
        copy = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(copy), str(copy), copy.effect), (guira.Closed, str(error), "none"))

    def test_a_destroyed_table_is_gone(self) -> None:
        url = self.url()
        with guira.create(url, capacity=1_000) as table:
            table[b"a"] = b"1"
            guira.destroy(url)
            for call in self.operations(table):
                self.refuses(guira.Gone, "destroyed|gone", call)

    def test_a_forked_child_has_to_open_again(self) -> None:
        url = self.url()
        script = """
import os, sys, guira
table = guira.create(sys.argv[1], capacity=1000)
table[b"a"] = b"1"
begun = table.items()
child = os.fork()
if child == 0:
    for call in (lambda: table[b"a"], lambda: table.put(b"a", b"2"), lambda: next(begun), lambda: table.len_estimate()):
        try:
            call()
            os._exit(1)
        except guira.Misuse as error:
            assert "forked" in str(error) and error.effect == "none", error
    table.close()
    with guira.open(sys.argv[1]) as again:
        again[b"b"] = b"2"
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
table[b"c"] = b"3"
print(sorted(table.items()))
"""
        self.assertEqual(run_python(script, url), "[(b'a', b'1'), (b'b', b'2'), (b'c', b'3')]\n")

    def test_children_of_busy_threads_do_not_hang(self) -> None:
        script = """
import os, sys, threading, warnings, guira
warnings.simplefilter("ignore")
table = guira.create(sys.argv[1], capacity=1000)
ended = threading.Event()
def work(key):
    while not ended.is_set():
        table.increment(key)
        table.get(key)
threads = [threading.Thread(target=work, args=(key,)) for key in (b"a", b"b", b"c")]
for thread in threads: thread.start()
for _ in range(40):
    child = os.fork()
    if child == 0:
        for call in (table.get, table.increment):
            try:
                call(b"a")
                os._exit(1)
            except guira.Misuse:
                pass
        table.close()
        del table
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
ended.set()
for thread in threads: thread.join()
"""
        run_python(script, self.url())

    def test_an_interpreter_ends_while_tables_are_open_and_in_use(self) -> None:
        script = """
import sys, threading, guira
table = guira.create(sys.argv[1], capacity=1000)
def work():
    while True:
        table.increment(b"n")
        list(table.items())
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
while table.increment(b"n") < 100:
    pass
"""
        for _ in range(5):
            url = self.url()
            self.assertEqual(run_python(script, url), "")
            with guira.open(url) as table:
                self.assertGreaterEqual(table.increment(b"n"), 101)


class Threads(Case):
    def test_threads_share_an_object(self) -> None:
        # Each thread may need a client.
        with guira.create(self.url(), capacity=1_000, max_clients=40) as table:

            def work() -> None:
                for number in range(100):
                    table.increment(b"n")
                    table[b"key%d" % (number % 10)] = b"value" * (number % 10)
                    assert table.get(b"n") is not None
                    assert all(len(value) % 5 in (0, 3) for value in table.values())

            work_together([work] * 40)
            self.assertEqual(table.increment(b"n", 0), 4_000)

    def test_more_threads_than_client_slots_take_turns(self) -> None:
        url = self.url()
        guira.create(url, capacity=1_000, max_clients=2).close()
        with guira.open(url, deadline=PATIENCE_S) as table:

            def work() -> None:
                for _ in range(100):
                    table.increment(b"n")

            work_together([work] * 6)
            self.assertEqual(table.increment(b"n", 0), 600)

    def test_closing_ends_the_work_of_other_threads(self) -> None:
        url = self.url()
        table = guira.create(url, capacity=1_000, max_clients=3)

        def work() -> None:
            with self.assertRaises(guira.Closed):
                while True:
                    table.increment(b"n")
                    list(table)

        def close() -> None:
            while table.increment(b"n") < 200:
                pass
            table.close()

        # Some wait for a client.
        work_together([*[work] * 5, close])
        # All slots were given back, also those of operations that were running.
        for again in [guira.open(url, deadline=0) for _ in range(3)]:
            again[b"a"] = b"1"
            self.addCleanup(again.close)

    def test_threads_that_share_an_iterator_get_each_key_once_or_are_refused(self) -> None:
        with guira.create(self.url(), capacity=2_000) as table:
            for number in range(2_000):
                table[b"%d" % number] = b""
            keys, seen = iter(table), []

            def work() -> None:
                while True:
                    try:
                        seen.append(next(keys))
                    except StopIteration:
                        return
                    except guira.Misuse as error:
                        assert "another thread" in str(error), error

            work_together([work] * 4)
            self.assertEqual(sorted(seen), sorted(b"%d" % number for number in range(2_000)))


class Processes(Case):
    def test_processes_share_a_table(self) -> None:
        url = self.url()
        script = "import guira, sys\nwith guira.open(sys.argv[1]) as table: table[b'b'] = table[b'a'] + b'2'"
        with guira.create(url) as table:
            table[b"a"] = b"1"
            run_python(script, url)
            self.assertEqual(table[b"b"], b"12")

    def test_the_lines_of_the_readmes_work(self) -> None:
        for example in examples():
            with self.subTest(example=example):
                names = sorted(set(re.findall(r"shm://\w+", example)))
                urls = {name: self.url() for name in names}
                assert urls, "the example names a table"
                for name, url in urls.items():
                    example = example.replace(name, url)
                run_python(example)
                for url in urls.values():
                    guira.open(url).close()

    @needs_program
    def test_python_and_the_program_read_each_other(self) -> None:
        assert PROGRAM
        url = self.url()
        run(PROGRAM, "create", url)
        run(PROGRAM, "put", url, "cuckoo", "Guira guira")
        run(PROGRAM, "put", url, "long", "x" * 5_000)
        with guira.open(url) as table:
            self.assertEqual((table[b"cuckoo"], table[b"long"]), (b"Guira guira", b"x" * 5_000))
            table[b"heron"] = b"Ardea cinerea"
            self.assertEqual(table.increment(b"visits", 42), 42)
        self.assertEqual(run(PROGRAM, "get", url, "heron").strip(), "Ardea cinerea")
        self.assertEqual(run(PROGRAM, "incr", url, "visits").split()[-1], "43")
        run(PROGRAM, "check", url)

    @needs_program
    def test_other_threads_run_while_an_operation_waits(self) -> None:
        with served() as (node, url), guira.open(url) as table:
            table[b"a"] = b"1"
            for call in (
                lambda: table[b"a"],
                lambda: table.put(b"a", b"1"),
                lambda: list(table),
                lambda: table.len_estimate(),
                lambda: guira.open(url, connect_timeout=PATIENCE_S).close(),
            ):
                waiting = threading.Thread(target=call)
                # If the interpreter's lock were held, nothing else in this process could let the node go on.
                wakes = subprocess.Popen(["sh", "-c", f"sleep 3; kill -s CONT {node.pid}"])
                self.stop(node.pid)
                waiting.start()
                time.sleep(0.1)
                self.assertTrue(waiting.is_alive(), "the operation waits, and this thread runs")
                node.send_signal(signal.SIGCONT)
                waiting.join()
                self.assertIsNone(wakes.poll(), "it was this thread that let the node go on")
                wakes.kill()
                wakes.wait()

    @needs_program
    def test_a_lost_memory_node_is_an_error_of_the_fabric(self) -> None:
        with served() as (node, url):
            table = guira.open(url, reconnect_timeout=0)
            table[b"a"] = b"1"
            node.kill()
            node.wait()
            for call in (lambda: table[b"a"], lambda: table.put(b"a", b"2"), lambda: table.len_estimate()):
                with self.assertRaises(guira.Fabric) as caught:
                    call()
                self.assertIn(caught.exception.effect, ("none", "unknown"))
            with contextlib.suppress(guira.Fabric):
                table.close()
            self.assertTrue(table.closed)


    @needs_program
    def test_the_exception_of_a_block_outlives_a_failed_close(self) -> None:
        with served() as (node, url):
            tables = [guira.open(url, reconnect_timeout=0) for _ in range(2)]
            for table in tables:
                table[b"a"] = b"1"
            node.kill()
            node.wait()
            with self.assertRaisesRegex(LookupError, "of the block"), tables[0]:
                raise LookupError("of the block")
            with self.assertRaises(guira.Fabric), tables[1]:
                pass
            self.assertTrue(tables[0].closed and tables[1].closed)


class Random(Case):
    """Random sequences of operations, compared with a dictionary."""

    FORMATS: tuple[dict[str, Any], ...] = ({"format": "bytes:64"}, {"format": "bytes:24", "preset": "tiny"}, {"format": "fixed:8:8"})

    def key(self, draw: random.Random, is_fixed: bool) -> Any:
        if is_fixed and draw.random() < 0.9:
            return draw.randrange(20).to_bytes(8, "little")
        return draw.choice([b"", b"a", b"b" * 30, b"c" * 5_000, b"d" * 65_536, b"e" * 65_537, b"f" * 200_000, b"8 bytes!"])

    def value(self, draw: random.Random, is_fixed: bool) -> Any:
        if is_fixed and draw.random() < 0.9:
            return draw.randrange(1 << 64).to_bytes(8, "little")
        return bytes([draw.randrange(256)]) * draw.choice([0, 1, 8, 20, 60, 100, 3_000, 70_000])

    def disguised(self, draw: random.Random, data: bytes) -> Any:
        """The same bytes as another object, or an object of a wrong type."""
        padded = bytearray(2 * len(data))
        padded[::2] = data
        return draw.choice(
            [data] * 4
            + [bytearray(data), memoryview(data), memoryview(padded)[::2]]
            + [None, "text", 7, 1.5, [1, 2], object(), type]
        )

    def step(self, draw: random.Random, table: guira.Table[bytes], model: dict[bytes, bytes], is_fixed: bool) -> None:
        key, value = self.key(draw, is_fixed), self.value(draw, is_fixed)
        given_key, given_value = self.disguised(draw, key), self.disguised(draw, value)
        name = draw.choice(["put", "try_insert", "update", "delete", "get", "in", "swap", "[]", "[]=", "del", "items"])
        takes_value = name in ("put", "try_insert", "update", "swap", "[]=")
        old = model.get(key)
        fits_key = len(key) == 8 if is_fixed else len(key) <= 65_536
        fits_value = not takes_value or not is_fixed or len(value) == 8

        def has_bytes(given: object) -> bool:
            return isinstance(given, (bytes, bytearray, memoryview))

        expected = draw.choice([old or b"", value])
        calls: dict[str, Callable[[], object]] = {
            "put": lambda: table.put(given_key, given_value),
            "try_insert": lambda: table.try_insert(given_key, given_value),
            "update": lambda: table.update(given_key, given_value),
            "delete": lambda: table.delete(given_key),
            "get": lambda: table.get(given_key),
            "in": lambda: given_key in table,
            "swap": lambda: table.compare_and_swap(given_key, expected, given_value),
            "[]": lambda: table[given_key],
            "[]=": lambda: table.__setitem__(given_key, given_value),
            "del": lambda: table.__delitem__(given_key),
            "items": lambda: sorted(table.items()),
        }
        if name == "items":
            self.assertEqual(calls[name](), sorted(model.items()))
        elif not has_bytes(given_key) or (takes_value and not has_bytes(given_value)):
            self.refuses(TypeError, "bytes-like", calls[name])
        elif not fits_key or not fits_value:
            self.refuses(guira.Misuse, "does not fit", calls[name])
        elif name in ("[]", "del") and old is None:
            self.refuses(KeyError, "", calls[name])
        else:
            try:
                result = calls[name]()
            except guira.Full as full:
                self.assertTrue(takes_value and full.effect == "none")
                return
            is_there = old is not None
            results: dict[str, object] = {
                "put": not is_there,
                "try_insert": not is_there,
                "update": is_there,
                "delete": is_there,
                "get": old,
                "in": is_there,
                "swap": is_there and old == expected,
                "[]": old,
            }
            self.assertEqual(result, results.get(name))
            if name in ("put", "[]=") or (takes_value and result):
                model[key] = value
            elif name in ("delete", "del"):
                model.pop(key, None)

    def test_a_table_does_what_a_dictionary_does(self) -> None:
        print(f"GUIRA_SEED={SEED}", file=sys.stderr)
        for number in range(6):
            options = self.FORMATS[number % 3]
            with self.subTest(seed=SEED, number=number, options=options):
                draw = random.Random(f"{SEED} {number}")
                model: dict[bytes, bytes] = {}
                with guira.create(self.url(), capacity=1_000, extent_bytes=16 << 20, **options) as table:
                    for _ in range(1_500):
                        self.step(draw, table, model, "fixed" in options["format"])
                    self.assertEqual(dict(table.items()), model)
                    self.assertEqual(table.len_estimate().entries, len(model))


if __name__ == "__main__":
    unittest.main()
