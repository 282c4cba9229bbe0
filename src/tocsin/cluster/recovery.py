"""What an execution does after a failure: it leaves out the values at fault, so that the channel goes on.

`cluster.failures` and `cluster.deaths` decide; this module gives them Spark and the catalog. `cluster.executions`
drives it, inside the exclusive block of the channel.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa

from tocsin.cluster.catalog import Catalog, DeadLetter
from tocsin.cluster.catalog.trials import OnTrial
from tocsin.cluster.channels import Channels
from tocsin.cluster.culprits import culprits
from tocsin.cluster.datasets import Datasets
from tocsin.cluster.deaths import BY_ITSELF, FROM_OUTSIDE, REASON, SUSPICIOUS, find_killer
from tocsin.cluster.failures import SEARCH_S, DeadRecords, FailureSearch
from tocsin.cluster.feed.columntypes import to_json_line
from tocsin.cluster.inputs import ExecutionInputs
from tocsin.cluster.live import LiveChannel
from tocsin.cluster.spark.errors import ended_by_itself, has_died
from tocsin.cluster.spark.time_limit import TimeLimit
from tocsin.cluster.spark.trial import Trial
from tocsin.cluster.store.results import ResultStore
from tocsin.model.ids import ChannelName
from tocsin.wire.errors import Code, TocsinError

MOST_SEARCHED = 100_000
"""The most NEW records that are searched for culprits, because they are held in memory."""
JVM_END_S = 10.0
"""How long a JVM that no longer answers may take to end: it deletes its temporary files first."""


class Recovery:
    """Thread-safe."""

    def __init__(self, catalog: Catalog, datasets: Datasets, channels: Channels, results: ResultStore) -> None:
        self._catalog = catalog
        self._datasets = datasets
        self._channels = channels
        self._results = results
        self._died_with: set[ChannelName] = set()
        """The channels whose execution Spark died with. It dies once in the life of a process, whatever it retries."""

    def note_death(self, live: LiveChannel, error: str) -> None:
        """Store the evidence of a failed execution if Spark died with it."""
        if live.name not in self._died_with and has_died(live.prepared.session, error):
            self._died_with.add(live.name)
            evidence = BY_ITSELF if ended_by_itself(live.prepared.session, JVM_END_S) else FROM_OUTSIDE
            live.deaths += evidence
            self._catalog.trials.add_death(live.name, evidence)

    def note_joint_death(self, lives: Sequence[LiveChannel], error: str) -> None:
        """Store evidence against each channel if Spark died with their joint execution.

        It is weak evidence, because only one of them is guilty. It suffices to run each of them by itself from now on.
        """
        if lives and has_died(lives[0].prepared.session, error):
            for live in lives:
                if live.name not in self._died_with:
                    self._died_with.add(live.name)
                    live.deaths += FROM_OUTSIDE
                    self._catalog.trials.add_death(live.name, FROM_OUTSIDE)

    def survived(self, live: LiveChannel) -> None:
        self._catalog.trials.clear(live.name)
        live.deaths = 0

    def without_killer(
        self, live: LiveChannel, inputs: ExecutionInputs
    ) -> tuple[ExecutionInputs, Sequence[DeadLetter]]:
        """End the subscription, or leave out the record, that has killed Spark; see `cluster.deaths`."""
        if live.deaths < SUSPICIOUS:
            return inputs, ()
        trial = Trial(live.prepared, live.subscribers)
        suspected = self._catalog.trials.on_trial(live.name)
        evidence = self._catalog.trials.evidence(live.name, suspected)
        numbers = [number for number, _, _ in self._catalog.subscriptions.of_channel(live.name)]

        def attempt(group: OnTrial, first: int, last: int, tried: ExecutionInputs) -> None:
            self._catalog.trials.begin(live.name, group)
            reason = trial.fails(first, last, tried.content)
            if reason is not None and has_died(live.prepared.session, reason):
                raise TocsinError(Code.NOT_READY, f"channel {live.name}: Spark died: {reason}")
            self._catalog.trials.survived(live.name)

        untried = [number for number in numbers if number > live.tried]
        killer = find_killer(
            "subscriptions",
            untried,
            suspected,
            evidence,
            lambda group: attempt(group, group.first, group.last, inputs),
        )
        if killer is not None:
            self._channels.refuse(live, {killer: REASON})
            self.survived(live)
            return inputs, ()
        if inputs.new_rows > MOST_SEARCHED:
            return inputs, ()
        for name in live.prepared.query.new_datasets:
            rows = inputs.new_records(live.prepared.session, name)

            def attempt_rows(group: OnTrial, name: str = name, rows: pa.Table = rows) -> None:
                part = rows.slice(group.first, group.last - group.first + 1)
                attempt(group, numbers[0], numbers[-1], inputs.replaced({name: part}))

            killer = find_killer(f"records {name}", range(rows.num_rows), suspected, evidence, attempt_rows)
            if killer is not None:
                kept = pa.concat_tables([rows.slice(0, killer), rows.slice(killer + 1)])
                dead = DeadRecords(name, rows.slice(killer, 1), REASON)
                return inputs.replaced({name: kept}), self._letters(dead)
        return inputs, ()

    def without_culprits(
        self, live: LiveChannel, inputs: ExecutionInputs, limit: TimeLimit
    ) -> tuple[ExecutionInputs | None, Sequence[DeadLetter]]:
        """End failing subscriptions, and return the inputs without failing records; None if nothing is at fault.

        Raises if the time of the execution is over.
        """
        trial = Trial(live.prepared, live.subscribers, limit)
        numbers = [number for number, _, _ in self._catalog.subscriptions.of_channel(live.name)]
        tried = bisect_right(numbers, live.tried)

        def fails(first: int, last: int) -> str | None:
            return trial.fails(first, last, inputs.content)

        until_s = time.monotonic() + SEARCH_S
        found = culprits(numbers[:tried], numbers[tried:], fails, lambda: time.monotonic() < until_s)
        ended = {*found.reasons, *found.postponed}
        if ended:
            self._channels.refuse(live, found.reasons, found.postponed)
            numbers = [number for number in numbers if number not in ended]
        if inputs.new_rows > MOST_SEARCHED:
            return (inputs if ended else None), ()
        session = live.prepared.session
        search = FailureSearch(
            lambda first, last, records: trial.fails(first, last, inputs.replaced(records).content),
            lambda guilty, together: self._channels.refuse(live, guilty, together),
            self._results.subscriptions(live.name, live.epoch),
            time.monotonic,
            numbers,
            {name: inputs.new_records(session, name) for name in live.prepared.query.new_datasets},
            live.strikes,
            until_s,
        )
        if not search.run() and not ended:
            return None, ()
        letters = [letter for dead in search.dead for letter in self._letters(dead)]
        return (inputs.replaced(search.records) if search.dead else inputs), letters

    def _letters(self, dead: DeadRecords) -> list[DeadLetter]:
        dataset = self._datasets.get(dead.dataset).name
        return [DeadLetter(dataset, to_json_line(row), dead.reason) for row in dead.rows.to_pylist()]
