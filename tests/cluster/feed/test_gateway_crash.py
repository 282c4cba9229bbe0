"""kill -9 of the gateway's process at random moments: each acknowledged record is in the log exactly once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tocsin.cluster.feed.feedlog_reader import FeedLogReader

# A publisher and its gateway in one process. It sends batches from argv[2] on. The first ones are retries of batches
# that the killed process may or may not have stored. It prints each batch after its sync. Batches overlap, so that
# repeats occur without a crash too. Every third request has an Idempotency-Key.
CHILD = """
import json, sys, time
from pathlib import Path
from tocsin.cluster.feed.gateway import Accepted, FeedGateway, FeedLimits, RecordForm
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema

dataset = Dataset(
    DatasetName("Reports"), DatasetKind.STREAM, Schema.of(report_id="STRING", message="STRING"), key=("report_id",)
)
limits = FeedLimits(memory_keys=300, segment_bytes=30_000, backlog_bytes=1 << 40)
gateway = FeedGateway(dataset, Path(sys.argv[1]), limits, time.time)
print("open", flush=True)
batch = int(sys.argv[2])
while True:
    group = range(batch, batch + 3)
    for number in group:
        records = [{"report_id": f"{n}", "message": "m" * 50} for n in range(number * 10, number * 10 + 15)]
        key = f"key-{number}" if number % 3 == 0 else None
        outcome = gateway.accept(json.dumps(records).encode(), RecordForm.JSON, key)
        assert isinstance(outcome, Accepted), outcome
        assert outcome.replayed or outcome.accepted + outcome.duplicates == 15, outcome
    gateway.sync()
    for number in group:
        print(number, flush=True)
    batch += 3
    if batch % 5 == 0:
        gateway.maintain()
"""
ROUNDS = 8


def run_until_killed(directory: Path, first_batch: int, after_lines: int, more_bytes: int) -> list[int]:
    """Start the child, kill it after `after_lines` lines and `more_bytes` bytes, return the acknowledged batches."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory), str(first_batch)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    lines = [child.stdout.readline() for _ in range(after_lines)]
    rest = child.stdout.read(more_bytes)  # so that the kill falls anywhere between two acknowledgements
    child.kill()
    rest += child.stdout.read()
    failure = child.stderr.read().decode()
    child.wait()
    child.stdout.close()
    child.stderr.close()
    assert failure == ""
    whole_lines = (b"".join(lines) + rest).split(b"\n")[:-1]
    assert whole_lines[0] == b"open"
    return [int(line) for line in whole_lines[1:]]


def stored_keys(directory: Path) -> Counter[str]:
    reader = FeedLogReader(directory / "log")
    frames, _ = reader.read(0, 1 << 40)
    reader.close()
    return Counter(json.loads(line)["report_id"] for frame in frames for line in frame.lines())


def test_every_acknowledged_record_survives_kill_9_exactly_once(tmp_path: Path) -> None:
    rng = random.Random(9)
    acknowledged: set[int] = set()
    first_batch = 0
    for _ in range(ROUNDS):
        batches = run_until_killed(tmp_path, first_batch, rng.randrange(1, 90), rng.randrange(1, 40))
        acknowledged.update(batches)
        stored = stored_keys(tmp_path)
        missing = {str(n) for batch in acknowledged for n in range(batch * 10, batch * 10 + 15)} - set(stored)
        assert missing == set()
        assert {key: times for key, times in stored.items() if times > 1} == {}
        # The next process retries the batches that were not acknowledged, and a few that were.
        first_batch = max(0, max(acknowledged, default=0) - 2)
    assert len(acknowledged) > 100
    assert len(list((tmp_path / "keys").glob("*.keys"))) > 0
