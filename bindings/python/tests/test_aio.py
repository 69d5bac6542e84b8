"""Tests of guira.aio: tables for the tasks of an event loop, in shared memory and behind a memory node."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import tempfile
import unittest
import unittest.mock
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import guira
import guira.aio
from guira.aio import AsyncTable
from test_bulk import OneBuffer, wait_until
from test_guira import PATIENCE_S, Case, needs_program, run_python, served


def patiently(work: Awaitable[None]) -> None:
    """Runs the work in an event loop; ends a hang."""

    async def run() -> None:
        await asyncio.wait_for(work, PATIENCE_S)

    asyncio.run(run())


class Shared(Case):
    def test_operations_do_what_they_say(self) -> None:
        url = self.url()
        guira.create(url, capacity=1_000).close()
        patiently(operations(self, url))

    def test_a_codec_is_used(self) -> None:
        url = self.url()
        guira.create(url, capacity=1_000).close()

        async def work() -> None:
            async with await guira.aio.open(url, codec=guira.json) as table:
                self.assertTrue(await table.put(b"a", [1]))
                self.assertEqual(await table.put_many({b"b": None, b"a": 2}), 1)
                self.assertEqual(await table.get_many([b"b", b"c", b"a"], "none"), [None, "none", 2])
                self.assertTrue(await table.compare_and_swap(b"a", 2, {"b": 3}))
                self.assertEqual(await table.get(b"a"), {"b": 3})
                self.assertTrue(await table.compare_and_delete(b"a", {"b": 3}))
                self.assertIsNone(await table.get(b"a"))
            no_codec: Any = 3
            with self.assertRaisesRegex(TypeError, "a codec needs"):
                await guira.aio.open(url, codec=no_codec)

        patiently(work())

    def test_values_in_one_buffer_are_copied_as_they_are_drawn(self) -> None:
        url, keys = self.url(), [b"%d" % number for number in range(20)]
        guira.create(url, record_bytes=5_000).close()

        async def work() -> None:
            async with await guira.aio.open(url, codec=OneBuffer) as table:
                self.assertEqual(await table.put_many(zip(keys, range(20))), 20)
                self.assertEqual(await table.get_many(keys), list(range(20)))
                self.assertTrue(await table.compare_and_swap(b"1", 1, 70))
                self.assertFalse(await table.compare_and_swap(b"1", 1, 7))
                self.assertEqual(await table.get(b"1"), 70)

        patiently(work())

    def test_what_cannot_be_is_refused(self) -> None:
        url = self.url()
        with guira.create(url, capacity=1_000) as blocking:
            blocking[b"text"] = b"text"

        async def work() -> None:
            wrong: Any
            async with await guira.aio.open(url, max_clients=1) as table:
                for wrong in (1, None, "text", [1]):
                    for call in (table.get, table.delete, table.increment, table.get_versioned):
                        with self.subTest(wrong=wrong), self.assertRaises(TypeError):
                            await call(wrong)
                    for change in (table.put, table.try_insert, table.update):
                        for pair in ((wrong, b"1"), (b"a", wrong)):
                            with self.assertRaises(TypeError):
                                await change(*pair)
                    with self.assertRaises(TypeError):
                        await table.compare_and_swap(b"a", wrong, b"1")
                    with self.assertRaises((TypeError, ValueError)):
                        await table.put_many([(b"a", b"1"), wrong])
                for wrong in (1, None, "text", [1], b"bytes"):
                    with self.assertRaises(TypeError):
                        await table.get_many(wrong)
                with self.assertRaises(OverflowError):
                    await table.increment(b"a", 2**64)
                with self.assertRaisesRegex(guira.Misuse, "not a number"):
                    await table.increment(b"text")
                with self.assertRaisesRegex(guira.Misuse, "1 of 2 keys were not put") as caught:
                    await table.put_many([(b"a", b"1"), (b"k" * 70_000, b"1")])
                self.assertEqual(caught.exception.failed, [1])
                self.assertEqual(await table.get_many([b"a", b"text"]), [b"1", b"text"])
            async with await guira.aio.open(url, read_only=True) as reader:
                self.assertEqual(await reader.get(b"a"), b"1")
                with self.assertRaisesRegex(guira.Misuse, "reading"):
                    await reader.put(b"a", b"2")
            with self.assertRaises(guira.NotFound):
                await guira.aio.open(url + "-other")
            with self.assertRaisesRegex(ValueError, "deadline must be"):
                await guira.aio.open(url, deadline=-1)
            with self.assertRaises(OverflowError):
                await guira.aio.open(url, max_clients=1 << 16)
            with self.assertRaisesRegex(ValueError, "max_clients must be from 1"):
                await guira.aio.open(url, max_clients=0)

        patiently(work())

    def test_a_destroyed_table_is_gone(self) -> None:
        url = self.url()
        guira.create(url, capacity=1_000).close()

        async def work() -> None:
            async with await guira.aio.open(url) as table:
                await table.put(b"a", b"1")
                guira.destroy(url)
                for call in calls(table):
                    with self.assertRaises(guira.Gone):
                        await call()

        patiently(work())

    def test_a_closed_table_and_another_loop_raise(self) -> None:
        url = self.url()
        guira.create(url, capacity=1_000, max_clients=1).close()
        tables: list[AsyncTable[bytes]] = []

        async def use_and_close() -> None:
            table = await guira.aio.open(url)
            await table.put(b"a", b"1")
            await asyncio.gather(table.close(), table.close())
            self.assertTrue(table.closed)
            await table.close()
            for call in [*calls(table), table.__aenter__]:
                with self.assertRaisesRegex(guira.Closed, "was closed"):
                    await call()
            # The slot was given back.
            tables.append(await guira.aio.open(url, deadline=0))
            await tables[0].put(b"a", b"2")

        async def use_elsewhere() -> None:
            for call in [*calls(tables[0]), tables[0].close]:
                with self.assertRaisesRegex(guira.Misuse, "another event loop"):
                    await call()

        patiently(use_and_close())
        patiently(use_elsewhere())
        # Its loop was closed before.
        with self.assertWarnsRegex(ResourceWarning, "was not closed"):
            tables.clear()
            gc.collect()

    def test_a_dropped_table_gives_back_what_it_had(self) -> None:
        url = self.url()
        guira.create(url, capacity=1_000, max_clients=1).close()

        async def work() -> None:
            table = await guira.aio.open(url)
            before = descriptors()
            await table.put(b"a", b"1")
            with self.assertWarnsRegex(ResourceWarning, "was not closed"):
                del table
                gc.collect()
            await until(lambda: descriptors() <= before - 2)
            async with await guira.aio.open(url, deadline=0) as again:
                await again.put(b"a", b"2")

        patiently(work())

    def test_a_dropped_table_gives_back_what_it_had_if_warnings_are_errors(self) -> None:
        url, raised = self.url(), []
        guira.create(url, capacity=1_000).close()

        async def work() -> None:
            table = await guira.aio.open(url)
            before = descriptors()
            hook = unittest.mock.patch("sys.unraisablehook", lambda error: raised.append(error.exc_type))
            with warnings.catch_warnings(), hook:
                warnings.simplefilter("error", ResourceWarning)
                del table
                gc.collect()
            self.assertEqual(raised, [ResourceWarning])
            await until(lambda: descriptors() <= before - 2)

        patiently(work())

    def test_a_process_without_a_free_descriptor_is_told(self) -> None:
        url = self.url()
        guira.create(url, capacity=1_000).close()
        script = """
import asyncio, os, resource, sys, guira.aio
async def main():
    await (await guira.aio.open(sys.argv[1])).close()
    # The least descriptor that is free: then one is, and a pair is not.
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, before[1]))
    try:
        await guira.aio.open(sys.argv[1])
    except guira.Fabric as error:
        assert error.effect == "none" and "Too many open files" in str(error), error
    else:
        sys.exit("it was opened")
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    await (await guira.aio.open(sys.argv[1])).close()
asyncio.run(main())
"""
        run_python(script, url)

    def test_a_forked_child_is_refused(self) -> None:
        url = self.url()
        guira.create(url, capacity=1_000).close()
        run_python(FORKS, url)


FORKS = """
import asyncio, gc, os, sys, guira.aio
def refused(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        os._exit(1)
async def main():
    table = await guira.aio.open(sys.argv[1])
    await table.put(b"a", b"1")
    others = [asyncio.ensure_future(table.get(b"a")) for _ in range(10)]
    await asyncio.sleep(0)
    child = os.fork()
    if child == 0:
        refused(RuntimeError, "no running event loop", lambda: table.get(b"a").send(None))
        refused(guira.Misuse, "another event loop", lambda: asyncio.run(table.put(b"a", b"2")))
        for begin in (lambda: table._store.get(b"a"), lambda: table._store.put(b"a", b"2"), table._store.open().poll,
                      table._store.woken):
            refused(guira.Misuse, "", begin)
        del table, others
        gc.collect()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert await asyncio.gather(*others) == [b"1"] * 10
    await table.close()
asyncio.run(main())
"""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until(is_true: Callable[[], bool]) -> None:
    """Waits until it is true, while the event loop runs; the caller ends a hang."""
    while not is_true():
        await asyncio.sleep(0.001)


def calls(table: AsyncTable[bytes]) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: table.get(b"a"),
        lambda: table.get_versioned(b"a"),
        lambda: table.get_many([b"a"]),
        lambda: table.put(b"a", b"2"),
        lambda: table.put_many({b"a": b"2"}),
        lambda: table.try_insert(b"b", b"2"),
        lambda: table.update(b"a", b"2"),
        lambda: table.delete(b"a"),
        lambda: table.compare_and_swap(b"a", b"1", b"2"),
        lambda: table.compare_and_delete(b"a", b"1"),
        lambda: table.increment(b"n"),
    ]


async def operations(case: unittest.TestCase, url: str) -> None:
    same = case.assertEqual
    async with await guira.aio.open(url) as table:
        same([await table.put(b"a", b"1"), await table.put(b"a", bytearray(b"2"))], [True, False])
        same([await table.try_insert(b"a", b"3"), await table.try_insert(b"b", b"3")], [False, True])
        same([await table.update(b"a", b"4"), await table.update(b"c", b"4")], [True, False])
        same([await table.get(b"a"), await table.get(b"c"), await table.get(b"c", 7)], [b"4", None, 7])
        same([await table.delete(b"b"), await table.delete(b"b")], [True, False])
        same([await table.compare_and_swap(b"a", b"3", b"5"), await table.compare_and_swap(b"a", b"4", b"5")], [False, True])
        found = await table.get_versioned(b"a")
        assert found is not None and await table.get_versioned(b"c") is None
        same(found[0], b"5")
        await table.put(b"a", b"5")
        case.assertFalse(await table.compare_and_swap(b"a", found[1], b"6"))
        same([await table.compare_and_delete(b"a", wrong) for wrong in (found[1], b"6")], [False, False])
        same([await table.compare_and_delete(b"a", b"5"), await table.get(b"a")], [True, None])
        same([await table.increment(b"n"), await table.increment(b"n", 41), await table.increment(b"n", -43)], [1, 42, 2**64 - 1])
        many = {b"%d" % number: b"v" * (number % 200) for number in range(300)}
        same(await table.put_many(many), 300)
        same(await table.put_many(iter(many.items())), 0)
        same(await table.get_many([*many, b"none"]), [*many.values(), None])
        same((await table.get_many([]), await table.put_many([])), ([], 0))
        # Many tasks at once.
        same(await asyncio.gather(*(table.get(key) for key in many)), list(many.values()))
        same(sorted(await asyncio.gather(*(table.increment(b"count") for _ in range(300)))), list(range(1, 301)))


class Served(Case):
    @needs_program
    def test_operations_do_what_they_say(self) -> None:
        with served() as (_, url):
            patiently(operations(self, url))

    @needs_program
    def test_a_cancelled_change_is_made_completely_or_not_at_all(self) -> None:
        async def work(url: str) -> None:
            async with await guira.aio.open(url, max_clients=4) as table:
                acknowledged, started = 0, 0
                while started < 300 or acknowledged in (0, started):
                    tasks = [asyncio.ensure_future(table.increment(b"n")) for _ in range(7)]
                    tasks.append(asyncio.ensure_future(table.put(b"a", bytes([started % 256]) * 5_000)))
                    for _ in range(started % 9):
                        await asyncio.sleep(0)
                    for task in tasks[::2]:
                        task.cancel()
                    results = await asyncio.gather(*tasks, return_exceptions=True)
                    acknowledged += sum(isinstance(result, int) for result in results[:7])
                    started += 7
                    for result in results:
                        assert isinstance(result, (int, asyncio.CancelledError)), result
                    value = await table.get(b"a", b"")
                    assert isinstance(value, bytes)
                    self.assertEqual(value, value[:1] * len(value))
                count = await table.increment(b"n", 0)
                self.assertTrue(acknowledged <= count <= started, (acknowledged, count, started))

        with served() as (_, url):
            patiently(work(url))

    @needs_program
    def test_changes_wait_for_each_other_if_no_client_slot_is_free(self) -> None:
        async def work(url: str) -> None:
            async with await guira.aio.open(url) as table:
                sums = await asyncio.gather(*(table.increment(b"n") for _ in range(100)))
                self.assertEqual(sorted(sums), list(range(1, 101)))

        with served("--max-clients", "2") as (_, url), guira.open(url) as other:
            other[b"a"] = b"1"
            patiently(work(url))

    @needs_program
    def test_a_burst_of_lookups_is_bounded(self) -> None:
        with served() as (node, url):

            def unread() -> int:
                """The bytes that were sent to the node, which it has not read."""
                port = f":{int(url.rpartition(':')[2]):04X}"
                rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
                return sum(int(row[4][9:], 16) for row in rows if row[1].endswith(port) and row[3] == "01")

            async def work() -> None:
                async with await guira.aio.open(url) as table:
                    await table.put(b"a", b"1")
                    self.stop(node.pid)
                    try:
                        tasks = [asyncio.ensure_future(table.get(b"a"))]
                        await until(lambda: unread() > 0)
                        one = unread()
                        tasks += [asyncio.ensure_future(table.get(b"a")) for _ in range(1_299)]
                        await until(lambda: unread() > 200 * one)
                        await asyncio.sleep(0.1)
                        self.assertLessEqual(unread(), 256 * one)
                        # Lookups that run, that wait, and that were given a turn meanwhile.
                        for number in (1_200, 1_100, 3, 2, 1):
                            tasks.pop(number).cancel()
                        await asyncio.sleep(0)
                        tasks.pop(257 - 3).cancel()
                    finally:
                        node.send_signal(signal.SIGCONT)
                    self.assertEqual(await asyncio.gather(*tasks), [b"1"] * 1_294)
                    self.assertEqual(table._store.idle_readers(), 64)

            patiently(work())

    @needs_program
    def test_the_loop_runs_while_a_node_does_not_answer(self) -> None:
        with served() as (node, url):

            async def work() -> None:
                async with await guira.aio.open(url) as table:
                    await table.put(b"a", b"1")
                    self.stop(node.pid)
                    try:
                        calls: list[Awaitable[object]] = [table.get(b"a"), table.put(b"b", b"1")]
                        waiting = [asyncio.ensure_future(call) for call in calls]
                        with self.assertRaises(asyncio.TimeoutError):
                            await asyncio.wait_for(table.get(b"a"), 0.05)
                        self.assertFalse(any(task.done() for task in waiting))
                        closing = asyncio.ensure_future(table.close())
                        await asyncio.sleep(0.05)
                        self.assertFalse(closing.done(), "it waits for the operations that have begun")
                        closing.cancel()
                        await asyncio.wait([closing])
                        self.assertFalse(table.closed)
                    finally:
                        node.send_signal(signal.SIGCONT)
                    self.assertEqual(await asyncio.gather(*waiting), [b"1", True])

            patiently(work())

    @needs_program
    def test_a_closed_table_keeps_no_connection(self) -> None:
        with served() as (_, url):

            async def work() -> None:
                before = descriptors()
                table = await guira.aio.open(url)
                await asyncio.gather(*(table.put(b"a", b"1") for _ in range(9)), *(table.get(b"a") for _ in range(9)))
                self.assertGreater(descriptors(), before + 2)
                await table.close()
                await until(lambda: descriptors() == before)
                self.assertTrue(table.closed)

            patiently(work())

    @needs_program
    def test_a_closed_table_gives_back_the_slots_of_cancelled_changes(self) -> None:
        with tempfile.NamedTemporaryFile("w+") as log, served(log=log) as (node, url):

            async def work() -> None:
                table = await guira.aio.open(url)
                await table.put(b"a", b"1")
                self.stop(node.pid)
                try:
                    put = asyncio.ensure_future(table.put(b"a", b"2"))
                    await asyncio.sleep(0)
                    put.cancel()
                    await asyncio.wait([put])
                    closing = asyncio.ensure_future(table.close())
                    await asyncio.sleep(0.05)
                    self.assertFalse(closing.done(), "it waits for the client of the change")
                finally:
                    node.send_signal(signal.SIGCONT)
                await closing

            patiently(work())

            def kept() -> list[str]:
                """The client slots that each session had when it ended."""
                return re.findall(r'"session_ended".*"slots":(\d+)', Path(log.name).read_text())

            wait_until(lambda: bool(kept()), "the session to end")
            self.assertEqual(set(kept()), {"0"})

    @needs_program
    def test_a_close_that_was_cancelled_goes_on(self) -> None:
        with served() as (node, url):

            async def work() -> None:
                table = await guira.aio.open(url)
                await table.put(b"a", b"1")
                self.stop(node.pid)
                try:
                    first, second = (asyncio.ensure_future(table.close()) for _ in range(2))
                    await asyncio.sleep(0.05)
                    self.assertFalse(first.done() or second.done(), "both wait for the node")
                    first.cancel()
                    await asyncio.wait([first])
                    self.assertTrue(first.cancelled() and table.closed and not second.done())
                finally:
                    node.send_signal(signal.SIGCONT)
                await second
                await table.close()

            patiently(work())

    @needs_program
    def test_the_exception_of_a_block_outlives_a_failed_close(self) -> None:
        async def work(url: str, end: Callable[[], None]) -> None:
            tables = [await guira.aio.open(url, reconnect_timeout=0) for _ in range(2)]
            for table in tables:
                await table.put(b"a", b"1")
            end()
            with self.assertRaisesRegex(LookupError, "of the block"):
                async with tables[0]:
                    raise LookupError("of the block")
            with self.assertRaises(guira.Fabric):
                async with tables[1]:
                    pass
            self.assertTrue(tables[0].closed and tables[1].closed)

        with served() as (node, url):

            def end() -> None:
                node.kill()
                node.wait()

            patiently(work(url, end))

    @needs_program
    def test_a_lost_memory_node_is_an_error_of_the_fabric(self) -> None:
        with served() as (node, url):

            async def work() -> None:
                table = await guira.aio.open(url, reconnect_timeout=0)
                await table.put(b"a", b"1")
                node.kill()
                node.wait()
                for call in (lambda: table.get(b"a"), lambda: table.put(b"a", b"2")):
                    with self.assertRaises(guira.Fabric) as caught:
                        await call()
                    self.assertIn(caught.exception.effect, ("none", "unknown"))
                try:
                    await table.close()
                except guira.Fabric:
                    pass
                self.assertTrue(table.closed)

            patiently(work())

    @needs_program
    def test_forked_children_and_interpreters_end_while_operations_wait(self) -> None:
        script = """
import asyncio, sys, guira.aio
async def main():
    table = await guira.aio.open(sys.argv[1])
    for number in range(20):
        asyncio.ensure_future(table.put(b"%d" % number, b"1"))
    await asyncio.sleep(0)
asyncio.run(main())
"""
        with served() as (_, url):
            run_python(FORKS, url)
            run_python(script, url)


if __name__ == "__main__":
    unittest.main()
