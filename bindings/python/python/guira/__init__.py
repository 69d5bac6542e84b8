"""A key/value store in shared or remote memory, without a server.

Processes on one host share a table by its name, and read and change it directly; hosts share one through a memory node
(tcp://, rdma://). A table is a mapping from bytes to bytes:

    import guira

    with guira.open_or_create("shm://birds") as birds:
        birds[b"cuckoo"] = b"Guira guira"
        print(birds[b"cuckoo"])

Another process that opens shm://birds sees the same table at once. It stays until guira.destroy, or until the machine is
restarted.

get_many and put_many take many keys at once, get_many_into and put_many_from arrays of them, such as those of NumPy. The
module guira.aio has tables for asyncio.

Values of other types need a codec, named when the table is opened: guira.open(url, codec=guira.json). All errors but
TypeError, ValueError, OverflowError, the KeyError of a missing key and those of a codec are subclasses of guira.Error,
sorted by what is at fault.
"""

from __future__ import annotations

import json as _json
import typing as _typing

from ._guira import LenEstimate, Scan, Table, Token, create, destroy, open, open_or_create

__all__ = [
    "AlreadyExists",
    "Bug",
    "Busy",
    "Closed",
    "Corrupt",
    "Error",
    "Fabric",
    "Fenced",
    "Full",
    "Gone",
    "LenEstimate",
    "Misuse",
    "NotFound",
    "Scan",
    "Table",
    "Token",
    "Version",
    "create",
    "destroy",
    "json",
    "open",
    "open_or_create",
]


class Error(Exception):
    """An operation failed. The text says what was attempted, on what, and whether anything was changed."""

    effect: _typing.Literal["none", "done", "unknown"]
    """The effect on the table. It is "unknown" only if the connection to a memory node was lost meanwhile."""

    failed: list[int]
    """Of an operation that puts many keys: the positions of the keys that failed or were not tried. All others were put."""

    def __init__(self, message: str, effect: _typing.Literal["none", "done", "unknown"] = "none") -> None:
        super().__init__(message)
        self.effect = effect
        self.failed = []


class Fabric(Error):
    """The memory, or the memory node, cannot be reached. Trying again connects again, and can help."""


class Corrupt(Error):
    """The memory is damaged, or is not a table."""


class Version(Error):
    """Another version of Guira made the table."""


class Full(Error):
    """The table, its space for large values, or the memory is full. Keys can still be read, updated and deleted."""


class Busy(Error):
    """Other clients hold what is needed, such as a lock or all client slots. Trying again can help."""


class Fenced(Error):
    """This client was fenced from its memory node. The next operation begins a new session."""


class Gone(Fenced):
    """The table that was opened is gone: it was destroyed, or its file was removed. Another may have its URL: open it."""


class Misuse(Error):
    """The caller's mistake: an argument, a permission, or a table that was inherited by a forked process."""


class NotFound(Misuse):
    """There is no such table. A key that does not exist is a KeyError."""


class AlreadyExists(Misuse):
    """A table, or another file, has this name."""


class Closed(Misuse):
    """The table object was closed."""


class Bug(Error):
    """An error of Guira itself."""


class json:
    """A codec for values that JSON can represent: guira.open(url, codec=guira.json). It never runs code of the table."""

    @staticmethod
    def dumps(value: _typing.Any) -> bytes:
        """Return value as compact JSON in UTF-8. Equal dictionaries have equal bytes, whatever their order."""
        return _json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()

    @staticmethod
    def loads(data: bytes) -> _typing.Any:
        """Return the value of a JSON text."""
        return _json.loads(data)
