"""Tables for asyncio, above all those of memory nodes (tcp://): operations of many tasks are under way at once.

    import asyncio
    import guira.aio

    async def main() -> None:
        async with await guira.aio.open("tcp://127.0.0.1:7440") as birds:
            await birds.put(b"cuckoo", b"Guira guira")
            print(await birds.get(b"cuckoo"))

    asyncio.run(main())

The event loop's thread does the work, and sleeps while memory nodes answer; no thread waits for an operation. In shared
memory an operation is done at once, without giving other tasks a turn: use guira.open there, unless a program is
asynchronous anyway.
"""

from __future__ import annotations

import asyncio as _asyncio
import contextlib as _contextlib
import os as _os
import typing as _typing
import warnings as _warnings

from . import Closed as _Closed
from . import Error as _Error
from . import Misuse as _Misuse
from ._guira import AsyncStore as _AsyncStore
from ._guira import Operation as _Operation
from ._guira import Token as _Token

if _typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike
    from types import TracebackType

    from typing_extensions import Buffer, Self

__all__ = ["AsyncTable", "open"]

# The time that close waits for cancelled changes to be settled, and the time between two looks.
_SETTLE_S = 10.0
_LOOK_S = 0.001

_T = _typing.TypeVar("_T")
_V = _typing.TypeVar("_V")
_V_co = _typing.TypeVar("_V_co", covariant=True)


class _Codec(_typing.Protocol[_V_co]):
    def dumps(self, value: _typing.Any, /) -> Buffer: ...
    def loads(self, data: bytes, /) -> _V_co: ...


def _wake(store: _AsyncStore, waiting: dict[int, _asyncio.Future[None]]) -> None:
    for number in store.woken():
        waiter = waiting.get(number)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _unwatch(loop: _asyncio.AbstractEventLoop, store: _AsyncStore) -> None:
    loop.remove_reader(store.fileno())
    store.release()


class AsyncTable(_typing.Generic[_V]):
    """An open table for the tasks of one event loop, from guira.aio.open. Its operations are those of guira.Table, except
    iteration (iter, keys, values, items), the operators table[key], del and in, len_estimate, and those on arrays
    (get_into, get_many_into, put_many_from).

    A task that is cancelled drops its operation. A lookup has no effect; a change was made completely or not at all, and
    only a lookup tells which; of put_many, a part of the keys may have been put. What the operation held is given back
    before its client is used again.

    At most 256 lookups run at once, of which get_many is one; others wait for their turn, in order. At most max_clients
    changes do, and fewer if the table has not as many free client slots; others wait for a client, 30 seconds at most,
    and then raise Busy. If this table could get no slot at all, changes raise Busy at once.

    Operations raise Misuse in other event loops and in a forked process, and Closed after close. A table that is dropped
    without close gives back its client slots, too, with a ResourceWarning; behind a memory node they are those of dead
    clients then, which the next client that needs a slot takes.
    """

    # The process whose event loop watches the store.
    _watched_by: int | None = None

    def __init__(self, store: _AsyncStore, codec: _Codec[_V] | None) -> None:
        self._store = store
        self._codec = codec
        self._loop = _asyncio.get_running_loop()
        # The futures of the tasks that wait, by the numbers of their operations. The event loop refers to them, and so to
        # this table while tasks wait, but not to an idle table.
        self._waiting: dict[int, _asyncio.Future[None]] = {}
        self._running = 0
        # The calls of close that wait until no operation runs, and their future.
        self._closers = 0
        self._idle: _asyncio.Future[None] | None = None
        # The last step of close.
        self._ending: _asyncio.Task[None] | None = None
        self._loop.add_reader(store.fileno(), _wake, store, self._waiting)
        self._watched_by = _os.getpid()

    def __del__(self) -> None:
        # A forked child does not touch the event loop of its parent.
        if self._watched_by != _os.getpid():
            return
        # This may be another thread. A loop that was closed watches nothing.
        with _contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_unwatch, self._loop, self._store)
        # Last, since a warning can be an error.
        _warnings.warn("a guira.aio.AsyncTable was not closed", ResourceWarning, source=self)

    @property
    def closed(self) -> bool:
        """Whether close was called."""
        return self._closers > 0 or self._ending is not None

    async def get(self, key: Buffer, default: _T | None = None) -> _V | _T | None:
        """Return the value of key, or default if there is no such key."""
        return self._decoded(await self._run(self._store.get, key), default)

    async def get_versioned(self, key: Buffer) -> tuple[_V, _Token] | None:
        """Return the value of key and a token of its state, for compare_and_swap; None if there is no such key."""
        found = await self._run(self._store.get_versioned, key)
        return found and (_typing.cast("_V", self._decoded(found[0], None)), found[1])

    async def get_many(self, keys: Iterable[Buffer], default: _T | None = None) -> list[_V | _T | None]:
        """Return the values of many keys in their order: 32 keys take one round trip. See guira.Table.get_many."""
        return [self._decoded(value, default) for value in await self._run(self._store.get_many, keys)]

    async def put(self, key: Buffer, value: _V | Buffer) -> bool:
        """Insert key, or replace its value. Return True if it was inserted."""
        return bool(await self._run(self._store.put, key, self._encoded(value)))

    async def put_many(self, items: _typing.Any) -> int:
        """Put the items of a mapping, or pairs, one after the other; return how many were inserted. See
        guira.Table.put_many."""
        pairs = items.items() if hasattr(items, "items") else items
        # Not a list: each pair is copied when it is drawn, before the next one is made, perhaps in the same buffer.
        return int(await self._run(self._store.put_many, ((key, self._encoded(value)) for key, value in pairs)))

    async def try_insert(self, key: Buffer, value: _V | Buffer) -> bool:
        """Insert key and return True; if it exists, change nothing and return False."""
        return bool(await self._run(self._store.try_insert, key, self._encoded(value)))

    async def update(self, key: Buffer, value: _V | Buffer) -> bool:
        """Replace the value of key and return True; if there is no such key, change nothing and return False."""
        return bool(await self._run(self._store.update, key, self._encoded(value)))

    async def delete(self, key: Buffer) -> bool:
        """Remove key and return True; return False if there is no such key."""
        return bool(await self._run(self._store.delete, key))

    async def compare_and_swap(self, key: Buffer, expected: _V | Buffer | _Token, value: _V | Buffer) -> bool:
        """Replace the value of key, and return True, if the key is as expected: see guira.Table.compare_and_swap."""
        expected = self._expected(expected)
        return bool(await self._run(self._store.compare_and_swap, key, expected, self._encoded(value)))

    async def compare_and_delete(self, key: Buffer, expected: _V | Buffer | _Token) -> bool:
        """Remove key, and return True, if the key is as expected: see guira.Table.compare_and_delete."""
        return bool(await self._run(self._store.compare_and_delete, key, self._expected(expected)))

    async def increment(self, key: Buffer, by: int = 1) -> int:
        """Add by to the number that is the value of key, and return the sum: see guira.Table.increment. If the task is
        cancelled, only a look at the number tells whether it was added."""
        return int(await self._run(self._store.increment, key, by))

    async def close(self) -> None:
        """Wait for the operations that have begun, and at most 10 seconds for what cancelled changes hold to be given
        back, and close: give back the client slots. Later operations raise Closed. Closing again does nothing, but waits
        for a close that has begun. If this is cancelled while it waits for operations, the table stays open; later,
        closing goes on."""
        if self._ending is not None and self._ending.done():
            return
        self._check_loop()
        self._closers += 1
        try:
            while self._running and self._ending is None:
                if self._idle is None or self._idle.done():
                    self._idle = self._loop.create_future()
                await _asyncio.shield(self._idle)
        finally:
            self._closers -= 1
        if self._ending is None:
            self._ending = self._loop.create_task(self._end())
        await _asyncio.shield(self._ending)

    async def _end(self) -> None:
        try:
            end = self._loop.time() + _SETTLE_S
            while self._store.is_settling() and self._loop.time() < end:
                await _asyncio.sleep(_LOOK_S)
        finally:
            # Also if the event loop ends, and cancels this.
            try:
                await self._finish(self._store.close())
            finally:
                self._unwatch()

    def _unwatch(self) -> None:
        self._watched_by = None
        _unwatch(self._loop, self._store)

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Close. If the block raised an exception, that one leaves it, and an error of close is dropped."""
        try:
            await self.close()
        except _Error:
            if _value is None:
                raise

    def _decoded(self, value: _typing.Any, default: _T) -> _V | _T:
        if value is None:
            return default
        decoded: _V = value if self._codec is None else self._codec.loads(value)
        return decoded

    def _encoded(self, value: _typing.Any) -> Buffer:
        encoded: Buffer = value if self._codec is None else self._codec.dumps(value)
        return encoded

    def _expected(self, expected: _typing.Any) -> _typing.Any:
        if self._codec is None or isinstance(expected, _Token):
            return expected
        # A copy, as the codec may use the same buffer for the value.
        return memoryview(self._codec.dumps(expected)).tobytes()

    def _check_loop(self) -> None:
        if _asyncio.get_running_loop() is not self._loop:
            raise _Misuse("this table belongs to another event loop; nothing was changed; open it again")

    def _check(self) -> None:
        self._check_loop()
        if self.closed:
            raise _Closed("this table object was closed; nothing was changed; open it again")

    async def _run(self, begin: Callable[..., _Operation], *arguments: object) -> _typing.Any:
        self._check()
        return await self._finish(begin(*arguments))

    async def _finish(self, operation: _Operation) -> _typing.Any:
        self._running += 1
        try:
            while (result := operation.poll()) is NotImplemented:
                # A wake that came meanwhile is seen by _wake, which cannot run before the next line.
                self._waiting[operation.number] = waiter = self._loop.create_future()
                await waiter
            return result
        finally:
            operation.close()
            self._waiting.pop(operation.number, None)
            self._running -= 1
            if not self._running and self._idle is not None and not self._idle.done():
                self._idle.set_result(None)


@_typing.overload
async def open(
    url: str,
    *,
    read_only: bool = False,
    owner: int | None = None,
    deadline: float = 10.0,
    token_file: str | PathLike[str] | None = None,
    connect_timeout: float = 5.0,
    reconnect_timeout: float = 10.0,
    max_clients: int = 16,
    codec: None = None,
) -> AsyncTable[bytes]: ...
@_typing.overload
async def open(
    url: str,
    *,
    read_only: bool = False,
    owner: int | None = None,
    deadline: float = 10.0,
    token_file: str | PathLike[str] | None = None,
    connect_timeout: float = 5.0,
    reconnect_timeout: float = 10.0,
    max_clients: int = 16,
    codec: _Codec[_V],
) -> AsyncTable[_V]: ...
async def open(
    url: str,
    *,
    read_only: bool = False,
    owner: int | None = None,
    deadline: float = 10.0,
    token_file: str | PathLike[str] | None = None,
    connect_timeout: float = 5.0,
    reconnect_timeout: float = 10.0,
    max_clients: int = 16,
    codec: _typing.Any = None,
) -> AsyncTable[_typing.Any]:
    """Open an existing table for the running event loop: async with await guira.aio.open(url) as table.

    max_clients: changes that run at once, from 1, each of which takes a client slot of the table. All other options, and the
    errors, are those of guira.open.
    """
    store = _AsyncStore(
        url,
        read_only=read_only,
        owner=owner,
        deadline=deadline,
        token_file=token_file,
        connect_timeout=connect_timeout,
        reconnect_timeout=reconnect_timeout,
        max_clients=max_clients,
    )
    if codec is not None and not (callable(getattr(codec, "dumps", None)) and callable(getattr(codec, "loads", None))):
        raise TypeError("a codec needs functions dumps(value) -> bytes and loads(bytes) -> value")
    table: AsyncTable[_typing.Any] = AsyncTable(store, codec)
    try:
        await table._finish(store.open())
    except BaseException:
        table._unwatch()
        raise
    return table
