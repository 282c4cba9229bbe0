"""Leaves out the rows and subscriptions that cannot take part in an execution, before Spark runs it.

`cluster.sql.narrowing` has derived the conditions from the query. This module finds the rows that meet them: NEW
records lead to rows of KEYED datasets, and both lead to subscriptions. A few thousand rows of a million are left, and
Spark runs the same query over them as one task (docs/decisions/0014). The result is the same; if too much is left, the
caller runs the execution in the ordinary way.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from functools import partial, reduce

import numpy as np
import pyarrow as pa

from tocsin.cluster.current_tables import CurrentTables
from tocsin.cluster.datasets import Datasets
from tocsin.cluster.inputs import ExecutionInputs
from tocsin.cluster.live import LiveChannel
from tocsin.cluster.settings import NarrowingLimits
from tocsin.cluster.spark.execution import TaskInputs, TooMuchAtOnce
from tocsin.cluster.sql.geo import MIN_LEVEL
from tocsin.cluster.sql.narrowing import MOST_RADIUS_M, EqualRows, NearRows
from tocsin.cluster.store.current_rows import CurrentRows
from tocsin.cluster.store.slots import Slots
from tocsin.cluster.store.subscription_rows import EqualTo
from tocsin.model.entities import DatasetKind

HELD_BYTES = 32 << 20
"""The largest dataset, with its indexes, whose rows the ordinary way gets from memory instead of from files."""


class _Many(Enum):
    """Too many rows meet a condition."""

    ROWS = auto()
    """Fewer rows would meet it for fewer NEW records."""
    WHATEVER_IS_NEW = auto()


class Narrower:
    """Thread-safe. One execution of a channel at a time."""

    def __init__(self, tables: CurrentTables, datasets: Datasets, limits: NarrowingLimits) -> None:
        self._tables = tables
        self._datasets = datasets
        self._limits = limits

    def narrowed(self, live: LiveChannel, inputs: ExecutionInputs, may_split: bool = False) -> TaskInputs | None:
        """What is left of the subscriptions and the records of an execution; None if it is too much, or unknown.

        With `may_split`, raises `TooMuchAtOnce` if less would be left for fewer NEW records.
        """
        query, plan = live.prepared.query, live.prepared.narrowing
        if not plan.rows and not plan.subscriptions:
            return None
        tables: dict[tuple[str, bool], pa.Table] = {}
        for name in query.new_datasets:
            table = inputs.new_table(name, self._limits.most_new_rows)
            if table is None:
                return None
            tables[name, True] = table
        for name in query.datasets:
            table = self._rows(live, name, inputs, tables, may_split)
            if table is None:
                return None
            tables[name, False] = table
        subscriptions = self._subscriptions(live, tables, may_split)
        return None if subscriptions is None else TaskInputs(subscriptions, tables, may_split)

    def _rows(
        self,
        live: LiveChannel,
        name: str,
        inputs: ExecutionInputs,
        tables: Mapping[tuple[str, bool], pa.Table],
        may_split: bool,
    ) -> pa.Table | None:
        """The rows of a dataset that can take part; None if they are too many, or not in memory."""
        steps = live.prepared.narrowing.rows.get(name, ())
        dataset = self._datasets.get(name)
        whole = inputs.table(name, is_new=False)
        if not steps or dataset.dataset.kind is not DatasetKind.KEYED:
            return whole
        if whole is not None and whole.num_rows < self._limits.least_rows:
            return whole
        with self._tables.rows(dataset) as current:
            if current is None:
                return whole
            found = [self._slots(live, current, step, tables) for step in steps]
            few = [slots for slots in found if isinstance(slots, np.ndarray)]
            if few:
                return current.rows(reduce(partial(np.intersect1d, assume_unique=True), few))
            if whole is None and may_split and any(slots is _Many.ROWS for slots in found):
                raise TooMuchAtOnce
            if whole is None and current.size_bytes <= HELD_BYTES:
                inputs.hold(name, current.all_rows())
            return whole

    def _slots(
        self,
        live: LiveChannel,
        current: CurrentRows,
        step: NearRows | EqualRows,
        tables: Mapping[tuple[str, bool], pa.Table],
    ) -> Slots | _Many:
        """The rows that meet one condition."""
        values = [tables[step.new, True][column] for column in step.new_columns]
        if isinstance(step, EqualRows):
            found = current.equal_to(step.columns, values, self._limits.most_rows)
            return _Many.ROWS if found is None else found
        radius_m = step.radius_m
        if step.radius_parameter is not None:
            live.subscribers.apply_changes()  # before the levels are read: new subscriptions may add some
            level = max(live.subscribers.radius_levels[step.radius_parameter], default=MIN_LEVEL)
            radius_m = 2.0**level
        if radius_m is None or radius_m > MOST_RADIUS_M:
            return _Many.WHATEVER_IS_NEW
        found = current.near_to(step.columns, values, radius_m, self._limits.most_rows)
        return _Many.ROWS if found is None else found

    def _subscriptions(
        self, live: LiveChannel, tables: Mapping[tuple[str, bool], pa.Table], may_split: bool
    ) -> pa.Table | None:
        """The subscriptions that can have results; None if they are too many."""
        conditions: list[EqualTo] = [
            (step.parameters, [tables[step.dataset, step.is_new][column] for column in step.columns])
            for step in live.prepared.narrowing.subscriptions
        ]
        if not conditions or live.subscribers.count < self._limits.least_subscriptions:
            return live.subscribers.table()
        matching = live.subscribers.matching(conditions, self._limits.most_rows)
        if matching is None and may_split:
            raise TooMuchAtOnce
        return matching
