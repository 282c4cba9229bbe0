"""Leaves out the rows and subscriptions that cannot take part in an execution, before Spark runs it.

`cluster.sql.narrowing` has derived the conditions from the query. This module finds the rows that meet them: NEW
records lead to rows of KEYED datasets, and both lead to subscriptions. A few thousand rows of a million are left, and
Spark runs the same query over them as one task (docs/decisions/0014). The result is the same; if too much is left, the
caller runs the execution in the ordinary way.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tocsin.cluster.current_tables import CurrentTables
from tocsin.cluster.datasets import Datasets
from tocsin.cluster.inputs import ExecutionInputs
from tocsin.cluster.live import LiveChannel
from tocsin.cluster.settings import NarrowingLimits
from tocsin.cluster.spark.execution import TaskInputs
from tocsin.cluster.sql.geo import MAX_LEVEL
from tocsin.cluster.sql.narrowing import EqualRows, NearRows
from tocsin.cluster.store.current_rows import CurrentRows
from tocsin.cluster.store.slots import Slots
from tocsin.cluster.store.subscription_rows import EqualTo
from tocsin.model.entities import DatasetKind


class Narrower:
    """Thread-safe. One execution of a channel at a time."""

    def __init__(self, tables: CurrentTables, datasets: Datasets, limits: NarrowingLimits) -> None:
        self._tables = tables
        self._datasets = datasets
        self._limits = limits

    def narrowed(self, live: LiveChannel, inputs: ExecutionInputs) -> TaskInputs | None:
        """What is left of the subscriptions and the records of an execution; None if it is too much, or unknown."""
        query, plan = live.prepared.query, live.prepared.narrowing
        if not plan.rows and not plan.subscriptions:
            return None
        tables: dict[tuple[str, bool], pa.Table] = {}
        for name in query.new_datasets:
            table = inputs.table(name, is_new=True)
            if table is None:
                return None
            tables[name, True] = table
        for name in query.datasets:
            table = self._rows(live, name, inputs, tables)
            if table is None:
                return None
            tables[name, False] = table
        subscriptions = self._subscriptions(live, tables)
        return None if subscriptions is None else TaskInputs(subscriptions, tables)

    def _rows(
        self,
        live: LiveChannel,
        name: str,
        inputs: ExecutionInputs,
        tables: Mapping[tuple[str, bool], pa.Table],
    ) -> pa.Table | None:
        """The rows of a dataset that can take part."""
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
            chosen: Slots | None = None
            for step in steps:
                slots = self._slots(live, current, step, tables)
                if slots is not None:
                    chosen = slots if chosen is None else np.intersect1d(chosen, slots, assume_unique=True)
            return whole if chosen is None else current.rows(chosen)

    def _slots(
        self,
        live: LiveChannel,
        current: CurrentRows,
        step: NearRows | EqualRows,
        tables: Mapping[tuple[str, bool], pa.Table],
    ) -> Slots | None:
        """The rows that meet one condition; None if they are too many."""
        values = [tables[step.new, True][column] for column in step.new_columns]
        if isinstance(step, EqualRows):
            return current.equal_to(step.columns, values, self._limits.most_rows)
        radius_m = step.radius_m
        if step.radius_parameter is not None:
            # Before the levels are read: changes of subscriptions add levels.
            live.subscribers.apply_changes()
            level = max(live.subscribers.radius_levels[step.radius_parameter], default=0)
            radius_m = 2.0**level if level < MAX_LEVEL else None
        return None if radius_m is None else current.near_to(step.columns, values, radius_m, self._limits.most_rows)

    def _subscriptions(self, live: LiveChannel, tables: Mapping[tuple[str, bool], pa.Table]) -> pa.Table | None:
        """The subscriptions that can have results."""
        conditions: list[EqualTo] = [
            (step.parameters, [tables[step.dataset, step.is_new][column] for column in step.columns])
            for step in live.prepared.narrowing.subscriptions
        ]
        if conditions and live.subscribers.count >= self._limits.least_subscriptions:
            return live.subscribers.matching(conditions, self._limits.most_rows)
        return live.subscribers.table()
