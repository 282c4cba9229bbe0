"""The publishers whose readings enter here over HTTP: grants of the root, repeats, and answers that survive a crash.

A batch is answered when it is on disk, the root has granted the publisher to this node, and the lease holds. Without a
publisher's id a batch belongs to `~<node>`, and its numbers are this node's own.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
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
"""After a rejection: how long to wait for a grant before the next request for it."""
_ANSWER_S = 3.0
"""A request without an answer is repeated: the control connection may have been lost."""


@dataclass(frozen=True, slots=True)
class Stored:
    stored_through: int
    durable_through: int


class BatchesMissing(TocsinError):
    """Earlier batches of the publisher are neither here nor durable: the publisher sends them first."""

    def __init__(self, stored: Stored) -> None:
        super().__init__(Code.IN_USE, f"send the batches from {stored.stored_through + 1} on first")
        self.stored = stored


@dataclass(frozen=True, slots=True)
class Rejection:
    code: str
    reason: str


class Publishers:
    def __init__(self, node: str, journal: EntryJournal, attach: Callable[[str, str], bool]) -> None:
        """`attach` requests a grant from the root; it returns False if no generation runs here: `retry_all` follows."""
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
        batches: Sequence[pa.RecordBatch],
        publisher: str | None,
        number: int | None,
        may_answer: Callable[[], bool],
        durable: int | None = None,
        is_gone: Callable[[], Awaitable[bool]] | None = None,
    ) -> Stored:
        """Store batches and return when their publisher may forget them or knows when it can. Raises `TocsinError`.

        `number` is that of the first batch; the others follow without a gap. Either all are stored or none.
        `durable`: the publisher keeps its batches behind this number. This node may lack them: it has lost its disk, or
        it has discarded them because another node owned the publisher for a while. Numbers without a gap show this.
        The first number of an unknown publisher that does not say what is durable may be any. `is_gone`: the publisher
        has ended the request; a request for its grant would take the publisher from the node that it uses now.
        """
        publisher = publisher or self.own
        async with self._locks[publisher]:
            await self._ensure_grant(publisher, name, is_gone)
            stored = self._journal.stored_through(publisher)
            known = max(stored, durable or 0)
            first = known + 1 if number is None else number
            if first > known + 1 and (stored or durable is not None):
                raise BatchesMissing(Stored(known, self._journal.durable_through(publisher)))
            numbered = [(place, batch) for place, batch in enumerate(batches, first) if place > known]
            if numbered:
                await self._journal.append(
                    *(
                        Readings(name, publisher, place, newest_us(batch, stream), encode_batch(batch))
                        for place, batch in numbered
                    )
                )
                self.raw_bytes += sum(int(batch.nbytes) for _, batch in numbered)
                self.rows += sum(batch.num_rows for _, batch in numbered)
            if (publisher, name) not in self._granted:
                self._journal.void(publisher)
                raise _later("another node owns this publisher now: send the batch there, or again here")
        if not may_answer():
            raise _later("this node lost its lease: send the batch again")
        return Stored(max(first + len(batches) - 1, known), self._journal.durable_through(publisher))

    async def _ensure_grant(self, publisher: str, stream: str, is_gone: Callable[[], Awaitable[bool]] | None) -> None:
        key = (publisher, stream)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRANT_S):
                while key not in self._granted:
                    if is_gone is not None and await is_gone():
                        raise _later("the publisher has ended the request")
                    if not self._attach(publisher, stream):
                        await self._next_answer(key)  # when the generation runs
                    elif await self._next_answer(key, _ANSWER_S) is not None:
                        await self._next_answer(key, _RETRY_S)  # the grant may follow the rejection at once
                return
        raise _later("the root has not granted the publisher to this node")

    async def _next_answer(self, key: tuple[str, str], limit_s: float | None = None) -> Rejection | None:
        """The root's next answer; None if it is a grant, or if there is none within the limit."""
        future: asyncio.Future[Rejection | None] = asyncio.get_running_loop().create_future()
        self._answers.setdefault(key, []).append(future)
        try:
            async with asyncio.timeout(limit_s):
                return await future
        except TimeoutError:
            return None
        finally:
            if future in (waiting := self._answers.get(key, [])):
                waiting.remove(future)
                if not waiting:
                    del self._answers[key]


def _later(reason: str) -> TocsinError:
    return TocsinError(Code.NOT_READY, reason, retry_after_s=1)
