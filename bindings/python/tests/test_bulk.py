"""Tests of operations on many keys, of buffers, and of what ends while it is in use: processes, parents, tables."""

from __future__ import annotations

import array
import asyncio
import contextlib
import ctypes
import itertools
import mmap
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any

import guira
import guira.aio
import workers
from test_guira import (
    PATIENCE_S,
    PROGRAM,
    SEED,
    Case,
    anonymous_kib,
    needs_program,
    run,
    run_python,
    served,
    work_together,
)


def numbers(values: list[int]) -> array.array[int]:
    return array.array("Q", values)


class OneBuffer:
    """A codec that has one buffer for all values."""

    memory = bytearray(5_000)

    @staticmethod
    def dumps(value: int) -> bytearray:
        OneBuffer.memory[:] = bytes([value]) * 5_000
        return OneBuffer.memory

    @staticmethod
    def loads(data: bytes) -> int:
        assert data == data[:1] * 5_000
        return data[0]


class ManyKeys(Case):
    def test_many_keys_are_looked_up_in_order(self) -> None:
        with guira.create(self.url(), capacity=10_000) as table:
            local = {b"%d" % number: b"v" * (number % 100) for number in range(3_000)}
            self.assertEqual(table.put_many(local), 3_000)
            self.assertEqual(table.put_many((key, b"new " + value) for key, value in local.items()), 0)
            wanted = [b"%d" % (number * 7 % 4_000) for number in range(5_000)]
            new: dict[bytes, bytes] = {key: b"new " + value for key, value in local.items()}
            self.assertEqual(table.get_many(wanted), [new.get(key) for key in wanted])
            self.assertEqual(table.get_many(iter(wanted), 7), [new.get(key, 7) for key in wanted])
            self.assertEqual((table.get_many([]), table.put_many([])), ([], 0))
            self.assertEqual((table.put_many([[b"list", b"1"], (b"tuple", b"2")]), table[b"list"]), (2, b"1"))
            del table[b"list"], table[b"tuple"]
            with guira.create(self.url(), capacity=10_000) as other:
                self.assertEqual(other.put_many(table), 3_000)
                self.assertEqual(dict(other.items()), new)

    def test_a_codec_is_used(self) -> None:
        with guira.create(self.url(), capacity=1_000, codec=guira.json) as table:
            self.assertEqual(table.put_many({b"a": [1], b"b": None}), 2)
            self.assertEqual(table.get_many([b"b", b"c", b"a"], "none"), [None, "none", [1]])

    def test_values_in_one_buffer_are_copied_as_they_are_drawn(self) -> None:
        keys = [b"%d" % number for number in range(20)]
        with guira.create(self.url(), record_bytes=5_000, codec=OneBuffer) as table:
            self.assertEqual(table.put_many(zip(keys, range(20))), 20)
            self.assertEqual(table.get_many(keys), list(range(20)))
            self.assertEqual([table.compare_and_swap(b"1", 1, 70), table.compare_and_swap(b"1", 1, 7)], [True, False])
            self.assertEqual(table[b"1"], 70)
            with guira.open(table.url) as plain:
                plain.put_many((key, OneBuffer.dumps(number)) for number, key in enumerate(keys, 30))
            self.assertEqual(table.get_many(keys), list(range(30, 50)))

    def test_failed_puts_say_which(self) -> None:
        with guira.create(self.url(), capacity=1_000, format="fixed:8:8") as table:
            items = [(b"%8d" % number, b"8 bytes!") for number in range(200)]
            items[70:72] = [(b"short", b"8 bytes!"), (items[71][0], b"no")]
            with self.assertRaisesRegex(guira.Misuse, "74 of 200 keys were not put.*key of 5 bytes") as caught:
                table.put_many(items)
            # Nothing is tried after the group of 64 in which one failed.
            self.assertEqual((caught.exception.failed, caught.exception.effect), ([70, 71, *range(128, 200)], "none"))
            self.assertEqual(len(list(table)), 126)
        with guira.create(self.url(), capacity=1_000, format="fixed:8:8", preset="tiny", seed=7) as table:
            with self.assertRaises(guira.Full) as full:
                table.put_many_from(numbers(list(range(5_000))), numbers([7] * 5_000))
            put = sorted(set(range(5_000)) - set(full.exception.failed))
            self.assertEqual(sorted(int.from_bytes(key, "little") for key in table), put)

    def test_nothing_is_put_if_an_item_is_wrong(self) -> None:
        with guira.create(self.url(), capacity=1_000) as table:
            wrong: Any
            for wrong in ([(b"a", b"1"), (b"b", 2)], [(b"a", b"1"), b"b"], [(b"a", b"1", b"2")], {"a": b"1"}, 7, None,
                          [(b"a", b"1"), 3]):
                with self.subTest(items=wrong), self.assertRaises((TypeError, ValueError)):
                    table.put_many(wrong)
                self.assertEqual(list(table), [])
            for wrong in (7, None, [7], "keys", [b"a", "b"], b"bytes"):
                with self.subTest(keys=wrong), self.assertRaises(TypeError):
                    table.get_many(wrong)


class Buffers(Case):
    def test_arrays_do_what_a_dictionary_does(self) -> None:
        drawn = random.Random(SEED)
        print(f"seed {SEED}", file=sys.stderr)
        for key_bytes, value_bytes in ((8, 8), (4, 4), (8, 0), (16, 40), (3, 5)):
            format, local = f"fixed:{key_bytes}:{value_bytes}", dict[bytes, bytes]()
            with guira.create(self.url(), capacity=20_000, format=format) as table:
                for _ in range(8):
                    count = drawn.choice((0, 1, 31, 64, 1_023, 2_500))
                    keys = [drawn.randrange(3_000).to_bytes(key_bytes, "big") for _ in range(count)]
                    values = [drawn.randbytes(value_bytes) for _ in keys]
                    before = len(local)
                    local.update(zip(keys, values))
                    inserted = table.put_many_from(self.placed(drawn, keys), self.placed(drawn, values))
                    self.assertEqual(inserted, len(local) - before)
                    wanted = [drawn.randrange(4_000).to_bytes(key_bytes, "big") for _ in range(count)]
                    old = [drawn.randbytes(value_bytes) for _ in wanted]
                    out, found = self.placed(drawn, old), bytearray(b"?" * count)
                    hits = [key in local for key in wanted]
                    self.assertEqual(table.get_many_into(self.placed(drawn, wanted), out, found), sum(hits))
                    self.assertEqual(bytes(found), bytes(hits))
                    expected = [local.get(key, before) for key, before in zip(wanted, old)]
                    self.assertEqual(out.tobytes(), b"".join(expected))
                    self.assertEqual(table.get_many_into(self.placed(drawn, wanted), out), sum(hits))
                self.assertEqual(dict(table.items()), local)

    def placed(self, drawn: random.Random, parts: list[bytes]) -> memoryview:
        """The parts in one buffer that begins at any address."""
        start, data = drawn.randrange(9), b"".join(parts)
        return memoryview(bytearray(b"-" * start + data + b"-" * 9))[start : start + len(data)]

    def test_arrays_of_other_items(self) -> None:
        with guira.create(self.url(), capacity=1_000, format="fixed:8:8") as table:
            pairs = memoryview(array.array("I", [1, 0, 2, 0, 3, 0])).cast("B").cast("I", (3, 2))
            self.assertEqual(table.put_many_from(pairs, array.array("d", [0.5, 1.5, 2.5])), 3)
            out = array.array("d", [0] * 2)
            self.assertEqual(table.get_many_into(numbers([3, 1]), out), 2)
            self.assertEqual(out.tolist(), [2.5, 0.5])
            # The same memory for both: each key is replaced by its value.
            both = numbers([2, 9])
            self.assertEqual((table.get_many_into(both, both), both[1]), (1, 9))
            with mmap.mmap(-1, 8) as mapped:
                mapped[:] = (2).to_bytes(8, "little")
                self.assertEqual(table.get(mapped), array.array("d", [1.5]).tobytes())
                self.assertEqual(table.get_into(mapped, mapped), 8)
                self.assertEqual(mapped[:], array.array("d", [1.5]).tobytes())

    def test_lengths_that_do_not_fit_are_refused(self) -> None:
        with guira.create(self.url(), capacity=1_000, format="fixed:8:4") as table:
            out = bytearray(b"?" * 8)
            cases: list[tuple[Any, bytearray, bytearray | None, str]] = [
                (b"12345678" * 2, bytearray(7), None, "out has 7 bytes, not 4 for each of 2"),
                (b"1234567", out, None, "keys has 7 bytes in items of 1"),
                ((ctypes.c_uint64 * 3)(), out, None, "out has 8 bytes, not 4 for each of 3"),
                (array.array("Q", [1, 2]), out, bytearray(3), "found has 3 bytes in items of 1, not 1 for each of 2"),
                (b"", out, None, "out has 8 bytes, not 4 for each of 0"),
            ]
            for keys, into, found, text in cases:
                with self.subTest(text=text):
                    self.refuses(ValueError, text, lambda: table.get_many_into(keys, into, found))
            self.refuses(ValueError, "values has 3 bytes", lambda: table.put_many_from(b"12345678", b"123"))
            self.assertEqual((bytes(out), list(table)), (b"?" * 8, []))
        with guira.create(self.url(), capacity=1_000, format="fixed:4:4") as table:
            # A number of 8 bytes is not two keys of 4.
            self.refuses(ValueError, "items of 8", lambda: table.get_many_into(numbers([1]), bytearray(8)))
        with guira.create(self.url(), capacity=1_000) as table:
            self.refuses(ValueError, "fixed:K:V.*bytes:64", lambda: table.get_many_into(b"a", bytearray(1)))
            self.refuses(ValueError, "fixed:K:V.*bytes:64", lambda: table.put_many_from(b"a", b"b"))

    def test_items_that_are_no_keys_or_values_are_refused(self) -> None:
        with guira.create(self.url(), capacity=1_000, format="fixed:8:8") as table:
            short, good, out = array.array("I", [1, 2, 3, 4]), numbers([1, 2]), numbers([7, 7])
            self.refuses(ValueError, "items of 4, which are not keys", lambda: table.put_many_from(short, good))
            self.refuses(ValueError, "items of 4 bytes, which are not values", lambda: table.put_many_from(good, short))
            self.refuses(ValueError, "items of 4, which are not keys", lambda: table.get_many_into(short, out))
            self.refuses(ValueError, "items of 4 bytes, which are not values", lambda: table.get_many_into(good, short))
            wide = array.array("H", [0])
            self.refuses(ValueError, "found has 2 bytes in items of 2", lambda: table.get_many_into(good, out, wide))
            self.assertEqual((short.tolist(), wide[0], list(table)), ([1, 2, 3, 4], 0, []))
            # Rows of 8 bytes, whatever is in them.
            for shape in ((2, 2), (2, 1, 2), (1, 2, 2)):
                rows = memoryview(short).cast("B").cast("I", shape)
                table.put_many_from(rows, rows)
                self.assertEqual(table.get_many_into(rows, out), 2)
                self.assertEqual(out.tobytes(), short.tobytes())
            for shape in ((1, 4), (4, 1)):
                self.refuses(ValueError, "not keys", lambda: table.put_many_from(memoryview(short).cast("B").cast("I", shape), good))

    def test_arguments_that_share_memory_are_refused(self) -> None:
        with guira.create(self.url(), capacity=10_000, format="fixed:8:16") as table:
            memory = memoryview(bytearray(2_000 * 24 + 2_000))
            keys, out, found = memory[:16_000], memory[16_000:48_000], memory[48_000:]
            self.assertEqual(table.get_many_into(keys, out, found), 0)
            for other in (memory[:32_000], memory[8:32_008], memory[15_999:47_999]):
                self.refuses(ValueError, "must not share memory", lambda: table.get_many_into(keys, other))
            for start in (0, 15_999, 16_000, 47_999 - 1_999):
                self.refuses(ValueError, "must not share", lambda: table.get_many_into(keys, out, memory[start : start + 2_000]))
        with guira.create(self.url(), capacity=10_000, format="fixed:8:8") as table:
            memory = memoryview(bytearray(16_008))
            self.assertEqual(table.get_many_into(memory[:16_000], memory[:16_000]), 0)
            self.refuses(ValueError, "must not share", lambda: table.get_many_into(memory[:16_000], memory[8:]))

    def test_python_objects_are_refused(self) -> None:
        class Mixed(ctypes.Structure):
            _fields_ = [("Object", ctypes.c_uint64), ("object", ctypes.py_object)]

        class Plain(ctypes.Structure):
            _fields_ = [("Object", ctypes.c_uint32), ("O", ctypes.c_uint32)]

        with guira.create(self.url(), capacity=1_000, format="fixed:8:8") as table:
            keys, strange = numbers([1, 2, 3, 4]), object()
            self.assertEqual(table.put_many_from(keys, keys), 4)
            objects: Any = ctypes.py_object * 4
            wrong: Any
            for wrong in (objects(*[strange] * 4), (Mixed * 2)(), ctypes.py_object(strange)):
                before = memoryview(wrong).tobytes()
                views = [wrong, memoryview(wrong)[::2]] if memoryview(wrong).ndim else [wrong]
                for given in views:
                    for call in (
                        lambda: table.get_many_into(given, keys),
                        lambda: table.get_many_into(keys, given),
                        lambda: table.get_many_into(keys, bytearray(32), given),
                        lambda: table.put_many_from(given, keys),
                        lambda: table.put_many_from(keys, given),
                        lambda: table.get_into(bytes(8), given),
                        lambda: table.put(bytes(8), given),
                        lambda: table.put(given, bytes(8)),
                        lambda: table.get(given),
                        lambda: table.put_many([(bytes(8), given)]),
                        lambda: table.compare_and_swap(bytes(8), given, bytes(8)),
                    ):
                        with self.subTest(given=given):
                            self.refuses(TypeError, "holds Python objects|contiguous buffer", call)
                self.assertEqual(memoryview(wrong).tobytes(), before)
            self.assertEqual(len(list(table)), 4)
            # Only types count, not names.
            plain = (Plain * 4).from_buffer(numbers([1, 2, 3, 4]))
            self.assertEqual(table.get_many_into(plain, numbers([0] * 4)), 4)

    def test_a_value_is_written_where_it_belongs(self) -> None:
        with guira.create(self.url(), capacity=1_000, record_bytes=10_000, extent_bytes=32 << 20) as table:
            self.assertIsNone(table.get_into(b"a", bytearray(1)))
            for bytes_long in (0, 1, 7, 8, 9, 64, 65, 4_095, 4_096, 9_999):
                value = os.urandom(bytes_long)
                table[b"a"] = value
                for start, room in itertools.product(range(9), (0, 1, 5_000)):
                    memory = bytearray(b"?" * (start + bytes_long + room + 9))
                    with memoryview(memory)[start : start + bytes_long + room] as view:
                        self.assertEqual(table.get_into(b"a", view), bytes_long)
                    end = start + bytes_long
                    self.assertEqual(memory, b"?" * start + value + b"?" * (len(memory) - end))
                for short in {0, bytes_long // 2, bytes_long - 1} & set(range(bytes_long)):
                    memory = bytearray(b"?" * short)
                    text = f"buffer has {short} bytes, and the value {bytes_long}; nothing was written"
                    self.refuses(ValueError, text, lambda: table.get_into(b"a", memory))
                    self.assertEqual(memory, b"?" * short)

    def keeps_no_large_value(self, url: str) -> None:
        # The allocator gives a piece of this size back to the system as soon as it is freed.
        bytes_long, out = 40 << 20, bytearray(40 << 20)
        with guira.open(url) as table:
            table[b"a"] = memoryview(out)
            before = anonymous_kib()
            calls: list[Callable[[], object]] = [
                lambda: b"a" in table,
                lambda: table[b"a"],
                lambda: table.get_versioned(b"a"),
                lambda: table.get_into(b"a", out),
                lambda: table.get_many([b"a"]),
            ]
            for number, call in enumerate(calls):
                call()
                self.assertLess(anonymous_kib() - before, bytes_long >> 11, number)

        async def work() -> None:
            async with await guira.aio.open(url) as table:
                for look_up in (table.get, table.get_versioned, lambda key: table.get_many([key])):
                    await look_up(b"a")
                    self.assertLess(anonymous_kib() - before, bytes_long >> 11)

        asyncio.run(work())

    def test_readers_keep_no_large_value(self) -> None:
        url = self.url()
        guira.create(url, capacity=100, extent_bytes=128 << 20).close()
        self.keeps_no_large_value(url)

    @needs_program
    def test_readers_of_a_memory_node_keep_no_large_value(self) -> None:
        with served("--extent-bytes", str(128 << 20)) as (_, url):
            self.keeps_no_large_value(url)

    def test_large_values_of_every_kind_of_buffer(self) -> None:
        with guira.create(self.url(), capacity=1_000, record_bytes=1 << 20, extent_bytes=64 << 20) as table:
            for bytes_long in (4_095, 4_096, 4_097, 1 << 20):
                value = bytearray(os.urandom(bytes_long))
                view = memoryview(value)
                for given in (value, view, view[::-1], view.toreadonly(), array.array("B", value)):
                    self.assertIs(type(table.put(b"a", given)), bool)
                    self.assertEqual(table[b"a"], memoryview(given).tobytes())
                    self.assertTrue(table.compare_and_swap(b"a", given, view) and table[b"a"] == value)
                self.assertEqual(table.put_many([(b"b", value), (b"c", view[1:])]), 2 if bytes_long == 4_095 else 0)
                self.assertEqual(table.get_many([b"b", b"c"]), [value, value[1:]])
                view.release()
                # An array that is lent cannot grow.
                value.append(1)

    def test_objects_without_a_fitting_buffer_are_refused(self) -> None:
        with guira.create(self.url(), capacity=1_000, format="fixed:8:8") as table:
            good, released = numbers([1, 2, 3, 4]), memoryview(bytearray(32))
            released.release()
            wrong: Any
            for wrong in (None, 7, "text" * 4, [b"12345678"], object(), released, memoryview(numbers([1, 2]))[::-1]):
                for call in (
                    lambda: table.get_many_into(wrong, good),
                    lambda: table.get_many_into(good, wrong),
                    lambda: table.put_many_from(wrong, good),
                    lambda: table.put_many_from(good, wrong),
                    lambda: table.get_into(b"12345678", wrong),
                ):
                    with self.subTest(wrong=wrong):
                        self.refuses(TypeError, "must be a (writable )?contiguous buffer, not", call)
            for wrong in (b"8 bytes!" * 4, memoryview(numbers([1, 2, 3, 4])).toreadonly()):
                self.refuses(TypeError, "out must be a writable", lambda: table.get_many_into(good, wrong))
                self.refuses(TypeError, "found must be a writable", lambda: table.get_many_into(good, good, wrong))
                self.refuses(TypeError, "buffer must be a writable", lambda: table.get_into(b"12345678", wrong))
            self.assertEqual((good.tolist(), list(table)), ([1, 2, 3, 4], []))
            # Its memory was given back: otherwise it could not grow.
            good.append(5)

    def test_references_are_given_back(self) -> None:
        keys, values, found = numbers([1, 2]), numbers([3, 4]), bytearray(2)
        large = bytearray(5_000)
        with guira.create(self.url(), capacity=1_000, format="fixed:8:8") as table, guira.create(self.url()) as other:
            before = [sys.getrefcount(object) for object in (keys, values, found, large, table)]
            for _ in range(100):
                table.put_many_from(keys, values)
                table.get_many_into(keys, values, found)
                table.get_many([bytes(8)] * 3, found)
                other.put_many([(b"a", large)])
                other.get_into(b"a", large)
                self.refuses(TypeError, "", lambda: table.get_many_into(keys, b"1"))
                self.refuses(ValueError, "", lambda: table.get_many_into(keys, found))
            self.assertEqual([sys.getrefcount(object) for object in (keys, values, found, large, table)], before)


class Signals(Case):
    def interrupted(self, call: Callable[[], object], has_begun: Callable[[], bool]) -> KeyboardInterrupt:
        """Interrupts the call, which takes long, when it has begun."""

        def interrupt() -> None:
            wait_until(has_begun, "the call to begin")
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with self.assertRaises(KeyboardInterrupt) as caught:
            call()
        thread.join()
        return caught.exception

    def test_calls_with_many_keys_are_interrupted(self) -> None:
        key, count = bytes(8), 4 << 20
        # A process in the background ignores it.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        with guira.create(self.url(), capacity=1_000, format="fixed:8:8") as table:
            # All keys are the same.
            keys = memoryview(bytearray(8 * count))
            error: Any = self.interrupted(lambda: table.put_many_from(keys, keys), lambda: key in table)
            put = count - len(error.failed)
            self.assertTrue(0 < put < count and put % 64 == 0, put)
            self.assertEqual(error.failed, list(range(put, count)))
            del table[key]
            items = [(key, key)] * count
            error = self.interrupted(lambda: table.put_many(items), lambda: key in table)
            self.assertEqual(error.failed, list(range(count - len(error.failed), count)))
            self.assertTrue(0 < len(error.failed) < count)
            # Lookups take a fraction of the time of puts.
            keys = memoryview(bytearray(32 * count))
            out, found = bytearray(32 * count), bytearray(4 * count)
            self.interrupted(lambda: table.get_many_into(keys, out, found), lambda: found[0] == 1)
            self.assertEqual((found[0], found[-1]), (1, 0))

    def test_the_child_of_a_handler_that_forks_has_to_open_again(self) -> None:
        script = """
import os, signal, sys, threading, time, guira
table = guira.create(sys.argv[1], capacity=1_000, format="fixed:8:8")
keys = memoryview(bytearray(8 << 23))
child = None
def fork(*_):
    global child
    child = os.fork()
    if child:
        raise KeyboardInterrupt
signal.signal(signal.SIGUSR1, fork)
def interrupt():
    while bytes(8) not in table:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGUSR1)
threading.Thread(target=interrupt).start()
try:
    table.put_many_from(keys, keys)
except guira.Misuse as error:
    assert child == 0 and "forked" in str(error), error
    assert 0 < len(error.failed) < len(keys) // 8
    table.close()
    del table
    os._exit(7)
except KeyboardInterrupt:
    pass
assert child and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
table.increment(bytes(8))
"""
        run_python(script, self.url())


class Threads(Case):
    @needs_program
    def test_a_value_that_is_written_meanwhile_is_stored_as_a_mixture(self) -> None:
        assert PROGRAM
        url, memory, ended = self.url(), bytearray(64 << 10), threading.Event()

        def write() -> None:
            for byte in itertools.cycle((b"a", b"b")):
                if ended.is_set():
                    return
                memory[:] = byte * len(memory)

        with guira.create(url, capacity=1_000, record_bytes=len(memory), extent_bytes=64 << 20) as table:
            memory[:] = b"a" * len(memory)

            def put() -> None:
                for _ in range(200):
                    table[b"a"] = memory
                    self.assertEqual(table[b"a"].strip(b"ab"), b"")
                ended.set()

            work_together([write, put])
            run(PROGRAM, "check", url)

    def test_threads_share_buffers_and_close(self) -> None:
        for _ in range(5):
            table = guira.create(self.url(), capacity=10_000, format="fixed:8:8")
            keys, out = numbers(list(range(5_000))), numbers([0] * 5_000)
            rounds: list[None] = []

            def work() -> None:
                with contextlib.suppress(guira.Closed):
                    while True:
                        table.put_many_from(keys, keys)
                        table.get_many_into(keys, out)
                        table.get_many([b"12345678"] * 100)
                        rounds.append(None)

            def close() -> None:
                while len(rounds) < 12:
                    time.sleep(0.001)
                table.close()

            work_together([work, work, work, close])
            self.assertEqual(out, keys)
            for call in (
                lambda: table.get_many([]),
                lambda: table.put_many([]),
                lambda: table.get_into(b"12345678", out),
                lambda: table.get_many_into(keys, out),
                lambda: table.put_many_from(keys, out),
            ):
                self.refuses(guira.Closed, "closed", call)


class Anything(Case):
    def test_any_call_with_anything_works_or_raises(self) -> None:
        print(f"seed {SEED}", file=sys.stderr)
        released = memoryview(b"12345678")
        released.release()
        huge = bytes((64 << 20) + 1)
        anything: list[Any] = [
            None, 0, -1, 2**64, 0.5, "text", (), [], {}, object(), guira, released, huge, b"", b"12345678",
            bytearray(b"12345678"), bytearray(), bytearray(4_096), memoryview(b"1234567812345678")[::2], memoryview(bytearray(17))[1:],
            b"k" * 65_537,
            array.array("Q", [1, 2, 3]), array.array("d", [0.5]), array.array("H"), [b"12345678"], [b"12345678", None],
            {b"12345678": b"12345678"}, {b"12345678": huge}, [(b"12345678", b"12345678")], [(1, 2)], [b"12"],
            iter([b"12345678"]),
            memoryview(bytearray(32)).cast("B", (4, 8)), (ctypes.c_uint64 * 3)(), mmap.mmap(-1, 4_096), range(3), "12345678",
        ]
        # A memory view of two dimensions cannot be iterated.
        accepted = (guira.Error, TypeError, ValueError, OverflowError, KeyError, NotImplementedError)
        for format, record_bytes in (("fixed:8:8", None), ("bytes:64", 10_000)):
            for is_closed_meanwhile in (False, True):
                table: Any = guira.create(self.url(), capacity=1_000, format=format, record_bytes=record_bytes)
                methods = [name for name in dir(table) if name not in EXCLUDED and callable(getattr(table, name))]
                self.assertIn("get_many_into", methods)
                self.assertIn("__setitem__", methods)

                def call(seed: int) -> None:
                    drawn = random.Random(seed)
                    for _ in range(2_000):
                        name, arguments = drawn.choice(methods), drawn.choices(anything, k=drawn.randrange(4))
                        try:
                            result = getattr(table, name)(*arguments)
                        except accepted:
                            continue
                        self.assertNotIsInstance(result, BaseException)

                works = [lambda: call(SEED), lambda: call(SEED + 1)]
                if is_closed_meanwhile:
                    works.append(table.close)
                work_together(works)
                table.close()


# The methods of every object, and one that ends the test.
EXCLUDED = {*dir(object), "close", "__exit__", "__class_getitem__"}


class Ends(Case):
    def test_a_destroyed_table_is_gone(self) -> None:
        url = self.url()
        with guira.create(url, capacity=1_000, format="fixed:8:8") as table:
            guira.destroy(url)
            key, out = numbers([1]), numbers([7])
            for call in (
                lambda: table.get_many([bytes(8)]),
                lambda: table.put_many({bytes(8): bytes(8)}),
                lambda: table.get_into(bytes(8), out),
                lambda: table.get_many_into(key, out),
                lambda: table.put_many_from(key, out),
            ):
                self.refuses(guira.Gone, "destroyed|gone", call)
            self.assertEqual(out[0], 7)

    def test_killed_workers_of_a_pool_block_nobody(self) -> None:
        for method, kills in (("fork", 10), ("spawn", 2)):
            url = self.url()
            drawn = random.Random(SEED)
            with self.subTest(method=method), guira.create(
                url, capacity=1_000, max_clients=8, record_bytes=2_000, extent_bytes=32 << 20
            ) as table, multiprocessing.get_context(method).Pool(2) as pool:
                for number in range(kills + 2):
                    name = b"rounds of %d" % number
                    pool.apply_async(workers.put_until_killed, (url, name))
                    if number < 1:
                        continue
                    wait_until(lambda: table.increment(name, 0) > 1, pool)
                    time.sleep(drawn.random() / 100)
                    if number <= kills:
                        # The next task is that of the worker which replaces it.
                        victim = drawn.choice(multiprocessing.active_children())
                        assert victim.pid
                        os.kill(victim.pid, signal.SIGKILL)
                        victim.join()
                    for key in workers.KEYS:
                        table[key] = workers.value(number)
                        found = table[key]
                        self.assertEqual(found, found[:8] * workers.WORDS)
                pool.terminate()
            with guira.open(url) as table:
                for last in table.get_many(workers.KEYS):
                    assert last
                    self.assertEqual(last, last[:8] * workers.WORDS)
            if PROGRAM:
                run(PROGRAM, "check", url)

    @needs_program
    def test_children_of_busy_threads_with_a_session_do_not_hang(self) -> None:
        script = """
import os, sys, threading, warnings, guira
warnings.simplefilter("ignore")
table = guira.open(sys.argv[1])
ended = threading.Event()
def work(key):
    while not ended.is_set():
        table.increment(key)
        table.get(key)
        begun = table.items()
        next(begun)
threads = [threading.Thread(target=work, args=(key,)) for key in (b"a", b"b", b"c")]
for thread in threads: thread.start()
begun = table.items()
for _ in range(40):
    child = os.fork()
    if child == 0:
        for call in (lambda: table.get(b"a"), lambda: table.increment(b"a"), lambda: table.put_many([]), lambda: next(begun)):
            try:
                call()
                os._exit(1)
            except guira.Misuse as error:
                assert "forked" in str(error) and error.effect == "none", error
        del begun
        table.close()
        del table
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
ended.set()
for thread in threads: thread.join()
"""
        with served() as (_, url):
            run_python(script, url)


def wait_until(is_true: Callable[[], bool], what: object) -> None:
    """Waits until it is true; ends a hang after PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < end, f"still waiting for {what}"
        time.sleep(0.001)


if __name__ == "__main__":
    unittest.main()
