"""`tocsin topic create | list | publish | subscribe | move | delete`: topics and their messages."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from tocsin.cli.console import (
    DEFAULT_COORDINATOR_URL,
    AsJson,
    CoordinatorUrl,
    Token,
    fail,
    failing_on_errors,
    note,
    show,
    table,
)
from tocsin.cli.coordinator import ask_coordinator

if TYPE_CHECKING:
    from tocsin.client import TopicGap, TopicMessage
    from tocsin.model.topic import Position, TopicDefinition

TopicArgument = Annotated[str, typer.Argument(help="Name of the topic, such as swarm/3/leader.")]
_MOST_WAITING = 10_000
"""Messages of standard input that may wait for their acknowledgement."""


def register(app: typer.Typer) -> None:
    commands = typer.Typer(no_args_is_help=True, help="Create, list, move and delete topics; publish and subscribe.")
    for command in (create, list_topics, publish, subscribe, move, delete):
        commands.command("list" if command is list_topics else command.__name__)(command)
    app.add_typer(commands, name="topic")


def definition_of(
    text: str,
    within: str | None,
    persistence: str | None = None,
    record_into: str | None = None,
    delay: str | None = None,
    protected: str | None = None,
) -> TopicDefinition | str:
    """The definition from a name and options, or from a whole statement; or the reason why it is none."""
    from tocsin.model.topic import parse_create_topic

    if text.lstrip().upper().startswith("CREATE "):
        given = any(option is not None for option in (within, persistence, record_into, delay, protected))
        message = "give every option in the statement: WITHIN … DELAY … PROTECTED … PERSISTENT … RECORD INTO …"
        return message if given else parse_create_topic(text)
    bound = f" WITHIN {within}" if within else ""
    tolerated = f" DELAY {delay}" if delay else ""
    guaranteed = f" PROTECTED {protected}" if protected else ""
    kept = "" if persistence is None else f" {persistence}"
    into = "" if record_into is None else f" RECORD INTO {record_into}"
    return parse_create_topic(f"CREATE TOPIC {text}{bound}{tolerated}{guaranteed}{kept}{into}")


def persistence_of(persistent: bool, replicas: int | None, quorum: int | None, retain: str | None) -> str | None:
    """The clause PERSISTENT … of the options; None for a volatile topic."""
    from tocsin.model.topic_persistence import majority

    if not persistent and replicas is None and quorum is None and retain is None:
        return None
    count = 1 if replicas is None else replicas
    needed = majority(count) if quorum is None else quorum
    return f"PERSISTENT REPLICAS {count} QUORUM {needed}" + (f" RETAIN {retain}" if retain else "")


def create(
    topic: Annotated[str, typer.Argument(help="Name of the topic, or 'CREATE TOPIC name WITHIN 40 MS;'.")],
    within: Annotated[str | None, typer.Option(help="Bound on the delay from publishing to receiving: 40 MS.")] = None,
    delay: Annotated[
        str | None, typer.Option(help="Delay that receivers tolerate: 1 S. Sites move tolerant topics first.")
    ] = None,
    protected: Annotated[
        str | None, typer.Option(help="Rate that publishers keep in any congestion: '5 PER SECOND'.")
    ] = None,
    lat: Annotated[float | None, typer.Option(help="Latitude of the clients, for a home nearby.")] = None,
    lon: Annotated[float | None, typer.Option(help="Longitude of the clients.")] = None,
    persistent: Annotated[bool, typer.Option("--persistent", help="Keep messages on the disks of brokers.")] = False,
    replicas: Annotated[int | None, typer.Option(help="Brokers that keep the messages: 1 by default.")] = None,
    quorum: Annotated[
        int | None, typer.Option(help="Brokers that must have a message before it is acknowledged.")
    ] = None,
    retain: Annotated[str | None, typer.Option(help="How much to keep: '1 GB', '7 DAYS' or '1 GB, 7 DAYS'.")] = None,
    record_into: Annotated[
        str | None, typer.Option(help="Dataset that gets every message, a JSON object, as a record.")
    ] = None,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    from tocsin.cli.topic_statements import create_body

    kept = persistence_of(persistent, replicas, quorum, retain)
    definition = definition_of(topic, within, kept, record_into, delay, protected)
    if isinstance(definition, str):
        fail(as_json, definition, code="bad_request")
    body = create_body(definition) | {"lat": lat, "lon": lon}
    entry = ask_coordinator(url, token, as_json, "POST", "/v1/topics", json=body)
    show(as_json, entry, lambda: print(f"{entry['topic']}: home {entry['home'] or 'not assigned yet'}"))


def list_topics(
    pattern: Annotated[str, typer.Argument(help="Pattern with + for one level and # for the rest.")] = "#",
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List topics with their homes."""
    answer = ask_coordinator(url, token, as_json, "GET", "/v1/topics", params={"pattern": pattern})

    def text() -> None:
        rows = [
            (
                *(entry["topic"], entry["home"], entry["epoch"], _bound(entry["within_s"])),
                *(_bound(entry["delay_s"]), _rate(entry["protected_per_s"]), entry["moving_to"]),
                " ".join(entry["replicas"]),
                entry["record_into"],
                entry["status"],
            )
            for entry in answer["topics"]
        ]
        columns = ("topic", "home", "epoch", "within", "delay", "protected", "moving to", "replicas", "record into")
        table((*columns, "status"), rows)

    show(as_json, answer, text)


def _bound(within_s: float | None) -> str | None:
    return None if within_s is None else f"{within_s * 1000:g} ms"


def _rate(per_s: float | None) -> str | None:
    return None if per_s is None else f"{per_s:g}/s"


def move(
    topic: TopicArgument,
    target: Annotated[str, typer.Argument(help="Broker that becomes the home.")],
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Move a topic to another home. The command returns when the move has begun."""
    answer = ask_coordinator(url, token, as_json, "POST", "/v1/topics/move", json={"topic": topic, "target": target})
    text = f"{topic} moves to {target}" if answer["moving"] else f"{target} is the home of {topic} already"
    show(as_json, answer, lambda: print(text))


def delete(
    topic: TopicArgument,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Delete a topic."""
    answer = ask_coordinator(url, token, as_json, "DELETE", f"/v1/topics/{quote(topic)}")
    show(as_json, answer, lambda: print(f"{topic} is deleted"))


def publish(
    topic: TopicArgument,
    message: Annotated[str | None, typer.Argument(help="Message. Default: each line of standard input.")] = None,
    give_up_s: Annotated[float, typer.Option(help="Seconds to wait for an acknowledgement.", min=0)] = 30.0,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Publish a message, or every line of standard input, and wait until the home has accepted it."""
    import asyncio

    from tocsin.cli.connection import coordinator_token

    with failing_on_errors(as_json):
        try:
            sent = asyncio.run(_publish(url, coordinator_token(url, token), topic, message, give_up_s))
        except TimeoutError:
            fail(as_json, f"no home accepted the message within {give_up_s:g} s", code="not_ready")
    show(as_json, {"published": sent}, lambda: print(f"{topic}: {sent:,} published"))


async def _publish(url: str, token: str | None, topic: str, message: str | None, give_up_s: float) -> int:
    import asyncio

    from tocsin.client import Topics

    async with Topics(url, token=token) as topics:
        if message is not None:
            async with asyncio.timeout(give_up_s):
                await topics.publish(topic, message.encode())
            return 1
        sent = 0
        waiting: list[asyncio.Future[None]] = []
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            waiting.append(topics.send(topic, line.rstrip(b"\r\n")))
            sent += 1
            if len(waiting) >= _MOST_WAITING:
                async with asyncio.timeout(give_up_s):
                    await asyncio.gather(*waiting)
                waiting.clear()
        async with asyncio.timeout(give_up_s):
            await asyncio.gather(*waiting)
        return sent


def subscribe(
    pattern: Annotated[str, typer.Argument(help="Topic, or pattern with + for one level and # for the rest.")],
    count: Annotated[int | None, typer.Option(help="Stop after this many messages.", min=1)] = None,
    after: Annotated[str | None, typer.Option(help="Resume behind this position, such as 12-345.")] = None,
    beginning: Annotated[bool, typer.Option("--beginning", help="Start with the oldest message that is kept.")] = False,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Print messages until Ctrl-C. Gaps are named on stderr; with --json each message and gap is one line."""
    import asyncio

    from tocsin.cli.connection import coordinator_token
    from tocsin.model.topic import BEGINNING, parse_position

    start = BEGINNING if beginning else None if after is None else parse_position(after)
    if start is None and after is not None:
        fail(as_json, f"--after {after}: expected a position such as 12-345", code="bad_request")
    with failing_on_errors(as_json):
        try:
            asyncio.run(_subscribe(url, coordinator_token(url, token), pattern, count, as_json, start))
        except KeyboardInterrupt:
            note("stopped")


async def _subscribe(
    url: str, token: str | None, pattern: str, count: int | None, as_json: bool, after: Position | None
) -> None:
    from tocsin.client import TopicMessage, Topics

    printed = 0
    async with Topics(url, token=token) as topics, topics.subscribe(pattern, after=after) as subscription:
        note(f"receiving {pattern}")
        async for item in subscription:
            _print(item, as_json)
            printed += isinstance(item, TopicMessage)
            if printed == count:
                return


def _print(item: TopicMessage | TopicGap, as_json: bool) -> None:
    from tocsin.client import TopicMessage

    if isinstance(item, TopicMessage):
        text = item.data.decode(errors="replace")
        content = {"topic": item.topic, "position": str(item.position), "publisher": item.publisher, "data": text}
        show(as_json, content, lambda: print(f"{item.topic}\t{text}", flush=True))
    else:
        missing = {"topic": item.topic, "epoch": item.epoch, "first": item.first, "last": item.last}
        last = "an unknown number" if item.last is None else str(item.last)
        show(as_json, {"gap": missing}, lambda: note(f"{item.topic}: messages {item.first} to {last} are missing"))
