"""Applying an application file to a data cluster.

The whole file is checked first: a file with a problem changes nothing. `check` lists the problems. `apply` raises with
the same list, or carries out the file statement by statement. Applying a file twice changes nothing the second time.
One call at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tocsin.cluster.catalog import dataset_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.spark.preparing import PreparedChannel
from tocsin.cluster.spark.query_check import QueryRefused
from tocsin.cluster.sql.declarations import (
    CreateChannel,
    CreateDataset,
    CreateFeed,
    CreateTopic,
    DropChannel,
    DropDataset,
    DropFeed,
    DropTopic,
    parse_application,
)
from tocsin.cluster.sql.planning import Action, Definitions, PlannedStatement, plan
from tocsin.cluster.sql.problems import Position, Problem
from tocsin.model.entities import Channel, Dataset, DatasetKind
from tocsin.wire.errors import Code, TocsinError

_UNRESOLVED = re.compile(r"(?:with name|routine|function) ((?:`[^`]+`\.?)+)")


@dataclass(frozen=True, slots=True)
class AppliedChange:
    kind: str
    """dataset, channel, feed or topic."""
    name: str
    action: Action
    warnings: tuple[str, ...] = ()


class ApplicationRefused(TocsinError):
    """The application file has problems. The exception lists all of them, and nothing was changed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(Code.BAD_SQL, f"{problems[0]}{more}")
        self.problems = list(problems)

    def details(self) -> dict[str, Any]:
        return {"problems": msgspec.to_builtins(self.problems)}


def check(cluster: DataCluster, text: str, file: str = "<text>", folder: str | None = None) -> list[Problem]:
    """The problems of an application file, in the order of its statements. Changes nothing."""
    return _Check(cluster, text, file, folder).problems


def apply(cluster: DataCluster, text: str, file: str = "<text>", folder: str | None = None) -> list[AppliedChange]:
    """Carry out the file, or raise `ApplicationRefused`. Relative paths of STATIC datasets start from `folder`."""
    checked = _Check(cluster, text, file, folder)
    if checked.problems:
        raise ApplicationRefused(checked.problems)
    return [_apply_step(cluster, step, checked) for step in checked.steps]


@dataclass(slots=True)
class _Prepared:
    """The results of the check that `apply` needs, by the statement's position: a file may use a name twice."""

    static: dict[Position, tuple[Dataset, str]] = field(default_factory=dict)
    """The dataset with the columns of its file, and the file's path."""
    channels: dict[Position, PreparedChannel] = field(default_factory=dict)


class _Check:
    def __init__(self, cluster: DataCluster, text: str, file: str, folder: str | None) -> None:
        self._cluster = cluster
        self._file = file
        self.folder = folder
        self.prepared = _Prepared()
        self.steps, self.problems = plan(parse_application(text, file), _world(cluster), file)
        if not self.problems:
            self._check_with_spark()

    def _check_with_spark(self) -> None:
        planned: dict[str, Dataset] = {}
        for step in self.steps:
            if step.action is Action.UNCHANGED:
                continue
            match step.statement:
                case CreateDataset(dataset):
                    key = dataset.name.lower()
                    planned[key] = dataset
                    if dataset.kind is DatasetKind.STATIC:
                        planned[key] = self._read_static(step.statement, step.action)
                case CreateChannel(channel, position, _, place):
                    try:
                        self.prepared.channels[position] = self._cluster.channels.prepare(channel, planned)
                    except QueryRefused as error:
                        refused = Position.of(channel.query, error.offset).inside(place)
                        self._add_problem(refused, error.message, "refused")
                    except TocsinError as error:
                        self._add_problem(_place_in(channel, place, error.message), error.message, "spark")
                case CreateFeed(feed, position):
                    name = feed.dataset.lower()
                    try:
                        target = planned.get(name) or self._cluster.dataset(name).dataset
                        self._cluster.datasets.check_feed(feed, target)
                    except TocsinError as error:
                        self._add_problem(position, error.message, "spark")

    def _read_static(self, statement: CreateDataset, action: Action) -> Dataset:
        dataset, key = statement.dataset, statement.dataset.name.lower()
        path = _path(dataset.source or "", self.folder)
        try:
            if path is None:
                message = f"'{dataset.source}' is a relative path: expected an absolute one, or a folder to start from"
                raise TocsinError(Code.BAD_SQL, message)
            path = self._cluster.datasets.sources.file(path)
            if len(urlsplit(path).scheme) <= 1 and not Path(path).exists():
                raise TocsinError(Code.BAD_SQL, f"there is no file {path} on the data cluster's machine")
            resolved = replace(
                dataset, schema=self._cluster.datasets.static_columns(dataset, path, statement.format or "csv")
            )
        except TocsinError as error:
            self._add_problem(statement.position, f"dataset '{dataset.name}': {error.message}", "unreadable")
            return dataset
        world = _world(self._cluster)
        existing = world.datasets.get(key)
        if action is Action.REPLACED and existing is not None and existing.schema != resolved.schema:
            readers = world.users_of(key)
            if readers:
                message = f"dataset '{dataset.name}' would get other columns while {', '.join(readers)} reads it"
                self._add_problem(statement.position, f"{message}: drop that first, or keep the columns", "in-use")
        self.prepared.static[statement.position] = (resolved, path)
        return resolved

    def _add_problem(self, place: Position, message: str, code: str) -> None:
        self.problems.append(Problem(self._file, place.line, place.column, message, None, code))


def _apply_step(cluster: DataCluster, step: PlannedStatement, checked: _Check) -> AppliedChange:
    action, changes = step.action, step.action is not Action.UNCHANGED
    match step.statement:
        case CreateDataset(dataset) as statement:
            if not changes:
                return AppliedChange("dataset", dataset.name, action, _stale_warning(cluster, dataset, checked))
            if action is Action.CHANGED:
                cluster.datasets.change_owner(dataset.name, dataset.owned_by)
            elif dataset.kind is not DatasetKind.STATIC:
                cluster.datasets.create(dataset)
            else:
                resolved, path = checked.prepared.static[statement.position]
                load = cluster.datasets.create if action is Action.CREATED else cluster.datasets.load_static
                load(resolved, path, statement.format or "csv")
            return AppliedChange("dataset", dataset.name, action)
        case CreateChannel(channel, position):
            if not changes:
                return AppliedChange("channel", channel.name, action, cluster.channel(channel.name).prepared.warnings)
            prepared = checked.prepared.channels[position]
            if action is Action.REPLACED:
                _replace_channel(cluster, channel, prepared)
            else:
                cluster.channels.create(channel, prepared)
            return AppliedChange("channel", channel.name, action, prepared.warnings)
        case CreateFeed(feed):
            if action is Action.REPLACED:
                cluster.datasets.drop_feed(feed.name)
            if changes:
                cluster.datasets.create_feed(feed)
            return AppliedChange("feed", feed.name, action)
        case DropDataset(name):
            if changes:
                cluster.datasets.drop(name)
            return AppliedChange("dataset", name, action)
        case DropChannel(name):
            if changes:
                cluster.channels.drop(name)
            return AppliedChange("channel", name, action)
        case DropFeed(name):
            if changes:
                cluster.datasets.drop_feed(name)
            return AppliedChange("feed", name, action)
        case CreateTopic(topic):
            return AppliedChange("topic", topic.name, action)
        case DropTopic(name):
            return AppliedChange("topic", name, action)


def _replace_channel(cluster: DataCluster, channel: Channel, prepared: PreparedChannel) -> None:
    """Replace a channel and keep its subscriptions. With other parameters, drop it and create another.

    A parameter that becomes bound is another parameter: old subscriptions may have the names of other users.
    """
    existing = cluster.channel(channel.name).prepared.channel
    signature = (channel.name, channel.parameters, channel.bound)
    if (existing.name, existing.parameters, existing.bound) == signature:
        cluster.channels.replace(channel, prepared)
    else:
        cluster.channels.drop(channel.name)
        cluster.channels.create(channel, prepared)


def _world(cluster: DataCluster) -> Definitions:
    channels = cluster.channels.all()
    return Definitions(
        {live.name.lower(): live.dataset for live in cluster.datasets.all()},
        {live.name.lower(): live.prepared.channel for live in channels},
        {live.name.lower(): live.datasets for live in channels},
        {live.name.lower(): live.feed for live in cluster.datasets.feeds()},
    )


def _path(source: str, folder: str | None) -> str | None:
    if len(urlsplit(source).scheme) > 1 or Path(source).is_absolute():
        return source
    return None if folder is None else str(Path(folder) / source)


def _stale_warning(cluster: DataCluster, dataset: Dataset, checked: _Check) -> tuple[str, ...]:
    """A warning if the file of a STATIC dataset has changed since it was loaded: applying again does not reload it."""
    path = _path(dataset.source or "", checked.folder) if dataset.kind is DatasetKind.STATIC else None
    if path is None or not Path(path).exists():
        return ()
    loaded_s = max((file.at_s for file in cluster.catalog.files.of(dataset_owner(dataset.name))), default=0.0)
    if Path(path).stat().st_mtime <= loaded_s:
        return ()
    return (f"{path} has changed since it was loaded: CREATE OR REPLACE STATIC DATASET loads it again",)


def _place_in(channel: Channel, query: Position, message: str) -> Position:
    """The position of the name that Spark could not resolve, if the query has that name; else the query's."""
    unresolved = _UNRESOLVED.search(message)
    if unresolved is not None:
        name = unresolved[1].replace("`", "")
        place = re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", channel.query, re.IGNORECASE)
        if place is not None:
            return Position.of(channel.query, place.start()).inside(query)
    return query
