"""Names of topics in MQTT and in the network.

A level of a network's topic has letters, digits and `. - _ ~`. MQTT also allows other characters and empty levels, so
that `~` introduces an escape: `~20` is a space, a level `~` is an empty level. Names without such characters are the
same on both sides.

Names that begin with `$` are the server's own [MQTT5 §4.7.2]. A filter that begins with a wildcard does not match them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qsl, unquote

from tocsin.model.topic import pattern_problem, topic_problem

CHANNELS = "$channels/"
SHARE = "$share/"
_ESCAPED = re.compile(rb"[^A-Za-z0-9._~-]|~(?=[0-9A-F]{2})")
_ESCAPE = re.compile(rb"~([0-9A-F]{2})")
_EMPTY = "~"


@lru_cache(maxsize=65_536)
def topic_of(name: str) -> str:
    """The network's topic for a name in MQTT, or a pattern for a filter."""
    return "/".join(_escaped(level) for level in name.split("/"))


def _escaped(level: str) -> str:
    if level in ("+", "#"):
        return level
    if level in ("", _EMPTY):
        return _EMPTY if not level else "~7E"
    return _ESCAPED.sub(lambda found: b"~%02X" % found[0][0], level.encode()).decode()


@lru_cache(maxsize=65_536)
def name_of(topic: str) -> str:
    """The name in MQTT of a network's topic."""
    return "/".join(_unescaped(level) for level in topic.split("/")) if "~" in topic else topic


def _unescaped(level: str) -> str:
    if level == _EMPTY:
        return ""
    data = _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), level.encode())
    try:
        return data.decode()
    except UnicodeDecodeError:
        return level


def name_problem(name: str) -> str | None:
    """Why a client cannot publish to this name; None if it can."""
    if name.startswith("$"):
        return "names that begin with $ belong to the server"
    return topic_problem(topic_of(name))


@dataclass(frozen=True, slots=True)
class ParsedFilter:
    text: str
    """As the client wrote it."""
    group: str | None
    """The name of the shared subscription; None for an ordinary one."""
    pattern: str
    """Without the name of the group."""
    topic_pattern: str
    """The pattern in the network."""


def parsed_filter(text: str) -> ParsedFilter | str:
    """The parts of a filter, or the reason why it is not valid."""
    group, pattern = None, text
    if text.startswith(SHARE):
        group, _, pattern = text.removeprefix(SHARE).partition("/")
        if not group or "+" in group or "#" in group or not pattern:
            return "a shared subscription is $share/<name>/<filter>"
    if not pattern:
        return "the topic filter is empty"
    if pattern.startswith("$"):
        return "there are no such topics; channels are $channels/<name>?<parameters>"
    problem = _wildcard_problem(pattern) or pattern_problem(topic_of(pattern))
    return problem or ParsedFilter(text, group, pattern, topic_of(pattern))


def _wildcard_problem(pattern: str) -> str | None:
    levels = pattern.split("/")
    for index, level in enumerate(levels):
        if ("+" in level and level != "+") or ("#" in level and (level != "#" or index < len(levels) - 1)):
            return "+ stands for a whole level, and # for the last levels"
    return None


def parsed_channel(text: str) -> tuple[str, dict[str, str]] | str:
    """The channel and the parameters of `$channels/NearMe?me=u1&radius_m=500`, or the reason why it is not valid."""
    channel, _, query = text.removeprefix(CHANNELS).partition("?")
    channel = unquote(channel)
    if not channel or "/" in channel or "+" in channel or "#" in channel:
        return "a channel is $channels/<name>?<parameter>=<value>&..."
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        return "the parameters are <parameter>=<value>, joined by &"
    if len(dict(pairs)) < len(pairs):
        return "a parameter appears twice"
    return channel, dict(pairs)
