"""Scopes of topics."""

from __future__ import annotations

from tocsin.model.permission import RECEIVE, RELAYED_TOPICS, SEND, permits_topic


def test_topics_of_brokers_must_be_named_by_a_scope() -> None:
    control = "~24mqtt/control"
    assert not permits_topic({"send:#", "send:+/control"}, SEND, control)
    assert permits_topic({"send:~24mqtt/#"}, SEND, control)
    assert permits_topic(RELAYED_TOPICS, SEND, control)
    assert permits_topic(RELAYED_TOPICS, RECEIVE, control)
    assert permits_topic(RELAYED_TOPICS, RECEIVE, "swarm/3")
