"""The publishers whose readings enter here over HTTP: grants of the root, repeats, and answers that survive a crash.

A batch is answered when it is on disk, the root has granted the publisher to this node, and the lease holds. Without a
publisher's id a batch belongs to `~<node>`, and its numbers are this node's own.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from tocsin.edge.plan import Stream
from tocsin.runtime.edge.entry_journal import EntryJournal
from tocsin.runtime.edge.entry_log import Readings, encode_batch
from tocsin.runtime.edge.readings import newest_us
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code, TocsinError

_GRANT_S = 15.0
"""How long a batch waits for the root's grant: a new generation may have to start first."""
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Stored:
    stored_through: int
    durable_through: int


@dataclass(frozen=True, slots=True)
class Rejection:
    code: str
    reason: str


class Publishers:
    def __init__(self, node: str, journal: EntryJournal, attach: Callable[[str, str], bool]) -> None:
        """`attach` requests a grant from the root; it returns False if this node runs no generation."""
        self._node = node
        self._journal = journal
        self._attach = attach
        self._granted: set[tuple[str, str]] = set()
        self._answers: dict[tuple[str, str], list[asyncio.Future[Rejection | None]]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.raw_bytes = 0
        self.rows = 0

    @property
    def own(self) -> str:
        """The publisher of batches without one."""
        return f"~{self._node}"

    # -- the root's answers --------------------------------------------------------------------------------------------

    def granted(self, publisher: str, stream: str) -> None:
        self._granted.add((publisher, stream))
        self._answer(publisher, stream, None)

    def rejected(self, publisher: str, stream: str, rejection: Rejection) -> None:
        self._answer(publisher, stream, rejection)

    def retry_all(self) -> None:
        """A generation runs: requests for a grant that were lost or came too early are sent again."""
        for publisher, stream in list(self._answers):
            self._answer(publisher, stream, Rejection("STALE", "a new generation runs"))

    def _answer(self, publisher: str, stream: str, answer: Rejection | None) -> None:
        for future in self._answers.pop((publisher, stream), ()):
            if not future.done():
                future.set_result(answer)

    def keep(self, publishers: frozenset[str], stored: frozenset[str]) -> None:
        """Forget the batches and grants of all other publishers. `stored`: the publishers in the log."""
        voided = sorted(stored - publishers)
        for publisher in voided:
            self._journal.void(publisher)
        if voided:
            logger().info("other nodes own publishers whose batches are here", publishers=voided[:20])
        self._granted = {key for key in self._granted if key[0] in publishers}

    # -- batches -------------------------------------------------------------------------------------------------------

    async def store(
        self,
        name: str,
        stream: Stream,
        batch: pa.RecordBatch,
        publisher: str | None,
        number: int | None,
        may_answer: Callable[[], bool],
    ) -> Stored:
        """Store a batch and return when its publisher may forget it or knows when it can. Raises `TocsinError`."""
        publisher = publisher or self.own
        record = None
        async with self._locks[publisher]:
            await self._ensure_grant(publisher, name)
            known = self._journal.stored_through(publisher)
            number = known + 1 if number is None else number
            if number > known:
                record = Readings(name, publisher, number, newest_us(batch, stream), encode_batch(batch))
                await self._journal.append(record)
                self.raw_bytes += int(batch.nbytes)
                self.rows += batch.num_rows
            if (publisher, name) not in self._granted:
                self._journal.void(publisher)
                raise _later("another node owns this publisher now: send the batch there, or again here")
        if not may_answer():
            raise _later("this node lost its lease: send the batch again")
        return Stored(max(number, known), self._journal.durable_through(publisher))

    async def _ensure_grant(self, publisher: str, stream: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRANT_S):
                while (publisher, stream) not in self._granted:
                    if not self._attach(publisher, stream):
                        raise _later("this node is joining the tree")
                    future: asyncio.Future[Rejection | None] = asyncio.get_running_loop().create_future()
                    self._answers.setdefault((publisher, stream), []).append(future)
                    rejection = await future
                    if rejection is not None:
                        await asyncio.sleep(_RETRY_S)
                return
        raise _later("the root has not granted the publisher to this node")


def _later(reason: str) -> TocsinError:
    return TocsinError(Code.NOT_READY, reason, retry_after_s=1)
