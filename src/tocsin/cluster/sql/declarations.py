"""Parses an application file: SQL text that declares datasets, channels, feeds and topics.

`parse_application` never raises on bad text. It returns the statements it understood, and every problem with its line
and column. It needs no Spark, no catalog and no files: `planning` compares the names with what exists, and
`cluster.applying` resolves the file paths of STATIC datasets. `cluster.applying` and `tocsin check` call it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.cluster.sql.channel_query import ChannelQuery, parse_channel_query
from tocsin.cluster.sql.clauses import (
    StatementRefused,
    TokenCursor,
    check_name,
    columns,
    duration_s,
    key_columns,
    options,
    order_column,
    owner_column,
    refuse_owner,
    static_format,
)
from tocsin.cluster.sql.problems import Position, Problem
from tocsin.cluster.sql.tokens import Token, TokenKind
from tocsin.cluster.sql.topic_clauses import bound_s, persistence, protected_per_s, topic_name
from tocsin.model.entities import DEFAULT_RESULT_RETENTION_S, Channel, ChannelKind, Dataset, DatasetKind, Feed
from tocsin.model.ids import ChannelName, DatasetName, FeedName, TopicName
from tocsin.model.schema import Schema
from tocsin.model.topic import TopicDefinition

MIN_PERIOD_S = 1.0
"""An execution is a Spark job and would overrun a shorter period. CONTINUOUS channels are the faster choice."""


@dataclass(frozen=True, slots=True)
class CreateDataset:
    dataset: Dataset
    position: Position
    """The position of the statement's first word."""
    replace: bool = False
    if_not_exists: bool = False
    format: str | None = None
    """STATIC: `csv`, `json` or `parquet`, from FORMAT or from the suffix of the file name."""


@dataclass(frozen=True, slots=True)
class CreateChannel:
    channel: Channel
    position: Position
    query: ChannelQuery
    """`channel.query`, parsed."""
    query_position: Position
    """The position of the query in the file. Positions inside the query are relative to it."""
    replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateFeed:
    feed: Feed
    position: Position
    dataset_position: Position
    replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateTopic:
    topic: TopicDefinition
    position: Position
    dataset_position: Position
    """The position of the dataset behind RECORD INTO, if there is one."""
    replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropDataset:
    name: DatasetName
    position: Position
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropChannel:
    name: ChannelName
    position: Position
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropFeed:
    name: FeedName
    position: Position
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropTopic:
    name: TopicName
    position: Position
    if_exists: bool = False


TopicStatement = CreateTopic | DropTopic
Statement = CreateDataset | CreateChannel | CreateFeed | DropDataset | DropChannel | DropFeed | TopicStatement


@dataclass(frozen=True, slots=True)
class Application:
    statements: tuple[Statement, ...]
    """The statements in the order of the file, without those that have problems."""
    problems: tuple[Problem, ...]
    """The problems in the order of the file. Apply nothing if there are any."""


def parse_application(text: str, file: str = "<text>") -> Application:
    parser = _Parser(text, file)
    parser.run()
    problems = sorted(parser.cursor.problems, key=lambda problem: problem.position)
    return Application(tuple(parser.statements), tuple(problems))


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.cursor = TokenCursor(text, file)
        self.statements: list[Statement] = []
        self._declared: set[tuple[str, str]] = set()
        """(kind, upper-case name) of everything that the file creates and does not drop again."""

    def run(self) -> None:
        cursor = self.cursor
        cursor.skip_semicolons()
        while not cursor.at_end():
            before = len(cursor.problems)
            try:
                statement = self._statement()
                if not cursor.accept(";") and not cursor.at_end():
                    cursor.fail()
            except StatementRefused:
                cursor.resynchronise()
                continue
            cursor.skip_semicolons()
            if len(cursor.problems) == before:
                self.statements.append(statement)

    def _statement(self) -> Statement:
        position = self.cursor.position
        if self.cursor.choose(("CREATE", "DROP")) == "DROP":
            return self._drop(position)
        replace = self.cursor.accept("OR", "REPLACE")
        kind = self.cursor.choose(("STREAM", "KEYED", "STATIC", "REPETITIVE", "CONTINUOUS", "FEED", "TOPIC"))
        if kind == "TOPIC":
            return self._topic(position, replace)
        if kind == "FEED":
            return self._feed(position, replace)
        if kind in ("REPETITIVE", "CONTINUOUS"):
            return self._channel(ChannelKind(kind), position, replace)
        return self._dataset(DatasetKind(kind), position, replace)

    def _drop(self, position: Position) -> Statement:
        kind = self.cursor.choose(("DATASET", "CHANNEL", "FEED", "TOPIC"))
        if_exists = self.cursor.accept("IF", "EXISTS")
        if kind == "TOPIC":
            topic = topic_name(self.cursor)
            self._declared.discard((kind, topic))
            return DropTopic(topic, position, if_exists)
        name = self._name(kind.lower()).text
        self._declared.discard((kind, name.upper()))
        match kind:
            case "DATASET":
                return DropDataset(DatasetName(name), position, if_exists)
            case "CHANNEL":
                return DropChannel(ChannelName(name), position, if_exists)
            case _:
                return DropFeed(FeedName(name), position, if_exists)

    def _dataset(self, kind: DatasetKind, position: Position, replace: bool) -> CreateDataset:
        cursor = self.cursor
        cursor.expect("DATASET")
        if_not_exists = self._if_not_exists(replace)
        name = DatasetName(self._new_name("DATASET", replace or if_not_exists).text)
        if kind is DatasetKind.STATIC:
            schema = columns(cursor, "column") if cursor.accept("(") else Schema(())
            cursor.expect("FROM")
            source = cursor.take(TokenKind.STRING, "a path in quotes")
            format_ = static_format(cursor, source)
            refuse_owner(cursor, kind)
            dataset = Dataset(name, kind, schema, source=source.text)
            return CreateDataset(dataset, position, replace, if_not_exists, format_)
        cursor.expect("(")
        schema = columns(cursor, "column")
        if kind is DatasetKind.KEYED:
            cursor.expect("KEY")
            key = key_columns(cursor, schema)
            owner = owner_column(cursor, schema, key) if cursor.accept("OWNED", "BY") else None
            dataset = Dataset(name, kind, schema, key, order_by=self._event_order(schema), owned_by=owner)
        else:
            key = key_columns(cursor, schema) if cursor.accept("KEY") else ()
            retain_s = duration_s(cursor, "RETAIN") if cursor.accept("RETAIN") else None
            refuse_owner(cursor, kind)
            dataset = Dataset(name, kind, schema, key, retain_s=retain_s)
        return CreateDataset(dataset, position, replace, if_not_exists)

    def _event_order(self, schema: Schema) -> str | None:
        """The column of ORDER BY. Without ORDER BY, the only TIMESTAMP column; None if there is not exactly one."""
        if self.cursor.accept("ORDER", "BY"):
            return order_column(self.cursor, schema)
        times = [column.name for column in schema.columns if column.type == "TIMESTAMP"]
        return times[0] if len(times) == 1 else None

    def _channel(self, kind: ChannelKind, position: Position, replace: bool) -> CreateChannel:
        cursor = self.cursor
        cursor.expect("CHANNEL")
        if_not_exists = self._if_not_exists(replace)
        name = ChannelName(self._new_name("CHANNEL", replace or if_not_exists).text)
        parameter_offsets: dict[str, int] = {}
        parameters = Schema(())
        bound: list[str] = []
        if cursor.accept("("):
            parameters = columns(cursor, "parameter", parameter_offsets, may_be_empty=True, bound=bound)
        period_s: float | None = None
        if kind is ChannelKind.REPETITIVE:
            cursor.expect("EVERY")
            period_s = duration_s(cursor, "EVERY", MIN_PERIOD_S)
        retain_s = DEFAULT_RESULT_RETENTION_S
        if cursor.accept("RETAIN"):
            retain_s = duration_s(cursor, "RETAIN")
        cursor.expect("AS")
        text, query_position = self._query_text()
        query = parse_channel_query(text, parameters)
        if isinstance(query, list):
            cursor.problems += [problem.inside(cursor.file, query_position) for problem in query]
            raise StatementRefused
        for unused in (column for column in parameters.names if column not in query.markers):
            message = f"parameter '{unused}' is not used: expected :{unused} somewhere in the query"
            cursor.note(parameter_offsets[unused], message, "unused-parameter", f":{unused}")
        if kind is ChannelKind.CONTINUOUS and not query.new_datasets:
            message = "a continuous channel runs as records arrive: expected NEW before at least one dataset"
            cursor.problems.append(Problem.at(cursor.file, query_position, message, "no-new", "NEW dataset"))
        channel = Channel(name, kind, parameters, text, period_s, retain_s, tuple(bound))
        return CreateChannel(channel, position, query, query_position, replace, if_not_exists)

    def _query_text(self) -> tuple[str, Position]:
        """The query as written and its position, up to the `;` or to where one is missing."""
        cursor = self.cursor
        if cursor.at_statement_end():
            cursor.fail("a query")
        start, position = cursor.offset, cursor.position
        end = start
        while not cursor.at_statement_end():
            end = cursor.advance().end
        return cursor.text[start:end], position

    def _feed(self, position: Position, replace: bool) -> CreateFeed:
        cursor = self.cursor
        if_not_exists = self._if_not_exists(replace)
        name = FeedName(self._new_name("FEED", replace or if_not_exists).text)
        cursor.expect("INTO")
        dataset_position = cursor.position
        dataset = DatasetName(self._name("dataset").text)
        cursor.expect("FROM")
        format_ = cursor.take_identifier("a Spark streaming format").text
        feed_options = options(cursor) if cursor.accept("OPTIONS") else {}
        return CreateFeed(
            Feed(name, dataset, format_, feed_options), position, dataset_position, replace, if_not_exists
        )

    def _topic(self, position: Position, replace: bool) -> CreateTopic:
        cursor = self.cursor
        if_not_exists = self._if_not_exists(replace)
        start = cursor.offset
        name = topic_name(cursor)
        if ("TOPIC", name) in self._declared and not (replace or if_not_exists):
            cursor.note(start, f"topic '{name}' is declared twice in this file", "duplicate-name")
        self._declared.add(("TOPIC", name))
        within_s, delay_s = bound_s(cursor, "WITHIN", "40 MS"), bound_s(cursor, "DELAY", "1 S")
        protected = protected_per_s(cursor)
        kept = persistence(cursor) if cursor.accept("PERSISTENT") else None
        dataset, dataset_position = None, position
        if cursor.accept("RECORD", "INTO"):
            dataset_position = cursor.position
            dataset = DatasetName(self._name("dataset").text)
        topic = TopicDefinition(name, within_s, kept, dataset, delay_s, protected)
        return CreateTopic(topic, position, dataset_position, replace, if_not_exists)

    def _if_not_exists(self, replace: bool) -> bool:
        offset = self.cursor.offset
        if not self.cursor.accept("IF", "NOT", "EXISTS"):
            return False
        if replace:
            message = "OR REPLACE and IF NOT EXISTS contradict each other: expected one of them"
            self.cursor.note(offset, message, "syntax", "one of OR REPLACE, IF NOT EXISTS")
        return True

    def _name(self, what: str) -> Token:
        token = self.cursor.take_identifier(f"the name of a {what}")
        check_name(self.cursor, token, what)
        return token

    def _new_name(self, kind: str, may_exist: bool) -> Token:
        token = self._name(kind.lower())
        if (kind, token.text.upper()) in self._declared and not may_exist:
            self.cursor.note(
                token.start, f"{kind.lower()} '{token.text}' is declared twice in this file", "duplicate-name"
            )
        self._declared.add((kind, token.text.upper()))
        return token
