"""Runs several continuous channels together: one Spark job, one transaction and one announcement for all of them.

Most of a small execution is fixed cost. Channels that have the same NEW records share it (docs/decisions/0019). Only
executions that are certainly small take part, with a plan that an earlier execution has made. Everything else runs by
itself, as before: `execute` returns only what it has done, and the caller runs the other channels one by one. A failure
of the job or of the commit concerns all channels of the group, so nothing of it counts: each channel then runs by
itself, which finds the values at fault. A channel that fails by itself too, or is slow, stays out of groups for a
while.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa

from tocsin.cluster.catalog import StoredExecution, results_owner
from tocsin.cluster.channels import Channels, ExecutionStart, FinishedExecution, Intervals
from tocsin.cluster.datasets import Datasets
from tocsin.cluster.inputs import ExecutionInputs
from tocsin.cluster.live import EngineContext, LiveChannel
from tocsin.cluster.recovery import Recovery
from tocsin.cluster.spark.execution import ExecutionSize, ready_task
from tocsin.cluster.spark.joint_plan import JointPlan
from tocsin.cluster.spark.reused_plan import ReusedPlan
from tocsin.cluster.spark.time_limit import time_limit
from tocsin.cluster.spark.writing import FewResults, WrittenResults, write_few_results_of_several
from tocsin.cluster.sql.channel_query import ChannelQuery
from tocsin.cluster.store.writes import Write
from tocsin.model.ids import ChannelName
from tocsin.wire.errors import Code, TocsinError

MOST_TOGETHER = 32
"""The most channels of one group: the first waits for the results of the last."""
JOINT_ROWS = 1_000
"""The most rows of all datasets that one of the channels reads."""
JOINT_PAIRS = 50_000
"""The most subscriptions times records of one of the channels."""
JOINT_BYTES = 256 << 10
"""The most bytes of all tables of one of the channels."""
JOINT_S = 5.0
"""The longest time of a joint job. So few rows take milliseconds: a query that is slow in spite of it runs alone."""
SLOW_S = 1.0
"""A channel of a failed group that takes longer than this by itself stays out of groups."""
ALONE = 100
"""The number of executions that such a channel, or one that fails by itself too, runs alone."""
APART = 50
APART_WHILE_LARGE = 3
"""The number of executions for which a group does not wait for a channel that cannot join, or had too many rows."""
_KEPT_PLANS = 64
"""Joint plans that are kept. The channels of a group are mostly the same."""

Read = Callable[[ChannelQuery, Intervals], ExecutionInputs]


@dataclass(slots=True)
class JointOutcome:
    """What became of the channels of a group."""

    done: dict[ChannelName, StoredExecution | None] = field(default_factory=dict)
    """The executions that are committed, None for a channel that had no results or nothing to do.

    The caller executes the channels that are not among them.
    """
    apart: dict[ChannelName, int] = field(default_factory=dict)
    """Channels that cannot run together with others, and for how many executions: the others need not wait for them."""
    failure: Exception | None = None
    """The reason why the channels could not run together."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """The part of one channel."""

    live: LiveChannel
    start: ExecutionStart
    rows: int
    most_rows: int
    plan: ReusedPlan
    tables: Mapping[str, pa.Table]

    def finished(self, written: WrittenResults, write: Write) -> FinishedExecution:
        tried = max(self.live.tried, self.start.newest_subscription) if self.rows else self.live.tried
        return FinishedExecution(self.live, self.start.intervals, written, write, tried)


class JointExecutions:
    """Thread-safe."""

    def __init__(
        self, context: EngineContext, datasets: Datasets, channels: Channels, recovery: Recovery, read: Read
    ) -> None:
        self._context = context
        self._datasets = datasets
        self._channels = channels
        self._recovery = recovery
        self._read = read
        self._lock = threading.Lock()
        self._plans: OrderedDict[tuple[int, ...], JointPlan] = OrderedDict()
        """By the identities of the plans of the channels, which the joint plan keeps alive."""

    def execute(self, names: Sequence[ChannelName]) -> JointOutcome:
        """Run these channels, as far as they can run together."""
        outcome, chosen = JointOutcome(), set(names)
        members = [live for live in self._channels.all() if live.name in chosen]
        outcome.apart = {live.name: APART for live in members if not _may_join(live)}
        lives = [live for live in members if live.warm and live.name not in outcome.apart]
        with ExitStack() as holding:
            held = [live for live in lives if holding.enter_context(live.exclusive_at_once())]
            turns = self._begin(held, outcome)
            try:
                if len(turns) > 1:
                    outcome.done |= self._execute(turns)
            except Exception as error:
                # The caller repeats the executions one by one, and each reports its own error.
                outcome.failure = error
                self._recovery.note_joint_death([turn.live for turn in turns], str(error))
                for turn in turns:
                    turn.live.is_suspect = True
        return outcome

    def _begin(self, lives: Sequence[LiveChannel], outcome: JointOutcome) -> list[_Turn]:
        """The channels that take part. Those without NEW records are done already."""
        turns = []
        inputs: dict[object, ExecutionInputs] = {}
        for live in lives:
            start = self._channels.begin_execution(live)
            if start is None:
                outcome.done[live.name] = None
                continue
            query = live.prepared.query
            # Channels that read the same records share the tables, which then travel to Spark once.
            key = (frozenset(query.datasets), frozenset(query.new_datasets), frozenset(start.intervals.items()))
            if key not in inputs:
                inputs[key] = self._read(query, start.intervals)
            turn = _turn(live, start, inputs[key])
            if turn is not None:
                turns.append(turn)
            elif not _is_small(live, inputs[key]):
                outcome.apart[live.name] = APART_WHILE_LARGE
        return turns

    def _execute(self, turns: Sequence[_Turn]) -> dict[ChannelName, StoredExecution | None]:
        started_s = self._context.now_s()
        owners = [results_owner(turn.live.name, turn.live.epoch) for turn in turns]
        with self._context.writes.begin_many(owners) as writes:
            plan = self._joint_plan([turn.plan for turn in turns])
            limit_s = min(JOINT_S, self._context.settings.execution_s)
            with time_limit(self._context.spark, "joint", limit_s):
                results = plan.run([turn.tables for turn in turns])
            complete = [  # of the others, some results are missing
                (turn, write, FewResults(few, write.prefix(turn.live.results_folder), turn.live.execution + 1))
                for turn, few, write in zip(turns, results, writes, strict=True)
                if few.num_rows < turn.most_rows
            ]
            stored = write_few_results_of_several([few for _, _, few in complete], self._context.storage)
            finished = [
                turn.finished(written, write) for (turn, write, _), written in zip(complete, stored, strict=True)
            ]
            self._wait_stored(turns)
            finished_s = self._context.now_s()
            committed = self._channels.commit_together(finished, started_s, finished_s) if finished else []
        for done in finished:
            done.live.note_execution(started_s, finished_s, done.written.results, done.written.widest)
            done.live.prepared.plans.reused += 1
        return {done.live.name: execution for done, execution in zip(finished, committed, strict=True)}

    def _joint_plan(self, plans: Sequence[ReusedPlan]) -> JointPlan:
        key = tuple(id(plan) for plan in plans)
        with self._lock:
            joint = self._plans.pop(key, None) or JointPlan.of(self._context.spark, plans)
            self._plans[key] = joint
            if len(self._plans) > _KEPT_PLANS:
                self._plans.popitem(last=False)
            return joint

    def _wait_stored(self, turns: Sequence[_Turn]) -> None:
        newest = {
            (dataset, upto, turn.start.marks[dataset])
            for turn in turns
            for dataset, (_, upto) in turn.start.intervals.items()
        }
        for dataset, upto, mark in newest:
            if not self._datasets.get(dataset).writer.wait_stored(upto, mark):
                raise TocsinError(Code.NOT_READY, f"new records of {dataset} could not be stored yet")


def _may_join(live: LiveChannel) -> bool:
    """False for a channel whose last executions had problems, or whose time is uncertain."""
    has_problem = live.deaths or live.uncertain or live.is_suspect or live.alone or live.subscribers.dropped_paths
    return live.prepared.plans.usable and not has_problem and not live.prepared.has_open_patterns


def _is_small(live: LiveChannel, inputs: ExecutionInputs) -> bool:
    rows = inputs.rows
    is_small = rows <= JOINT_ROWS and live.subscribers.count * rows <= JOINT_PAIRS
    return is_small and execution_size(live, inputs).is_small


def _turn(live: LiveChannel, start: ExecutionStart, inputs: ExecutionInputs) -> _Turn | None:
    """The part of a channel; None if its execution is not small enough, or has no plan yet."""
    if not _is_small(live, inputs):
        return None
    most_rows = execution_size(live, inputs).most_rows
    task = ready_task(live.prepared, live.subscribers, inputs.content, most_rows, JOINT_BYTES)
    return None if task is None else _Turn(live, start, inputs.rows, most_rows, *task)


def execution_size(live: LiveChannel, inputs: ExecutionInputs) -> ExecutionSize:
    result_bytes = max(inputs.row_bytes, live.widest_result)
    return ExecutionSize(live.subscribers.count, inputs.rows, live.last_results, result_bytes)
