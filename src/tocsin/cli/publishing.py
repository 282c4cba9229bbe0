"""Sending records in batches, each with a key of its own: sending one again after a doubt stores nothing twice."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from tocsin.cli.connection import Answered, ask
from tocsin.cli.output import note
from tocsin.wire.errors import Code, TocsinError

BATCH_BYTES = 1 << 20
_LISTED = 20
"""Refused records named on stderr; more are counted."""
_PAUSE_S = (0.2, 30.0)


@dataclass(slots=True)
class Sent:
    lines: int = 0
    accepted: int = 0
    duplicates: int = 0
    refused: int = 0
    retries: int = 0

    def __str__(self) -> str:
        return f"{self.accepted:,} accepted, {self.duplicates:,} duplicates, {self.refused:,} refused"

    def sentence(self, dataset: str) -> str:
        return f"{dataset}: {self}"

    def as_json(self) -> dict[str, int]:
        return {
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "refused": self.refused,
            "retries": self.retries,
        }


class Publisher:
    def __init__(
        self,
        client: httpx.Client,
        dataset: str,
        give_up_s: float,
        sleep: Callable[[float], None] = time.sleep,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._path = f"/v1/datasets/{dataset}/records"
        self._give_up_s = give_up_s
        self._sleep = sleep
        self._clock_s = clock_s

    def batches(self, source: Iterable[bytes], records: int) -> Iterator[list[tuple[int, bytes]]]:
        """(line number, line) in groups that fit a request; empty lines are left out."""
        group: list[tuple[int, bytes]] = []
        size_bytes = 0
        for number, line in enumerate(source, 1):
            if not line.strip():
                continue
            if group and (len(group) >= records or size_bytes + len(line) > BATCH_BYTES):
                yield group
                group, size_bytes = [], 0
            group.append((number, line.rstrip(b"\r\n")))
            size_bytes += len(line)
        if group:
            yield group

    def send(self, lines: list[tuple[int, bytes]], sent: Sent) -> None:
        said = self._send_until_answered(b"\n".join(line for _, line in lines), sent)
        sent.lines += len(lines)
        sent.accepted += said["accepted"]
        sent.duplicates += said["duplicates"]
        for refusal in said["refused"]:
            sent.refused += 1
            if sent.refused <= _LISTED:
                field = f" {refusal['field']}:" if refusal["field"] else ""
                note(f"line {lines[refusal['index']][0]}:{field} {refusal['reason']}")
        sent.refused += said["refused_total"] - len(said["refused"])

    def _send_until_answered(self, body: bytes, sent: Sent) -> dict[str, Any]:
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": uuid.uuid4().hex}
        deadline_s = self._clock_s() + self._give_up_s
        pause_s, longest_s = _PAUSE_S
        while True:
            try:
                said: dict[str, Any] = ask(self._client, "POST", self._path, content=body, headers=headers)
                return said
            except Answered as error:
                if error.code is Code.BAD_RECORDS and isinstance(error.said, dict) and "refused" in error.said:
                    return error.said
                if not error.code.retry:
                    raise
                wait_s = max(pause_s, error.retry_after_s or 0.0)
                failure: TocsinError = error
            except TocsinError as error:  # no answer: it may be stored or not, the key makes a repeat harmless
                wait_s, failure = pause_s, error
            wait_s *= random.uniform(1.0, 1.5)  # many publishers must not come back together
            if self._clock_s() + wait_s > deadline_s:
                raise failure
            sent.retries += 1
            self._sleep(wait_s)
            pause_s = min(longest_s, pause_s * 2)
